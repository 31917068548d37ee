"""Compare systems on the same references: confidence intervals and paired significance tests."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from tformer_cli.choices import MetricName
from tformer_cli.config.schema.config import BleuTokenizer, EvaluationConfig
from tformer_cli.corpus.lines import read_lines
from tformer_cli.corpus.reader import read_texts
from tformer_cli.errors import DataError, Problem, UsageError, check_choice
from tformer_cli.evaluation.evaluate import texts_of_split
from tformer_cli.evaluation.metrics import (
    TOKENIZERS_BY_LANGUAGE,
    Metric,
    Score,
    Scores,
    Statistics,
    build_metric,
)
from tformer_cli.evaluation.resampling import (
    bootstrap,
    confidence_interval,
    p_value,
    randomization,
)
from tformer_cli.evaluation.score_warnings import (
    script_of_no_words,
    subword_warning,
    tokenized_warning,
)
from tformer_cli.storage.trained_model import ModelFiles, check_translates

SIGNIFICANCE_LEVEL = 0.05
# Of both tests, unless the caller chooses; sacrebleu has the same.
RESAMPLES, SEED = 1000, 12345
# What the order of additions changes of a score, 0 to 100, at most.
ROUNDING_ERROR = 1e-9
Verdict = Literal["better", "worse", "undecided"]


@dataclass(frozen=True, slots=True)
class Contrast:
    """How a system differs from the baseline by a metric.

    Attributes:
        difference: its score minus that of the baseline.
        p_bootstrap: of paired bootstrap resampling (Koehn 2004).
        p_randomization: of paired approximate randomization (Riezler and Maxwell 2005).
        num_wins: sentences with a better score than the baseline's.
        num_ties: sentences with an equal score.
        num_losses: sentences with a worse score.
        verdict: better or worse if both p-values are below `SIGNIFICANCE_LEVEL`, else undecided.
    """

    difference: float
    p_bootstrap: float
    p_randomization: float
    num_wins: int
    num_ties: int
    num_losses: int
    verdict: Verdict

    @property
    def p_value(self) -> float:
        """The larger of both p-values."""
        return max(self.p_bootstrap, self.p_randomization)


@dataclass(frozen=True, slots=True)
class SystemScore:
    """The score of a system by a metric.

    Attributes:
        system: its run folder or file.
        score: of the whole text.
        interval: 95% confidence interval of bootstrap resampling.
        contrast: with the baseline; None for the baseline itself.
    """

    system: str
    score: Score
    interval: tuple[float, float]
    contrast: Contrast | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Scores of systems on the same references.

    Attributes:
        text: name of the test set, or file of the references.
        num_sentences: of the text.
        num_references: of each sentence.
        scores: by metric, those of each system, the baseline first.
        resamples: of the bootstrap; also shuffles of the randomization.
        seed: of both tests.
    """

    text: str
    num_sentences: int
    num_references: int
    scores: Mapping[MetricName, tuple[SystemScore, ...]]
    resamples: int
    seed: int

    def as_json(self) -> dict[str, object]:
        """Return plain data."""
        return asdict(self)


