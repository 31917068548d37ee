"""From text to stores: in memory, or on disk: cached by a content hash, multi-process, resumable.

For a store on disk, lines are encoded in shards of fixed size, each an atomic file; a resumed build
skips the shards that exist. The shards are then merged without duplicates. Child processes import
this module, so it does without torch.
"""

import contextlib
import functools
import hashlib
import io
import json
import multiprocessing
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from tformer_cli.config.schema.data import (
    AnyTrainingText,
    DataConfig,
    FilterConfig,
    Text,
    TrainingBitext,
    tag_names,
)
from tformer_cli.corpus.filters import FilterReport, filter_lengths, find_repeats, pair_digests
from tformer_cli.corpus.prefetch import chunks, delayed
from tformer_cli.corpus.reader import TEXTS_FILE, read_rows, reading_checksums, text_changed
from tformer_cli.corpus.store import (
    OFFSET_DTYPE,
    SIDES,
    STORE_VERSION,
    PairTags,
    TokenStore,
    build_store,
    open_store,
    temperature_weights,
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
from tformer_cli.terminal import progress_bar
from tformer_cli.text.tokenizer import Tokenizers, load_tokenizers
from tformer_cli.text.vocabulary import tag_ids

SHARD_LINES = 1 << 13
# Shards queued for each process, so that none waits for the reader.
QUEUED_SHARDS = 2
# Below this size of all texts, starting processes takes longer than encoding.
SMALL_BYTES = 16 << 20

Rows = Sequence[tuple[str, ...]]
# The number of a text, and a shard of it.
ShardJob = tuple[int, Path, Rows]


def training_store(
    data: DataConfig, tokenizers: Tokenizers, stores: Path | None = None
) -> tuple[TokenStore, FilterReport]:
    """Return the training text, encoded, filtered and memory-mapped, and the filter counts.

    The directory `stores` caches it; None for no cache.
    """
    with contextlib.ExitStack() as stack:
        if stores is None:
            # A mapped file stays readable after its removal.
            stores = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        texts, weights_of = data.tagged_train, None
        if data.sampling is not None:
            own = [text.weight for text in texts]
            directions, temperature = map(data.direction_of, texts), data.sampling.temperature
            weights_of = partial(temperature_weights, own, list(directions), temperature)
        return load_or_build_store(
            texts, tokenizers, data.filters, stores=stores, weights_of=weights_of
        )


def evaluation_store(
    text: Text,
    tokenizers: Tokenizers,
    *,
    max_length: int | None = None,
    tags: Sequence[int] = (),
) -> TokenStore:
    """Encode every line of a text without filters, so pair i is line i + 1.

    Monolingual lines are their own targets. Sources begin with `tags`. A line above `max_length`,
    which counts EOS, is refused.
    """
    store = build_store(
        pair
        for rows in chunks(read_rows(text), SHARD_LINES)
        for sides in [encode_sides(rows, tokenizers)]
        for pair in zip(sides[0], sides[-1], strict=True)
    )
    if len(store) == 0:
        raise DataError(str(text.source_file), "no lines", remedy="name a file with text")
    if tags:
        store = replace(store, tags=PairTags.of_runs([len(store)], [tags]))
    if max_length is not None:
        sides = store.source_lengths + 1, store.target_lengths + 1
        for side, lengths in enumerate(sides[: text.num_sides]):
            for index in np.flatnonzero(lengths > max_length).tolist():
                where = text.locations(index)[side]
                raise too_long_error(where, int(lengths[index]), max_length)
    return store


def too_long_error(where: str, length: int, max_length: int) -> DataError:
    """Return the error of a sentence that is longer than the model's learned positions."""
    return DataError(
        where,
        f"is longer than the {max_length} positions that the model has learned",
        got=f"{length} tokens",
        remedy="split it, or train with model.positions: {kind: sinusoidal}",
    )


def load_or_build_store(
    texts: Sequence[AnyTrainingText],
    tokenizers: Tokenizers,
    filters: FilterConfig,
    *,
    stores: Path,
    weights_of: Callable[[Sequence[int]], Sequence[float]] | None = None,
    num_processes: int | None = None,
    shard_lines: int = SHARD_LINES,
) -> tuple[TokenStore, FilterReport]:
    """Open the store of some texts, all parallel or none; build it if it is missing or damaged.

    `stores` is the directory of all stores, each named by a hash of all that it depends on.
    `num_processes` encode; None for one a core, or for only this one if the text is small. The
    store does not depend on them nor on `shard_lines`. `weights_of` is as for `open_store`; None
    for the weights of the texts.
    """
    names = tag_names(texts)
    tags = [tag_ids(text.tags, names) if isinstance(text, TrainingBitext) else () for text in texts]
    weights_of = weights_of or (lambda num_pairs: [text.weight for text in texts])
    open_or_none = partial(open_store, weights_of=weights_of, tags=tags)
    with storage_errors(stores):
        make_directory(stores)
    key = _key(texts, tokenizers, filters, stores)
    directory, shards = stores / key, stores / f"{key}.building"
    opened = open_or_none(directory)
    if opened is None or shards.exists():
        waiting = "waiting for another process that encodes the same text"
        with exclusive_lock(stores / f"{key}.lock", waiting):
            # Another process may have built it in the meantime.
            opened = open_or_none(directory)
            if opened is None:
                writer = StoreWriter(shards, texts, tokenizers, filters)
                try:
                    writer.write_shards(num_processes or _num_processes(texts), shard_lines)
                    if _key(texts, tokenizers, filters, stores) != key:
                        raise text_changed("data.train")
                except DataError:
                    # A corrected text has another key.
                    shutil.rmtree(shards, ignore_errors=True)
                    raise
                writer.write_store(directory)
                opened = open_or_none(directory)
                assert opened is not None
            shutil.rmtree(shards, ignore_errors=True)
    # Leftovers of a killed process under names that are not written again.
    for name in (key, TEXTS_FILE):
        recover_interrupted_writes(stores, name)
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
        self.reports = [{} for _ in self.texts]
        # Number of the text and first line name the file of a shard.
        jobs = (
            (number, self.path / f"{number}-{index * shard_lines}.shard", rows)
            for number, text in enumerate(self.texts)
            for index, rows in enumerate(chunks(read_rows(text), shard_lines))
        )
        encoded = self._encode(jobs, num_processes)
        with progress_bar("pair", desc="encoding") as bar:
            for number, path, report in encoded:
                self.reports[number][path] = report
                bar.update(report.seen)
        report = sum(map(_total, self.reports), FilterReport())
        if report.seen == 0:
            files = ", ".join(str(text.source_file) for text in self.texts)
            raise DataError("data.train", "no lines", got=files, remedy="name files with text")
        if report.kept == 0:
            what = "nothing is left after the filters"
            raise DataError("data.train", what, got=str(report), remedy="loosen data.filters")

    def write_store(self, directory: Path) -> None:
        """Merge the shards, without duplicates, into a store directory."""
        with storage_errors(self.path):
            is_duplicate = self._find_duplicates()
        # If this fails, the shards are still there.
        with atomic_directory(directory) as temporary:
            reports = self._merge_shards(temporary, ~is_duplicate)
            write_index(temporary, _id_dtypes(self.tokenizers, self._num_sides), reports)

    @property
    def _num_sides(self) -> int:
        return self.texts[0].num_sides

    def _encode(
        self, jobs: Iterable[ShardJob], num_processes: int
    ) -> Iterator[tuple[int, Path, FilterReport]]:
        """Encode shards; yield number, path and report of each, in order."""
        if num_processes == 1:
            for number, path, rows in jobs:
                yield number, path, encode_shard(path, rows, self.tokenizers, self.filters)
            return
        directory = self.path / "tokenizer"
        self.tokenizers.save(directory)
        # A fork would copy threads of torch and of the tokenizers in the middle of their work.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(num_processes, context, initializer=begin_child) as pool:
            try:
                submitted = (
                    pool.submit(_encode_in_child, directory, self.filters, job) for job in jobs
                )
                for shard in delayed(submitted, QUEUED_SHARDS * num_processes):
                    yield shard.result()
            except BrokenProcessPool:
                what = "a process that encodes the text has died"
                remedy = "free memory and run the same command again: it resumes from there"
                raise TrainingError("data.train", what, remedy=remedy) from None
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
        final_reports = []
        start = 0
        with contextlib.ExitStack() as stack:
            files = [
                [stack.enter_context((directory / name).open("wb")) for name in names]
                for names in SIDES[: self._num_sides]
            ]
            for _, offsets_file in files:
                offsets_file.write(np.zeros(1, dtype=OFFSET_DTYPE).tobytes())
            for reports in self.reports:
                total = _total(reports)
                num_kept = 0
                for path, report in reports.items():
                    kept = is_kept[start : start + report.kept]
                    shard = read_shard(path)
                    for side, (ids_file, offsets_file) in enumerate(files):
                        ids, lengths = shard[f"ids {side}"], shard[f"lengths {side}"]
                        ends = ids_file.tell() // ids.itemsize + np.cumsum(lengths[kept])
                        ids_file.write(ids[np.repeat(kept, lengths)].tobytes())
                        offsets_file.write(ends.astype(OFFSET_DTYPE).tobytes())
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


def _id_dtypes(tokenizers: Tokenizers, num_sides: int) -> list[str]:
    return [id_dtype(side.size) for side in (tokenizers.source, tokenizers.target)[:num_sides]]


def _key(
    texts: Sequence[AnyTrainingText], tokenizers: Tokenizers, filters: FilterConfig, stores: Path
) -> str:
    """Return a hash of all that a store depends on."""
    content = {
        "format": STORE_VERSION,
        "texts": [reading_checksums(text, stores) for text in texts],
        "tokenizers": tokenizers.fingerprint,
        "filters": asdict(filters),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _num_processes(texts: Sequence[AnyTrainingText]) -> int:
    num_bytes = sum(file.stat().st_size for text in texts for file in text.files.values())
    return 1 if num_bytes < SMALL_BYTES else num_cores()


_cached_tokenizers = functools.cache(load_tokenizers)


def _encode_in_child(
    directory: Path, filters: FilterConfig, job: ShardJob
) -> tuple[int, Path, FilterReport]:
    number, path, rows = job
    return number, path, encode_shard(path, rows, _cached_tokenizers(directory), filters)


def _lengths(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return np.array([len(row) for row in rows], dtype=np.int64)


def _total(reports: dict[Path, FilterReport]) -> FilterReport:
    return sum(reports.values(), FilterReport())
