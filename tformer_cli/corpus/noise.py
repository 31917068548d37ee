"""Random changes of the training text: masks, subword sampling and source noise.

Those of a sentence are a function of (seed, epoch, index of the example), so they depend neither on
its batch nor on the number of processes, and a resumed training draws them again.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.training import SourceNoiseConfig
from tformer_cli.corpus.batch import Batch
from tformer_cli.corpus.store import Example
from tformer_cli.device import derive_seed
from tformer_cli.padding import flat_positions
from tformer_cli.text.special_tokens import FIRST_TAG_ID, MASK_ID, NUM_SPECIAL
from tformer_cli.text.subword import SubwordTokenizer
from tformer_cli.text.subword_sampling import SubwordSampler, build_sampler
from tformer_cli.text.tokenizer import Tokenizers

# Of the predicted tokens, 80% are masked, 10% replaced by a random token, 10% unchanged.
MASKED, REPLACED = 0.8, 0.9
# Random numbers a token: rank, fate, replacement; and rounding, used of the first token only.
NUM_MASK_DRAWS = 4
# Random numbers a token: dropped, replaced, replacement, swap.
NUM_NOISE_DRAWS = 4


def random_numbers(
    seed: int, purpose: str, epoch: int, indices: np.ndarray, count: int
) -> np.ndarray:
    """Return (n, count) numbers in [0, 1), each a function of the arguments, index and position."""
    key = np.uint64(derive_seed(seed, purpose, epoch))
    streams = _splitmix64(key + indices.astype(np.uint64))[:, None]
    bits = _splitmix64(streams + np.arange(count, dtype=np.uint64))
    numbers: np.ndarray = (bits >> np.uint64(11)) * 2.0**-53
    return numbers


def _splitmix64(numbers: np.ndarray) -> np.ndarray:
    """Hash 64-bit numbers by SplitMix64 (Steele, Lea and Flood 2014)."""
    bits = numbers * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Masking:
    """Masked language modeling (Devlin et al. 2019, section 3.1).

    `mask_prob` is the fraction of the ordinary tokens of a sentence that are predicted, at least
    one.
    """

    mask_prob: float
    vocabulary_size: int
    seed: int

    def apply(self, batch: Batch, epoch: int) -> Batch:
        """Mask a batch whose targets are its sources; only masked tokens are labels."""
        source = batch.source.numpy()
        width, indices = source.shape[1], batch.indices.numpy()
        numbers = random_numbers(self.seed, "masks", epoch, indices, NUM_MASK_DRAWS * width)
        draws = numbers.reshape(-1, width, NUM_MASK_DRAWS).transpose(2, 0, 1)  # (4, B, S)
        rank, fate, replacement, rounding = draws
        is_predicted = self._select(source, rank, rounding[:, 0])
        replacements = random_tokens(replacement, self.vocabulary_size)
        visible = np.where(fate < MASKED, MASK_ID, np.where(fate < REPLACED, replacements, source))
        target_mask = torch.from_numpy(is_predicted)
        return dataclasses.replace(
            batch,
            source=torch.from_numpy(np.where(is_predicted, visible, source)),
            target_out=batch.source,
            target_mask=target_mask,
            target_positions=flat_positions(target_mask),
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


@dataclass(frozen=True, slots=True)
class ExampleNoise:
    """Changes of examples before they become a batch: subword sampling, then source noise."""

    samplers: tuple[SubwordSampler, SubwordSampler] | None  # of source and target
    source_noise: SourceNoiseConfig | None
    vocabulary_size: int  # of the sources
    num_languages: int  # tokens of languages that each source begins with
    max_length: int  # a drawn segmentation with more tokens is not taken
    seed: int  # of the training

    @classmethod
    def from_config(cls, config: Config, tokenizers: Tokenizers) -> Self | None:
        """Return the changes that a configuration asks for, or None."""
        sampling, source_noise = config.training.subword_sampling, config.training.source_noise
        if sampling is None and source_noise is None:
            return None
        samplers = None
        source, target = tokenizers.source, tokenizers.target
        if sampling is not None:
            assert isinstance(source, SubwordTokenizer), "the configuration is checked"
            assert isinstance(target, SubwordTokenizer), "the configuration is checked"
            first = build_sampler(sampling, source)
            samplers = first, first if tokenizers.shared else build_sampler(sampling, target)
        return cls(
            samplers,
            source_noise,
            vocabulary_size=source.size,
            num_languages=int(config.data.language_marks == "tokens"),
            max_length=config.data.max_length,
            seed=config.seed,
        )

    def apply(self, examples: Sequence[Example], epoch: int) -> list[Example]:
        """Return the examples as an epoch sees them."""
        indices = np.array([example.index for example in examples])
        sources = [example.source for example in examples]
        targets = [example.target for example in examples]
        if self.samplers is not None:
            source_sampler, target_sampler = self.samplers
            sources = self._segment(source_sampler, sources, "source", epoch, indices)
            targets = self._segment(target_sampler, targets, "target", epoch, indices)
        if self.source_noise is not None:
            sources = self._add_noise(self.source_noise, sources, epoch, indices)
        return list(map(Example, indices.tolist(), sources, targets))

    def _segment(
        self,
        sampler: SubwordSampler,
        sentences: Sequence[Sequence[int] | np.ndarray],
        side: str,
        epoch: int,
        indices: np.ndarray,
    ) -> list[Sequence[int] | np.ndarray]:
        rows = [np.asarray(sentence).tolist() for sentence in sentences]
        count = max(sum(sampler.num_characters[i] for i in row) for row in rows)
        numbers = random_numbers(self.seed, f"{side} subwords", epoch, indices, count).tolist()
        sampled = map(sampler.sample, rows, map(iter, numbers))
        return [
            new if len(new) <= self.max_length else old
            for new, old in zip(sampled, rows, strict=True)
        ]

    def _add_noise(
        self,
        noise: SourceNoiseConfig,
        sources: Sequence[Sequence[int] | np.ndarray],
        epoch: int,
        indices: np.ndarray,
    ) -> list[Sequence[int] | np.ndarray]:
        width = max(map(len, sources))
        draws = random_numbers(self.seed, "source noise", epoch, indices, NUM_NOISE_DRAWS * width)
        draws = draws.reshape(-1, width, NUM_NOISE_DRAWS).transpose(0, 2, 1)
        return [
            with_noise(np.asarray(source), noise, numbers, self.vocabulary_size, self.num_languages)
            for source, numbers in zip(sources, draws, strict=True)
        ]


def with_noise(
    source: np.ndarray,
    noise: SourceNoiseConfig,
    numbers: np.ndarray,
    vocabulary_size: int,
    num_languages: int = 0,
) -> np.ndarray:
    """Drop, swap and replace tokens of a source (Lample et al. 2018, section 2.3).

    The `num_languages` tokens and the tags that it begins with stay. Dropping leaves at least one
    token. A token moves by at most `noise.swap` positions: those left are sorted by their position
    plus a number in [0, noise.swap + 1). Ids are (n,), random numbers in [0, 1) are (4, at least
    n).
    """
    is_mark = (source >= FIRST_TAG_ID) & (source < NUM_SPECIAL)
    is_mark[:num_languages] = True
    marks, tokens = source[is_mark], source[~is_mark]
    dropped, replaced, replacement, swap = numbers[:, : len(tokens)]
    kept = dropped >= noise.drop
    if len(tokens):
        kept[dropped.argmax()] = True
    tokens = np.where(
        replaced < noise.replace, random_tokens(replacement, vocabulary_size), tokens
    )[kept]
    order = np.argsort(np.arange(len(tokens)) + swap[kept] * (noise.swap + 1), kind="stable")
    return np.concatenate((marks, tokens[order]))


def random_tokens(numbers: np.ndarray, vocabulary_size: int) -> np.ndarray:
    """Return an ordinary token for each number in [0, 1), all with the same probability."""
    tokens: np.ndarray = NUM_SPECIAL + (numbers * (vocabulary_size - NUM_SPECIAL)).astype(np.int64)
    return tokens
