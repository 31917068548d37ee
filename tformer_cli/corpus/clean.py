"""Cleaning of a parallel text: the filters of training, before it, with all that was dropped.

The pairs dropped are first a record of JSON lines, which resumes after a kill: those that break a
rule, in the order of the text, and behind them duplicates. The two files of the other pairs are
written at the end.
"""

import functools
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tformer_cli import __version__
from tformer_cli.config.schema.data import FilterConfig
from tformer_cli.config.schema.text import Bitext, Direction, PairsFile, ParallelText, PlainText
from tformer_cli.corpus.duplicates import (
    DUPLICATE,
    SIMILAR,
    UNIQUE,
    find_duplicates,
    fingerprints,
)
from tformer_cli.corpus.filters import (
    CLEANING,
    KEPT,
    FilterReport,
    PairFilter,
    Row,
    length_reasons,
)
from tformer_cli.corpus.lines import read_errors, read_lines
from tformer_cli.corpus.prefetch import chunks, map_in_processes
from tformer_cli.corpus.reader import read_texts, text_changed
from tformer_cli.errors import reject_str
from tformer_cli.process import num_cores
from tformer_cli.storage.atomic import file_checksum, open_atomic
from tformer_cli.storage.outputs import check_outputs, output_files
from tformer_cli.storage.partial_file import PartialFile, partial_file
from tformer_cli.text.language import side_names
from tformer_cli.text.segments import num_words

# Pairs of a job of a process, and between two states that a kill leaves.
JOB_PAIRS = 1 << 13
# Below this size of a text, starting processes takes longer than cleaning.
SMALL_BYTES = 1 << 20
# Pairs shown of each reason.
NUM_EXAMPLES = 3

COPIES = {DUPLICATE: "duplicate", SIMILAR: "similar"}


@dataclass(frozen=True, slots=True)
class Cleaning:
    """A cleaned text, and what was dropped.

    Attributes:
        text: the pairs kept, in order.
        record: JSON Lines of the pairs dropped: the number of the pair among those read (`line`),
            the `reason`, and `source` and `target`.
        report: the number of pairs kept, and of pairs dropped by reason.
        examples: the first rows of the record, by reason.
    """

    text: ParallelText
    record: Path
    report: FilterReport
    examples: Mapping[str, Sequence[Mapping[str, Any]]]


def clean(
    text: Bitext,
    output: str | os.PathLike[str],
    *,
    languages: Direction,
    filters: FilterConfig = CLEANING,
    held_out: Sequence[str | os.PathLike[str]] = (),
    workers: int | None = None,
    on_done: Callable[[int], object] = lambda count: None,
) -> Cleaning:
    """Write the pairs of a parallel text that the filters keep, and a record of the others.

    A call that was interrupted is resumed by the same call, and writes the same bytes. Memory does
    not grow with the text, apart from some bytes a pair.

    Examples:
        >>> text = ParallelText(source=Path("crawl.en"), target=Path("crawl.de"))
        >>> clean(text, "cleaned", languages=("en", "de"))  # doctest: +SKIP

    Args:
        text: two files of lines, or a file of pairs.
        output: what the names of the files begin with: `output.en`, `output.de` and
            `output.dropped.jsonl` for these languages. With `output.gz` they are gzip:
            `output.en.gz` and so on.
        languages: ISO codes of source and target.
        filters: thresholds; lengths are in words.
        held_out: text files, such as validation and test text, whose lines no side may be.
        workers: processes that share the work; None for one a core.
        on_done: called with a number of pairs whenever some are judged.

    Raises:
        TformerError: a file is unusable, or the record was begun from something else.
    """
    reject_str(languages=languages, held_out=held_out)
    if isinstance(text, PairsFile) and text.languages is None:
        text = replace(text, languages=languages)
    files = [Path(file) for file in held_out]
    names = [*side_names(languages), "dropped.jsonl"]
    source_file, target_file, record_file = output_files(output, names)
    sides = ParallelText(source=source_file, target=target_file)
    inputs = [*text.files.values(), *files]
    check_outputs(inputs, [source_file, target_file, record_file])
    for file in inputs:
        # A missing file is refused by name.
        with read_errors(str(file)):
            file.open("rb").close()
    # A fault of the text, which may be at its end, leaves no record behind.
    for _ in read_texts([text]):
        pass
    held_out_texts = [PlainText(text=file) for file in files]
    [pair_filter] = PairFilter.of_texts(
        filters, [languages], held_out_texts, named_by="`languages`"
    )
    size = sum(file.stat().st_size for file in text.files.values())
    num_processes = 1 if size < SMALL_BYTES else workers or num_cores()
    made_from = {
        "tformer": __version__,
        "text": [file_checksum(file) for file in text.files.values()],
        "reading": text.reading,
        "held-out text": [file_checksum(file) for file in files],
        "languages": list(languages),
        "filters": asdict(filters),
    }
    with partial_file(record_file, made_from) as record:
        _judge(text, record, pair_filter, num_processes, on_done)
        is_kept, num_written = _read_verdicts(record)
        kinds = np.full(len(is_kept), UNIQUE, dtype=np.uint8)
        kinds[is_kept] = _find_copies(text, is_kept, filters, num_processes, record.path.parent)
        _write_sides(text, sides, is_kept, kinds, record, num_written)
        report, examples = _summary(record)
    return Cleaning(sides, record_file, report, examples)


