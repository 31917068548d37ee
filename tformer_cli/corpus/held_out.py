"""Validation and test text that is held out from training, which repeats none of it."""

import contextlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tformer_cli.config.schema.data import ParallelText
from tformer_cli.corpus.overlap import BLANK, line_key, overlaps
from tformer_cli.corpus.reader import read_pairs
from tformer_cli.errors import DataError, UsageError
from tformer_cli.json_text import read_json
from tformer_cli.storage.atomic import atomic_directory, write_json

MAX_HELD_OUT = 1000
"""Largest number of pairs in each held-out part."""

_HELD_OUT_SHARE = 20
_ORIGIN = "origin.json"


class Part(IntEnum):
    """What becomes of a pair."""

    TRAIN = 0
    VALID = 1
    TEST = 2
    SET_ASIDE = 3


_WRITTEN = (Part.TRAIN, Part.VALID, Part.TEST)


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Training, validation and test text.

    Attributes:
        texts: `train`, `valid` and, if there is one, `test`.
        num_pairs: in each of them.
        num_in_training: pairs of `valid` and `test` that are also training pairs.
        num_set_aside: pairs in none of them, since they repeat a source or a target of the
            validation or test text.
        num_characters: different ones in the text that training text was taken from.
    """

    texts: dict[str, ParallelText]
    num_pairs: dict[str, int]
    num_in_training: dict[str, int]
    num_set_aside: int
    num_characters: int


def split_text(
    text: ParallelText,
    output: Path,
    languages: tuple[str, str],
    *,
    overwrite: bool = False,
    on_done: Callable[[int], object] = lambda count: None,
) -> Split:
    """Write the training, validation and test part of a parallel text into a folder.

    The folder appears as a whole. No source and no target of the validation or test text is in
    the training text, nor one of the test text in the validation text.

    Args:
        text: what to divide; it is read twice.
        output: the folder to write; one that was written of the same files is replaced.
        languages: of source and target, which the file names end in.
        overwrite: whether a folder that was written of other files may be replaced.
        on_done: called with the number of pairs whenever some are read.

    Raises:
        DataError: the text cannot be read, or is too short to be divided.
        UsageError: the folder is there already, or contains one of the files.
    """
    source, target = languages
    endings = languages if source != target else (f"source.{source}", f"target.{target}")
    names = {
        part: tuple(f"{part.name.lower()}.{ending}" for ending in endings) for part in _WRITTEN
    }
    origin = {
        "files": sorted(name for sides in names.values() for name in sides),
        **{side: _identity(file) for side, file in text.files.items()},
    }
    _check_replaceable(output, origin, text, overwrite)
    keys, num_characters = _keys_and_characters(text, on_done)
    if not len(keys):
        raise DataError(str(text.source), "has no lines")
    parts = assign(keys)
    num_pairs = {part: int((parts == part).sum()) for part in Part}
    if not all(num_pairs[part] for part in _WRITTEN):
        raise DataError(
            str(text.source),
            "needs at least 3 pairs that share no line, for training, validation and test",
            got=f"{len(keys):,} pairs",
            remedy="give `valid`",
        )
    with atomic_directory(output) as temporary:
        files = {part: [temporary / name for name in names[part]] for part in names}
        _write_parts(text, parts, files, on_done)
        # Last, so that a part which is changed later on is newer.
        write_json(temporary / _ORIGIN, origin)
    return Split(
        texts={
            part.name.lower(): ParallelText(source=output / source, target=output / target)
            for part, (source, target) in names.items()
        },
        num_pairs={part.name.lower(): num_pairs[part] for part in _WRITTEN},
        num_in_training={"valid": 0, "test": 0},
        num_set_aside=num_pairs[Part.SET_ASIDE],
        num_characters=num_characters,
    )


def given_split(
    text: ParallelText,
    valid: ParallelText,
    *,
    on_done: Callable[[int], object] = lambda count: None,
) -> Split:
    """Return a training text and a validation text as they are.

    Args:
        text: for training; it is read twice.
        valid: for validation.
        on_done: called with the number of training pairs whenever some are read.

    Raises:
        DataError: one of them cannot be read, or has no lines.
    """
    overlap = overlaps(_pairs(text, on_done), {"valid": valid})["valid"]
    keys, num_characters = _keys_and_characters(text, on_done)
    num_pairs = {"train": len(keys), "valid": overlap.num_pairs}
    texts = {"train": text, "valid": valid}
    for name, each in texts.items():
        if not num_pairs[name]:
            raise DataError(str(each.source), "has no lines")
    return Split(
        texts=texts,
        num_pairs=num_pairs,
        num_in_training={"valid": overlap.pairs},
        num_set_aside=0,
        num_characters=num_characters,
    )


def assign(keys: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return the `Part` of each pair.

    5 % of the different sources, at most 1,000, become validation text, as many test text: first
    those whose source and target are repeated least, among equals by hash. Pairs that share a
    source or a target with one of them are set aside.

    Args:
        keys: of the source and the target of each pair (num_pairs, 2).
    """
    parts = np.full(len(keys), Part.TRAIN, dtype=np.uint8)
    num_copies = _num_occurrences(keys[:, 0]) + _num_occurrences(keys[:, 1])
    num_each = max(1, min(MAX_HELD_OUT, len(np.unique(keys[:, 0])) // _HELD_OUT_SHARE))
    sources, targets = {BLANK}, {BLANK}
    for index in np.lexsort((keys[:, 0], num_copies)):
        source, target = map(int, keys[index])
        if source in sources or target in targets:
            continue
        # In turn, so that both are of a kind.
        parts[index] = (Part.VALID, Part.TEST)[(len(sources) - 1) % 2]
        sources.add(source)
        targets.add(target)
        if len(sources) > 2 * num_each:
            break
    repeats = _is_in(keys[:, 0], sources) | _is_in(keys[:, 1], targets)
    parts[repeats & (parts == Part.TRAIN)] = Part.SET_ASIDE
    return parts


def _pairs(text: ParallelText, on_done: Callable[[int], object]) -> Iterator[tuple[str, str]]:
    for pair in read_pairs(text.source, text.target):
        yield pair
        on_done(1)


def _keys_and_characters(
    text: ParallelText, on_done: Callable[[int], object]
) -> tuple[NDArray[np.uint64], int]:
    keys, characters = array("Q"), set[str]()
    for source, target in _pairs(text, on_done):
        keys.append(line_key(source))
        keys.append(line_key(target))
        characters.update(source, target)
    return np.frombuffer(keys, dtype=np.uint64).reshape(-1, 2), len(characters)


def _num_occurrences(keys: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return how often each key occurs, in the order of the keys."""
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[inverse]


def _is_in(keys: NDArray[np.uint64], chosen: set[int]) -> NDArray[np.bool_]:
    return np.isin(keys, np.array(sorted(chosen - {BLANK}), dtype=np.uint64))


def _write_parts(
    text: ParallelText,
    parts: NDArray[np.uint8],
    files: Mapping[Part, Sequence[Path]],
    on_done: Callable[[int], object],
) -> None:
    """Write each pair into the files of its part.

    Raises:
        DataError: the text is no longer as long as it was.
    """
    num_read = 0
    with contextlib.ExitStack() as stack:
        writers = {
            int(part): [
                stack.enter_context(file.open("w", encoding="utf-8", newline="\n"))
                for file in sides
            ]
            for part, sides in files.items()
        }
        pairs = _pairs(text, on_done)
        for part, pair in zip(parts.tobytes(), pairs, strict=False):
            num_read += 1
            if part in writers:
                for writer, line in zip(writers[part], pair, strict=True):
                    writer.write(f"{line}\n")
        is_longer = next(pairs, None) is not None
    if is_longer or num_read != len(parts):
        raise DataError(
            str(text.source),
            "the text changed while it was read",
            remedy="run the same command again",
        )


def _identity(file: Path) -> dict[str, object]:
    """Return what tells a file from another one, or from itself before a change."""
    try:
        status = file.stat()
    except OSError:
        # Reading it says why.
        return {}
    return {
        "path": str(file.resolve()),
        "num_bytes": status.st_size,
        "modified_ns": status.st_mtime_ns,
    }


def _check_replaceable(
    output: Path, origin: Mapping[str, object], text: ParallelText, overwrite: bool
) -> None:
    """Refuse to take away what somebody may need.

    Raises:
        UsageError: the folder contains one of the given files or something else of the user's, or
            was written of other files and there is no leave to replace it.
    """
    if not output.exists():
        return
    if any(file.resolve().is_relative_to(output.resolve()) for file in text.files.values()):
        raise UsageError(
            str(output),
            "contains one of the given texts, which would be lost",
            remedy="choose another `output`",
        )
    before = _origin_of(output)
    if before is None:
        raise UsageError(
            str(output),
            "contains files that config new did not write",
            remedy="choose another `output`",
        )
    if not overwrite and (before != origin or _is_changed(output)):
        raise UsageError(
            str(output),
            "is there already",
            remedy="choose another `output`, or add `overwrite=True`",
        )


def _origin_of(folder: Path) -> dict[str, object] | None:
    """Return what a folder says of its origin, or None if it is not one that we wrote."""
    try:
        origin = read_json(folder / _ORIGIN)
        names = {path.name for path in folder.iterdir()}
    except (OSError, ValueError):
        return None
    if not isinstance(origin, dict) or not names <= {_ORIGIN, *origin.get("files", ())}:
        return None
    return origin


def _is_changed(folder: Path) -> bool:
    """Return whether a part was changed after the folder was written."""
    written = (folder / _ORIGIN).stat().st_mtime_ns
    return any(file.stat().st_mtime_ns > written for file in folder.iterdir())
