"""From text to stores: in memory, or on disk: cached by a content hash, multi-process, resumable.

For a store on disk, lines are encoded in shards of fixed size, each an atomic file; a resumed build
skips the shards that exist. The shards are then merged without duplicates. Child processes import
this module, so it does without torch.
"""

import contextlib
import functools
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from tformer_cli.config.schema.data import DataConfig, FilterConfig
from tformer_cli.config.schema.text import AnyTrainingText, Direction, Text
from tformer_cli.corpus.checksums import TEXTS_FILE, reading_checksums
from tformer_cli.corpus.duplicates import UNIQUE, find_duplicates
from tformer_cli.corpus.filters import FilterReport, PairFilter
from tformer_cli.corpus.prefetch import chunks, map_in_processes
from tformer_cli.corpus.reader import read_rows, text_changed
from tformer_cli.corpus.shards import Rows, encode_shard, encode_sides, id_dtypes, read_shard
from tformer_cli.corpus.store import (
    OFFSET_DTYPE,
    SIDE_FILES,
    STORE_VERSION,
    PairTags,
    TokenStore,
    WeightsOf,
    build_store,
    open_store,
    temperature_weights,
    write_index,
)
from tformer_cli.corpus.training_text import training_checksums, training_rows
from tformer_cli.errors import DataError
from tformer_cli.process import num_cores
from tformer_cli.storage.atomic import (
    atomic_directory,
    make_directory,
    recover_interrupted_writes,
    storage_errors,
)
from tformer_cli.storage.lock import exclusive_lock
from tformer_cli.terminal import progress_bar
from tformer_cli.text.tokenizer import Ids, Tokenizers, load_tokenizers

SHARD_LINES = 1 << 13
# Below this size of all texts, starting processes takes longer than encoding.
SMALL_TEXT_BYTES = 16 << 20

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
        directions = [data.direction_of(text) for text in data.train]
        if data.unit == "line":
            directions = [(source, source) for source, _ in directions]

        def weights_of(num_pairs: Sequence[int]) -> Sequence[float]:
            weights = [text.weight for text in data.train]
            if data.sampling is None:
                return weights
            temperature = data.sampling.temperature
            return temperature_weights(weights, directions, temperature, num_pairs)

        return load_or_build_store(
            data.train,
            tokenizers,
            data.filters,
            first_ids=[tokenizers.first_ids(data, text) for text in data.train],
            directions=directions,
            held_out=data.held_out,
            stores=stores,
            weights_of=weights_of,
        )


