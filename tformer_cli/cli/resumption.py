"""What decides the translations of a file, so that nothing goes on with those of something else."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.version import __version__

# What says where and how fast, and what is told by the models and the search themselves.
WITHOUT_EFFECT = {"output_file", "resume", "device", "workers"}
TOLD_OTHERWISE = {"words", "ensemble", "checkpoint", "beam", "length_penalty", "settings"}


def made_from(
    context: typer.Context, fingerprints: Sequence[str], decoding: DecodingConfig
) -> Mapping[str, object]:
    """Return by name all that decides what a command writes, as JSON has it.

    Of a file that is its content.

    Args:
        context: the command line.
        fingerprints: of the models that translate.
        decoding: the search.
    """
    found: dict[str, object] = {
        "tformer": __version__,
        "model": list(fingerprints),
        **{f"decoding.{key}": value for key, value in asdict(decoding).items()},
    }
    for option in context.command.params:
        name = option.name or ""
        if name in context.params and name not in WITHOUT_EFFECT | TOLD_OTHERWISE:
            value = context.params[name]
            is_file = isinstance(value, Path) and value.is_file()
            found[option.opts[0]] = _content(value) if is_file else value
    # As it will be when it is read again.
    known: dict[str, object] = json.loads(json.dumps(found, default=str))
    return known


def _content(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
