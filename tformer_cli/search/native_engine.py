"""Our own engine: it runs the models of this package."""

import functools
import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.device import (
    batch_size_factor,
    empty_cache,
    out_of_memory_as,
    suppress_out_of_memory,
)
from tformer_cli.errors import DeviceError, Problem
from tformer_cli.inference.prepare import prepare_for_inference
from tformer_cli.inference.two_stage_argmax import two_stage_argmax
from tformer_cli.model.kv_cache import round_up
from tformer_cli.model.network import Seq2Seq
from tformer_cli.search.beam import BeamSearch, DiverseBeamSearch
from tformer_cli.search.continuous_batching import Search, decode_all
from tformer_cli.search.engine import (
    Engine,
    Hypothesis,
    Job,
    OnDone,
    OnWarning,
    Phrase,
    SpecialTokens,
    by_score,
)
from tformer_cli.search.required_phrases import ConstrainedBeamSearch
from tformer_cli.search.sample import GreedySearch, SampleSearch
from tformer_cli.search.stepper import ModelStepper
from tformer_cli.search.teacher_forcing import Aligner, ModelScorer

# Limits of what a core decodes together. Sentences: enough to fill its matrix products; the keys
# and values of more sentences do not fit the cache that all processes share.
MAX_SLOTS = 128
# Padded source tokens, which determine memory: targets have about as many, and those of K
# sequences, whose beginnings are equal, sqrt(K) times as many.
MAX_BATCH_TOKENS = 3 << 12
# Logits of all sequences.
MAX_LOGITS = 3 << 20

SEARCHES: dict[str, type[Search[Any, Any]]] = {
    "greedy": GreedySearch,
    "beam": BeamSearch,
    "sample": SampleSearch,
}


