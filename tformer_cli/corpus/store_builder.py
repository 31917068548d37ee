"""How a token store comes about on disk: once for a text, by all cores, stopped at any time."""

import contextlib
import hashlib
import itertools
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from tqdm import tqdm

from tformer_cli.config.schema.data import AnyTrainingText, FilterConfig
from tformer_cli.corpus.appended_file import AppendedFile
from tformer_cli.corpus.encoding import EncodedPairs, Sentences, encoder, id_dtypes
from tformer_cli.corpus.filters import FilterReport, find_repeats
from tformer_cli.corpus.prefetch import chunks
from tformer_cli.corpus.reader import read_rows
from tformer_cli.corpus.store import TokenStore, slices
from tformer_cli.corpus.store_folder import (
    FORMAT_VERSION,
    OFFSET_DTYPE,
    SIDES,
    StoreFolder,
)
from tformer_cli.corpus.text_digests import TextDigests
from tformer_cli.errors import DataError
from tformer_cli.json_text import read_json
from tformer_cli.process import num_cores
from tformer_cli.storage.atomic import (
    atomic_directory,
    make_directory,
    recover_interrupted_write,
    storage_errors,
    sync_directory,
    write_json,
)
from tformer_cli.storage.lock import alone
from tformer_cli.text.tokenizer import Tokenizers

# Below this size of all texts, starting processes takes longer than encoding.
SMALL_BYTES = 16 << 20

