"""Training, validation and test text of a new config: one text that is split, or given texts."""

import contextlib
import itertools
import os
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from tformer_cli.config.schema.text import Bitext, ParallelText
from tformer_cli.corpus.line_keys import EMPTY_KEY, line_key
from tformer_cli.corpus.overlap import overlaps
from tformer_cli.corpus.reader import counted, read_texts, text_changed
from tformer_cli.errors import DataError, UsageError, quantity
from tformer_cli.storage.atomic import atomic_directory, read_json, write_json
from tformer_cli.text.language import side_names

# Maximum number of pairs in each held-out part.
MAX_HELD_OUT = 1000
_HELD_OUT_FRACTION = 20
# Distinct words that are counted at least, if a text has so many: the largest vocabulary of the
# starter templates.
MAX_WORDS = 32_000
# Two letters or more; a single one is no subword beside its character.
_WORD = re.compile(r"[^\W\d_]{2,}")
_ORIGIN = "origin.json"

OnRead = Callable[[int], object]

# The part of a split that a pair belongs to. The first three are written.
TRAIN, VALID, TEST, SET_ASIDE, LEFT_OUT = range(5)
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Training, validation and test text."""

    texts: dict[str, Bitext]  # `train`, `valid` and optionally `test`
    num_pairs: dict[str, int]  # of each of them; those of `train` have no empty side
    num_in_training: dict[str, int]  # pairs of `valid` and `test` that are also training pairs
    num_set_aside: int  # pairs in no part, since a side of them is in validation or test text
    num_empty: int  # further pairs, with an empty side, which training leaves out
    num_characters: int  # distinct characters of the text that was split
    num_words: int  # distinct words; counting stops when there are `MAX_WORDS`


def split_text(
    text: Bitext,
    output: Path,
    languages: tuple[str, str],
    *,
    overwrite: bool = False,
    on_done: OnRead = lambda count: None,
) -> Split:
    """Split a parallel text into a directory of training, validation and test text, atomically.

    No side of a test pair is in validation text, and no side of either is in training text. The
    text is read twice; `on_done` is called with the number of pairs read. File names end in the
    languages. A directory made of other files is replaced only with `overwrite`.
    """
    endings = side_names(languages)
    names = {part: tuple(f"{part}.{ending}" for ending in endings) for part in SPLITS}
    origin: dict[str, object] = {
        "files": sorted(itertools.chain.from_iterable(names.values())),
        **{side: _file_state(file) for side, file in text.files.items()},
        **({"reading": text.reading} if text.reading else {}),
    }
    if output.exists():
        _check_replaceable(output, origin, text, overwrite)
    keys, characters, words = _inventory(text, on_done)
    _check_pairs(text, keys)
    parts = assign_parts(keys)
    *num_pairs, num_set_aside, num_empty = np.bincount(parts, minlength=LEFT_OUT + 1).tolist()
    if not all(num_pairs):
        raise DataError(
            str(text.source_file),
            "needs at least 3 pairs that share no line, for training, validation and test",
            got=quantity(len(keys), "pair"),
            remedy="give `valid`",
        )
    with atomic_directory(output) as temporary:
        _write_parts(text, parts, temporary, list(names.values()), on_done)
        # Last, so that a part edited later is newer.
        write_json(temporary / _ORIGIN, origin)
    return Split(
        texts={
            part: ParallelText(source=output / source, target=output / target)
            for part, (source, target) in names.items()
        },
        num_pairs=dict(zip(SPLITS, num_pairs, strict=True)),
        num_in_training={"valid": 0, "test": 0},
        num_set_aside=num_set_aside,
        num_empty=num_empty,
        num_characters=len(characters),
        num_words=len(words),
    )


def given_split(text: Bitext, valid: Bitext, *, on_done: OnRead = lambda count: None) -> Split:
    """Return a training text and a validation text as they are; both are read twice."""
    overlap = overlaps(counted(read_texts([text]), on_done), {"valid": valid})["valid"]
    keys, characters, words = _inventory(text, on_done)
    _check_pairs(text, keys)
    valid_keys, *_ = _inventory(valid, lambda count: None)
    _check_pairs(valid, valid_keys)
    num_empty = int(_has_empty_side(keys).sum())
    return Split(
        texts={"train": text, "valid": valid},
        num_pairs={"train": len(keys) - num_empty, "valid": len(valid_keys)},
        num_in_training={"valid": overlap.pairs},
        num_set_aside=0,
        num_empty=num_empty,
        num_characters=len(characters),
        num_words=len(words),
    )


def assign_parts(keys: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return the part of each pair.

    5% of the distinct sources, at most 1,000, become validation text, and as many test text: those
    whose source and target are repeated least, ties broken by hash. Other pairs that share a source
    or a target with them are set aside; a pair with an empty side is in no part. `keys` has (n, 2)
    hashes of sources and targets.
    """
    parts = np.full(len(keys), TRAIN, dtype=np.uint8)
    num_copies = _num_occurrences(keys[:, 0]) + _num_occurrences(keys[:, 1])
    num_each = max(1, min(MAX_HELD_OUT, len(np.unique(keys[:, 0])) // _HELD_OUT_FRACTION))
    sources, targets = {EMPTY_KEY}, {EMPTY_KEY}
    for index in np.lexsort((keys[:, 0], num_copies)):
        source, target = map(int, keys[index])
        if source in sources or target in targets:
            continue
        # Alternating, so that both parts are alike.
        parts[index] = (VALID, TEST)[(len(sources) - 1) % 2]
        sources.add(source)
        targets.add(target)
        if len(sources) > 2 * num_each:
            break
    repeats = _is_in(keys[:, 0], sources) | _is_in(keys[:, 1], targets)
    parts[repeats & (parts == TRAIN)] = SET_ASIDE
    parts[_has_empty_side(keys)] = LEFT_OUT
    return parts


def _inventory(text: Bitext, on_done: OnRead) -> tuple[NDArray[np.uint64], set[str], set[str]]:
    """Return the keys of all lines, (n, 2), their characters, and their first `MAX_WORDS` words."""
    keys, characters, words = array("Q"), set[str](), set[str]()
    for source, target in counted(read_texts([text]), on_done):
        keys.append(line_key(source))
        keys.append(line_key(target))
        characters.update(source, target)
        if len(words) < MAX_WORDS:
            words.update(_WORD.findall(source), _WORD.findall(target))
    return np.frombuffer(keys, dtype=np.uint64).reshape(-1, 2), characters, words


def _num_occurrences(keys: NDArray[np.uint64]) -> NDArray[np.intp]:
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[inverse]


def _has_empty_side(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    is_empty: NDArray[np.bool_] = keys == EMPTY_KEY
    return is_empty[:, 0] | is_empty[:, 1]


def _check_pairs(text: Bitext, keys: NDArray[np.uint64]) -> None:
    """Refuse a text without pairs, and one of which all would be left out."""
    if not len(keys):
        raise DataError(str(text.source_file), "no lines", remedy="name a file with text")
    if _has_empty_side(keys).all():
        raise DataError(
            str(text.source_file),
            "every pair has an empty side",
            got=quantity(len(keys), "pair"),
            remedy="name a text whose lines have translations",
        )


def _is_in(keys: NDArray[np.uint64], selected: set[int]) -> NDArray[np.bool_]:
    return np.isin(keys, np.array(sorted(selected), dtype=np.uint64))


def _write_parts(
    text: Bitext,
    parts: NDArray[np.uint8],
    directory: Path,
    names: Sequence[Sequence[str]],
    on_done: OnRead,
) -> None:
    """Write the pairs of part p to the files names[p]."""
    pairs = counted(read_texts([text]), on_done)
    with contextlib.ExitStack() as stack:
        writers: list[list[TextIO]] = [[] for _ in range(LEFT_OUT + 1)]
        for part, sides in enumerate(names):
            for name in sides:
                file = (directory / name).open("w", encoding="utf-8", newline="\n")
                writers[part].append(stack.enter_context(file))
        for part, pair in itertools.zip_longest(parts.tobytes(), pairs):
            if part is None or pair is None:
                raise text_changed(str(text.source_file))
            for writer, line in zip(writers[part], pair, strict=False):
                writer.write(f"{line}\n")


def _file_state(file: Path) -> dict[str, object]:
    """Return what changes with the file; nothing of one that reading will report."""
    try:
        status = file.stat()
    except OSError:
        return {}
    return {
        "path": str(file.resolve()),
        "num_bytes": status.st_size,
        "modified_ns": status.st_mtime_ns,
    }


def _check_replaceable(
    output: Path, origin: Mapping[str, object], text: Bitext, overwrite: bool
) -> None:
    """Refuse to replace a directory with files of the user."""
    where = str(output)
    remedy = "choose another `output`"
    folder = os.path.realpath(output)
    if any(Path(os.path.realpath(file)).is_relative_to(folder) for file in text.files.values()):
        what = "contains one of the given texts, which would be lost"
        raise UsageError(where, what, remedy=remedy)
    previous = _origin_of(output)
    if not previous:
        raise UsageError(where, "was not written by config new", remedy=remedy)
    if not overwrite and (previous != origin or _is_edited(output)):
        remedy = f"{remedy}, or add `overwrite=True`"
        raise UsageError(where, "already exists", remedy=remedy)


def _origin_of(directory: Path) -> dict[str, object] | None:
    """Return the origin of a directory that `split_text` wrote, else None."""
    try:
        origin: dict[str, Any] = read_json(directory / _ORIGIN)
        known = {_ORIGIN, *origin["files"]}
        names = {path.name for path in directory.iterdir()}
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return origin if names <= known else None


def _is_edited(directory: Path) -> bool:
    written_ns = (directory / _ORIGIN).stat().st_mtime_ns
    return any(file.stat().st_mtime_ns > written_ns for file in directory.iterdir())
