"""CTranslate2 as an engine: it translates token ids by an exported folder; without torch."""

import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

from tformer_cli.choices import Quantization
from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig
from tformer_cli.config.schema.model import (
    EncoderDecoderConfig,
    LearnedPositions,
    ModelConfig,
    RotaryPositions,
    SinusoidalPositions,
    YarnScaling,
)
from tformer_cli.corpus.prefetch import delayed
from tformer_cli.errors import CheckpointError, Problem, UsageError
from tformer_cli.export.converted import check_vocabularies, lacks_source_eos
from tformer_cli.export.ctranslate2_file import CONVERT_AGAIN
from tformer_cli.extras import package
from tformer_cli.process import num_threads
from tformer_cli.search.engine import (
    Engine,
    Hypothesis,
    Job,
    OnDone,
    OnDraft,
    OnWarning,
    Pair,
    Request,
)
from tformer_cli.text.special_tokens import EOS_ID
from tformer_cli.text.tokenizer import Tokenizers

# Sentences of a batch, which one thread translates; single ones take longer.
MAX_BATCH, MIN_BATCH = 64, 4
# Most threads of one sentence: more wait for each other longer than a step takes.
MAX_SINGLE_THREADS = 4
# Sentences alone that say how fast a number of threads is: the last ones timed with it.
TRIALS = 3
# Share of the time that may be lost to trials of the number of threads that was slower.
TRIAL_SHARE = 0.02
# Batches per thread in flight: one slow batch does not stop the other threads, and an interrupt
# waits for few.
BATCHES_AHEAD = 2
# Keeps log(1 - p) finite where EOS is certain.
TINY = 1e-12
# CTranslate2 interleaves sinusoids otherwise, so ours become a table; it fails past the last row.
SINUSOIDAL_ROWS = 4096
# Search keys that CTranslate2 implements alike.
SHARED_KEYS = frozenset({"kind", "max_length", "beam_size", "length_penalty", "patience"})
# An export has no other engine.
OTHER_ENGINE = 'use the run with `backend="native"`'
# Arguments that CTranslate2 does not implement alike, by the field of a request.
CONSTRAINTS = {
    "prefix": "`prefixes`",
    "banned": "`banned`",
    "required": "`required` and `terminology`",
}


class Trials:
    """Finds the fastest of several numbers of threads by the sentences that come.

    Each has `TRIALS` sentences in turn, then the fastest has all but a few: other programs come and
    go, so the slower ones are tried again, as often as `TRIAL_SHARE` allows.
    """

    def __init__(self, candidates: Iterable[int]) -> None:
        self.seconds: dict[int, deque[float]] = {n: deque(maxlen=TRIALS) for n in candidates}
        self.ages = dict.fromkeys(self.seconds, 0)  # sentences since the last with each

    def next(self) -> int:
        """Return the number of threads for the next sentence."""
        fewest = min(self.seconds, key=lambda threads: len(self.seconds[threads]))
        if len(self.seconds[fewest]) < TRIALS:
            return fewest
        # The first sentence takes longer, and another program may disturb one.
        medians = {threads: statistics.median(times) for threads, times in self.seconds.items()}
        fastest = min(medians, key=lambda threads: medians[threads])
        for threads, age in self.ages.items():
            loss = medians[threads] - medians[fastest]
            if threads != fastest and loss < TRIAL_SHARE * age * medians[fastest]:
                return threads
        return fastest

    def add(self, threads: int, seconds: float) -> None:
        """Record the seconds a token of one sentence."""
        self.seconds[threads].append(seconds)
        self.ages = {other: age + 1 for other, age in self.ages.items()} | {threads: 0}


