"""Build a token store on disk: cached by a content hash, multi-process, resumable.

Lines are encoded in shards of fixed size, each an atomic file; a resumed build skips the shards
that exist. The shards are then merged without duplicates. Child processes import this module, so
it does without torch.
"""

import contextlib
import functools
import hashlib
import io
import json
import multiprocessing
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tqdm import tqdm

from tformer_cli.config.schema.data import AnyTrainingText, FilterConfig
from tformer_cli.corpus.filters import FilterReport, filter_lengths, find_repeats, pair_digests
from tformer_cli.corpus.prefetch import chunks
from tformer_cli.corpus.reader import TEXTS_FILE, read_rows, text_checksums
from tformer_cli.corpus.store import (
    FORMAT_VERSION,
    OFFSET_DTYPE,
    SIDES,
    TokenStore,
    open_store,
    write_index,
)
from tformer_cli.errors import DataError, TrainingError
from tformer_cli.process import begin_child, num_cores
from tformer_cli.storage.atomic import (
    atomic_directory,
    atomic_write,
    make_directory,
    recover_interrupted_writes,
    storage_errors,
)
from tformer_cli.storage.lock import exclusive_lock
from tformer_cli.text.tokenizer import Tokenizers, load_tokenizers

SHARD_LINES = 1 << 13
# Shards queued for each process, so that none waits for the reader.
QUEUED_SHARDS = 2
# Below this size of all texts, starting processes takes longer than encoding.
SMALL_BYTES = 16 << 20

Rows = Sequence[tuple[str, ...]]


def load_or_build_store(
    texts: Sequence[AnyTrainingText],
    tokenizers: Tokenizers,
    filters: FilterConfig,
    *,
    stores: Path,
    num_processes: int | None = None,
    shard_lines: int = SHARD_LINES,
) -> tuple[TokenStore, FilterReport]:
    """Open the store of some texts; build it if it is missing or damaged.

    Args:
        texts: all parallel, or none.
        tokenizers: of both sides.
        filters: decide which pairs are dropped.
        stores: directory of all stores, each named by a hash of all that it depends on.
        num_processes: that encode; None for one a core, or for only this one if the text is small.
        shard_lines: lines of a shard; the store does not depend on them.

    Raises:
        DataError: a text cannot be read, or no pair is left.
        TrainingError: a child process died.
    """
    weights = [text.weight for text in texts]
    with storage_errors(stores):
        make_directory(stores)
    key = _key(texts, tokenizers, filters, stores)
    directory, shards = stores / key, stores / f"{key}.building"
    opened = open_store(directory, weights)
    if opened is None or shards.exists():
        waiting = "waiting for another process that encodes the same text"
        with exclusive_lock(stores / f"{key}.lock", waiting):
            # Another process may have built it in the meantime.
            opened = open_store(directory, weights)
            if opened is None:
                writer = StoreWriter(shards, texts, tokenizers, filters)
                try:
                    writer.write_shards(num_processes or _num_processes(texts), shard_lines)
                    if _key(texts, tokenizers, filters, stores) != key:
                        raise DataError(
                            "data.train",
                            "the text changed while it was read",
                            remedy="run the same command again",
                        )
                except DataError:
                    # A corrected text has another key.
                    shutil.rmtree(shards, ignore_errors=True)
                    raise
                writer.write_store(directory)
                opened = open_store(directory, weights)
                assert opened is not None
            shutil.rmtree(shards, ignore_errors=True)
    # Leftovers of a killed process under names that are not written again.
    for path in (directory, stores / TEXTS_FILE):
        recover_interrupted_writes(path.parent, path.name)
    return opened


