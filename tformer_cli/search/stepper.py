"""Where a search asks what may come next."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tformer_cli.device import autocast, batch_size_factor
from tformer_cli.inference.two_stage_argmax import FEWEST_ROWS, Screen
from tformer_cli.model.blocks.attention import KeyValue
from tformer_cli.model.kv_cache import DecoderCache
from tformer_cli.model.network import Seq2Seq
from tformer_cli.padding import pad_rows
from tformer_cli.search.logits_processors import suppress_tokens
from tformer_cli.search.request import SpecialTokens
from tformer_cli.search.topk import log_softmax, topk_tokens

# Padded source tokens that a core reads at a time: enough to fill its products, and little enough
# that what is computed of them stays near it.
READ_TOKENS = 1024


Sentence = Sequence[int]


class Stepper(Protocol):
    """K rows for each of B places, each with a sentence of its own, that grow a token at a time."""

    def start(self, sentences: Sequence[Sentence], num_beams: int) -> None:
        """Begin with a place for each sentence, with `num_beams` empty rows."""
        ...

    def insert(
        self, places: Tensor, sentences: Sequence[Sentence], lookahead: Iterable[Sentence]
    ) -> None:
        """Begin sentences.

        Args:
            places: (B',) whose own sentences are forgotten.
            sentences: one for each of them.
            lookahead: those that are admitted next, in this order; they may be read ahead.
        """
        ...

    def step(self, ids: Tensor) -> Tensor:
        """Add one token (B, K) to each row; return the logits (B, K, V) of what follows.

        They may be changed in place.
        """
        ...

    def best(self, ids: Tensor, suppress_tokens: Callable[[Tensor], object]) -> Tensor:
        """Add one token (B, K) to each row; return the best one to follow, (B, K).

        Args:
            ids: (B, K).
            suppress_tokens: makes impossible, in place, what may not follow in logits (B, K, V).
        """
        logits = self.step(ids)
        suppress_tokens(logits)
        return topk_tokens(logits.flatten(0, 1), 1)[1].view(ids.shape)

    def reorder(self, beam_indices: Tensor) -> None:
        """Let row k of a place go on from row beam_indices[b, k], (B, K)."""
        ...

    def select(self, places: Tensor) -> None:
        """Keep these places (B',), in this order; one that comes twice is there twice."""
        ...


class ModelStepper(Stepper):
    """A model with a cache."""

    def __init__(
        self,
        model: Seq2Seq,
        device: torch.device,
        precision: torch.dtype,
        screen: Screen | None = None,
    ) -> None:
        """Take a model.

        Args:
            model: on the device.
            device: where to compute.
            precision: number format of matrix products.
            screen: finds the best token before all logits are known, where that is faster.
        """
        self.model = model
        self.device = device
        self.precision = precision
        self.screen = screen

    def start(self, sentences: Sequence[Sentence], num_beams: int) -> None:
        """Begin with the sentences in their order."""
        self._cache: DecoderCache = self.model.start(len(sentences), num_beams)
        self._ahead: Read | None = None
        self.insert(torch.arange(len(sentences), device=self.device), sentences, lookahead=())

    def insert(
        self, places: Tensor, sentences: Sequence[Sentence], lookahead: Iterable[Sentence]
    ) -> None:
        """Begin sentences, as `Stepper` says.

        Cross-attention keys and values are made here, once for each.
        """
        begun = 0
        while begun < len(sentences):
            if not self._ahead:
                most = batch_size_factor(self.device) * READ_TOKENS
                self._ahead = self._read(batch_of(chain(sentences[begun:], lookahead), most))
            taken, self._ahead = self._ahead.split(len(sentences) - begun)
            stop = begun + len(taken.lengths)
            self._cache.admit(places[begun:stop], taken.sources, taken.mask)
            begun = stop

    def _read(self, sentences: Sequence[Sentence]) -> "Read":
        source, mask = (part.to(self.device) for part in pad_rows(sentences))
        with autocast(self.device, self.precision):
            sources = self.model.read(source, mask)
        return Read([len(sentence) for sentence in sentences], sources, mask)

    def step(self, ids: Tensor) -> Tensor:
        """Run the decoder over one more token of each row."""
        with autocast(self.device, self.precision):
            return self.model.step(ids, self._cache)

    def best(self, ids: Tensor, suppress_tokens: Callable[[Tensor], object]) -> Tensor:
        """Run the decoder likewise, and look for the best token that is not forbidden."""
        if self.screen is None or ids.numel() < FEWEST_ROWS:
            return super().best(ids, suppress_tokens)
        return self.screen.best(self.model.next_states(ids, self._cache), suppress_tokens)

    def reorder(self, beam_indices: Tensor) -> None:
        """Let rows go on from others of their place."""
        self._cache.reorder(beam_indices)

    def select(self, places: Tensor) -> None:
        """Drop the other places from the cache."""
        self._cache.keep(places)


class Read(NamedTuple):
    """Sentences that a model has read.

    Attributes:
        lengths: their tokens.
        sources: for each layer, their keys and values, (B, H, S, Dh).
        mask: (B, S) real tokens.
    """

    lengths: Sequence[int]
    sources: Sequence[KeyValue]
    mask: Tensor

    def split(self, count: int) -> "tuple[Read, Read | None]":
        """Return the first so many, no wider than they must be, and the rest if there is one."""
        rest = self._part(slice(count, None)) if count < len(self.lengths) else None
        return self._part(slice(count)), rest

    def _part(self, rows: slice) -> "Read":
        lengths = self.lengths[rows]
        width = max(lengths)
        sources = [
            KeyValue(keys[rows, :, :width], values[rows, :, :width])
            for keys, values in self.sources
        ]
        return Read(lengths, sources, self.mask[rows, :width])


def batch_of(sentences: Iterable[Sentence], most_tokens: int) -> list[Sentence]:
    """Return the first sentences: as many as have so many tokens, padding included, or one."""
    batch: list[Sentence] = []
    longest = 0
    for sentence in sentences:
        longest = max(longest, len(sentence))
        if batch and longest * (len(batch) + 1) > most_tokens:
            break
        batch.append(sentence)
    return batch


class EnsembleStepper(Stepper):
    """Steppers over one vocabulary, in step with each other.

    What no translation has is made impossible before the probabilities are normalised, so that
    the mean is over the same tokens for all.
    """

    def __init__(
        self, steppers: Sequence[Stepper], special_tokens: SpecialTokens, device: torch.device
    ) -> None:
        """Join steppers.

        Args:
            steppers: each as good as the others.
            special_tokens: end and suppressed ids.
            device: where the logits are.
        """
        self.steppers = steppers
        self.special_tokens = special_tokens
        self.device = device
        self.suppressed = torch.tensor(list(special_tokens.suppressed), device=device)

    def start(self, sentences: Sequence[Sentence], num_beams: int) -> None:
        """Let each read the sentences."""
        for stepper in self.steppers:
            stepper.start(sentences, num_beams)
        self._lengths = torch.zeros(len(sentences), dtype=torch.long, device=self.device)

    def insert(
        self, places: Tensor, sentences: Sequence[Sentence], lookahead: Iterable[Sentence]
    ) -> None:
        """Let each begin more sentences, as `Stepper` says."""
        lookahead = list(lookahead)
        for stepper in self.steppers:
            stepper.insert(places, sentences, lookahead)
        self._lengths[places] = 0

    def step(self, ids: Tensor) -> Tensor:
        """Return the logarithms of mean probabilities of what follows one more token (B, K)."""
        answers = [stepper.step(ids) for stepper in self.steppers]
        for logits in answers:
            suppress_tokens(logits, self.suppressed, self.special_tokens.eos, self._lengths)
        self._lengths = self._lengths + 1
        return log_mean_probabilities(answers)

    def reorder(self, beam_indices: Tensor) -> None:
        """Let rows go on from others of their place, in all of them."""
        for stepper in self.steppers:
            stepper.reorder(beam_indices)

    def select(self, places: Tensor) -> None:
        """Drop the other places, in all of them."""
        for stepper in self.steppers:
            stepper.select(places)
        self._lengths = self._lengths[places]


def joined(
    steppers: Sequence[Stepper], special_tokens: SpecialTokens, device: torch.device
) -> Stepper:
    """Return a stepper for all of them; one alone needs no company."""
    return steppers[0] if len(steppers) == 1 else EnsembleStepper(steppers, special_tokens, device)


def log_mean_probabilities(answers: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean of the probabilities that several models give.

    Args:
        answers: logits (..., V) of each; those of one alone are returned as they are.
    """
    if len(answers) == 1:
        return answers[0]
    log_probs = torch.stack([log_softmax(logits) for logits in answers])
    return log_probs.logsumexp(dim=0) - math.log(len(answers))
