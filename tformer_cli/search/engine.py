"""Engines translate token ids; `NativeEngine` runs our own models."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import (
    BeamConfig,
    DecodingConfig,
    GreedyConfig,
    SampleConfig,
)
from tformer_cli.device import (
    batch_size_factor,
    empty_cache,
    is_out_of_memory,
    memory_errors,
)
from tformer_cli.errors import DeviceError, Problem
from tformer_cli.inference.prepare import prepare_for_inference
from tformer_cli.inference.two_stage_argmax import two_stage_argmax
from tformer_cli.model.kv_cache import round_up
from tformer_cli.model.network import Seq2Seq
from tformer_cli.search.alignment import Aligner
from tformer_cli.search.beam import BeamSearch
from tformer_cli.search.constrained import ConstrainedBeamSearch
from tformer_cli.search.continuous_batching import Search, decode_all
from tformer_cli.search.diverse import DiverseBeamSearch
from tformer_cli.search.greedy import GreedySearch
from tformer_cli.search.request import EMPTY, Hypothesis, Request, SpecialTokens
from tformer_cli.search.sample import SampleSearch
from tformer_cli.search.scoring import ModelScorer, Scorer
from tformer_cli.search.state import by_score
from tformer_cli.search.stepper import ModelStepper

# Limits of what a core decodes together. Sentences: enough to fill its matrix products; the keys
# and values of more sentences do not fit the cache that all processes share.
MAX_SLOTS = 128
# Padded source tokens, which determine memory: targets have about as many, and those of K
# sequences, whose beginnings are equal, sqrt(K) times as many.
MAX_TOKENS = 3 << 12
# Logits of all sequences.
MAX_LOGITS = 3 << 20


class Engine(Protocol):
    """Translates token ids."""

    @property
    def scorer(self) -> Scorer:
        """Scores given translations."""

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
        """Return the best hypotheses of each request, best first.

        Args:
            requests: an empty source has the empty hypothesis.
            config: of the search.
            nbest: hypotheses of each request, at most the beam size; there are fewer where groups
                of a beam agree.
            scored: False leaves log probabilities and scores undefined (NaN), which is faster.
            on_done: called with the number of requests whenever some are done.
            on_warning: called once, when memory has run out and the batch becomes smaller.

        Raises:
            DeviceError: memory does not suffice for a single request.
        """


class NativeEngine:
    """Runs a model, or several models of one vocabulary as an ensemble."""

    def __init__(
        self,
        model: Seq2Seq,
        special_tokens: SpecialTokens,
        *,
        device: torch.device,
        precision: torch.dtype = torch.float32,
        others: Sequence[Seq2Seq] = (),
    ) -> None:
        """Prepare the models for inference; they move to the device.

        Args:
            model: the only one, or the first of an ensemble.
            special_tokens: of the target vocabulary.
            device: where to compute.
            precision: number format of matrix products; int8 rounds weights.
            others: the rest of the ensemble.

        Raises:
            DeviceError: memory does not suffice for the models.
        """
        with memory_errors(device):
            self.models = [
                prepare_for_inference(part, device, precision) for part in (model, *others)
            ]
        self.special_tokens = special_tokens
        self.device = device
        self.precision = precision
        self.scorer = ModelScorer(self.models, special_tokens, device=device, precision=precision)
        self.aligner = Aligner(self.models, special_tokens, device=device, precision=precision)
        # An ensemble needs all logits.
        self._two_stage = None if others else two_stage_argmax(model.output, device, precision)
        # Sentences decoded together; halved whenever memory runs out.
        self.max_slots = batch_size_factor(device) * MAX_SLOTS
        self._has_warned = False

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
        results: dict[int, list[Hypothesis]] = {}
        waiting = longest_first(requests)
        on_done(len(requests) - len(waiting))
        while waiting:
            ordered = [requests[index] for index in waiting]
            search = build_search(
                config, self.special_tokens, self.device, ordered, nbest=nbest, scored=scored
            )
            max_slots = functools.partial(self._max_slots, search.num_beams)
            stepper = ModelStepper(
                self.models, self.special_tokens, self.device, self.precision, self._two_stage
            )
            try:
                for turn, hypotheses in decode_all(stepper, search, ordered, max_slots):
                    results[waiting[turn]] = hypotheses
                    on_done(1)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            # Outside of `except`, the traceback no longer keeps tensors alive.
            waiting = [index for index in waiting if index not in results]
            if waiting:
                longest = len(requests[waiting[0]].source)
                self._halve_slots(min(max_slots(longest), len(waiting)), on_warning)
                empty_cache(self.device)
        if len(requests) > MAX_SLOTS:
            # Freed blocks of long calls would add up.
            empty_cache(self.device)
        empty = empty_translations(config, nbest)
        hypotheses_of_all = [results.get(index, empty) for index in range(len(requests))]
        if not isinstance(config, BeamConfig) or config.coverage_penalty == 0:
            return hypotheses_of_all
        return self._reranked(requests, hypotheses_of_all, config.coverage_penalty, nbest)

    def _max_slots(self, num_beams: int, longest: int) -> int:
        """Return the number of slots for a longest source of so many tokens."""
        factor = batch_size_factor(self.device)
        by_logits = factor * MAX_LOGITS // (num_beams * self.models[0].output.out_features)
        by_tokens = int(factor * MAX_TOKENS / (round_up(longest) * (1 + math.sqrt(num_beams))))
        return max(1, min(self.max_slots, by_logits, by_tokens))

    def _halve_slots(self, slots: int, on_warning: Callable[[Problem], object]) -> None:
        where = str(self.device)
        if slots == 1:
            raise DeviceError(
                where,
                "memory ran out on a single sentence",
                remedy="lower `decoding.beam_size`, `count`, decoding.max_length or "
                "`max_source_length`",
            )
        self.max_slots = slots // 2
        if not self._has_warned:
            self._has_warned = True
            got = f"{slots:,} sentences at a time"
            on_warning(Problem(where, "memory ran out", got, "going on with fewer"))

    def _reranked(
        self,
        requests: Sequence[Request],
        hypotheses: Sequence[list[Hypothesis]],
        penalty: float,
        nbest: int,
    ) -> list[list[Hypothesis]]:
        """Return the n best stored hypotheses of each request by score + penalty * log coverage."""
        eos = self.special_tokens.eos
        best = [candidates[:nbest] for candidates in hypotheses]
        rows = [
            [(*part.token_ids, eos) if part.finished else part.token_ids for part in candidates]
            for candidates in hypotheses
        ]
        sources = (request.source for request in requests)
        for index, maps in self.aligner.attention(list(zip(sources, rows, strict=True))):
            pairs = zip(hypotheses[index], maps, strict=True)
            best[index] = by_score(
                replace(hypothesis, score=hypothesis.score + penalty * log_coverage(attention))
                for hypothesis, attention in pairs
            )[:nbest]
        return best


def build_search(
    config: DecodingConfig,
    special_tokens: SpecialTokens,
    device: torch.device,
    requests: Sequence[Request],
    *,
    nbest: int,
    scored: bool,
) -> Search[Any, Any]:
    """Return the search of a config for these requests; it takes the options of an engine."""
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
    """Return the hypotheses of an empty source: a single one where groups of a beam must differ."""
    is_diverse = isinstance(config, BeamConfig) and config.num_beam_groups > 1
    return [EMPTY] * (1 if is_diverse else nbest)


def longest_first(requests: Sequence[Request]) -> list[int]:
    """Return the indices of requests with a source, longest sources first.

    So neighbors have similar lengths, and a shortage of memory shows at once.
    """
    indices = [index for index, request in enumerate(requests) if request.source]
    return sorted(indices, key=lambda index: -len(requests[index].source))


def log_coverage(attention: Tensor) -> float:
    """Return the sum of log(min(coverage, 1)) over source tokens (Wu et al. 2016, section 7).

    Coverage is the sum of the attention (T, S) over target tokens, EOS included in both. As in
    CTranslate2, a source token without any attention does not count.
    """
    coverage = attention.sum(dim=0)
    return float(coverage[coverage > 0].clamp(max=1.0).log().sum())
