"""Where a search asks what may come next."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tformer_cli.device import autocast
from tformer_cli.model.cache import DecoderCache
from tformer_cli.model.seq2seq import Seq2Seq


class Stepper(Protocol):
    """Rows that grow a token at a time: N rows, the same number for each of B sentences."""

    def start(self, sentences: Sequence[Sequence[int]], beam_size: int) -> None:
        """Begin `beam_size` empty rows for each sentence, sentence by sentence."""
        ...

    def step(self, ids: Tensor) -> Tensor:
        """Add one token (N,) to each row; return the logits (N, V) of what follows."""
        ...

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Keep these rows (N',) in this order, and these sentences (B',), or all where None."""
        ...


class ModelStepper:
    """A model with a cache."""

    def __init__(self, model: Seq2Seq, device: torch.device, precision: torch.dtype) -> None:
        self.model = model
        self.device = device
        self.precision = precision
        self._cache: DecoderCache | None = None

    def start(self, sentences: Sequence[Sequence[int]], beam_size: int) -> None:
        """Read the sentences; their cross-attention keys and values are made here, once."""
        lengths = torch.tensor([len(sentence) for sentence in sentences])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        source = torch.zeros(mask.shape, dtype=torch.long)
        source[mask] = torch.tensor([token for sentence in sentences for token in sentence])
        with autocast(self.device, self.precision):
            memory = self.model.encode(source.to(self.device), mask.to(self.device))
            self._cache = self.model.start(memory, beam_size)

    def step(self, ids: Tensor) -> Tensor:
        """Run the decoder over one more token of each row."""
        assert self._cache is not None, "start comes first"
        with autocast(self.device, self.precision):
            return self.model.step(ids[:, None], self._cache)

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Reorder or drop rows of the cache."""
        assert self._cache is not None, "start comes first"
        self._cache.select(rows, sentences)
