"""Examples, and the padded batches they become."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tformer_cli.padding import pad_rows
from tformer_cli.text.vocabulary import BOS_ID, EOS_ID

# What of a batch the model sees.
TENSORS = ("source", "source_mask", "target_in", "target_out", "target_mask")


@dataclass(frozen=True, slots=True)
class Example:
    """One pair of token sequences, without special tokens.

    Attributes:
        index: the pair's place in its corpus.
        source: token ids of the source sentence.
        target: token ids of the target sentence.
    """

    index: int
    source: Sequence[int] | np.ndarray
    target: Sequence[int] | np.ndarray


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples side by side, padded to the longest.

    The source ends with `</s>`. The target goes in behind `<s>`, or another start, and comes out
    before `</s>`, so column t of `target_out` is what the model must say after columns 0..t of
    `target_in`.
    A mask says True where a real token stands.

    Attributes:
        source: (B, S) token ids.
        source_mask: (B, S) bool.
        target_in: (B, T) token ids.
        target_out: (B, T) token ids.
        target_mask: (B, T) bool.
        indices: (B,) places of the examples in their corpus.
        num_target_tokens: real tokens of `target_out`, `</s>` included.
    """

    source: Tensor
    source_mask: Tensor
    target_in: Tensor
    target_out: Tensor
    target_mask: Tensor
    indices: Tensor
    num_target_tokens: int

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on `device`."""
        if device.type == "cpu":
            return self
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in TENSORS}
        return dataclasses.replace(self, **moved)

    def pin_memory(self) -> "Batch":
        """Return the batch in memory that a GPU copies from while it computes."""
        pinned = {name: getattr(self, name).pin_memory() for name in TENSORS}
        return dataclasses.replace(self, **pinned)


def collate(examples: Sequence[Example], start_id: int = BOS_ID) -> Batch:
    """Pad examples into a batch, in the order given; targets go in behind `start_id`."""
    sources = [example.source for example in examples]
    targets = [example.target for example in examples]
    source, source_mask = pad_rows(sources, last=EOS_ID)
    target_in, target_mask = pad_rows(targets, first=start_id)
    target_out, _ = pad_rows(targets, last=EOS_ID)
    return Batch(
        source=source,
        source_mask=source_mask,
        target_in=target_in,
        target_out=target_out,
        target_mask=target_mask,
        indices=torch.tensor([example.index for example in examples]),
        num_target_tokens=int(target_mask.sum()),
    )
