"""CTranslate2 as an engine: it translates ids as ours does, by a folder that was exported."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig
from tformer_cli.errors import CheckpointError, Problem, UsageError
from tformer_cli.export.extra import package
from tformer_cli.search.engine import longest_first
from tformer_cli.search.request import EMPTY, Hypothesis, Request
from tformer_cli.search.scoring import Pair
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.text.vocabulary import EOS_ID

# Most sentences of a batch, which one thread translates, and fewest: alone each takes longer.
BATCH = 64
SMALL_BATCH = 4
# Batches for each thread that are handed over and not yet back: while one of them takes long, the
# other threads go on. Whoever interrupts waits for them all.
BATCHES_AHEAD = 2
# Where the end token is certain, what else may come has a probability that no float tells from 0.
TINY = 1e-12
# What of a search CTranslate2 does alike.
SHARED_KEYS = frozenset({"kind", "max_length", "beam_size", "length_penalty", "patience"})


class CTranslate2Engine:
    """Runs an exported model, a batch in each thread.

    Attributes:
        num_threads: as many as torch has.
        scorer: says how probable given translations are.
    """

    def __init__(
        self,
        folder: Path,
        tokenizers: Tokenizers,
        *,
        max_length: int | None,
        compute_type: str = "default",
    ) -> None:
        """Load the model.

        Args:
            folder: what was exported.
            tokenizers: of its vocabularies.
            max_length: longest sentence in tokens, or None where any length will do.
            compute_type: what CTranslate2 computes in; by default that of the export.

        Raises:
            UsageError: CTranslate2 is not installed.
            CheckpointError: CTranslate2 cannot load the folder.
        """
        source, target = tokenizers.source, tokenizers.target
        make = package("ctranslate2", "ctranslate2").Translator
        self.num_threads = torch.get_num_threads()
        try:
            self.translator = make(
                str(folder),
                compute_type=compute_type,
                inter_threads=self.num_threads,
                intra_threads=1,
                # What waits is counted here.
                max_queued_batches=-1,
            )
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(
                str(folder),
                "cannot be loaded by CTranslate2",
                got=str(error),
                remedy="remove it, and export again",
            ) from None
        self.source_tokens = source.tokens(range(source.size))
        self.target_tokens = target.tokens(range(target.size))
        self.target_ids = {token: i for i, token in enumerate(self.target_tokens)}
        self.scorer = CTranslate2Scorer(self, set(target.suppressed_ids), max_length)

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
        """Return translations, as `Engine` says.

        Raises:
            UsageError: CTranslate2 does not search so.
        """
        reject_other_searches(config)
        reject_constraints(requests)
        self._check_positions(requests, config)
        beam = (
            config if isinstance(config, BeamConfig) else BeamConfig(beam_size=1, length_penalty=0)
        )
        reject_impatience(beam, nbest)
        found = [[EMPTY] * nbest for _ in requests]
        order = longest_first(requests)
        on_done(len(requests) - len(order))

        def begin(numbers: Sequence[int]) -> list[Any]:
            results: list[Any] = self.translator.translate_batch(
                [self.source(requests[number].source) for number in numbers],
                asynchronous=True,
                beam_size=beam.beam_size,
                num_hypotheses=nbest,
                length_penalty=beam.length_penalty,
                patience=beam.patience,
                max_decoding_length=config.max_length,
                max_input_length=0,
                return_scores=scored,
                return_end_token=True,
            )
            return results

        batches = shrinking_batches(order, self.num_threads)
        for numbers, results in _some_ahead(batches, begin, BATCHES_AHEAD * self.num_threads):
            for number, result in zip(numbers, results, strict=True):
                found[number] = list(self._hypotheses(result.result(), beam.length_penalty))
            on_done(len(numbers))
        return found

    def _check_positions(self, requests: Sequence[Request], config: DecodingConfig) -> None:
        longest = self.scorer.max_length
        if longest is None:
            return
        source = max((len(request.source) for request in requests), default=0)
        for where, length, remedy in (
            ("decoding.max_length", config.max_length, "lower it"),
            ("a line", source, "lower `max_source_length`"),
        ):
            if length > longest:
                raise UsageError(
                    where,
                    f"has more tokens than the exported model has positions ({longest})",
                    got=str(length),
                    remedy=remedy,
                )

    def source(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens of source ids but the end token, which CTranslate2 adds itself."""
        return [self.source_tokens[i] for i in ids[:-1]]

    def _hypotheses(self, result: Any, length_penalty: float) -> Iterator[Hypothesis]:
        # There are none unless they were asked for.
        scores = result.scores or [math.nan] * len(result.hypotheses)
        for tokens, score in zip(result.hypotheses, scores, strict=True):
            ids = [self.target_ids[token] for token in tokens]
            finished = ids[-1:] == [EOS_ID]
            log_prob = score * len(ids) ** length_penalty
            yield Hypothesis(tuple(ids[:-1] if finished else ids), log_prob, score, finished)


