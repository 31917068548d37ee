"""Where a search asks what may come next."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tformer_cli.decoding.batches import length_batches
from tformer_cli.device import autocast
from tformer_cli.model.cache import DecoderCache
from tformer_cli.model.network import Seq2Seq
from tformer_cli.padding import pad_rows

# Padded source tokens that are read at a time: enough to fill the products of a core, and little
# enough that what is computed of them stays near it.
READ_TOKENS = 1024


class Stepper(Protocol):
    """K rows for each of B places, each with a sentence of its own, that grow a token at a time."""

    def start(self, sentences: Sequence[Sequence[int]], num_rows: int) -> None:
        """Begin with a place for each sentence, with `num_rows` empty rows."""
        ...

    def admit(self, places: Tensor, sentences: Sequence[Sequence[int]]) -> None:
        """Begin these sentences in places (B',) whose own are forgotten."""
        ...

    def step(self, ids: Tensor) -> Tensor:
        """Add one token (B, K) to each row; return the logits (B, K, V) of what follows."""
        ...

    def reorder(self, origins: Tensor) -> None:
        """Let row k of a place go on from row origins[b, k], (B, K)."""
        ...

    def keep(self, places: Tensor) -> None:
        """Keep these places (B',), in this order; one that comes twice is there twice."""
        ...


class ModelStepper:
    """A model with a cache."""

    def __init__(self, model: Seq2Seq, device: torch.device, precision: torch.dtype) -> None:
        self.model = model
        self.device = device
        self.precision = precision

    def start(self, sentences: Sequence[Sequence[int]], num_rows: int) -> None:
        """Begin with the sentences in their order."""
        self._cache: DecoderCache = self.model.start(len(sentences), num_rows)
        self.admit(torch.arange(len(sentences), device=self.device), sentences)

    def admit(self, places: Tensor, sentences: Sequence[Sequence[int]]) -> None:
        """Read sentences, for places whose own are forgotten.

        Their cross-attention keys and values are made here, once.
        """
        widths, counts = [len(sentence) for sentence in sentences], [1] * len(sentences)
        for batch in length_batches(widths, counts, READ_TOKENS):
            source, mask = pad_rows([sentences[number] for number in batch])
            with autocast(self.device, self.precision):
                self.model.admit(
                    source.to(self.device), mask.to(self.device), places[batch], self._cache
                )

    def step(self, ids: Tensor) -> Tensor:
        """Run the decoder over one more token of each row."""
        with autocast(self.device, self.precision):
            return self.model.step(ids, self._cache)

    def reorder(self, origins: Tensor) -> None:
        """Let rows go on from others of their place."""
        self._cache.reorder(origins)

    def keep(self, places: Tensor) -> None:
        """Drop the other places from the cache."""
        self._cache.keep(places)
