"""JSON settings of transformers' folders by ours, both ways: what all families have alike."""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tformer_cli.config.load import as_plain
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.config.schema.fields import check
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.errors import CheckpointError, ConfigError, Problem, has_surrogate
from tformer_cli.storage.atomic import read_json

SETTINGS_FILE, SEARCH_FILE = "config.json", "generation_config.json"
LANGUAGES_FILE, PICKLE_FILE = "tokenizer_config.json", "pytorch_model.bin"

# Our keys by those of Marian, M2M-100, NLLB and mBART. Two of one key have one value.
SIZES = {
    "d_model": "dim",
    "encoder_layers": "num_encoder_layers",
    "decoder_layers": "num_decoder_layers",
    "encoder_attention_heads": "num_heads",
    "decoder_attention_heads": "num_heads",
    "encoder_ffn_dim": "feedforward_dim",
    "decoder_ffn_dim": "feedforward_dim",
}
DROPOUTS = {
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "feedforward_dropout",
}
# Our activations by theirs; of two names for one, the last is its own.
OUR_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
THEIR_ACTIVATIONS = {ours: theirs for theirs, ours in OUR_ACTIVATIONS.items()}

# transformers' defaults of missing keys.
DEFAULTS: dict[str, Any] = {
    "scale_embedding": False,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "separate_vocabs": False,
}
RESTORE = "fetch the folder again"

KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
Kind = TypeVar("Kind", int, float, bool, str)


def json_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    try:
        content = read_json(file)
    except (OSError, ValueError) as error:
        raise CheckpointError(str(file), "is not JSON", got=str(error), remedy=RESTORE) from None
    if not isinstance(content, dict):
        got = type(content).__name__
        raise CheckpointError(str(file), "must be a JSON object", got=got, remedy=RESTORE)
    return content


def vocabulary_ids(file: Path) -> dict[str, int]:
    """Return the id of each piece in a vocabulary of JSON."""
    ids = json_object(file)
    got = None
    if not all(type(i) is int for i in ids.values()):
        got = "an id that is no whole number"
    elif any(map(has_surrogate, ids)):
        # JSON escaped one of the two surrogates of a character without the other.
        got = "half a character of Unicode"
    if got is not None:
        raise CheckpointError(str(file), "is not a vocabulary", got=got, remedy=RESTORE)
    return ids


class Settings:
    """The JSON object of a file, and all problems found in it."""

    def __init__(self, file: Path, values: dict[str, Any]) -> None:
        self.file = file
        self.values = DEFAULTS | values
        self.problems: list[Problem] = []

    def take(self, key: str, kind: type[Kind]) -> Kind:
        """Return a value; note a missing or mistyped one, and return an empty one."""
        value: Any = self.values.get(key)
        if kind is float and type(value) in (int, float):
            # Python's JSON has NaN, Infinity and whole numbers of any size.
            if abs(value) <= sys.float_info.max:
                return kind(value)
        elif type(value) is kind:
            return value
        got = "nothing" if value is None else json.dumps(value)
        self.note(Problem(key, f"must be {KINDS[kind]}", got))
        return kind()

    def choose(self, key: str, choices: Mapping[str, Any]) -> Any:
        """Return what a value stands for; note an unknown one, and return the first of all."""
        value = self.take(key, str)
        if value not in choices:
            self.note(Problem(key, f"must be one of {', '.join(choices)}", value))
        return choices.get(value, next(iter(choices.values())))

    def note(self, problem: Problem) -> None:
        """Note a problem of a key."""
        self.problems.append(replace(problem, where=f"{self.file}: {problem.where}"))

    def check(self, config: object = None, key: str = "", remedy: str | None = None) -> None:
        """Raise ConfigError with all problems, or else with what our schema says of a config."""
        for conflict in [] if self.problems or config is None else check(config, key):
            self.note(replace(conflict, remedy=remedy))
        if self.problems:
            raise ConfigError(self.problems)


def network_settings(model: EncoderDecoderConfig, kind: str, architecture: str) -> dict[str, Any]:
    """Return the part of config.json that Marian, M2M-100, NLLB and mBART have alike."""
    return {
        "architectures": [architecture],
        "model_type": kind,
        "is_encoder_decoder": True,
        **{theirs: getattr(model, ours) for theirs, ours in SIZES.items()},
        "activation_function": THEIR_ACTIVATIONS[model.activation],
        **{theirs: model.own_dropout(getattr(model, ours)) for theirs, ours in DROPOUTS.items()},
    }


