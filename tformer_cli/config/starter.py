"""First configurations: one for a text, from a template, and those that come with the package."""

import itertools
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from tformer_cli.config.load import to_yaml
from tformer_cli.config.schema.text import Bitext, PairsFile, TrainingBitext
from tformer_cli.errors import UsageError
from tformer_cli.storage.atomic import atomic_write, write_text

_PACKAGE = Path(__file__).parents[1]
_TEMPLATES = _PACKAGE / "config" / "templates"
_SHIPPED = _PACKAGE / "shipped"
SHIPPED = ("configs", "data/demo")
# Template and usual vocabulary size by the maximum number of pairs; so few pairs as those of the
# first template teach no subwords.
_SIZES = (
    (500, ("tiny", 0)),
    (2_000, ("mini", 1000)),
    (5_000, ("small", 2000)),
    (15_000, ("medium", 4000)),
    (50_000, ("medium", 6000)),
    (300_000, ("large", 8000)),
    (1_000_000, ("huge", 10_000)),
    (math.inf, ("giant", 32_000)),
)
# Of fewer pairs, words are too rare to be aligned; of more, phrases help with some texts alone.
_TEMPLATE_WITH_PHRASES = "mini"
# A sentence has some five to twenty phrases, of which most have few words.
_WEIGHT_BESIDE_PHRASES = 4
_COMMENT_COLUMN = 34


def takes_phrases(num_pairs: int) -> bool:
    """Return whether a training on so many pairs shall take their phrase pairs too."""
    template, _ = _size(num_pairs)
    return template == _TEMPLATE_WITH_PHRASES


def write_starter(
    config: Path,
    texts: Mapping[str, Bitext],
    languages: tuple[str, str],
    *,
    num_pairs: int,
    num_characters: int,
    num_words: int,
) -> None:
    """Write a commented configuration of a size that suits a text.

    `texts` are `train`, `valid`, and optionally `test` and the `phrases` of `train`. The training
    text has so many pairs, and so many distinct characters and words.
    """
    template, usual_size = _size(num_pairs)
    # BPE ends when each word is a subword; a text of few words has no more of them.
    size = min(usual_size, num_words // 100 * 100)
    # Bytes, special tokens, all characters, and as many subwords. So many, without those of the
    # space, a text has even where each word is a character, and few words may give no more.
    needed = 16 + 256 + 2 * num_characters
    needed = math.ceil(needed / 100) * 100 if size else needed - 2
    items = {name: _item(text, config.parent) for name, text in texts.items()}
    train = [items["train"]]
    if "phrases" in items:
        train = [_item(texts["train"], config.parent, _WEIGHT_BESIDE_PHRASES), items["phrases"]]
    no_test = "# test: {NAME: {source: FILE, target: FILE}}"
    values = {
        "num_pairs": f"{num_pairs:,}",
        "source_language": _scalar(languages[0]),
        "target_language": _scalar(languages[1]),
        "train": ",\n          ".join(train),
        "valid": items["valid"],
        "test": f"test: {{test: {items['test']}}}" if "test" in items else no_test,
        "vocab_size": str(max(size, needed)),
    }
    with (_TEMPLATES / f"{template}.yaml").open(encoding="utf-8") as lines:
        write_text(config, "".join(_filled(line, values) for line in lines))


def check_replaceable(output: Path, given: Mapping[str, Path], *, overwrite: bool) -> None:
    """Check that a configuration may be written: over no file, and never over a given text."""
    if os.path.realpath(output) in map(os.path.realpath, given.values()):
        what = "is one of the given texts, and would be lost"
        raise UsageError(str(output), what, remedy="choose another `output`")
    if output.is_dir():
        raise UsageError(str(output), "is a folder", remedy="name a file in it")
    if output.exists() and not overwrite:
        remedy = "choose another `output`, or add `overwrite=True`"
        raise UsageError(str(output), "already exists", remedy=remedy)


def write_shipped(folder: Path, names: Sequence[str] = SHIPPED) -> dict[str, int]:
    """Copy what comes with the package into a folder: example configs and the demo text.

    Existing copies are kept; if a file has other content, nothing is written.

    Args:
        folder: where to write.
        names: folders and files below `shipped/`, which get the same path below `folder`.

    Returns:
        The number of files of each name.
    """
    files = {name: _files(_SHIPPED / name) for name in names}
    missing = []
    for file in itertools.chain.from_iterable(files.values()):
        copy = folder / file.relative_to(_SHIPPED)
        if not copy.exists():
            missing.append((file, copy))
        elif not copy.is_file() or copy.read_bytes() != file.read_bytes():
            raise UsageError(
                str(copy), "already exists with other content", remedy="name another folder"
            )
    for file, copy in missing:
        with atomic_write(copy) as temporary:
            shutil.copyfile(file, temporary)
    return {name: len(copies) for name, copies in files.items()}


def shipped_config(name: str) -> Path:
    """Return the file of an example config, such as `demo.yaml`, in the package."""
    return _SHIPPED / "configs" / name


def _files(path: Path) -> list[Path]:
    """Return a file, or the files of a folder."""
    return sorted(path.iterdir()) if path.is_dir() else [path]


def _filled(line: str, values: Mapping[str, str]) -> str:
    """Return a line of a template with values, its comment in a column of its own."""
    setting, mark, comment = line.rpartition(" # ")
    if not mark:
        return Template(line).substitute(values)
    setting = Template(setting.rstrip()).substitute(values)
    return f"{setting:<{_COMMENT_COLUMN}} # {comment}"


def _size(num_pairs: int) -> tuple[str, int]:
    """Return the template and the usual vocabulary size for a number of pairs."""
    return next(size for limit, size in _SIZES if num_pairs <= limit)


def _item(text: Bitext, folder: Path, weight: int = 1) -> str:
    """Return a text as YAML between braces, as a config in a folder names it."""
    values = {}
    for key, file in text.files.items():
        name = Path(os.path.relpath(file, folder)).as_posix()
        # A leading tilde would mean a home folder.
        values[key] = _scalar(f"./{name}" if name[0] == "~" else name)
    if isinstance(text, PairsFile) and text.source_field and text.target_field:
        values["source_field"] = _scalar(text.source_field)
        values["target_field"] = _scalar(text.target_field)
    if isinstance(text, PairsFile) and text.on_error != "stop":
        values["on_error"] = text.on_error
    if weight != 1:
        values["weight"] = str(weight)
    if isinstance(text, TrainingBitext) and text.extract is not None:
        values["extract"] = text.extract
        values["tags"] = to_yaml(list(text.tags)).strip()
    return f"{{{', '.join(f'{key}: {value}' for key, value in values.items())}}}"


def _scalar(text: str) -> str:
    """Return a text as YAML that may stand between braces, quoted if needed."""
    return to_yaml([text])[1:-2]
