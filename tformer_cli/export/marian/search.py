"""What generation_config.json of a Marian model says of the search for translations.

Keys that it has and we have too are taken over: `num_beams`, `length_penalty`, `max_new_tokens` and
`max_length`. The rest of that file is not read, and what it does not say is as in our own configs:
transformers assumes greedy search and 20 tokens there, which no one has chosen for the model. Its
beam search ends by another rule, and where it forces an end on a translation that is too long
(`forced_eos_token_id`), ours is cut off.
"""

from pathlib import Path
from typing import Any

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.config.schema.fields import check
from tformer_cli.errors import Problem
from tformer_cli.export.marian.settings import Settings


def read_search(file: Path) -> DecodingConfig:
    """Read generation_config.json; where there is none, our own search.

    Raises:
        CheckpointError: the file is damaged.
        ConfigError: it asks for what no search of ours is.
    """
    if not file.is_file():
        return BeamConfig()
    settings = Settings(file)
    search = _search(settings)
    for conflict in [] if settings.problems else check(search, "decoding"):
        remedy = f"mend {file.name}, or remove it to have a search of ours"
        settings.note(Problem(conflict.key, conflict.what, conflict.got, remedy))
    settings.check()
    return search


def _search(settings: Settings) -> DecodingConfig:
    """Return the search of a file; what is wrong is noted."""

    def says(key: str) -> bool:
        # transformers writes null where nothing was chosen.
        return settings.values.get(key) is not None

    limits: dict[str, Any] = {}
    if says("max_new_tokens"):
        limits["max_length"] = settings.take("max_new_tokens", int)
    elif says("max_length"):
        # It counts the token that a translation begins with.
        limits["max_length"] = settings.take("max_length", int) - 1
    beam: dict[str, Any] = {}
    if says("num_beams"):
        beam["beam_size"] = settings.take("num_beams", int)
    if says("length_penalty"):
        beam["length_penalty"] = settings.take("length_penalty", float)
    if beam.get("beam_size") == 1:
        return GreedyConfig(**limits)
    return BeamConfig(**limits, **beam)
