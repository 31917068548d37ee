"""Compare the translations of an exported model with the model's own, on real lines."""

import itertools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

import torch

from tformer_cli.config.schema.decoding import (
    BeamConfig,
    DecodingConfig,
    GreedyConfig,
    search_in_words,
)
from tformer_cli.errors import DataError, ExportError, quantity
from tformer_cli.export.format import Format
from tformer_cli.search.engine import Engine, Hypothesis, OnDone, Request, SpecialTokens
from tformer_cli.search.native_engine import NativeEngine
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.tokenizer import Ids, Tokenizers, with_eos

# Largest difference of two scores, in log probability per token.
SCORE_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Difference:
    """Two hypotheses of a line that differ; None where an engine has fewer."""

    line: int  # index
    rank: int  # index among the hypotheses, best first
    ours: Hypothesis | None
    theirs: Hypothesis | None


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one search by two engines."""

    search: DecodingConfig
    num_lines: int
    num_equal: int  # lines whose hypotheses all have equal tokens
    ties: tuple[Difference, ...]  # different tokens that both engines score alike
    differences: tuple[Difference, ...]  # other tokens, or equal tokens with other scores
    ours: tuple[Hypothesis, ...]  # best of each line
    theirs: tuple[Hypothesis, ...]
    bleu: float | None = None  # of theirs, if weights are rounded and there are references
    our_bleu: float | None = None

    @property
    def num_best_equal(self) -> int:
        """Lines whose best hypotheses have equal tokens."""
        return sum(map(_have_equal_tokens, self.ours, self.theirs))

    @property
    def search_name(self) -> str:
        """The search in words."""
        return search_in_words(asdict(self.search))

    def __str__(self) -> str:
        parts = [
            f"{self.search_name}: {self.num_best_equal} of {quantity(self.num_lines, 'line')} "
            "translated alike"
        ]
        if self.ties:
            parts.append(quantity(len(self.ties), "near-tie"))
        if self.bleu is not None:
            parts.append(f"BLEU {self.bleu:.2f}, of the run {self.our_bleu:.2f}")
        return ", ".join(parts)

    def as_json(self) -> dict[str, object]:
        """Return the numbers by name."""
        return {
            "search": self.search_name,
            "num_lines": self.num_lines,
            "num_best_equal": self.num_best_equal,
            "num_equal": self.num_equal,
            "num_ties": len(self.ties),
            "num_differences": len(self.differences),
            "bleu": self.bleu,
            "our_bleu": self.our_bleu,
        }


@dataclass(frozen=True, slots=True)
class CheckText:
    """Real lines to check an export by."""

    name: str  # of their file
    lines: tuple[str, ...]
    numbers: tuple[int, ...]  # of the lines in the file, from 1
    sources: tuple[tuple[int, ...], ...] = field(repr=False)  # token ids with EOS
    start: Ids = ()  # of each translation: its language, if that is a token

    @classmethod
    def of(
        cls,
        lines: Sequence[str],
        tokenizers: Tokenizers,
        *,
        name: str,
        max_length: int,
        first_ids: tuple[Ids, Ids] = ((), ()),
    ) -> "CheckText":
        """Encode the lines of 1 to `max_length` tokens, behind their first ids.

        Raises:
            DataError: there are none.
        """
        encoded = [tokenizers.source.encode(line) for line in lines]
        indices = [index for index, ids in enumerate(encoded) if 0 < len(ids) <= max_length]
        if not indices:
            what = f"has no line of 1 to {max_length:,} tokens to check the export by"
            raise DataError(name, what, remedy="give another text")
        return cls(
            name,
            tuple(lines[index] for index in indices),
            tuple(index + 1 for index in indices),
            tuple((*first_ids[0], *with_eos(encoded[index])) for index in indices),
            first_ids[1],
        )


def cpu_engine(trained: TrainedModel) -> NativeEngine:
    """Return our own engine of a model, on the CPU."""
    tokens = SpecialTokens(*trained.tokenizers.special_ids(trained.config.model.kind))
    return NativeEngine(trained.model, tokens, device=torch.device("cpu"))


class ImportedFormat(Format):
    """A format that is checked by our own import of the written folder.

    The beam search of its program ends by another rule than ours, so greedy search is compared.
    """

    @abstractmethod
    def read(self, folder: Path) -> TrainedModel:
        """Return the model of a written folder."""

    def engine(self, trained: TrainedModel, folder: Path) -> NativeEngine:
        return cpu_engine(self.read(folder))

    def searches(self, own: DecodingConfig) -> list[DecodingConfig]:
        return [GreedyConfig(max_length=own.max_length)]


class TransformersFormat(ImportedFormat):
    """A folder that transformers loads. It has our limit of repetition, which is checked too."""

    program: ClassVar = "transformers"

    def searches(self, own: DecodingConfig) -> list[DecodingConfig]:
        size = own.no_repeat_ngram_size
        return [GreedyConfig(max_length=own.max_length, no_repeat_ngram_size=size)]


def check_export(
    trained: TrainedModel,
    form: Format,
    folder: Path,
    text: CheckText,
    *,
    on_done: OnDone = lambda count: None,
) -> list[CheckResult]:
    """Compare the translations of a written folder with the model's own, by each search.

    Raises:
        ExportError: they differ although the format is exact.
    """
    ours, theirs = cpu_engine(trained), form.engine(trained, folder)
    requests = [Request(source, start=text.start) for source in text.sources]
    comparisons = []
    for search in form.searches(trained.config.decoding):
        comparison = compare_engines(ours, theirs, requests, search, on_done=on_done)
        if form.is_exact and comparison.differences:
            raise _export_error(form.program, trained.tokenizers, text, comparison.differences)
        comparisons.append(comparison)
    return comparisons


def compare_engines(
    ours: Engine,
    theirs: Engine,
    requests: Sequence[Request],
    search: DecodingConfig,
    *,
    on_done: OnDone = lambda count: None,
) -> CheckResult:
    """Compare two engines by greedy search, or by all hypotheses of a beam search."""
    nbest = search.beam_size if isinstance(search, BeamConfig) else 1
    our_results, their_results = (
        engine.translate(requests, search, nbest=nbest, on_done=on_done)
        for engine in (ours, theirs)
    )
    ties: list[Difference] = []
    differences: list[Difference] = []
    differing_lines = set()
    for line, hypotheses in enumerate(zip(our_results, their_results, strict=True)):
        for rank, pair in enumerate(itertools.zip_longest(*hypotheses)):
            difference = Difference(line, rank, *pair)
            if not _have_equal_tokens(*pair):
                differing_lines.add(line)
                is_tie = _is_tie(difference, ours, theirs, requests[line], search)
                (ties if is_tie else differences).append(difference)
            elif abs(_score(pair[0]) - _score(pair[1])) > SCORE_TOLERANCE:
                differences.append(difference)
    return CheckResult(
        search,
        num_lines=len(requests),
        num_equal=len(requests) - len(differing_lines),
        ties=tuple(ties),
        differences=tuple(differences),
        ours=tuple(best for best, *_ in our_results),
        theirs=tuple(best for best, *_ in their_results),
    )


def _have_equal_tokens(ours: Hypothesis | None, theirs: Hypothesis | None) -> bool:
    if ours is None or theirs is None:
        return False
    return (ours.token_ids, ours.finished) == (theirs.token_ids, theirs.finished)


def _score(hypothesis: Hypothesis) -> float:
    """Return the log probability per token."""
    return hypothesis.log_prob / max(1, hypothesis.length)


def _is_tie(
    pair: Difference, ours: Engine, theirs: Engine, request: Request, search: DecodingConfig
) -> bool:
    """Return whether both engines score both hypotheses alike, up to `SCORE_TOLERANCE`.

    Beam search compares whole hypotheses. Greedy search decides at the first differing token, so
    scores are compared up to that token.
    """
    if pair.ours is None or pair.theirs is None:
        return False
    both = pair.ours, pair.theirs
    lengths = [hypothesis.length for hypothesis in both]
    if isinstance(search, GreedyConfig):
        tokens = zip(pair.ours.token_ids, pair.theirs.token_ids, strict=False)
        common = itertools.takewhile(lambda ids: ids[0] == ids[1], tokens)
        lengths = [sum(1 for _ in common) + 1] * 2
    pairs = [(request.source, hypothesis.token_ids) for hypothesis in both]
    scores = [
        math.fsum(log_probs[:length]) / length
        for engine in (ours, theirs)
        for log_probs, length in zip(engine.scorer.score(pairs), lengths, strict=True)
    ]
    return max(scores) - min(scores) <= SCORE_TOLERANCE


def _export_error(
    program: str, tokenizers: Tokenizers, text: CheckText, differences: Sequence[Difference]
) -> ExportError:
    def described(hypothesis: Hypothesis | None) -> str:
        if hypothesis is None:
            return "none"
        return f"{tokenizers.target.decode(hypothesis.token_ids)!r} ({_score(hypothesis):.5f})"

    first = differences[0]
    rank = "the best" if first.rank == 0 else f"number {first.rank + 1}"
    return ExportError(
        f"{text.name}:{text.numbers[first.line]}",
        f"{program} has another translation, or another score for it",
        got=f"{described(first.theirs)} in place of {described(first.ours)}, {rank} of the line; "
        f"{len(differences)} differ in all",
        remedy="nothing was written: export another checkpoint, and report this one",
    )