PAIR_DIGESTS = "pairs.digests"
TEXTS_FILE = "texts.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How a build proceeds; what it builds does not depend on it.

    Attributes:
        num_processes: that encode; None is one for each core, or this one alone for a small text.
        chunk_lines: handed to a process at once.
        saved_lines: what is there is made to last after so many; a kill loses no more than these.
    """

    num_processes: int | None = None
    chunk_lines: int = 4096
    saved_lines: int = 1 << 17


def stored(
    texts: Sequence[AnyTrainingText],
    tokenizers: Tokenizers,
    filters: FilterConfig,
    *,
    stores: Path,
    pace: Pace,
) -> tuple[TokenStore, FilterReport]:
    """Return the store of some texts, built if it is not there yet.

    Args:
        texts: one corpus after the other, all of them parallel, or none.
        tokenizers: of both sides.
        filters: which pairs are left out.
        stores: the folder of all stores, each named after all that it depends on.
        pace: how to build.

    Returns:
        The pairs that were kept, mapped from the store's files, and how many were dropped for
        which reason.

    Raises:
        DataError: a text cannot be read, or no pair is left.
        StorageError: the folder cannot be written.
        TrainingError: a process that encodes died.
    """
    weights = [text.weight for text in texts]
    with storage_errors(stores):
        make_directory(stores)
    key = _key(texts, tokenizers, filters, stores)
    folder, begun = StoreFolder(stores / key), stores / f"{key}.building"
    found = folder.open(weights)
    if found is None or begun.exists():
        waiting = "waiting for another process that encodes the same text"
        with alone(stores / f"{key}.lock", waiting):
            # Perhaps somebody else has just built it.
            found = folder.open(weights)
            if found is None:
                with _building(begun, texts, tokenizers) as building:
                    _encode(building, texts, tokenizers, filters, pace)
                    if _key(texts, tokenizers, filters, stores) != key:
                        raise DataError(
                            "data.train",
                            "the text changed while it was read",
                            remedy="run the same command again",
                        )
                    building.finish(folder)
                found = folder.open(weights)
                assert found is not None
            shutil.rmtree(begun, ignore_errors=True)
    # What a kill left of names that are not written again.
    for path in (folder.path, stores / TEXTS_FILE):
        recover_interrupted_write(path)
    return found


class Building:
    """A store that grows: files that are appended to, and a journal of how much of them counts.

    Attributes:
        reports: what became of the pairs of each text so far.
    """

    def __init__(self, path: Path, id_dtypes: tuple[str, ...], num_texts: int) -> None:
        """Go on from the journal in a folder, or begin.

        Args:
            path: the folder.
            id_dtypes: of the ids of each side.
            num_texts: which the pairs come from.

        Raises:
            StorageError: the folder cannot be written.
        """
        self.path = path
        self.reports = [FilterReport() for _ in range(num_texts)]
        self._id_dtypes = id_dtypes
        self._sides = SIDES[: len(id_dtypes)]
        self._file_names = [*itertools.chain.from_iterable(self._sides), PAIR_DIGESTS]
        self._journal_file = path / "journal.json"
        with contextlib.ExitStack() as opened, storage_errors(path):
            make_directory(path)
            self._files = {
                name: opened.enter_context(AppendedFile(path / name)) for name in self._file_names
            }
            self._go_on()
            self._closing = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with storage_errors(self.path):
            self._closing.close()

    def append(self, number: int, pairs: EncodedPairs) -> None:
        """Add the next pairs of text `number`.

        Raises:
            StorageError: the disk is full or broken.
        """
        with storage_errors(self.path):
            for (ids, offsets), sentences in zip(self._sides, pairs.sides, strict=True):
                self._append(ids, offsets, sentences)
            self._files[PAIR_DIGESTS].write(pairs.digests.tobytes())
        self.reports[number] += pairs.report

    def save(self) -> None:
        """Make what is there last: a build that is killed goes on from here.

        Raises:
            StorageError: the disk is full or broken.
        """
        with storage_errors(self.path):
            for file in self._files.values():
                file.save()
            sync_directory(self.path)
        journal = {
            "files": {name: [file.size, file.checksum] for name, file in self._files.items()},
            "texts": [asdict(report) for report in self.reports],
        }
        write_json(self._journal_file, journal)

    def finish(self, folder: StoreFolder) -> None:
        """Write the folder of the store: these pairs without the repeated ones.

        Raises:
            StorageError: the disk is full or broken.
        """
        self.save()
        digests = self._mapped(PAIR_DIGESTS, "<u8").reshape(-1, 2)
        num_pairs = sum(report.kept for report in self.reports)
        repeated = np.zeros(num_pairs, dtype=np.bool_)
        if len(digests):
            with storage_errors(self.path):
                repeated = find_repeats(digests, self.path)
        # Copied rather than moved: if it fails, the next one goes on from here.
        with atomic_directory(folder.path) as temporary:
            for (ids, offsets), id_dtype in zip(self._sides, self._id_dtypes, strict=True):
                _copy(
                    (self._mapped(ids, id_dtype), self._mapped(offsets, OFFSET_DTYPE)),
                    (temporary / ids, temporary / offsets),
                    kept=~repeated,
                )
            StoreFolder(temporary).write_index(
                self._id_dtypes, _without_repeats(self.reports, repeated)
            )

    def _go_on(self) -> None:
        """Take up the journal, if the files hold what it says; otherwise begin."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            journal = read_json(self._journal_file)
            reports = [FilterReport(**counts) for counts in journal["texts"]]
            known = [(file, *journal["files"][name]) for name, file in self._files.items()]
            if all(file.go_on(int(size), checksum) for file, size, checksum in known):
                self.reports = reports
                return
        for file in self._files.values():
            file.go_on(0, AppendedFile.EMPTY)

    def _append(self, ids_name: str, offsets_name: str, sentences: Sentences) -> None:
        ids, offsets = self._files[ids_name], self._files[offsets_name]
        if offsets.size == 0:
            offsets.write(np.zeros(1, dtype=OFFSET_DTYPE).tobytes())
        num_tokens = ids.size // sentences.ids.itemsize
        ids.write(sentences.ids.tobytes())
        offsets.write((num_tokens + np.cumsum(sentences.lengths)).astype(OFFSET_DTYPE).tobytes())

    def _mapped(self, name: str, dtype: str) -> np.ndarray:
        # What is empty cannot be mapped.
        if (self.path / name).stat().st_size == 0:
            return np.empty(0, dtype=dtype)
        return np.memmap(self.path / name, dtype=dtype, mode="r").view(np.ndarray)