def _judge(
    text: Bitext,
    record: PartialFile,
    pair_filter: PairFilter,
    num_processes: int,
    on_done: Callable[[int], object],
) -> None:
    """Append the pairs that break a rule to the record, from where it ends."""
    on_done(record.num_lines)
    pairs = itertools.islice(read_texts([text]), record.num_lines, None)
    jobs = chunks(enumerate(pairs, start=record.num_lines + 1), JOB_PAIRS)
    judge = functools.partial(_dropped_rows, pair_filter)
    for rows, num_pairs in map_in_processes(judge, jobs, num_processes):
        record.add(rows, num_pairs)
        on_done(num_pairs)


def _dropped_rows(pair_filter: PairFilter, job: Sequence[tuple[int, Row]]) -> tuple[str, int]:
    """Return the rows of a record for some numbered pairs, and the number of the pairs."""
    sides = zip(*(pair for _, pair in job), strict=True)
    lengths = (
        np.array([num_words(line, language) for line in lines])
        for lines, language in zip(sides, pair_filter.languages, strict=True)
    )
    by_length = length_reasons(pair_filter.config, *lengths).tolist()
    by_text = pair_filter.reasons(pair for _, pair in job)
    rows = [
        _row(number, reason if reason != KEPT else other, pair)
        for (number, pair), reason, other in zip(job, by_length, by_text, strict=True)
        if (reason, other) != (KEPT, KEPT)
    ]
    return "".join(rows), len(job)


def _row(number: int, reason: str, pair: Row) -> str:
    row = {"line": number, "reason": reason, "source": pair[0], "target": pair[1]}
    return json.dumps(row, ensure_ascii=False) + "\n"


def _read_record(record: PartialFile) -> Iterator[dict[str, Any]]:
    return map(json.loads, read_lines(record.path))


def _read_verdicts(record: PartialFile) -> tuple[np.ndarray, int]:
    """Return (n,) whether each pair keeps the rules, and the number of copies in the record."""
    is_kept = np.ones(record.num_lines, dtype=np.bool_)
    num_copies = 0
    for row in _read_record(record):
        if row["reason"] in COPIES.values():
            num_copies += 1
        else:
            is_kept[row["line"] - 1] = False
    return is_kept, num_copies


def _read_again(text: Bitext, num_pairs: int) -> Iterator[Row]:
    """Yield the pairs of a text, and refuse one that has another number of them than before."""
    number = 0
    for number, pair in enumerate(read_texts([text]), start=1):
        if number > num_pairs:
            break
        yield pair
    if number != num_pairs:
        raise text_changed(str(text.source_file))


def _find_copies(
    text: Bitext,
    is_kept: np.ndarray,
    filters: FilterConfig,
    num_processes: int,
    directory: Path,
) -> np.ndarray:
    """Return the kinds of `find_duplicates` for the pairs that are kept."""
    if not filters.drops_copies:
        return np.full(int(is_kept.sum()), UNIQUE, dtype=np.uint8)
    pairs = itertools.compress(_read_again(text, len(is_kept)), is_kept)
    of_pairs = functools.partial(fingerprints, config=filters)
    parts = map_in_processes(of_pairs, chunks(pairs, JOB_PAIRS), num_processes)
    return find_duplicates(parts, int(is_kept.sum()), filters, directory)


def _write_sides(
    text: Bitext,
    sides: ParallelText,
    is_kept: np.ndarray,
    kinds: np.ndarray,
    record: PartialFile,
    num_written: int,
) -> None:
    """Write the pairs that are kept and unique, and append the copies to the record.

    The record has the first `num_written` copies already.
    """
    num_pairs = num_copies = 0
    with open_atomic(sides.source) as sources, open_atomic(sides.target) as targets:
        for pairs in chunks(_read_again(text, len(kinds)), JOB_PAIRS):
            rows = []
            for number, pair in enumerate(pairs, start=num_pairs + 1):
                if not is_kept[number - 1]:
                    continue
                if kind := COPIES.get(int(kinds[number - 1])):
                    num_copies += 1
                    if num_copies > num_written:
                        rows.append(_row(number, kind, pair))
                    continue
                sources.write(f"{pair[0]}\n".encode())
                targets.write(f"{pair[1]}\n".encode())
            num_pairs += len(pairs)
            if rows:
                record.add("".join(rows), 0)


def _summary(record: PartialFile) -> tuple[FilterReport, dict[str, list[dict[str, Any]]]]:
    """Return the counts of a whole record, and its first rows of each reason."""
    counts: Counter[str] = Counter()
    examples: dict[str, list[dict[str, Any]]] = {}
    for row in _read_record(record):
        reason = row["reason"]
        counts[reason] += 1
        if counts[reason] <= NUM_EXAMPLES:
            examples.setdefault(reason, []).append(row)
    return FilterReport(kept=record.num_lines - counts.total(), **counts), examples