class CTranslate2Scorer:
    """Asks an exported model.

    Attributes:
        max_length: longest source or target, or None where any length will do.
    """

    def __init__(
        self, engine: CTranslate2Engine, suppressed_ids: set[int], max_length: int | None
    ) -> None:
        self.engine = engine
        self.impossible = suppressed_ids
        self.max_length = max_length

    def score(
        self,
        pairs: Sequence[Pair],
        *,
        on_done: Callable[[int], object] = lambda count: None,
    ) -> list[tuple[float, ...]]:
        """Return log probabilities, as `Scorer` says."""
        results = [
            (-math.inf,) * (len(target) + 1) if source or target else (0.0,)
            for source, target in pairs
        ]
        numbers = [number for number, (source, target) in enumerate(pairs) if source and target]
        sources = [self.engine.source(pairs[number][0]) for number in numbers]
        targets = [[self.engine.target_tokens[i] for i in pairs[number][1]] for number in numbers]
        # CTranslate2 lets the end token come first here, though not in a search.
        ends = self._log_probs(sources, [[] for _ in numbers])
        found = self._log_probs(sources, targets)
        for number, (first, *others), (end,) in zip(numbers, found, ends, strict=True):
            log_probs = (first - math.log1p(-math.exp(min(end, -TINY))), *others)
            written = (*pairs[number][1], EOS_ID)
            results[number] = tuple(
                -math.inf if token_id in self.impossible else log_prob
                for token_id, log_prob in zip(written, log_probs, strict=True)
            )
        on_done(len(pairs))
        return results

    def _log_probs(self, sources: list[list[str]], targets: list[list[str]]) -> list[list[float]]:
        translator = self.engine.translator
        found = translator.score_batch(sources, targets, max_batch_size=BATCH, max_input_length=0)
        return [one.log_probs for one in found]


def shrinking_batches(numbers: Sequence[int], num_threads: int) -> Iterator[Sequence[int]]:
    """Yield numbers in batches, smaller ones towards the end.

    Where a thread finds no more of them, the others have little left to do.
    """
    start = 0
    while start < len(numbers):
        share = math.ceil((len(numbers) - start) / num_threads)
        size = min(BATCH, max(SMALL_BATCH, share))
        yield numbers[start : start + size]
        start += size


def _some_ahead(
    batches: Iterable[Sequence[int]], begin: Callable[[Sequence[int]], list[Any]], count: int
) -> Iterator[tuple[Sequence[int], list[Any]]]:
    """Yield each batch, in order, with what `begin` makes of it, when `count` more have begun."""
    begun: deque[tuple[Sequence[int], list[Any]]] = deque()
    for batch in batches:
        begun.append((batch, begin(batch)))
        if len(begun) > count:
            yield begun.popleft()
    yield from begun


def reject_other_searches(config: DecodingConfig) -> None:
    """Make sure that CTranslate2 has a search, and searches by the same rules.

    Raises:
        UsageError: it does not.
    """
    for part in fields(config):
        value = getattr(config, part.name)
        is_other = part.name not in SHARED_KEYS and value != part.default
        if is_other or value == "sample":
            reject(f"decoding.{part.name}", str(value))


def reject_impatience(beam: BeamConfig, nbest: int) -> None:
    """Make sure that CTranslate2 goes on until there are as many translations as are asked for.

    Raises:
        UsageError: it does not.
    """
    # Where ours has too few at that point it goes on, and CTranslate2 does not begin.
    if nbest > beam.enough:
        raise UsageError(
            "decoding.patience",
            f"leaves CTranslate2 fewer translations of a line than are asked for ({nbest})",
            got=f"{beam.patience:g}",
            remedy="raise it, or use another `engine`",
        )


def reject_constraints(requests: Sequence[Request]) -> None:
    """Make sure that nothing is asked of a translation but to translate.

    Raises:
        UsageError: something is.
    """
    if any(request.prefix for request in requests):
        reject("`prefixes`")
    if any(request.banned for request in requests):
        reject("`banned`")
    if any(request.required for request in requests):
        reject("`required` and `terminology`")


def reject(where: str, got: str | None = None) -> None:
    """Refuse what CTranslate2 would do otherwise, or not at all.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        where, "has no exact counterpart in CTranslate2", got=got, remedy="use another `engine`"
    )
