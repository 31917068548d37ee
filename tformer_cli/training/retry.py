"""Redo a step: in halved micro-batches after running out of memory, or by a lower loss scale."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from tformer_cli.corpus.batch import Batch
from tformer_cli.device import is_out_of_memory
from tformer_cli.errors import TrainingError
from tformer_cli.text.vocabulary import PAD_ID

INITIAL_LOSS_SCALE = 2.0**16
# Steps after which a larger loss scale is tried.
GROWTH_INTERVAL = 2000


@dataclass(frozen=True, slots=True)
class LossScale:
    """Loss scaling for float16 (Micikevicius et al. 2018, section 3.2).

    Gradients of the scaled loss are unscaled before they are used. The factor is a power of two,
    which changes no digit; without float16 it stays 1.

    Attributes:
        factor: multiplies the loss.
        num_steps: steps taken since the factor changed.
    """

    factor: float = 1.0
    num_steps: int = 0

    @classmethod
    def initial(cls, precision: torch.dtype) -> Self:
        return cls(INITIAL_LOSS_SCALE if precision == torch.float16 else 1.0)

    @property
    def can_be_lowered(self) -> bool:
        return self.factor > 1.0

    def lowered(self) -> Self:
        """Return the loss scale with which to redo a step whose gradient overflowed."""
        return replace(self, factor=self.factor / 2, num_steps=0)

    def stepped(self, precision: torch.dtype) -> Self:
        """Return the loss scale of the step after one that succeeded."""
        if precision == torch.float16 and self.num_steps + 1 == GROWTH_INTERVAL:
            return replace(self, factor=self.factor * 2, num_steps=0)
        return replace(self, num_steps=self.num_steps + 1)


def in_halves(batches: Sequence[Batch], *, where: str) -> list[Batch]:
    """Cut every batch of several rows in two, each padded to its own longest row."""
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
            # Not by the target mask, which selects few tokens of a masked text.
            target = rows, slice(int((batch.target_out[rows] != PAD_ID).sum(dim=1).max()))
            yield replace(
                batch,
                source=batch.source[source],
                source_mask=batch.source_mask[source],
                target_in=batch.target_in[target],
                target_out=batch.target_out[target],
                target_mask=batch.target_mask[target],
                indices=batch.indices[rows],
                num_target_tokens=int(batch.target_mask[rows].sum()),
            )


@contextlib.contextmanager
def memory_shortage_reported(where: str) -> Iterator[None]:
    """Turn running out of memory where nothing can be redone into an error about `where`."""
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