@dataclass(slots=True)
class StoreWriter:
    """Encodes texts into shards in the directory `path`, and merges these into a store.

    `reports` has the filter counts of each shard, text by text.
    """

    path: Path
    texts: Sequence[AnyTrainingText]
    tokenizers: Tokenizers
    filters: FilterConfig
    reports: list[dict[Path, FilterReport]] = field(default_factory=list)

    def write_shards(self, num_processes: int, shard_lines: int) -> None:
        """Encode all lines whose shards do not exist yet."""
        with storage_errors(self.path):
            make_directory(self.path)
        with (
            self._encoder(num_processes) as encode,
            tqdm(desc="encoding", unit="pair", disable=not sys.stderr.isatty(), leave=False) as bar,
        ):
            for number, text in enumerate(self.texts):
                reports = {}
                for path, report in encode(self._jobs(number, text, shard_lines)):
                    reports[path] = report
                    bar.update(report.seen)
                self.reports.append(reports)
        report = sum(map(_total, self.reports), FilterReport())
        if report.kept == 0:
            files = ", ".join(str(next(iter(text.files.values()))) for text in self.texts)
            raise DataError(
                "data.train",
                "no lines" if report.seen == 0 else "nothing is left after the filters",
                got=files if report.seen == 0 else str(report),
                remedy="name files with text" if report.seen == 0 else "loosen data.filters",
            )

    def write_store(self, directory: Path) -> None:
        """Merge the shards, without duplicates, into a store directory."""
        with storage_errors(self.path):
            is_duplicate = self._find_duplicates()
        id_dtypes = _id_dtypes(self.tokenizers, self._num_sides)
        # If this fails, the shards are still there.
        with atomic_directory(directory) as temporary:
            write_index(temporary, id_dtypes, self._merge_shards(temporary, ~is_duplicate))

    @property
    def _num_sides(self) -> int:
        return len(self.texts[0].files)

    def _jobs(
        self, number: int, text: AnyTrainingText, shard_lines: int
    ) -> Iterator[tuple[Path, Rows]]:
        """Yield the file and the lines of each shard; number and first line name the file."""
        for index, rows in enumerate(chunks(read_rows(text), shard_lines)):
            yield self.path / f"{number}-{index * shard_lines}.shard", rows

    @contextlib.contextmanager
    def _encoder(
        self, num_processes: int
    ) -> Iterator[Callable[[Iterable[tuple[Path, Rows]]], Iterator[tuple[Path, FilterReport]]]]:
        """Yield a function that encodes a stream of shards in order."""
        if num_processes == 1:
            yield lambda jobs: (
                (path, encode_shard(path, rows, self.tokenizers, self.filters))
                for path, rows in jobs
            )
            return
        directory = self.path / "tokenizer"
        self.tokenizers.save(directory)
        # A fork would copy threads of torch and of the tokenizers in the middle of their work.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(num_processes, context, initializer=begin_child) as pool:

            def submit(path: Path, rows: Rows) -> Future[FilterReport]:
                return pool.submit(_encode_in_child, directory, self.filters, path, rows)

            try:
                yield lambda jobs: _in_order(submit, jobs, QUEUED_SHARDS * num_processes)
            except BrokenProcessPool:
                raise TrainingError(
                    "data.train",
                    "a process that encodes the text has died",
                    remedy="free memory and run the same command again: it resumes from there",
                ) from None
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _find_duplicates(self) -> np.ndarray:
        """Return (n,) whether an earlier pair has the same text, for the pairs of all shards."""
        if not self.filters.drop_duplicates:
            num_pairs = sum(_total(reports).kept for reports in self.reports)
            return np.zeros(num_pairs, dtype=np.bool_)
        with tempfile.TemporaryFile(dir=self.path) as file:
            for path in chain.from_iterable(self.reports):
                file.write(read_shard(path)["digests"].tobytes())
            file.flush()
            digests = np.memmap(file, dtype="<u8", mode="r").view(np.ndarray)
            return find_repeats(digests.reshape(-1, 2), self.path)

    def _merge_shards(self, directory: Path, is_kept: np.ndarray) -> list[FilterReport]:
        """Write the arrays of the kept pairs; return the final counts of each text."""
        final_reports, start = [], 0
        with contextlib.ExitStack() as stack:
            files = [
                [stack.enter_context((directory / name).open("wb")) for name in names]
                for names in SIDES[: self._num_sides]
            ]
            for _, offsets_file in files:
                offsets_file.write(np.zeros(1, dtype=OFFSET_DTYPE).tobytes())
            for reports in self.reports:
                total, num_kept = _total(reports), 0
                for path, report in reports.items():
                    kept = is_kept[start : start + report.kept]
                    _append_pairs(files, read_shard(path), kept)
                    start += report.kept
                    num_kept += int(kept.sum())
                final = replace(total, kept=num_kept, duplicate=total.kept - num_kept)
                final_reports.append(final)
        return final_reports