def _key(
    texts: Sequence[AnyTrainingText], tokenizers: Tokenizers, filters: FilterConfig, stores: Path
) -> str:
    """Return a hash of all that a store depends on."""
    digests = TextDigests(stores / TEXTS_FILE)
    content = {
        "format": FORMAT_VERSION,
        "texts": [digests.of(list(text.files.values())) for text in texts],
        "tokenizers": tokenizers.fingerprint,
        "filters": asdict(filters),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


@contextlib.contextmanager
def _building(
    path: Path, texts: Sequence[AnyTrainingText], tokenizers: Tokenizers
) -> Iterator[Building]:
    """Yield what is built in a folder; the folder goes where no other attempt can go on from it."""
    dtypes = id_dtypes(tokenizers, len(texts[0].files))
    try:
        with Building(path, dtypes, len(texts)) as building:
            yield building
    except DataError:
        # When the text has been mended it is another text.
        shutil.rmtree(path, ignore_errors=True)
        raise


def _encode(
    building: Building,
    texts: Sequence[AnyTrainingText],
    tokenizers: Tokenizers,
    filters: FilterConfig,
    pace: Pace,
) -> None:
    """Append all pairs that are not there yet.

    Raises:
        DataError: a text cannot be read, or no pair is left.
    """
    num_processes = pace.num_processes or _num_processes(texts)
    num_unsaved = 0
    with (
        encoder(
            tokenizers, filters, num_processes=num_processes, folder=building.path / "tokenizer"
        ) as encode,
        tqdm(desc="encoding", unit="pair", disable=not sys.stderr.isatty(), leave=False) as bar,
    ):
        for number, text in enumerate(texts):
            num_done = building.reports[number].seen
            bar.update(num_done)
            pairs = itertools.islice(read_rows(text), num_done, None)
            for encoded in encode(chunks(pairs, pace.chunk_lines)):
                building.append(number, encoded)
                bar.update(encoded.report.seen)
                num_unsaved += encoded.report.seen
                if num_unsaved >= pace.saved_lines:
                    building.save()
                    num_unsaved = 0
    report = sum(building.reports, FilterReport())
    if report.kept == 0:
        files = ", ".join(str(next(iter(text.files.values()))) for text in texts)
        raise DataError(
            "data.train",
            "no lines" if report.seen == 0 else "nothing is left after the filters",
            got=files if report.seen == 0 else str(report),
            remedy="name files with text" if report.seen == 0 else "loosen data.filters",
        )


def _num_processes(texts: Sequence[AnyTrainingText]) -> int:
    num_bytes = sum(file.stat().st_size for text in texts for file in text.files.values())
    return 1 if num_bytes < SMALL_BYTES else num_cores()


def _without_repeats(
    reports: Sequence[FilterReport], repeated: np.ndarray
) -> Iterator[FilterReport]:
    """Yield the reports with those pairs that turned out to be repeated counted as duplicates."""
    start = 0
    for report in reports:
        num_repeated = int(repeated[start : start + report.kept].sum())
        start += report.kept
        yield replace(
            report,
            kept=report.kept - num_repeated,
            duplicate=report.duplicate + num_repeated,
        )


def _copy(
    arrays: tuple[np.ndarray, np.ndarray], files: tuple[Path, Path], *, kept: np.ndarray
) -> None:
    """Write the ids and the offsets of those sentences that are kept."""
    ids, offsets = arrays
    num_tokens = 0
    with files[0].open("wb") as new_ids, files[1].open("wb") as new_offsets:
        new_offsets.write(np.zeros(1, dtype=OFFSET_DTYPE).tobytes())
        for places in slices(len(kept)):
            bounds = offsets[places.start : places.stop + 1]
            lengths = np.diff(bounds)
            tokens = ids[bounds[0] : bounds[-1]]
            new_ids.write(tokens[np.repeat(kept[places], lengths)].tobytes())
            ends = num_tokens + np.cumsum(lengths[kept[places]])
            new_offsets.write(ends.astype(OFFSET_DTYPE).tobytes())
            num_tokens += int(lengths[kept[places]].sum())
