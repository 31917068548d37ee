"""From text files to stores of token ids, and from stores to batches."""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tformer_cli.config.schema.data import DataConfig, ParallelText, Text
from tformer_cli.corpus.batch import Batch, collate
from tformer_cli.corpus.bucketing import Bucketing, DataPosition, EpochPlans
from tformer_cli.corpus.filters import FilterReport
from tformer_cli.corpus.prefetch import chunks
from tformer_cli.corpus.reader import read_lines, read_rows, read_texts
from tformer_cli.corpus.statistics import p99_sentences
from tformer_cli.corpus.store import TokenStore, build_store
from tformer_cli.corpus.store_builder import encode_sides, load_or_build_store
from tformer_cli.errors import DataError
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.text.vocabulary import BOS_ID

# Lines tokenized together.
CHUNK_LINES = 4096


def training_pairs(data: DataConfig) -> Iterator[tuple[str, str]]:
    """Yield all training pairs, corpus after corpus; targets of monolingual text are empty."""
    return read_texts(data.train)


def source_sentences(data: DataConfig) -> int | None:
    """Return how many sentences 99% of the source lines do not exceed; None of monolingual text."""
    sources = [text.source for text in data.train if isinstance(text, ParallelText)]
    lines = itertools.chain.from_iterable(map(read_lines, sources))
    return p99_sentences(lines) if sources else None


def training_store(
    data: DataConfig, tokenizers: Tokenizers, stores: Path | None = None
) -> tuple[TokenStore, FilterReport]:
    """Return the training text, encoded, filtered and memory-mapped, and the filter counts.

    The directory `stores` caches it; None for no cache.
    """
    if stores is None:
        # A mapped file stays readable after its removal.
        with tempfile.TemporaryDirectory() as directory:
            return training_store(data, tokenizers, Path(directory))
    return load_or_build_store(data.train, tokenizers, data.filters, stores=stores)


def evaluation_store(
    text: Text, tokenizers: Tokenizers, *, max_length: int | None = None
) -> TokenStore:
    """Encode every line of a text without filters, so pair i is line i + 1.

    Monolingual lines are their own targets. `max_length` counts EOS.

    Raises:
        DataError: a file cannot be read, has no lines, or a line is longer than `max_length`.
    """
    store = build_store(
        (source, target, 1.0)
        for rows in chunks(read_rows(text), CHUNK_LINES)
        for sides in [encode_sides(rows, tokenizers)]
        for source, target in zip(sides[0], sides[-1], strict=True)
    )
    files = list(text.files.values())
    if len(store) == 0:
        raise DataError(str(files[0]), "no lines", remedy="name a file with text")
    if max_length is not None:
        sides = store.source_lengths + 1, store.target_lengths + 1
        for file, lengths in zip(files, sides, strict=False):
            for line in np.flatnonzero(lengths > max_length):
                raise too_long_error(f"{file}:{line + 1}", int(lengths[line]), max_length)
    return store


def too_long_error(where: str, length: int, max_length: int) -> DataError:
    """Return the error of a sentence that is longer than the model's learned positions."""
    return DataError(
        where,
        f"is longer than the positions that the model has learned ({max_length} tokens)",
        got=f"{length} tokens",
        remedy="split it, or train with model.positions: {kind: sinusoidal}",
    )


def epoch_plans(store: TokenStore, *, batch_tokens: int, seed: int) -> EpochPlans:
    """Return the batches of each epoch; `batch_tokens` is the budget of one optimizer step."""
    return EpochPlans(_bucketing(store, batch_tokens, seed))


def training_micro_batches(
    store: TokenStore,
    plans: EpochPlans,
    *,
    accumulate: int,
    data_position: DataPosition,
    start_id: int = BOS_ID,
    rank: int = 0,
    num_ranks: int = 1,
) -> Iterator[tuple[list[Batch], DataPosition]]:
    """Yield forever the micro-batches of each optimizer step, and the data position after it.

    Each batch is split by rows into `accumulate` micro-batches for each rank. A rank beyond the
    rows of a batch gets an empty list.
    """
    for indices, next_position in plans.batches_from(data_position):
        parts = np.array_split(indices, min(accumulate * num_ranks, len(indices)))
        own = parts[rank::num_ranks]
        yield [collate(store.examples(part), start_id) for part in own], next_position


def batches_in_order(
    store: TokenStore, *, batch_tokens: int, start_id: int = BOS_ID
) -> Iterator[Batch]:
    """Yield every example once, in batches of similar length."""
    for indices in _bucketing(store, batch_tokens, seed=0).plan(epoch=0):
        yield collate(store.examples(indices), start_id)


def _bucketing(store: TokenStore, batch_tokens: int, seed: int) -> Bucketing:
    return Bucketing(
        source_lengths=_with_special(store.source_lengths),  # EOS
        target_lengths=_with_special(store.target_lengths),  # BOS of the input, EOS of the labels
        weights=store.weights,
        batch_tokens=batch_tokens,
        seed=seed,
    )


def _with_special(lengths: np.ndarray) -> np.ndarray:
    """Add one special token to each length, in 16 bits if all fit."""
    fits = int(lengths.max(initial=0)) + 1 < 1 << 16
    return lengths.astype(np.uint16 if fits else np.int32) + 1
