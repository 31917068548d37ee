"""Padded batches of examples, and masking for masked language modeling."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from tformer_cli.config.schema.model import MaskedEncoderConfig
from tformer_cli.corpus.store import Example
from tformer_cli.device import derive_seed
from tformer_cli.padding import pad_rows
from tformer_cli.text.vocabulary import BOS_ID, EOS_ID, MASK_ID, NUM_SPECIAL

# The tensors of a batch that the model uses.
TENSORS = ("source", "source_mask", "target_in", "target_out", "target_mask")

# Of the predicted tokens, 80% are masked, 10% replaced by a random token, 10% unchanged.
MASKED, REPLACED = 0.8, 0.9
# Random numbers a token: rank, fate, replacement; and rounding, used of the first token only.
NUM_DRAWS = 4


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of examples, padded on the right.

    The source ends with EOS. `target_in` begins with BOS or another start, `target_out` ends with
    EOS: position t of `target_out` is predicted from positions 0..t of `target_in`. The network
    makes its attention masks of both masks.
    """

    source: Tensor  # (B, S) ids
    source_mask: Tensor  # (B, S) bool, True at real tokens
    target_in: Tensor  # (B, T) ids, the decoder input
    target_out: Tensor  # (B, T) ids, the labels
    # (B, T) bool, True where the loss counts: real tokens, or those a masked model predicts.
    target_mask: Tensor
    indices: Tensor  # (B,) index of each example in its corpus
    num_target_tokens: int  # real tokens of `target_out`, EOS included

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
        indices=torch.tensor([example.index for example in examples]),
        num_target_tokens=int(target_mask.sum()),
    )


@dataclass(frozen=True, slots=True)
class Masking:
    """Masked language modeling (Devlin et al. 2019, section 3.1).

    The masks of a sentence are a function of (seed, epoch, index in the corpus), so they do not
    depend on its batch. `mask_prob` is the fraction of the ordinary tokens of a sentence that are
    predicted, at least one.
    """

    mask_prob: float
    vocabulary_size: int
    seed: int

    @classmethod
    def from_config(cls, config: MaskedEncoderConfig, vocabulary_size: int, seed: int) -> Self:
        return cls(config.mask_prob, vocabulary_size, seed)

    def apply(self, batch: Batch, epoch: int) -> Batch:
        """Mask a batch whose targets are its sources; only masked tokens are labels."""
        source = batch.source.numpy()
        rank, fate, replacement, rounding = self._random_numbers(
            batch.indices.numpy(), epoch, source.shape[1]
        )
        is_predicted = self._select(source, rank, rounding[:, 0])
        num_ordinary = self.vocabulary_size - NUM_SPECIAL
        replacements = NUM_SPECIAL + (replacement * num_ordinary).astype(np.int64)
        visible = np.where(fate < MASKED, MASK_ID, np.where(fate < REPLACED, replacements, source))
        return dataclasses.replace(
            batch,
            source=torch.from_numpy(np.where(is_predicted, visible, source)),
            target_out=batch.source,
            target_mask=torch.from_numpy(is_predicted),
            num_target_tokens=int(is_predicted.sum()),
        )

    def _select(self, source: np.ndarray, rank: np.ndarray, rounding: np.ndarray) -> np.ndarray:
        """Return (B, S) whether each token is predicted: the ordinary tokens of lowest rank.

        Their number is rounded up or down at random, so that its mean is exact.
        """
        is_ordinary = source >= NUM_SPECIAL
        counts = np.maximum(np.floor(self.mask_prob * is_ordinary.sum(axis=1) + rounding), 1)
        order = np.where(is_ordinary, rank, np.inf).argsort(axis=1).argsort(axis=1)
        selected: np.ndarray = is_ordinary & (order < counts[:, None])
        return selected

    def _random_numbers(self, indices: np.ndarray, epoch: int, width: int) -> np.ndarray:
        """Return (4, B, S) numbers in [0, 1), each a function of sentence and position."""
        key = np.uint64(derive_seed(self.seed, "masks", epoch))
        streams = _splitmix64(key + indices.astype(np.uint64))[:, None]
        positions = np.arange(NUM_DRAWS * width, dtype=np.uint64).reshape(width, NUM_DRAWS)
        bits = _splitmix64(streams + positions.T[:, None])
        numbers: np.ndarray = (bits >> np.uint64(11)) * 2.0**-53
        return numbers


def _splitmix64(numbers: np.ndarray) -> np.ndarray:
    """Hash 64-bit numbers by SplitMix64 (Steele, Lea and Flood 2014)."""
    bits = numbers * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