def encode_shard(
    path: Path, rows: Rows, tokenizers: Tokenizers, filters: FilterConfig
) -> FilterReport:
    """Encode and filter lines into a shard file, unless it exists; return the filter counts."""
    with contextlib.suppress(OSError, ValueError):
        report = FilterReport(*read_shard(path)["report"].tolist())
        if report.seen == len(rows):
            return report
    sides = encode_sides(rows, tokenizers)
    is_kept, report = filter_lengths(filters, *map(_lengths, sides))
    kept = np.flatnonzero(is_kept).tolist()
    arrays: dict[str, Any] = {
        "report": np.array(list(asdict(report).values())),
        "digests": pair_digests(rows[i] for i in kept if filters.drop_duplicates),
    }
    for side, dtype in enumerate(_id_dtypes(tokenizers, len(sides))):
        kept_ids = [sides[side][i] for i in kept]
        arrays[f"ids {side}"] = np.fromiter(chain.from_iterable(kept_ids), dtype=dtype)
        arrays[f"lengths {side}"] = _lengths(kept_ids)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    with atomic_write(path) as temporary:
        temporary.write_bytes(hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue())
    return report


def read_shard(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a shard file; raise ValueError if it is damaged."""
    content = path.read_bytes()
    checksum, arrays = content[:32], content[32:]
    if hashlib.sha256(arrays).digest() != checksum:
        raise ValueError(f"{path} is damaged")
    with np.load(io.BytesIO(arrays)) as shard:
        return dict(shard)


def encode_sides(rows: Rows, tokenizers: Tokenizers) -> list[list[list[int]]]:
    """Return the ids of each line, side by side."""
    sides: list[tuple[str, ...]] = list(zip(*rows, strict=True))
    both = tokenizers.source, tokenizers.target
    return [tokenizer.encode_batch(lines) for tokenizer, lines in zip(both, sides, strict=False)]


def id_dtype(vocabulary_size: int) -> str:
    """Return the little-endian integers that hold every id of a vocabulary."""
    return "<u2" if vocabulary_size <= 1 << 16 else "<u4"


def _key(
    texts: Sequence[AnyTrainingText], tokenizers: Tokenizers, filters: FilterConfig, stores: Path
) -> str:
    """Return a hash of all that a store depends on."""
    content = {
        "format": FORMAT_VERSION,
        "texts": [text_checksums(list(text.files.values()), stores) for text in texts],
        "tokenizers": tokenizers.fingerprint,
        "filters": asdict(filters),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _num_processes(texts: Sequence[AnyTrainingText]) -> int:
    num_bytes = sum(file.stat().st_size for text in texts for file in text.files.values())
    return 1 if num_bytes < SMALL_BYTES else num_cores()


def _in_order(
    submit: Callable[[Path, Rows], Future[FilterReport]],
    jobs: Iterable[tuple[Path, Rows]],
    max_queued: int,
) -> Iterator[tuple[Path, FilterReport]]:
    queue: deque[tuple[Path, Future[FilterReport]]] = deque()
    for path, rows in jobs:
        queue.append((path, submit(path, rows)))
        if len(queue) > max_queued:
            path, report = queue.popleft()
            yield path, report.result()
    for path, report in queue:
        yield path, report.result()


def _encode_in_child(
    directory: Path, filters: FilterConfig, path: Path, rows: Rows
) -> FilterReport:
    return encode_shard(path, rows, _cached_tokenizers(directory), filters)


@functools.cache
def _cached_tokenizers(directory: Path) -> Tokenizers:
    return load_tokenizers(directory)


def _append_pairs(
    files: Sequence[Sequence[BinaryIO]], shard: dict[str, np.ndarray], kept: np.ndarray
) -> None:
    for side, (ids_file, offsets_file) in enumerate(files):
        ids, lengths = shard[f"ids {side}"], shard[f"lengths {side}"]
        ends = ids_file.tell() // ids.itemsize + np.cumsum(lengths[kept])
        ids_file.write(ids[np.repeat(kept, lengths)].tobytes())
        offsets_file.write(ends.astype(OFFSET_DTYPE).tobytes())


def _id_dtypes(tokenizers: Tokenizers, num_sides: int) -> list[str]:
    return [id_dtype(side.size) for side in (tokenizers.source, tokenizers.target)[:num_sides]]


def _lengths(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return np.array([len(row) for row in rows], dtype=np.int64)


def _total(reports: dict[Path, FilterReport]) -> FilterReport:
    return sum(reports.values(), FilterReport())
