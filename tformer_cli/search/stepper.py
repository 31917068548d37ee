"""Where a search asks what may come next: a model or an ensemble."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from tformer_cli.device import autocast, batch_size_factor
from tformer_cli.inference.two_stage_argmax import MIN_ROWS, TwoStageArgmax
from tformer_cli.model.blocks.attention import KeyValue
from tformer_cli.model.kv_cache import KVCache
from tformer_cli.model.network import Seq2Seq
from tformer_cli.padding import pad_rows
from tformer_cli.search.batches import padded_batches
from tformer_cli.search.engine import SpecialTokens
from tformer_cli.search.logits_processors import suppress_tokens
from tformer_cli.search.topk import log_mean_probabilities, topk_tokens

# Padded source tokens that a core encodes at a time: enough to fill its matrix products, and few
# enough that activations stay in its cache.
ENCODER_TOKENS = 1024

Sentence = Sequence[int]


class Stepper(ABC):
    """K sequences in each of B slots, which grow by a token at a time."""

    @abstractmethod
    def start(self, sentences: Sequence[Sentence], num_beams: int) -> None:
        """Begin with a slot for each sentence, with `num_beams` empty sequences."""

    def insert(
        self, slots: Tensor, sentences: Sequence[Sentence], lookahead: Iterable[Sentence]
    ) -> None:
        """Put sentences into these slots (B'); a stepper without it needs a slot for each sentence.

        `lookahead` are the sentences that are inserted next, in this order. A stepper may encode
        them in the same batch.
        """
        raise NotImplementedError("the sequences of this stepper start together")

    @abstractmethod
    def step(self, ids: Tensor) -> Tensor:
        """Append a token (B, K) to each sequence; return the logits (B, K, V) of the next one.

        The caller may change the logits in place.
        """

    def argmax(self, ids: Tensor, suppress: Callable[[Tensor], object]) -> Tensor:
        """Append a token (B, K) to each sequence; return the best next tokens, (B, K).

        `suppress` sets the logits (B, K, V) of impossible tokens to -inf, in place.
        """
        logits = self.step(ids)
        suppress(logits)
        return topk_tokens(logits.flatten(0, 1), 1)[1].view(ids.shape)

    @abstractmethod
    def reorder(self, beam_indices: Tensor) -> None:
        """Let sequence k of slot b continue sequence beam_indices[b, k]; (B, K)."""

    @abstractmethod
    def select(self, slots: Tensor) -> None:
        """Keep these slots (B'), in this order; a slot may occur more than once."""


class ModelStepper(Stepper):
    """A model with a KV cache, or an ensemble by the mean of the probabilities of its models.

    In an ensemble impossible tokens are suppressed before the softmax, so that the mean is over the
    same tokens. `two_stage` finds the argmax of a single model without all logits in float32.
    """

    def __init__(
        self,
        models: Sequence[Seq2Seq],
        special_tokens: SpecialTokens,
        device: torch.device,
        precision: torch.dtype,
        two_stage: TwoStageArgmax | None = None,
    ) -> None:
        self.models = models
        self.eos = special_tokens.eos
        self.suppressed = torch.tensor(list(special_tokens.suppressed), device=device)
        self.device = device
        self.precision = precision
        self.two_stage = two_stage
        self._caches: list[KVCache] = []
        self._encoded: EncodedSources | None = None

    def start(self, sentences: Sequence[Sentence], num_beams: int) -> None:
        self._caches = [model.init_cache(len(sentences), num_beams) for model in self.models]
        self._encoded = None
        self.insert(torch.arange(len(sentences), device=self.device), sentences, lookahead=())

    def insert(
        self, slots: Tensor, sentences: Sequence[Sentence], lookahead: Iterable[Sentence]
    ) -> None:
        start = 0
        while start < len(sentences):
            encoded = self._encoded or self._encode(chain(sentences[start:], lookahead))
            stop = min(len(sentences), start + len(encoded))
            sources = encoded[: stop - start]
            self._encoded = encoded[stop - start :] or None
            for model, cache, layers in zip(self.models, self._caches, sources.layers, strict=True):
                cache.insert(slots[start:stop], layers, model.attended_source(sources.mask))
            start = stop

    def _encode(self, sentences: Iterable[Sentence]) -> "EncodedSources":
        """Encode the first of some sentences."""
        max_tokens = batch_size_factor(self.device) * ENCODER_TOKENS
        batch = next(padded_batches(sentences, lambda sentence: (1, len(sentence)), max_tokens))
        source, mask = (part.to(self.device) for part in pad_rows(batch))
        with autocast(self.device, self.precision):
            layers = [model.prefill(source, mask) for model in self.models]
        return EncodedSources([len(sentence) for sentence in batch], layers, mask)

    def step(self, ids: Tensor) -> Tensor:
        lengths = self._caches[0].lengths
        with autocast(self.device, self.precision):
            predictions = [
                model.decode_step(ids, cache)
                for model, cache in zip(self.models, self._caches, strict=True)
            ]
        if len(predictions) > 1:
            for logits in predictions:
                suppress_tokens(logits, self.suppressed, self.eos, lengths)
        return log_mean_probabilities(predictions)

    def argmax(self, ids: Tensor, suppress: Callable[[Tensor], object]) -> Tensor:
        if self.two_stage is None or ids.numel() < MIN_ROWS:
            return super().argmax(ids, suppress)
        (model,), (cache,) = self.models, self._caches
        return self.two_stage.best(model.decode_step_hidden(ids, cache), suppress)

    def reorder(self, beam_indices: Tensor) -> None:
        for cache in self._caches:
            cache.reorder(beam_indices)

    def select(self, slots: Tensor) -> None:
        for cache in self._caches:
            cache.select(slots)


@dataclass(frozen=True, slots=True)
class EncodedSources:
    """Sources after the encoder; a slice of them is without excess padding."""

    lengths: Sequence[int]  # tokens of each source
    layers: Sequence[Sequence[KeyValue]]  # of cross-attention, by model and layer, (B, H, S, Dh)
    mask: Tensor  # (B, S) real tokens

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: slice) -> "EncodedSources":
        lengths = self.lengths[rows]
        width = max(lengths, default=0)
        layers = [
            [KeyValue(*(part[rows, :, :width] for part in layer)) for layer in model]
            for model in self.layers
        ]
        return EncodedSources(lengths, layers, self.mask[rows, :width])
