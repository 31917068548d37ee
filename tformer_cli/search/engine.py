"""What turns source ids into translations: one interface, and our own engine behind it."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import nn

from tformer_cli.config.schema.decoding import (
    BeamConfig,
    DecodingConfig,
    GreedyConfig,
    SampleConfig,
)
from tformer_cli.device import (
    batch_size_factor,
    empty_cache,
    has_bfloat16_matmul,
    is_out_of_memory,
    memory_errors,
)
from tformer_cli.errors import DeviceError, Problem
from tformer_cli.inference.fuse import fused
from tformer_cli.inference.two_stage_argmax import Screen
from tformer_cli.model.kv_cache import rounded_up
from tformer_cli.model.network import Seq2Seq
from tformer_cli.search.alignment import Aligner
from tformer_cli.search.beam import BeamSearch
from tformer_cli.search.constrained import ConstrainedBeamSearch
from tformer_cli.search.continuous_batching import decode_all
from tformer_cli.search.coverage import ranked_by_coverage
from tformer_cli.search.diverse import DiverseBeamSearch
from tformer_cli.search.greedy import GreedySearch
from tformer_cli.search.request import EMPTY, Hypothesis, Request, SpecialTokens
from tformer_cli.search.sample import SampleSearch
from tformer_cli.search.scoring import ModelScorer, Scorer
from tformer_cli.search.search import Search
from tformer_cli.search.stepper import ModelStepper, Stepper, joined

# What a core does at once. Sentences at work together: enough to fill its matrix products; with
# more, the keys and values of all processes no longer stay in the cache that they share.
MAX_SLOTS = 128
# Tokens of them, padding included, which decide how much memory is taken: about as many are written
# as are read, and by K rows, which begin alike, the square root of K as many.
MAX_TOKENS = 3 << 12
# Numbers that the vocabulary gives for all their rows.
MAX_LOGITS = 3 << 20


class Engine(Protocol):
    """Translates token ids."""

    @property
    def scorer(self) -> Scorer:
        """Says how probable given translations are."""
        ...

    def translate(
        self,
        requests: Sequence[Request],
        config: DecodingConfig,
        *,
        nbest: int = 1,
        scored: bool = True,
        on_done: Callable[[int], object] = lambda count: None,
        on_warning: Callable[[Problem], object] = lambda problem: None,
    ) -> list[list[Hypothesis]]:
        """Return for each request, in the order given, its best translations, best first.

        Args:
            requests: an empty source is translated by an empty hypothesis.
            config: the search.
            nbest: translations of each, at most the beam size; fewer come where groups of the beam
                agree.
            scored: whether log probabilities and scores are wanted; without them they may be NaN.
            on_done: called with the number of requests whenever some are done.
            on_warning: called once, when memory has run out and fewer are translated at a time.

        Raises:
            DeviceError: memory does not suffice for a single one.
        """
        ...


class NativeEngine:
    """Runs a model of ours, or several of one vocabulary as an ensemble.

    Attributes:
        max_slots: sentences at work together; halved whenever memory runs out.
        aligner: says what the models look at.
    """

    def __init__(
        self,
        model: Seq2Seq,
        special_tokens: SpecialTokens,
        *,
        device: torch.device,
        precision: torch.dtype = torch.float32,
        others: Sequence[Seq2Seq] = (),
    ) -> None:
        """Make the models ready.

        Args:
            model: moves to the device.
            special_tokens: start, end and suppressed ids.
            device: where to compute.
            precision: number format of matrix products; int8 rounds weights.
            others: the rest of an ensemble, likewise.

        Raises:
            DeviceError: its memory has no room for them.
        """
        with memory_errors(device):
            self.models = [fused(one.to(device), precision) for one in (model, *others)]
        self.special_tokens = special_tokens
        self.device = device
        self.precision = precision
        self.scorer = ModelScorer(self.models, special_tokens, device=device, precision=precision)
        self.aligner = Aligner(self.models, special_tokens.bos, device=device, precision=precision)
        self._screen = self._useful_screen(model.output)
        self.max_slots = batch_size_factor(device) * MAX_SLOTS
        self._is_short = False

    @torch.inference_mode()
    def translate(
        self,
        requests: Sequence[Request],
        config: DecodingConfig,
        *,
        nbest: int = 1,
        scored: bool = True,
        on_done: Callable[[int], object] = lambda count: None,
        on_warning: Callable[[Problem], object] = lambda problem: None,
    ) -> list[list[Hypothesis]]:
        """Return translations, as `Engine` says."""
        results: dict[int, list[Hypothesis]] = {}
        waiting = longest_first(requests)
        on_done(len(requests) - len(waiting))
        while waiting:
            ordered = [requests[number] for number in waiting]
            search = build_search(
                config, self.special_tokens, self.device, ordered, nbest=nbest, scored=scored
            )
            room = functools.partial(self._num_places, search.num_beams)
            try:
                for turn, hypotheses in decode_all(
                    self._stepper(), search, ordered, room, self.device
                ):
                    results[waiting[turn]] = hypotheses
                    on_done(1)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            # Out here the error has gone, and with it the tensors that its traceback kept alive.
            waiting = [number for number in waiting if number not in results]
            if waiting:
                longest = len(requests[waiting[0]].source)
                self._need_less(min(room(longest), len(waiting)), on_warning)
                empty_cache(self.device)
        if len(requests) > MAX_SLOTS:
            # Of long calls the freed pieces of memory would add up.
            empty_cache(self.device)
        empty = empty_translations(config, nbest)
        found = [results.get(number, empty) for number in range(len(requests))]
        if not isinstance(config, BeamConfig) or config.coverage_penalty == 0:
            return found
        return ranked_by_coverage(
            self.aligner,
            self.special_tokens.eos,
            requests,
            found,
            penalty=config.coverage_penalty,
            nbest=nbest,
        )

    def _num_places(self, num_beams: int, longest: int) -> int:
        """Return how many sentences are at work together.

        Args:
            num_beams: of each.
            longest: tokens of the longest source.
        """
        factor = batch_size_factor(self.device)
        by_logits = factor * MAX_LOGITS // (num_beams * self.models[0].output.out_features)
        by_tokens = int(factor * MAX_TOKENS / (rounded_up(longest) * (1 + math.sqrt(num_beams))))
        return max(1, min(self.max_slots, by_logits, by_tokens))

    def _need_less(self, places: int, on_warning: Callable[[Problem], object]) -> None:
        """Let half as many sentences be translated at a time from now on.

        Raises:
            DeviceError: it was one.
        """
        where = str(self.device)
        if places == 1:
            raise DeviceError(
                where,
                "memory ran out on a single sentence",
                remedy="lower `decoding.beam_size`, `count`, decoding.max_length or "
                "`max_source_length`",
            )
        self.max_slots = places // 2
        if not self._is_short:
            self._is_short = True
            got = f"{places:,} sentences at a time"
            on_warning(Problem(where, "memory ran out", got, "going on with fewer"))

    def _stepper(self) -> Stepper:
        steppers = [
            ModelStepper(model, self.device, self.precision, self._screen) for model in self.models
        ]
        return joined(steppers, self.special_tokens, self.device)

    def _useful_screen(self, output: nn.Linear) -> Screen | None:
        is_alone = len(self.models) == 1 and self.precision == torch.float32
        is_fast = self.device.type == "cpu" and has_bfloat16_matmul()
        return Screen(output) if is_alone and is_fast else None


def build_search(
    config: DecodingConfig,
    special_tokens: SpecialTokens,
    device: torch.device,
    requests: Sequence[Request],
    *,
    nbest: int,
    scored: bool,
) -> Search:
    """Return a search by its config, for what is demanded of the translations.

    Args:
        config: of the search.
        special_tokens: start, end and suppressed ids.
        device: where the logits are.
        requests: what is to be translated.
        nbest: translations of each.
        scored: whether log probabilities and scores are wanted.
    """
    if isinstance(config, GreedyConfig):
        return GreedySearch(config, special_tokens, device, scored=scored)
    if isinstance(config, SampleConfig):
        return SampleSearch(config, special_tokens, device, nbest=nbest)
    if config.num_beam_groups > 1:
        return DiverseBeamSearch(config, special_tokens, device, nbest=nbest)
    if any(request.required for request in requests):
        return ConstrainedBeamSearch(config, special_tokens, device, nbest=nbest)
    return BeamSearch(config, special_tokens, device, nbest=nbest)


def empty_translations(config: DecodingConfig, nbest: int) -> list[Hypothesis]:
    """Return what translates an empty source: nothing, once where groups of a beam must differ."""
    is_diverse = isinstance(config, BeamConfig) and config.num_beam_groups > 1
    return [EMPTY] * (1 if is_diverse else nbest)


def longest_first(requests: Sequence[Request]) -> list[int]:
    """Return the numbers of the requests that are not empty, those with long sources first.

    Neighbours are of similar length, and where the longest do not fit into memory that shows at
    once.
    """
    numbers = [number for number, request in enumerate(requests) if request.source]
    return sorted(numbers, key=lambda number: -len(requests[number].source))
