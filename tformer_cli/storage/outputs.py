"""Several files of one output: their names begin alike, and none of them replaces an input."""

import os
from collections.abc import Sequence
from pathlib import Path

from tformer_cli.errors import UsageError


def output_files(output: str | os.PathLike[str], names: Sequence[str]) -> list[Path]:
    """Return OUTPUT.NAME for each name, as absolute paths; of OUTPUT.gz, OUTPUT.NAME.gz.

    Raises:
        UsageError: the output names a folder.
    """
    text = os.fspath(output)
    if os.path.basename(text) in ("", ".", ".."):
        what = "must be what names of files begin with, not a folder"
        remedy = f"add a name, such as {os.path.join(text, 'text')}"
        raise UsageError("`output`", what, got=text or "an empty text", remedy=remedy)
    prefix = Path(os.path.abspath(text))
    ending = ".gz" if prefix.suffix == ".gz" else ""
    return [Path(f"{str(prefix).removesuffix(ending)}.{name}{ending}") for name in names]


def check_outputs(inputs: Sequence[Path], outputs: Sequence[Path]) -> None:
    """Refuse to write over an input, or to read it from what can be read only once."""
    for file in inputs:
        if file.exists() and not file.is_file():
            what = "must be a regular file"
            raise UsageError(str(file), what, remedy="write it to a file first")
    texts = {os.path.realpath(file) for file in inputs}
    for file in outputs:
        if os.path.realpath(file) in texts:
            what = "would replace the text"
            raise UsageError("`output`", what, got=str(file), remedy="choose another name")