class NativeEngine(Engine):
    """Runs a model, or an ensemble of it and `others` with the same vocabulary.

    The models are prepared for inference, and move to the device. The precision is that of matrix
    products; int8 rounds large matrices and their inputs. Threads that call take turns.
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
        remedy = "free some, or use another `device`"
        problem = Problem(str(device), "not enough memory for the model", remedy=remedy)
        with out_of_memory_as(DeviceError, problem):
            self.models = [
                prepare_for_inference(part, device, precision) for part in (model, *others)
            ]
        self.special_tokens = special_tokens
        self.device = device
        self.precision = precision
        # Reentrant, so that a process that is forked while this thread holds it can take it too.
        self.lock = threading.RLock()
        how = (self.models, special_tokens, device, precision, self.lock)
        self.scorer = ModelScorer(*how)
        self.aligner = Aligner(*how)
        # An ensemble needs all logits.
        self._two_stage = None if others else two_stage_argmax(model.output, device, precision)
        # Sentences decoded together; halved whenever memory runs out.
        self.max_slots = batch_size_factor(device) * MAX_SLOTS
        self._has_warned = False

    def decode(self, job: Job, on_done: OnDone, on_warning: OnWarning) -> list[list[Hypothesis]]:
        with self.lock, torch.inference_mode():
            return self._decode(job, on_done, on_warning)

    def _decode(self, job: Job, on_done: OnDone, on_warning: OnWarning) -> list[list[Hypothesis]]:
        search = build_search(job, self.special_tokens, self.device)
        max_slots = functools.partial(self._max_slots, search.num_beams)
        results: dict[int, list[Hypothesis]] = {}
        waiting = list(range(len(job.requests)))
        on_draft = job.on_draft

        def on_turn(turn: int, ids: Phrase) -> None:
            if on_draft is not None:
                on_draft(waiting[turn], ids)

        while waiting:
            requests = [job.requests[index] for index in waiting]
            stepper = ModelStepper(
                self.models, self.special_tokens, self.device, self.precision, self._two_stage
            )
            with suppress_out_of_memory():
                for turn, hypotheses in decode_all(
                    stepper, search, requests, max_slots, on_turn if on_draft else None
                ):
                    results[waiting[turn]] = hypotheses
                    on_done(1)
            waiting = [index for index in waiting if index not in results]
            if waiting:
                longest = len(job.requests[waiting[0]].source)
                self._halve_slots(min(max_slots(longest), len(waiting)), on_warning)
                empty_cache(self.device)
        if len(job.requests) > MAX_SLOTS:
            # Freed blocks of long calls would add up.
            empty_cache(self.device)
        return [results[index] for index in range(len(job.requests))]

    def _max_slots(self, num_beams: int, longest: int) -> int:
        """Return the number of slots for a longest source of so many tokens."""
        factor = batch_size_factor(self.device)
        by_logits = factor * MAX_LOGITS // (num_beams * self.models[0].output.out_features)
        by_tokens = int(
            factor * MAX_BATCH_TOKENS / (round_up(longest) * (1 + math.sqrt(num_beams)))
        )
        return max(1, min(self.max_slots, by_logits, by_tokens))

    def _halve_slots(self, slots: int, on_warning: OnWarning) -> None:
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

    def rerank(self, job: Job, hypotheses: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
        """Return the n best stored hypotheses of each request by score + penalty * log coverage."""
        if not isinstance(job.config, BeamConfig) or job.config.coverage_penalty == 0:
            return hypotheses
        penalty = job.config.coverage_penalty
        eos = self.special_tokens.eos
        best = [candidates[: job.nbest] for candidates in hypotheses]
        sentences = [
            (request.source, [(*part.token_ids, *[eos] * part.finished) for part in candidates])
            for request, candidates in zip(job.requests, hypotheses, strict=True)
        ]
        # The last layer, as CTranslate2 has it.
        for index, maps in self.aligner.attention(sentences, num_layers=1):
            best[index] = by_score(
                replace(hypothesis, score=hypothesis.score + penalty * log_coverage(attention))
                for hypothesis, attention in zip(hypotheses[index], maps, strict=True)
            )[: job.nbest]
        return best

    def with_cache(self) -> Engine:
        return HypothesisCache(self)


class HypothesisCache(Engine):
    """Our own engine, which searches once for the same requests with other length penalties.

    A plain beam search uses its length penalty only to rank the hypotheses that it has stored. The
    exception is 0, with which it ends sooner.
    """

    def __init__(self, engine: NativeEngine) -> None:
        self.engine = engine
        self.scorer = engine.scorer
        self.lock = engine.lock
        self._stored: list[tuple[Job, list[list[Hypothesis]]]] = []

    def decode(self, job: Job, on_done: OnDone, on_warning: OnWarning) -> list[list[Hypothesis]]:
        config = job.config
        if not isinstance(config, BeamConfig) or not _only_ranks(job, config):
            return self.engine.decode(job, on_done, on_warning)
        ranked = (
            by_score(replace(part, score=_score(part, config.length_penalty)) for part in stored)
            for stored in self._all_stored(job, config, on_done, on_warning)
        )
        return list(ranked) if config.coverage_penalty else [part[: job.nbest] for part in ranked]

    def _all_stored(
        self, job: Job, config: BeamConfig, on_done: OnDone, on_warning: OnWarning
    ) -> list[list[Hypothesis]]:
        """Return all hypotheses that the search of a job stores, whatever it ranks them by."""
        # With a coverage penalty they are all returned, and ranked later.
        unranked = job._replace(config=replace(config, length_penalty=1.0, coverage_penalty=1.0))
        for cached, hypotheses in self._stored:
            if cached == unranked:
                on_done(len(job.requests))
                return hypotheses
        hypotheses = self.engine.decode(unranked, on_done, on_warning)
        self._stored.append((unranked, hypotheses))
        return hypotheses

    def rerank(self, job: Job, hypotheses: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
        return self.engine.rerank(job, hypotheses)


def _only_ranks(job: Job, config: BeamConfig) -> bool:
    """Return whether a length penalty only ranks hypotheses, by their log probabilities."""
    return (
        max(config.length_penalty, config.coverage_penalty) > 0
        and config.num_beam_groups == 1
        and config.repetition_penalty == 1
        and config.frequency_penalty == 0
        and not any(request.required for request in job.requests)
    )


def _score(hypothesis: Hypothesis, length_penalty: float) -> float:
    """Return the score of a search without other penalties."""
    return float(hypothesis.log_prob / hypothesis.length**length_penalty)


def build_search(job: Job, special_tokens: SpecialTokens, device: torch.device) -> Search[Any, Any]:
    """Return the search of a job, for logits on a device."""
    kind = SEARCHES[job.config.kind]
    if isinstance(job.config, BeamConfig):
        if job.config.num_beam_groups > 1:
            kind = DiverseBeamSearch
        elif any(request.required for request in job.requests):
            kind = ConstrainedBeamSearch
    return kind(job.config, special_tokens, device, nbest=job.nbest, scored=job.scored)


def log_coverage(attention: Tensor) -> float:
    """Return the sum of log(min(coverage, 1)) over source tokens (Wu et al. 2016, section 7).

    Coverage is the sum of the attention (T, S) over target tokens, EOS included in both. As in
    CTranslate2, a source token without any attention does not count.
    """
    coverage = attention.sum(dim=0)
    return float(coverage[coverage > 0].clamp(max=1.0).log().sum())
