"""Which tokens a masked encoder is asked for, and what it sees in their places."""

import dataclasses
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from tformer_cli.config.schema.model import MaskedEncoderConfig
from tformer_cli.corpus.batch import Batch
from tformer_cli.device import derive_seed
from tformer_cli.text.vocabulary import MASK_ID, NUM_SPECIAL

# Of ten tokens that are chosen, eight are masked and one is replaced; the last one stays.
MASKED, REPLACED = 0.8, 0.9

# Numbers that each token draws: whether it is chosen, what becomes of it, by what it is replaced;
# and one that the first token draws for its sentence.
NUM_DRAWS = 4


@dataclass(frozen=True, slots=True)
class Masking:
    """Hides tokens (Devlin et al. 2019, section 3.1).

    What is hidden of a sentence is a function of (seed, epoch, place in the corpus): whoever shares
    its batch, and however wide that is padded, it is the same.

    Attributes:
        mask_prob: fraction of the ordinary tokens of a sentence to predict; at least one token.
        vocabulary_size: of the ids that replace others.
        seed: of the noise.
    """

    mask_prob: float
    vocabulary_size: int
    seed: int

    @classmethod
    def from_config(cls, config: MaskedEncoderConfig, vocabulary_size: int, seed: int) -> Self:
        """Return what a config asks for."""
        return cls(config.mask_prob, vocabulary_size, seed)

    def apply(self, batch: Batch, epoch: int) -> Batch:
        """Return a batch of which the source hides tokens, and the target asks for those alone.

        Args:
            batch: whose targets are its sources.
            epoch: in which it is read.
        """
        source = batch.source.numpy()
        rank, fate, other, rounding = self._draws(batch.indices.numpy(), epoch, source.shape[1])
        chosen = self._chosen(source, rank, rounding[:, 0])
        others = NUM_SPECIAL + (other * (self.vocabulary_size - NUM_SPECIAL)).astype(np.int64)
        shown = np.where(fate < MASKED, MASK_ID, np.where(fate < REPLACED, others, source))
        return dataclasses.replace(
            batch,
            source=torch.from_numpy(np.where(chosen, shown, source)),
            target_out=batch.source,
            target_mask=torch.from_numpy(chosen),
            num_target_tokens=int(chosen.sum()),
        )

    def _chosen(self, source: np.ndarray, rank: np.ndarray, rounding: np.ndarray) -> np.ndarray:
        """Return (B, S) the tokens asked for; none of them is special.

        Their number is the share of the sentence's ordinary tokens, rounded up or down by chance
        so that it is the share on average; but a sentence without any would teach nothing.

        Args:
            source: (B, S) ids.
            rank: (B, S) numbers, the smallest of which are chosen.
            rounding: (B,) numbers in [0, 1).
        """
        is_ordinary = source >= NUM_SPECIAL
        counts = np.maximum(np.floor(self.mask_prob * is_ordinary.sum(axis=1) + rounding), 1)
        places = np.where(is_ordinary, rank, np.inf).argsort(axis=1).argsort(axis=1)
        chosen: np.ndarray = is_ordinary & (places < counts[:, None])
        return chosen

    def _draws(self, indices: np.ndarray, epoch: int, width: int) -> np.ndarray:
        """Return (4, B, S) numbers in [0, 1), each a function of its sentence and its column."""
        key = np.uint64(derive_seed(self.seed, "masks", epoch))
        streams = _scattered(key + indices.astype(np.uint64))[:, None]
        columns = np.arange(NUM_DRAWS * width, dtype=np.uint64).reshape(width, NUM_DRAWS)
        bits = _scattered(streams + columns.T[:, None])
        draws: np.ndarray = (bits >> np.uint64(11)) * 2.0**-53
        return draws


def _scattered(numbers: np.ndarray) -> np.ndarray:
    """Return a number that looks random for each 64-bit number.

    The step and the mixing of SplitMix64 (Steele, Lea and Flood 2014).
    """
    bits = numbers * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
