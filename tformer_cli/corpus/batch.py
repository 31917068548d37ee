"""A batch of examples: padding, masks, and the special tokens of targets."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tformer_cli.corpus.store import Example
from tformer_cli.padding import PAD_ID, flat_positions, pad_rows
from tformer_cli.text.special_tokens import BOS_ID, EOS_ID

# The tensors of a batch that the model uses.
TENSORS = ("source", "source_mask", "target_in", "target_out", "target_positions")


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of examples, padded on the right.

    The source ends with EOS. `target_in` begins with BOS or another start, `target_out` ends with
    EOS: position t of `target_out` is predicted from positions 0..t of `target_in`. `source_mask`
    masks attention; `target_mask` selects the positions that are predicted.
    """

    source: Tensor  # (B, S) ids
    source_mask: Tensor  # (B, S) bool, True at real tokens
    target_in: Tensor  # (B, T) ids, the decoder input
    target_out: Tensor  # (B, T) ids, the labels
    # (B, T) bool, True where the loss counts: real tokens, or those a masked model predicts.
    target_mask: Tensor
    # (N,) flat indices of `target_mask`; with them, no GPU has to say how many there are.
    target_positions: Tensor
    indices: Tensor  # (B,) index of each example
    num_target_tokens: int  # N

    @property
    def targets(self) -> Tensor:
        """The labels (N,) of the positions where the loss counts."""
        return self.target_out.flatten().index_select(0, self.target_positions)

    def select(self, rows: slice | list[int]) -> "Batch":
        """Return some rows as a batch, padded to the longest of them."""
        source = self.source_mask[rows].any(dim=0)
        # Not by the target mask, which selects few tokens of a masked text.
        target = (self.target_out[rows] != PAD_ID).any(dim=0)
        target_mask = self.target_mask[rows][:, target]
        return Batch(
            source=self.source[rows][:, source],
            source_mask=self.source_mask[rows][:, source],
            target_in=self.target_in[rows][:, target],
            target_out=self.target_out[rows][:, target],
            target_mask=target_mask,
            target_positions=flat_positions(target_mask),
            indices=self.indices[rows],
            num_target_tokens=int(target_mask.sum()),
        )

    def to(self, device: torch.device) -> "Batch":
        if device.type == "cpu":
            return self
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in TENSORS}
        return dataclasses.replace(self, **moved)

    def pin_memory(self) -> "Batch":
        """Return the batch in pinned memory, from which a GPU copies asynchronously."""
        pinned = {name: getattr(self, name).pin_memory() for name in TENSORS}
        return dataclasses.replace(self, **pinned)


def collate(examples: Sequence[Example], start_id: int = BOS_ID) -> Batch:
    """Pad examples into a batch; `start_id` is the first decoder input.

    EOS is added to all sources at once, as `with_eos` adds it to one.
    """
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
        target_positions=flat_positions(target_mask),
        indices=torch.tensor([example.index for example in examples]),
        num_target_tokens=int(target_mask.sum()),
    )