def read_network(settings: Settings) -> dict[str, Any]:
    """Return our keys of that part; problems are noted."""
    network: dict[str, Any] = {}
    for key, ours in SIZES.items():
        size = settings.take(key, int)
        if size != network.setdefault(ours, size):
            rule = f"must be {network[ours]}, as {key.replace('decoder', 'encoder')}"
            settings.note(Problem(key, rule, str(size)))
    network |= {ours: settings.take(theirs, float) for theirs, ours in DROPOUTS.items()}
    return network | {"activation": settings.choose("activation_function", OUR_ACTIVATIONS)}


def differences(required: Mapping[str, tuple[object, object]], model: str) -> Iterator[Problem]:
    """Yield the keys of a config whose actual value, the second one, is not the required first."""
    for key, (value, actual) in required.items():
        if actual != value:
            yield Problem(key, f"must be {_shown(value)} in a {model} model", _shown(actual))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else getattr(value, "kind", json.dumps(as_plain(value)))


def check_files(folder: Path, weights: Path, names: Sequence[str], kind: str, loader: str) -> None:
    """Refuse a folder with weights as a pickle only, without weights, or without one of its files.

    `kind` is of the model as people call it, `loader` the class of transformers that converts it.
    """
    if (folder / PICKLE_FILE).exists() and not weights.exists():
        path = json.dumps(str(folder))
        saving = f"{loader}.from_pretrained({path}).save_pretrained({path})"
        code = f"from transformers import {loader}; {saving}"
        raise CheckpointError(
            str(folder / PICKLE_FILE),
            f"is a pickle, which can run any program; only {weights.name} is read",
            remedy=f"if you trust it, convert it: {shlex.join(['python', '-c', code])}",
        )
    for name in (weights.name, *names):
        if not (folder / name).is_file():
            remedy = f"name a folder of {kind} as transformers saves it"
            raise CheckpointError(str(folder / name), "no such file", remedy=remedy)


def data_config(source: str, target: str) -> DataConfig:
    """Return the text files that a further training expects below its `data.root`."""
    return DataConfig(
        source_language=source,
        target_language=target,
        train=(TrainingText(source=Path(f"train.{source}"), target=Path(f"train.{target}")),),
        valid=ParallelText(source=Path(f"valid.{source}"), target=Path(f"valid.{target}")),
    )


def read_search(file: Path) -> DecodingConfig:
    """Read a search out of generation_config.json.

    That is `num_beams`, `length_penalty`, `no_repeat_ngram_size`, `max_new_tokens` and
    `max_length`. Missing keys have our defaults, not transformers' (greedy search and 20 tokens),
    which nobody chose for the model. Marian's beam search ends by another rule, and it forces EOS
    on a translation that is too long (`forced_eos_token_id`), where ours is cut off.
    """
    if not file.is_file():
        return BeamConfig()
    settings = Settings(file, json_object(file))
    # transformers writes null for what nobody chose.
    chosen = {key for key, value in settings.values.items() if value is not None}
    limits: dict[str, Any] = {}
    beam: dict[str, Any] = {}
    if "max_new_tokens" in chosen:
        limits["max_length"] = settings.take("max_new_tokens", int)
    elif "max_length" in chosen:
        # It counts the decoder start token.
        limits["max_length"] = settings.take("max_length", int) - 1
    if "no_repeat_ngram_size" in chosen:
        limits["no_repeat_ngram_size"] = settings.take("no_repeat_ngram_size", int)
    if "num_beams" in chosen:
        beam["beam_size"] = settings.take("num_beams", int)
    if "length_penalty" in chosen:
        beam["length_penalty"] = settings.take("length_penalty", float)
    is_greedy = beam.get("beam_size") == 1
    search = GreedyConfig(**limits) if is_greedy else BeamConfig(**limits, **beam)
    remedy = f"correct {file.name}, or remove it to have a search of ours"
    settings.check(search, "decoding", remedy)
    return search


def search_limits(config: Config) -> dict[str, Any]:
    """Return the run's search, as far as transformers has it."""
    search = config.decoding
    beam: dict[str, Any] = {"num_beams": 1}
    if isinstance(search, BeamConfig):
        beam = {"num_beams": search.beam_size, "length_penalty": search.length_penalty}
    limits = {"max_new_tokens": search.max_length}
    if size := search.no_repeat_ngram_size:
        limits["no_repeat_ngram_size"] = size
    return limits | beam