class CTranslate2Engine(Engine):
    """Translates and scores by an exported model, with a batch or a sentence in each thread.

    A sentence that comes alone gets one thread or several, whichever `Trials` finds to be faster:
    two nearly halve the time on one machine, and multiply it by ten on another, where they wait
    long for each other.
    """

    # So a short batch of one thread is followed at once by that of another.
    num_callers: ClassVar[int] = 2

    def __init__(
        self, folder: Path, config: ModelConfig, tokenizers: Tokenizers, quantization: Quantization
    ) -> None:
        """Load the export of a model."""
        source, target = tokenizers.source, tokenizers.target
        self.folder = folder
        # CTranslate2 computes half precision in float32 anyway, and would warn of the conversion.
        is_half = quantization in ("float16", "bfloat16")
        self.compute_type = "float32" if is_half else "default"
        # Otherwise CTranslate2 adds EOS to sources itself.
        self.keeps_source_eos = lacks_source_eos(folder)
        self.num_threads = num_threads()
        self.translator = self._load(inter_threads=self.num_threads, intra_threads=1)
        check_vocabularies(folder)
        # CTranslate2's objects for a sentence alone, by their number of threads.
        self.single = {1: self.translator}
        self.trials = Trials((1, min(self.num_threads, MAX_SINGLE_THREADS)))
        self._lock = threading.Lock()  # of `single` and `trials`
        self.source_tokens = source.tokens(range(source.size))
        self.target_tokens = target.tokens(range(target.size))
        self.target_ids = {token: i for i, token in enumerate(self.target_tokens)}
        self.suppressed_ids = set(target.suppressed_ids)
        self.max_length = num_positions(config)  # of a sentence, in tokens; None for any
        self.scorer = self

    def _load(self, **threads: int) -> Any:
        """Return CTranslate2's object for the model."""
        try:
            return package("ctranslate2", "ctranslate2").Translator(
                str(self.folder),
                compute_type=self.compute_type,
                # `BATCHES_AHEAD` limits the queue.
                max_queued_batches=-1,
                **threads,
            )
        except (RuntimeError, ValueError) as error:
            what = "cannot be loaded by CTranslate2"
            remedy = f"remove it, and {CONVERT_AGAIN}"
            raise CheckpointError(str(self.folder), what, got=str(error), remedy=remedy) from None

    def check(self, requests: Sequence[Request], config: DecodingConfig, nbest: int) -> None:
        for part in fields(config):
            value = getattr(config, part.name)
            is_other = part.name not in SHARED_KEYS and value != part.default
            if is_other or value == "sample":
                neutral = "beam" if value == "sample" else part.default
                raise no_counterpart(f"decoding.{part.name}", str(value), f"set it to {neutral}")
        for name, argument in CONSTRAINTS.items():
            if any(getattr(request, name) for request in requests):
                raise no_counterpart(argument)
        longest_source = max((len(request.source) for request in requests), default=0)
        for where, length, remedy in (
            ("decoding.max_length", config.max_length, "lower it"),
            ("a line", longest_source, "lower `max_source_length`"),
        ):
            if self.max_length is not None and length > self.max_length:
                what = f"has more tokens than the {self.max_length} positions of the exported model"
                raise UsageError(where, what, got=str(length), remedy=remedy)
        beam = _beam_of(config)
        if beam.beam_size == 1 and beam.enough > 1:
            # A beam of one is greedy search to CTranslate2, and ends with its first hypothesis.
            raise no_counterpart("decoding.patience", f"{beam.patience:g}", "set it to 1")
        if nbest > beam.enough:
            # With too few finished hypotheses our search continues, and CTranslate2 does not start.
            what = f"leaves CTranslate2 fewer than the {nbest} requested translations of a line"
            remedy = f"raise it, or {OTHER_ENGINE}"
            raise UsageError("decoding.patience", what, got=f"{beam.patience:g}", remedy=remedy)

    def decode(self, job: Job, on_done: OnDone, on_warning: OnWarning) -> list[list[Hypothesis]]:
        requests = job.requests
        if job.on_draft is not None:
            self._draft(job, job.on_draft)
        if len(requests) == 1:
            results = [self._decode_single(job)]
            on_done(1)
            return results
        results = [[] for _ in requests]
        beam = _beam_of(job.config)
        batches = shrinking_batches(range(len(requests)), self.num_threads)
        submitted = ((part, self._submit(self.translator, job, beam, part)) for part in batches)
        for indices, futures in delayed(submitted, BATCHES_AHEAD * self.num_threads):
            for index, future in zip(indices, futures, strict=True):
                results[index] = list(self._hypotheses(future.result(), beam.length_penalty))
            on_done(len(indices))
        return results

    def _draft(self, job: Job, on_draft: OnDraft) -> None:
        """Tell how a greedy translation grows: CTranslate2 tells nothing of a beam."""
        drafts: list[list[int]] = [[] for _ in job.requests]

        def on_token(step: Any) -> bool:
            token = self.target_ids[step.token]
            if token != EOS_ID:
                drafts[step.batch_id].append(token)
                on_draft(step.batch_id, tuple(drafts[step.batch_id]))
            return False

        self.translator.translate_batch(
            [self._source(request.source) for request in job.requests],
            beam_size=1,
            max_decoding_length=job.config.max_length,
            max_input_length=0,
            **self._starts(job.requests),
            callback=on_token,
        )

    def _decode_single(self, job: Job) -> list[Hypothesis]:
        beam = _beam_of(job.config)
        with self._lock:
            threads = self.trials.next()
            if threads not in self.single:
                self.single[threads] = self._load(inter_threads=1, intra_threads=threads)
        started = time.perf_counter()
        (future,) = self._submit(self.single[threads], job, beam, range(1))
        hypotheses = list(self._hypotheses(future.result(), beam.length_penalty))
        num_tokens = len(job.requests[0].source) + len(hypotheses[0].token_ids)
        with self._lock:
            self.trials.add(threads, (time.perf_counter() - started) / num_tokens)
        return hypotheses

    def _submit(
        self, translator: Any, job: Job, beam: BeamConfig, indices: Sequence[int]
    ) -> list[Any]:
        """Return the future of each request, by one of CTranslate2's objects."""
        futures: list[Any] = translator.translate_batch(
            [self._source(job.requests[index].source) for index in indices],
            asynchronous=True,
            beam_size=beam.beam_size,
            num_hypotheses=job.nbest,
            length_penalty=beam.length_penalty,
            patience=beam.patience,
            max_decoding_length=job.config.max_length,
            max_input_length=0,
            **self._starts(job.requests[index] for index in indices),
            return_scores=job.scored,
            return_end_token=True,
        )
        return futures

    def _starts(self, requests: Iterable[Request]) -> dict[str, list[list[str]]]:
        """Return the argument with the first target tokens of requests, if they have any.

        CTranslate2 gives them probability 1 too.
        """
        starts = [[self.target_tokens[i] for i in request.start] for request in requests]
        return {"target_prefix": starts} if any(starts) else {}

    def _source(self, ids: Sequence[int]) -> list[str]:
        """Return source tokens, without EOS if CTranslate2 adds it itself."""
        return [self.source_tokens[i] for i in (ids if self.keeps_source_eos else ids[:-1])]

    def _hypotheses(self, result: Any, length_penalty: float) -> Iterator[Hypothesis]:
        # Scores are empty unless requested.
        scores = result.scores or [math.nan] * len(result.hypotheses)
        for tokens, score in zip(result.hypotheses, scores, strict=True):
            ids = [self.target_ids[token] for token in tokens]
            finished = ids[-1:] == [EOS_ID]
            log_prob = score * len(ids) ** length_penalty
            yield Hypothesis(tuple(ids[:-1] if finished else ids), log_prob, score, finished)

    def score(
        self, pairs: Sequence[Pair], *, on_done: Callable[[int], object] = lambda count: None
    ) -> list[tuple[float, ...]]:
        results = [
            (-math.inf,) * (len(target) + 1) if source or target else (0.0,)
            for source, target in pairs
        ]
        indices = [index for index, (source, target) in enumerate(pairs) if source and target]
        sources = [self._source(pairs[index][0]) for index in indices]
        targets = [[self.target_tokens[i] for i in pairs[index][1]] for index in indices]
        # CTranslate2's scores allow EOS as the first token, though its search does not: the first
        # log probability is renormalized.
        ends = self._log_probs(sources, [[] for _ in indices])
        scores = self._log_probs(sources, targets)
        for index, (first, *others), (end,) in zip(indices, scores, ends, strict=True):
            log_probs = (first - math.log1p(-math.exp(min(end, -TINY))), *others)
            results[index] = tuple(
                -math.inf if token_id in self.suppressed_ids else log_prob
                for token_id, log_prob in zip((*pairs[index][1], EOS_ID), log_probs, strict=True)
            )
        on_done(len(pairs))
        return results

    def _log_probs(self, sources: list[list[str]], targets: list[list[str]]) -> list[list[float]]:
        results = self.translator.score_batch(
            sources, targets, max_batch_size=MAX_BATCH, max_input_length=0
        )
        return [result.log_probs for result in results]


