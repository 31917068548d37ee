"""Lines into the token ids that training keeps of them, by one process or by many.

A pair of lines has two sides; the lines of a text alone count as pairs that have but one.

Processes that encode import this module, so nothing here imports torch.
"""

import contextlib
import functools
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from tformer_cli.config.schema.data import FilterConfig
from tformer_cli.corpus.filters import FilterReport, filter_lengths, pair_digests
from tformer_cli.errors import TrainingError
from tformer_cli.process import begin_child
from tformer_cli.text.tokenizer import Tokenizers, load_tokenizers

# Chunks that wait for each process, so that none waits for the reader.
CHUNKS_AHEAD = 2

Chunk = Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Sentences:
    """Sentences of one side as token ids.

    Attributes:
        ids: all tokens, one sentence after the other, in the integers of `id_dtype`.
        lengths: (n,) tokens of each sentence.
    """

    ids: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True, slots=True)
class EncodedPairs:
    """What training keeps of a chunk of pairs, duplicates included.

    Attributes:
        sides: the sources of the n pairs that are kept, and their targets if there are any.
        digests: (n, 2) of `pair_digests`; (0, 2) where duplicates do not matter.
        report: the counts of the whole chunk.
    """

    sides: tuple[Sentences, ...]
    digests: np.ndarray
    report: FilterReport


def id_dtype(vocabulary_size: int) -> str:
    """Return the integers that hold every id of a vocabulary, in the byte order of files."""
    return "<u2" if vocabulary_size <= 1 << 16 else "<u4"


def id_dtypes(tokenizers: Tokenizers, num_sides: int) -> tuple[str, ...]:
    """Return the integers that hold the ids of each side."""
    return tuple(id_dtype(side.size) for side in (tokenizers.source, tokenizers.target)[:num_sides])


def encode_sides(chunk: Chunk, tokenizers: Tokenizers) -> list[list[list[int]]]:
    """Return the ids of each line, side by side."""
    sides: list[tuple[str, ...]] = list(zip(*chunk, strict=True))
    both = tokenizers.source, tokenizers.target
    return [tokenizer.encode_batch(lines) for tokenizer, lines in zip(both, sides, strict=False)]


def encode_pairs(chunk: Chunk, tokenizers: Tokenizers, filters: FilterConfig) -> EncodedPairs:
    """Encode a chunk, and leave out what the filters drop for its length."""
    sides = encode_sides(chunk, tokenizers)
    is_kept, report = filter_lengths(filters, *map(_lengths, sides))
    kept = np.flatnonzero(is_kept).tolist()
    dtypes = id_dtypes(tokenizers, len(sides))
    return EncodedPairs(
        sides=tuple(
            _sentences([side[i] for i in kept], dtype)
            for side, dtype in zip(sides, dtypes, strict=True)
        ),
        digests=pair_digests(chunk[i] for i in kept if filters.drop_duplicates),
        report=report,
    )


@contextlib.contextmanager
def encoder(
    tokenizers: Tokenizers, filters: FilterConfig, *, num_processes: int, folder: Path
) -> Iterator[Callable[[Iterable[Chunk]], Iterator[EncodedPairs]]]:
    """Yield a function that encodes a stream of chunks and keeps their order.

    Args:
        tokenizers: of both sides.
        filters: what is left out.
        num_processes: that encode; 1 is this process, which otherwise only reads and writes.
        folder: where the others find the tokenizers; it is written for them.

    Raises:
        TrainingError: a process died.
        StorageError: the folder cannot be written.
    """
    if num_processes == 1:
        yield lambda chunks: (encode_pairs(chunk, tokenizers, filters) for chunk in chunks)
        return
    tokenizers.save(folder)
    # A fork would copy the threads of torch and of the tokenizers halfway through their work.
    with ProcessPoolExecutor(
        num_processes, multiprocessing.get_context("spawn"), initializer=begin_child
    ) as pool:
        try:
            yield lambda chunks: _in_order(
                pool, chunks, functools.partial(_encode, folder, filters), num_processes
            )
        except BrokenProcessPool:
            raise TrainingError(
                "data.train",
                "a process that encodes the text has died",
                remedy="free memory and run the same command again: it goes on from there",
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _in_order(
    pool: ProcessPoolExecutor,
    chunks: Iterable[Chunk],
    encode: Callable[[Chunk], EncodedPairs],
    num_processes: int,
) -> Iterator[EncodedPairs]:
    """Yield the chunks encoded, with no more of them under way than keeps the processes busy."""
    under_way: deque[Future[EncodedPairs]] = deque()
    for chunk in chunks:
        under_way.append(pool.submit(encode, chunk))
        if len(under_way) > CHUNKS_AHEAD * num_processes:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


def _encode(folder: Path, filters: FilterConfig, chunk: Chunk) -> EncodedPairs:
    return encode_pairs(chunk, _loaded(folder), filters)


@functools.cache
def _loaded(folder: Path) -> Tokenizers:
    return load_tokenizers(folder)


def _sentences(rows: Sequence[Sequence[int]], dtype: str) -> Sentences:
    ids = np.fromiter(chain.from_iterable(rows), dtype=dtype)
    return Sentences(ids, _lengths(rows))


def _lengths(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return np.array([len(row) for row in rows], dtype=np.int64)
