"""What turns source ids into translations: one interface, and our own engine behind it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch

from tformer_cli.config.schema import DecodingConfig, GreedyConfig, SampleConfig
from tformer_cli.decoding.beam import BeamSearch
from tformer_cli.decoding.greedy import GreedySearch
from tformer_cli.decoding.hypothesis import EMPTY, Hypothesis
from tformer_cli.decoding.processors import TokenRoles
from tformer_cli.decoding.request import Request
from tformer_cli.decoding.rolling import search_all
from tformer_cli.decoding.sample import SampleSearch
from tformer_cli.decoding.search import Search
from tformer_cli.decoding.stepper import ModelStepper
from tformer_cli.model.fusion import fused
from tformer_cli.model.seq2seq import Seq2Seq

# Padded source tokens times beam size of one batch: enough to fill the matrix products of a small
# machine, and few enough that cache and logits stay small.
BATCH_TOKENS = 8192
# Rows that grow together: enough to fill the matrix products of a core.
ROWS = 256


class Engine(Protocol):
    """Translates token ids."""

    def translate(
        self,
        requests: Sequence[Request],
        config: DecodingConfig,
        *,
        nbest: int = 1,
        scored: bool = True,
        on_done: Callable[[int], object] = lambda count: None,
    ) -> list[list[Hypothesis]]:
        """Return for each request, in the order given, its best translations, best first.

        Args:
            requests: an empty source is translated by an empty hypothesis.
            config: the search.
            nbest: translations of each, at most the beam size.
            scored: whether log probabilities and scores are wanted; without them they may be NaN.
            on_done: called with the number of requests whenever some are done.
        """
        ...


class NativeEngine:
    """Runs a model of ours."""

    def __init__(
        self,
        model: Seq2Seq,
        roles: TokenRoles,
        *,
        device: torch.device,
        precision: torch.dtype = torch.float32,
    ) -> None:
        self.model = fused(model)
        self.roles = roles
        self.device = device
        self.precision = precision

    @torch.inference_mode()
    def translate(
        self,
        requests: Sequence[Request],
        config: DecodingConfig,
        *,
        nbest: int = 1,
        scored: bool = True,
        on_done: Callable[[int], object] = lambda count: None,
    ) -> list[list[Hypothesis]]:
        """Return translations, as `Engine` says."""
        results: list[list[Hypothesis]] = [[EMPTY] * nbest for _ in requests]
        order = longest_first(requests)
        on_done(len(requests) - len(order))
        search = self._search(config, nbest, scored)
        stepper = ModelStepper(self.model, self.device, self.precision)
        ordered = [requests[number] for number in order]
        places = max(1, ROWS // search.num_rows)
        for turn, hypotheses in search_all(stepper, search, ordered, places, self.device):
            results[order[turn]] = hypotheses
            on_done(1)
        return results

    def _search(self, config: DecodingConfig, nbest: int, scored: bool) -> Search:
        if isinstance(config, GreedyConfig):
            return GreedySearch(config, self.roles, self.device, scored=scored)
        if isinstance(config, SampleConfig):
            return SampleSearch(config, self.roles, self.device, nbest=nbest)
        return BeamSearch(config, self.roles, self.device, nbest=nbest)


def longest_first(requests: Sequence[Request]) -> list[int]:
    """Return the numbers of the requests that are not empty, those with long sources first.

    Neighbours are of similar length, and where the longest do not fit into memory that shows at
    once.
    """
    numbers = [number for number, request in enumerate(requests) if request.source]
    return sorted(numbers, key=lambda number: -len(requests[number].source))


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
