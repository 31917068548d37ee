"""When memory runs out: how to need less, and what to say where that cannot be."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

from tformer_cli.corpus.batch import Batch
from tformer_cli.device import is_out_of_memory
from tformer_cli.errors import TrainingError
from tformer_cli.text.vocabulary import PAD_ID


@contextlib.contextmanager
def memory_shortage_reported(where: str) -> Iterator[None]:
    """Let memory that runs out where nothing can be cut smaller be said of `where`.

    Raises:
        TrainingError: it did.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(
            where,
            "memory ran out; what was saved before is intact",
            got=str(error).partition("\n")[0] or None,
            remedy="lower training.batch_tokens, or train a smaller model",
        ) from error


def in_halves(batches: Sequence[Batch], *, where: str) -> list[Batch]:
    """Cut every batch of several rows into two, padded no wider than each needs.

    Raises:
        TrainingError: no batch has a second row.
    """
    if all(len(batch.source) == 1 for batch in batches):
        longest = max(batches, key=lambda batch: batch.source.shape[1] + batch.target_in.shape[1])
        raise TrainingError(
            where,
            "memory ran out on a single pair of sentences",
            got=f"{longest.source.shape[1]} and {longest.target_in.shape[1]} tokens",
            remedy="lower data.filters.max_length, or train a smaller model",
        )
    return [half for batch in batches for half in _halves(batch)]


def _halves(batch: Batch) -> Iterator[Batch]:
    middle = (len(batch.source) + 1) // 2
    for rows in (slice(0, middle), slice(middle, None)):
        if len(batch.source[rows]) > 0:
            source = rows, slice(int(batch.source_mask[rows].sum(dim=1).max()))
            # The mask of a masked text asks for few of its tokens.
            target = rows, slice(int((batch.target_out[rows] != PAD_ID).sum(dim=1).max()))
            yield dataclasses.replace(
                batch,
                source=batch.source[source],
                source_mask=batch.source_mask[source],
                target_in=batch.target_in[target],
                target_out=batch.target_out[target],
                target_mask=batch.target_mask[target],
                indices=batch.indices[rows],
                num_target_tokens=int(batch.target_mask[rows].sum()),
            )
