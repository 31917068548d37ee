"""What a model was trained as, which config.yaml and tokenizer/ beside it must still say."""

import re
from collections.abc import Mapping
from pathlib import Path

from tformer_cli.config.schema.config import Config, leaves
from tformer_cli.errors import CheckpointError
from tformer_cli.text.tokenizer import Tokenizers

# Of a config, what decides which function the weights are part of, and which ids a text becomes.
SECTIONS = ("model", "tokenizer")

# What the weights of a plain folder say besides those settings, in the metadata of their file.
TOKENIZERS_NOTE = "tokenizer_fingerprint"
SENTENCES_NOTE = "max_source_sentences"
_SENTENCES = re.compile("[1-9][0-9]{0,8}")


def model_settings(config: Config) -> dict[str, str]:
    """Return the settings of the network and of its tokenizers, by key path."""
    return {
        key: str(value)
        for section in SECTIONS
        for key, value in leaves(getattr(config, section), section)
    }


def check_settings(saved: Mapping[str, str], config: Config, file: Path) -> None:
    """Refuse a config that describes another function than the one that was trained.

    Args:
        saved: settings of the training, by key path; an older program may have written none.
        config: what is there now.
        file: that it is from.

    Raises:
        CheckpointError: a setting differs.
    """
    now = model_settings(config)
    then = {key: value for key, value in saved.items() if key.split(".")[0] in SECTIONS}
    for key in (*now, *then):
        was, is_now = _value(key, then), _value(key, now)
        # A key that one of the two programs does not know is not compared.
        if was is not None and is_now is not None and was != is_now:
            raise CheckpointError(
                str(file),
                f"{key} is not what the model was trained with ({was})",
                got=is_now,
                remedy="restore the config.yaml that the run was trained with",
            )


def check_tokenizers(saved: str, tokenizers: Tokenizers, folder: Path) -> None:
    """Refuse tokenizers that are not those of the training.

    Args:
        saved: their fingerprint; empty where an older program wrote none.
        tokenizers: what is there now.
        folder: that they are from.

    Raises:
        CheckpointError: a text becomes other ids.
    """
    if saved not in ("", tokenizers.fingerprint):
        raise CheckpointError(
            str(folder),
            "does not hold the tokenizers that the model was trained with",
            remedy="restore the folder, or train again",
        )


def _value(key: str, settings: Mapping[str, str]) -> str | None:
    """Return a setting; of a key in a section that is null, the null; or None."""
    while key not in settings and key:
        key = key.rpartition(".")[0]
    return settings.get(key)


def noted_sentences(notes: Mapping[str, str]) -> int | None:
    """Return the number of sentences of a training line, where notes say it."""
    noted = notes.get(SENTENCES_NOTE, "")
    # A folder from elsewhere may say anything.
    return int(noted) if _SENTENCES.fullmatch(noted) else None