def evaluation_store(
    text: Text,
    tokenizers: Tokenizers,
    *,
    max_length: int | None = None,
    tags: Sequence[int] = (),
    target_tags: Sequence[int] = (),
) -> TokenStore:
    """Encode every line of a text without filters, so pair i is line i + 1.

    Monolingual lines are their own targets. Sources begin with `tags`, targets with `target_tags`.
    A line above `max_length`, which counts EOS, is refused.
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
    if target_tags:
        store = replace(store, target_tags=PairTags.of_runs([len(store)], [target_tags]))
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
    first_ids: Sequence[tuple[Ids, Ids]],
    directions: Sequence[Direction],
    held_out: Sequence[Text],
    stores: Path,
    weights_of: WeightsOf,
    num_processes: int | None = None,
    shard_lines: int = SHARD_LINES,
) -> tuple[TokenStore, FilterReport]:
    """Open the store of some texts, all parallel or none; build it if it is missing or damaged.

    `stores` is the directory of all stores, each named by a hash of all that it depends on.
    `first_ids` are what sources and targets of each text begin with. The filters know the
    `directions` of the texts, source and target language, and the texts whose lines may be
    `held_out`; no phrase pair is one of these. `weights_of` is as for `open_store`. `num_processes`
    encode; None for one a core, or for only this one if the text is small. The store does not
    depend on them nor on `shard_lines`.
    """
    tags, target_tags = zip(*first_ids, strict=True)
    open_or_none = partial(open_store, weights_of=weights_of, tags=tags, target_tags=target_tags)
    with storage_errors(stores):
        make_directory(stores)
    key_of = partial(_key, texts, tokenizers, filters, directions, held_out, stores)
    key = key_of()
    directory, shards = stores / key, stores / f"{key}.building"
    opened = open_or_none(directory)
    if opened is None or shards.exists():
        waiting = "waiting for another process that encodes the same text"
        with exclusive_lock(stores / f"{key}.lock", waiting):
            # Another process may have built it in the meantime.
            opened = open_or_none(directory)
            if opened is None:
                pair_filters = PairFilter.of_texts(filters, directions, held_out)
                writer = StoreWriter(shards, texts, tokenizers, pair_filters, held_out)
                try:
                    writer.write_shards(num_processes or _num_processes(texts), shard_lines)
                    if key_of() != key:
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

    `filters` has the filter of each text, `held_out` what their phrase pairs are not, `reports` the
    filter counts of each shard, text by text.
    """

    path: Path
    texts: Sequence[AnyTrainingText]
    tokenizers: Tokenizers
    filters: Sequence[PairFilter]
    held_out: Sequence[Text] = ()
    reports: list[dict[Path, FilterReport]] = field(default_factory=list)

    def write_shards(self, num_processes: int, shard_lines: int) -> None:
        """Encode all lines whose shards do not exist yet."""
        with storage_errors(self.path):
            make_directory(self.path)
        self.reports = [{} for _ in self.texts]
        # Number of the text and first line name the file of a shard.
        jobs = (
            (number, self.path / f"{number}-{index * shard_lines}.shard", rows)
            for number in range(len(self.texts))
            for index, rows in enumerate(chunks(self._rows(number), shard_lines))
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
        kinds = self._find_duplicates()
        # If this fails, the shards are still there.
        with atomic_directory(directory) as temporary:
            reports = self._merge_shards(temporary, kinds)
            write_index(temporary, id_dtypes(self.tokenizers, self._num_sides), reports)

    def _rows(self, number: int) -> Iterator[tuple[str, ...]]:
        return training_rows(self.texts[number], self.filters[number].languages, self.held_out)

    @property
    def _num_sides(self) -> int:
        return self.texts[0].num_sides

    def _encode(
        self, jobs: Iterable[ShardJob], num_processes: int
    ) -> Iterator[tuple[int, Path, FilterReport]]:
        """Encode shards; yield number, path and report of each, in order."""
        if num_processes == 1:
            encode = partial(_encode_job, self.tokenizers, self.filters)
        else:
            directory = self.path / "tokenizer"
            self.tokenizers.save(directory)
            encode = partial(_encode_in_child, directory, self.filters)
        return map_in_processes(encode, jobs, num_processes)

    def _find_duplicates(self) -> np.ndarray:
        """Return (n,) the kinds of `find_duplicates`, for the pairs of all shards."""
        num_pairs = sum(_total(reports).kept for reports in self.reports)
        config = self.filters[0].config
        if not config.drops_copies:
            return np.full(num_pairs, UNIQUE, dtype=np.uint8)
        shards = map(read_shard, chain.from_iterable(self.reports))
        parts = ((shard["digests"], shard["signatures"]) for shard in shards)
        return find_duplicates(parts, num_pairs, config, self.path)

    def _merge_shards(self, directory: Path, kinds: np.ndarray) -> list[FilterReport]:
        """Write the arrays of the kept pairs; return the final counts of each text."""
        final_reports = []
        start = 0
        with contextlib.ExitStack() as stack:
            files = [
                [stack.enter_context((directory / name).open("wb")) for name in names]
                for names in SIDE_FILES[: self._num_sides]
            ]
            for _, offsets_file in files:
                offsets_file.write(np.zeros(1, dtype=OFFSET_DTYPE).tobytes())
            for reports in self.reports:
                total = _total(reports)
                counts = np.zeros(3, dtype=np.int64)
                for path, report in reports.items():
                    of_shard = kinds[start : start + report.kept]
                    kept = of_shard == UNIQUE
                    shard = read_shard(path)
                    for side, (ids_file, offsets_file) in enumerate(files):
                        ids, lengths = shard[f"ids {side}"], shard[f"lengths {side}"]
                        ends = ids_file.tell() // ids.itemsize + np.cumsum(lengths[kept])
                        ids_file.write(ids[np.repeat(kept, lengths)].tobytes())
                        offsets_file.write(ends.astype(OFFSET_DTYPE).tobytes())
                    start += report.kept
                    counts += np.bincount(of_shard, minlength=3)
                num_kept, num_duplicate, num_similar = counts.tolist()
                final_reports.append(
                    replace(total, kept=num_kept, duplicate=num_duplicate, similar=num_similar)
                )
        return final_reports


def _key(
    texts: Sequence[AnyTrainingText],
    tokenizers: Tokenizers,
    filters: FilterConfig,
    directions: Sequence[Direction],
    held_out: Sequence[Text],
    stores: Path,
) -> str:
    """Return a hash of all that a store depends on."""
    content = {
        "format": STORE_VERSION,
        "texts": [
            training_checksums(text, direction, held_out, stores)
            for text, direction in zip(texts, directions, strict=True)
        ],
        "tokenizers": tokenizers.fingerprint,
        "filters": asdict(filters),
        "directions": directions,
        "held_out": [reading_checksums(text, stores) for text in held_out]
        if filters.drop_held_out
        else [],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _num_processes(texts: Sequence[AnyTrainingText]) -> int:
    num_bytes = sum(file.stat().st_size for text in texts for file in text.files.values())
    return 1 if num_bytes < SMALL_TEXT_BYTES else num_cores()


def _encode_job(
    tokenizers: Tokenizers, filters: Sequence[PairFilter], job: ShardJob
) -> tuple[int, Path, FilterReport]:
    number, path, rows = job
    return number, path, encode_shard(path, rows, tokenizers, filters[number])


_cached_tokenizers = functools.cache(load_tokenizers)


def _encode_in_child(
    directory: Path, filters: Sequence[PairFilter], job: ShardJob
) -> tuple[int, Path, FilterReport]:
    return _encode_job(_cached_tokenizers(directory), filters, job)


def _total(reports: dict[Path, FilterReport]) -> FilterReport:
    return sum(reports.values(), FilterReport())
