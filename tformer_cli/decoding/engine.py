"""What turns source ids into translations: one interface, and our own engine behind it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch

from tformer_cli.config.schema import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.decoding.beam import beam_search
from tformer_cli.decoding.greedy import greedy_search
from tformer_cli.decoding.hypothesis import EMPTY, Hypothesis
from tformer_cli.decoding.processors import TokenRoles
from tformer_cli.decoding.stepper import ModelStepper
from tformer_cli.model.seq2seq import Seq2Seq

# Padded source tokens times beam size of one batch: enough to fill the matrix products of a small
# machine, and few enough that cache and logits stay small.
BATCH_TOKENS = 8192


class Engine(Protocol):
    """Translates token ids."""

    def translate(
        self,
        sentences: Sequence[Sequence[int]],
        config: DecodingConfig,
        *,
        nbest: int = 1,
        on_done: Callable[[int], object] = lambda count: None,
    ) -> list[list[Hypothesis]]:
        """Return for each sentence, in the order given, its best translations, best first.

        Args:
            sentences: source token ids, the end token included; an empty one is translated by
                an empty hypothesis.
            config: the search.
            nbest: translations of each sentence, at most the beam size.
            on_done: called with the number of sentences whenever some are done.
        """
        ...


class NativeEngine:
    """Runs a model of ours, in batches of similar length."""

    def __init__(
        self,
        model: Seq2Seq,
        roles: TokenRoles,
        *,
        device: torch.device,
        precision: torch.dtype = torch.float32,
    ) -> None:
        self.model = model
        self.roles = roles
        self.device = device
        self.precision = precision

    @torch.inference_mode()
    def translate(
        self,
        sentences: Sequence[Sequence[int]],
        config: DecodingConfig,
        *,
        nbest: int = 1,
        on_done: Callable[[int], object] = lambda count: None,
    ) -> list[list[Hypothesis]]:
        """Return translations, as `Engine` says."""
        self.model.eval()
        results: list[list[Hypothesis]] = [[EMPTY] * nbest for _ in sentences]
        rows = config.size if isinstance(config, BeamConfig) else 1
        for batch in length_batches([len(sentence) for sentence in sentences], rows):
            found = self._search([sentences[i] for i in batch], config, nbest)
            for index, hypotheses in zip(batch, found, strict=True):
                results[index] = hypotheses
            on_done(len(batch))
        on_done(sum(not sentence for sentence in sentences))
        return results

    def _search(
        self, sentences: list[Sequence[int]], config: DecodingConfig, nbest: int
    ) -> list[list[Hypothesis]]:
        stepper = ModelStepper(self.model, self.device, self.precision)
        if isinstance(config, GreedyConfig):
            found = greedy_search(stepper, sentences, config, self.roles, self.device)
            return [[hypothesis] for hypothesis in found]
        return beam_search(stepper, sentences, config, self.roles, self.device, nbest=nbest)


def length_batches(lengths: Sequence[int], rows: int) -> Iterator[list[int]]:
    """Yield the indices of non-empty sentences in batches of similar length, longest first.

    The longest batch needs most memory, so where it does not fit that shows at once.

    Args:
        lengths: source tokens of each sentence.
        rows: rows that each sentence takes in the decoder.
    """
    order = sorted((i for i, length in enumerate(lengths) if length), key=lambda i: -lengths[i])
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) + 1) * rows * lengths[batch[0]] > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