def compare_systems(
    text: str,
    statistics: Sequence[Statistics],
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Comparison:
    """Score systems by each metric, and test each system against the first."""
    first = statistics[0]
    scores = {each.metric.name: tuple(_compare(each, resamples, seed)) for each in statistics}
    return Comparison(text, first.num_sentences, first.num_references, scores, resamples, seed)


def mean_p_value(texts: Sequence[Statistics]) -> float:
    """Test the second of two systems against the first by the mean of their scores on some texts.

    By paired bootstrap resampling (Koehn 2004). Texts of as many lines get the same draws, for they
    may be one text in several languages.
    """
    resampled = [_resampled_scores(each, RESAMPLES, SEED) for each in texts]
    changes = np.abs(np.mean([other - baseline for baseline, other in resampled], axis=0))
    scores = [[score.score for score in each.scores()] for each in texts]
    difference = np.mean([other - baseline for baseline, other in scores])
    return p_value(changes - changes.mean(), abs(float(difference)))


def score_systems(statistics: Sequence[Statistics]) -> dict[MetricName, tuple[SystemScore, ...]]:
    """Score one or several systems by each metric, without a test of their differences."""
    return {
        each.metric.name: tuple(_score(each, _resampled_scores(each, RESAMPLES, SEED)))
        for each in statistics
    }


def _compare(statistics: Statistics, resamples: int, seed: int) -> Iterator[SystemScore]:
    """Yield the score of each system, with its contrast unless it is the first."""
    metric = statistics.metric
    resampled = _resampled_scores(statistics, resamples, seed)
    sentences = np.array(statistics.sentence_scores())
    baseline, *others = _score(statistics, resampled)
    yield baseline
    for index, other in enumerate(others, 1):
        difference = other.score.score - baseline.score.score
        changes = np.abs(resampled[index] - resampled[0])
        pair = statistics.counts[0], statistics.counts[index]
        one, two = map(metric.score_sums, randomization(*pair, resamples, seed))
        contrast = _contrast(
            metric,
            difference,
            sentences[index] - sentences[0],
            p_value(changes - changes.mean(), abs(difference)),
            # Shuffles count if they reach the difference; sacrebleu's have to exceed it.
            p_value(np.abs(one - two), abs(difference) - ROUNDING_ERROR),
        )
        yield replace(other, contrast=contrast)


def _resampled_scores(statistics: Statistics, resamples: int, seed: int) -> list[Scores]:
    return [
        statistics.metric.score_sums(sums) for sums in bootstrap(statistics.counts, resamples, seed)
    ]


def _score(statistics: Statistics, resampled: Sequence[Scores]) -> Iterator[SystemScore]:
    rows = zip(statistics.systems, statistics.scores(), resampled, strict=True)
    for system, score, scores in rows:
        yield SystemScore(system, score, confidence_interval(scores), None)


def _contrast(
    metric: Metric, difference: float, gains: Scores, p_bootstrap: float, p_randomization: float
) -> Contrast:
    """Return the contrast of a difference, of those of the sentences, and of both tests."""
    sign = -1 if metric.lower_is_better else 1
    num_wins, num_losses = int((sign * gains > 0).sum()), int((sign * gains < 0).sum())
    if difference == 0:
        p_bootstrap = p_randomization = 1.0
    verdict: Verdict = "undecided"
    if max(p_bootstrap, p_randomization) < SIGNIFICANCE_LEVEL:
        verdict = "better" if sign * difference > 0 else "worse"
    num_ties = len(gains) - num_wins - num_losses
    counts = num_wins, num_ties, num_losses
    return Contrast(difference, p_bootstrap, p_randomization, *counts, verdict)


def distinct_systems(systems: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the paths of at least two systems, which exist."""
    paths = list(dict.fromkeys(map(Path, systems)))
    if len(paths) < 2:
        got = ", ".join(map(str, systems))
        remedy = "name a baseline, and what to compare with it"
        raise UsageError("`systems`", "must be two different ones", got=got, remedy=remedy)
    for path in paths:
        if not path.exists():
            remedy = "name what is there"
            raise UsageError(str(path), "is neither a run folder nor a file", remedy=remedy)
    return paths


def common_text(
    runs: Sequence[ModelFiles], test: str | None, references: Sequence[Path]
) -> tuple[str, dict[Path, list[str]]]:
    """Return the name and the references, by their files, of the text that systems translated.

    With runs it is a test set of theirs, whose references they share; else the references have to
    be given.
    """
    if runs and references:
        what = "has no effect on runs, whose test sets have references"
        got = ", ".join(map(str, references))
        raise UsageError("`references`", what, got=got, remedy="leave it out")
    if not runs and not references:
        what = "is required for files of translations"
        raise UsageError("`references`", what, remedy="name a file of references")
    if not runs and test is not None:
        what = "has no effect on files of translations"
        raise UsageError("`test`", what, got=test, remedy="leave it out")
    if runs:
        name = _common_test_set(runs, test)
        lines = _common_references(runs, name)
    else:
        first, *others = references
        name = str(first)
        lines = {first: list(read_lines(first))}
        lines |= {file: read_translations(file, lines) for file in others}
    for file, text in lines.items():
        if not text:
            raise DataError(str(file), "no lines", remedy="name a file with text")
    return name, lines


def _common_test_set(runs: Sequence[ModelFiles], name: str | None) -> str:
    """Return the name of a text that all runs have, by default the only test set or `valid`."""
    for run in runs:
        check_translates(run.run, run.config)
    valid = _common_names([run.config.data.valid_texts for run in runs])
    tests = _common_names([run.config.data.test for run in runs])
    if not valid and not tests:
        names = [*runs[0].config.data.valid_texts, *runs[0].config.data.test]
        what = f"must have a text of the same name as {runs[0].run.path}"
        remedy = "translate one text with each, and compare the files"
        raise UsageError("`systems`", what, got=", ".join(names), remedy=remedy)
    remedy = f"choose from: {', '.join([*valid, *tests])}"
    if name is None and len(tests or valid) != 1:
        raise UsageError("`test`", "is required, since the runs have several", remedy=remedy)
    if name not in (None, *valid, *tests):
        raise UsageError("`test`", "is no test set of all runs", got=name, remedy=remedy)
    return name or (tests or valid)[0]


def _common_names(texts: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the names that all runs have a text of."""
    return [name for name in texts[0] if all(name in each for each in texts)]


def _common_references(runs: Sequence[ModelFiles], name: str) -> dict[Path, list[str]]:
    texts = [texts_of_split(run.config, name)[name] for run in runs]
    first, *others = [[target for _, target in read_texts([text])] for text in texts]
    for run, text, other in zip(runs[1:], texts[1:], others, strict=True):
        if other != first:
            what = f"has other references of {name} than {runs[0].run.path}"
            remedy = "translate one text with each, and compare the files with `references`"
            raise UsageError(str(run.run.path), what, got=str(text.target_file), remedy=remedy)
    return {texts[0].target_file: first}


def read_translations(file: Path, references: Mapping[Path, Sequence[str]]) -> list[str]:
    """Return the lines of a file, which must be as many as those of the references."""
    lines = list(read_lines(file))
    reference, expected = next(iter(references.items()))
    if len(lines) != len(expected):
        what = f"must have as many lines as {reference}"
        got = f"{len(lines):,} and {len(expected):,}"
        remedy = "line n of each must belong to the same source line"
        raise DataError(str(file), what, got=got, remedy=remedy)
    return lines


def file_warnings(
    metrics: Sequence[Metric],
    references: Mapping[Path, Sequence[str]],
    translations: Mapping[Path, Sequence[str]],
) -> Iterator[Problem]:
    """Yield what makes BLEU wrong by files that no run has read."""
    for metric in metrics:
        for file, lines in {**references, **translations}.items():
            if problem := subword_warning(metric, file, lines):
                yield problem
            elif file in references and (problem := tokenized_warning(metric, lines)):
                remedy = "choose none, or detokenize the text"
                yield replace(problem, where="`tokenize`", remedy=remedy)
        for lines in references.values():
            if script := script_of_no_words(metric, lines):
                what = f"splits words at spaces, but the references look like language {script}"
                remedy = f"choose {TOKENIZERS_BY_LANGUAGE[script]}"
                yield Problem("`tokenize`", what, "13a", remedy)


def common_metrics(
    names: Sequence[MetricName],
    runs: Sequence[ModelFiles],
    text: str,
    *,
    tokenize: BleuTokenizer | None = None,
    lowercase: bool = False,
) -> list[Metric]:
    """Return the metrics of the runs, which must agree; without runs those of the default config.

    `text` is the name of the text, whose target language decides BLEU's tokenizer.
    BLEU takes `tokenize` instead of their tokenizer; it ignores case if they or `lowercase` do.
    """
    if tokenize is not None:
        check_choice("`tokenize`", tokenize, get_args(BleuTokenizer))
    for argument, is_given in (("`tokenize`", tokenize is not None), ("`lowercase`", lowercase)):
        if is_given and "bleu" not in names:
            what = "has no effect without BLEU"
            raise UsageError(argument, what, got=", ".join(names), remedy="leave it out")

    def build(evaluation: EvaluationConfig, language: str) -> list[Metric]:
        own = evaluation.bleu
        bleu = replace(own, tokenize=tokenize or own.tokenize, lowercase=lowercase or own.lowercase)
        changed = replace(evaluation, bleu=bleu)
        return [build_metric(name, changed, language) for name in dict.fromkeys(names)]

    if not runs:
        return build(EvaluationConfig(), "")
    configs = [run.config for run in runs]
    first, *others = [
        build(config.evaluation, config.data.direction_of(texts_of_split(config, text)[text])[1])
        for config in configs
    ]
    for run, other in zip(runs[1:], others, strict=True):
        for expected, metric in zip(first, other, strict=True):
            if metric.options != expected.options:
                common = "pass `tokenize` or `lowercase` for all, or " * (metric.name == "bleu")
                raise UsageError(
                    str(run.run.path),
                    f"has another {metric.name} than {runs[0].run.path}",
                    got=f"{' '.join(metric.options)} and {' '.join(expected.options)}",
                    remedy=f"{common}leave the metric out",
                )
    return first