def _beam_of(config: DecodingConfig) -> BeamConfig:
    """Return the beam search that CTranslate2 runs; greedy search is a beam of 1."""
    return config if isinstance(config, BeamConfig) else BeamConfig(beam_size=1, length_penalty=0)


def unsupported_by_ctranslate2(
    config: ModelConfig, quantization: Quantization = "float32"
) -> Iterator[Problem]:
    """Yield the config keys that CTranslate2 cannot compute exactly."""

    def problem(key: str, got: object, remedy: str) -> Problem:
        return Problem(f"model.{key}", "has no exact counterpart in CTranslate2", f"{got}", remedy)

    if not isinstance(config, EncoderDecoderConfig):
        yield problem("kind", config.kind, "export an encoder_decoder")
        return
    positions, window = config.positions, config.sliding_window
    if config.latent is not None:
        got = f"dim {config.latent.kv_lora_rank}"
        yield problem("latent", got, "train with model.latent: null")
    if positions.kind == "alibi":
        yield problem("positions.kind", "alibi", "train with rotary or relative positions")
    if window is not None and isinstance(positions, SinusoidalPositions | LearnedPositions):
        got = f"{window} with positions of kind {positions.kind}"
        remedy = "train with rotary positions, or with model.sliding_window: null"
        yield problem("sliding_window", got, remedy)
    has_yarn = isinstance(positions, RotaryPositions) and isinstance(positions.scaling, YarnScaling)
    if has_yarn and quantization in ("float16", "bfloat16"):
        got = f"yarn in {quantization}, which rounds its frequencies"
        yield problem("positions.scaling", got, 'use `quantization="int8"` or float32')


def num_positions(config: ModelConfig) -> int | None:
    """Return how many positions an exported model has; None for any number."""
    positions = config.positions
    if isinstance(positions, SinusoidalPositions):
        return SINUSOIDAL_ROWS
    return positions.max_length if isinstance(positions, LearnedPositions) else None


def shrinking_batches(indices: Sequence[int], num_threads: int) -> Iterator[Sequence[int]]:
    """Yield batches that become smaller, so that threads finish at about the same time."""
    start = 0
    while start < len(indices):
        share = math.ceil((len(indices) - start) / num_threads)
        size = min(MAX_BATCH, max(MIN_BATCH, share))
        yield indices[start : start + size]
        start += size


def no_counterpart(where: str, got: str | None = None, *remedies: str) -> UsageError:
    """Return the error of what CTranslate2 does not implement alike."""
    what = "has no exact counterpart in CTranslate2"
    return UsageError(where, what, got=got, remedy=", or ".join((OTHER_ENGINE, *remedies)))
