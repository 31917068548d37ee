"""From text files to stores of token ids, and from stores to batches."""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tformer_cli.config.schema.data import DataConfig, ParallelText, Text
from tformer_cli.corpus.batch import Batch, collate
from tformer_cli.corpus.bucketing import Bucketing, DataPosition, EpochPlans
from tformer_cli.corpus.encoding import encode_sides
from tformer_cli.corpus.filters import FilterReport
from tformer_cli.corpus.lengths import max_sentences
from tformer_cli.corpus.prefetch import chunks
from tformer_cli.corpus.reader import read_lines, read_rows, read_texts
from tformer_cli.corpus.store import TokenStore, build_store
from tformer_cli.corpus.store_builder import Pace, stored
from tformer_cli.errors import DataError
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.text.vocabulary import BOS_ID

# Lines handed to the tokenizers at once.
CHUNK_LINES = 4096


def training_pairs(data: DataConfig) -> Iterator[tuple[str, str]]:
    """Yield all training pairs as text, corpus after corpus; a text alone has empty targets."""
    return read_texts(data.train)


def source_sentences(data: DataConfig) -> int | None:
    """Return the sentences that most source lines of the training text have; a text alone: None."""
    sources = [text.source for text in data.train if isinstance(text, ParallelText)]
    lines = itertools.chain.from_iterable(map(read_lines, sources))
    return max_sentences(lines) if sources else None


def training_store(
    data: DataConfig, tokenizers: Tokenizers, stores: Path | None = None
) -> tuple[TokenStore, FilterReport]:
    """Return the training text, encoded and filtered; it lies on disk, whatever its size.

    Args:
        data: the text, and what is left out of it.
        tokenizers: of both sides.
        stores: a folder that keeps what was encoded for the next time; None keeps nothing.

    Returns:
        The pairs that were kept, and how many were dropped for which reason.

    Raises:
        DataError: a file cannot be read, or no pair is left.
        StorageError: the folder cannot be written.
        TrainingError: a process that encodes died.
    """
    if stores is None:
        # What is mapped stays readable when its files have lost their names.
        with tempfile.TemporaryDirectory() as folder:
            return training_store(data, tokenizers, Path(folder))
    return stored(data.train, tokenizers, data.filters, stores=stores, pace=Pace())


def evaluation_store(
    text: Text, tokenizers: Tokenizers, *, max_length: int | None = None
) -> TokenStore:
    """Encode every pair of a text; none is filtered, so pair i is line i + 1.

    Args:
        text: source and references, or a text alone, whose lines are their own targets.
        tokenizers: of both sides.
        max_length: tokens that the model takes, `</s>` included, or None for any number.

    Raises:
        DataError: a file cannot be read, there are no lines, or one is too long for the model.
    """
    store = build_store((source, target, 1.0) for source, target in _encoded(text, tokenizers))
    files = list(text.files.values())
    if len(store) == 0:
        raise DataError(str(files[0]), "no lines", remedy="name a file with text")
    if max_length is not None:
        sides = store.source_lengths + 1, store.target_lengths + 1
        for file, lengths in zip(files, sides, strict=False):
            for place in np.flatnonzero(lengths > max_length):
                raise too_long_error(f"{file}:{place + 1}", int(lengths[place]), max_length)
    return store


def too_long_error(where: str, length: int, max_length: int) -> DataError:
    """Return the error of a sentence that is longer than the model's positions."""
    return DataError(
        where,
        f"is longer than the positions that the model has learnt ({max_length} tokens)",
        got=f"{length} tokens",
        remedy="split it, or train with model.positions: {kind: sinusoidal}",
    )


def epoch_plans(store: TokenStore, *, batch_tokens: int, seed: int) -> EpochPlans:
    """Return which examples share a batch, epoch by epoch.

    Args:
        store: the examples.
        batch_tokens: padded tokens of one optimiser step on either side.
        seed: decides the order with the epoch.
    """
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
    """Yield the batch of each optimiser step for ever, cut into micro-batches by rows.

    Args:
        store: the examples.
        plans: of their batches.
        accumulate: micro-batches a batch is cut into, where it has that many rows.
        data_position: the first batch.
        start_id: what targets begin with.
        rank: of those that share each batch, from 0.
        num_ranks: how many they are; whose rank is beyond the rows of a batch gets none of it.

    Yields:
        The micro-batches of a step, and the data_position that follows it.
    """
    for indices, following in plans.batches_from(data_position):
        parts = np.array_split(indices, min(accumulate * num_ranks, len(indices)))
        own = parts[rank::num_ranks]
        yield [collate(store.examples(part), start_id) for part in own], following


def batches_in_order(
    store: TokenStore, *, batch_tokens: int, start_id: int = BOS_ID
) -> Iterator[Batch]:
    """Yield every example once, in batches of similar length; targets begin with `start_id`."""
    for indices in _bucketing(store, batch_tokens, seed=0).plan(epoch=0):
        yield collate(store.examples(indices), start_id)


def _bucketing(store: TokenStore, batch_tokens: int, seed: int) -> Bucketing:
    return Bucketing(
        source_lengths=_with_special(store.source_lengths),  # </s>
        target_lengths=_with_special(store.target_lengths),  # <s> going in, </s> coming out
        weights=store.weights,
        batch_tokens=batch_tokens,
        seed=seed,
    )


def _with_special(lengths: np.ndarray) -> np.ndarray:
    """Return each length with one special token, in 16 bits where that does for all."""
    fits = int(lengths.max(initial=0)) + 1 < 1 << 16
    return lengths.astype(np.uint16 if fits else np.int32) + 1


def _encoded(text: Text, tokenizers: Tokenizers) -> Iterator[tuple[list[int], list[int]]]:
    """Yield each pair as ids."""
    for chunk in chunks(read_rows(text), CHUNK_LINES):
        sides = encode_sides(chunk, tokenizers)
        yield from zip(sides[0], sides[-1], strict=True)
