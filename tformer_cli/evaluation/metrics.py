"""Scores of translations by sacrebleu, with its signatures."""

import copy
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from tformer_cli.choices import MetricName
from tformer_cli.config.schema.config import EvaluationConfig
from tformer_cli.errors import ConfigError, Problem, UsageError
from tformer_cli.text.language import base_language

# sacrebleu's tokenizers for languages without whitespace between words.
TOKENIZERS_BY_LANGUAGE = {
    **dict.fromkeys(("zh", "yue", "wuu"), "zh"),
    "ja": "ja-mecab",
    "ko": "ko-mecab",
}
# The extra of this package that a tokenizer needs.
TOKENIZER_EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Score:
    """A score with its signature.

    Attributes:
        name: BLEU, chrF2, TER, ...
        score: 0 to 100.
        signature: sacrebleu's description of the computation.
        num_sentences: number of sentences.
    """

    name: str
    score: float
    signature: str
    num_sentences: int

    @classmethod
    def mean(cls, scores: Sequence["Score"]) -> "Score":
        """Return the mean of the scores of some texts, each of which counts as much."""
        return cls(
            name=scores[0].name,
            score=fmean(one.score for one in scores),
            signature=", ".join(dict.fromkeys(one.signature for one in scores)),
            num_sentences=sum(one.num_sentences for one in scores),
        )

    def __str__(self) -> str:
        return f"{self.name} = {self.score:.2f}  ({self.signature})"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of sacrebleu with its settings."""

    name: MetricName  # here and on sacrebleu's command line
    scorer: BLEU | CHRF | TER
    options: tuple[str, ...]  # the same settings on sacrebleu's command line

    def score(self, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
        """Score detokenized translations against raw references."""
        assert len(hypotheses) == len(references)
        result = self.scorer.corpus_score(list(hypotheses), [list(references)])
        return Score(
            name=result.name,
            score=float(result.score),
            signature=str(self.scorer.get_signature()),
            num_sentences=len(hypotheses),
        )

    def statistics(
        self, systems: Mapping[str, Sequence[str]], references: Sequence[Sequence[str]]
    ) -> "Statistics":
        """Return what each sentence of systems adds to their scores by one or several texts.

        The n-grams of one sentence at a time are in memory.
        """
        scorer = self.scorer
        rows = []
        for translations, lines in zip(
            zip(*systems.values(), strict=True), zip(*references, strict=True), strict=True
        ):
            (reference,) = scorer._cache_references([[line] for line in lines])
            texts = map(scorer._preprocess_segment, translations)
            rows.append([scorer._compute_segment_statistics(text, reference) for text in texts])
        counts = np.array(rows, dtype=np.float64).swapaxes(0, 1)
        return Statistics(self, tuple(systems), np.ascontiguousarray(counts), len(references))

    def score_sums(self, sums: NDArray[np.float64]) -> "Scores":
        """Score sums of statistics `(N, statistics)`."""
        results = map(self.scorer._compute_score_from_stats, sums.tolist())
        return np.array([result.score for result in results], np.float64)

    @property
    def lower_is_better(self) -> bool:
        """Whether the metric counts errors."""
        return self.name == "ter"

    def command(self, reference_file: Path, hypothesis_file: Path) -> str:
        """Return the command line with which sacrebleu itself prints the same score."""
        files = [str(reference_file), "-i", str(hypothesis_file)]
        return shlex.join(["sacrebleu", *files, "-m", self.name, *self.options])


@dataclass(frozen=True, slots=True)
class Statistics:
    """Sufficient statistics of a metric: the score of sentences depends on their sums alone.

    Attributes:
        metric: whose statistics they are.
        systems: names of the systems.
        counts: matches, n-grams, lengths or edits `(systems, sentences, statistics)`.
        num_references: of each sentence.
    """

    metric: Metric
    systems: tuple[str, ...]
    counts: NDArray[np.float64]
    num_references: int

    @property
    def num_sentences(self) -> int:
        """Number of sentences of each system."""
        return len(self.counts[0])

    def select(self, lines: Sequence[int]) -> "Statistics":
        """Return the statistics of some lines."""
        return replace(self, counts=self.counts[:, lines])

    def scores(self) -> list[Score]:
        """Return the score of each system, equal to that of `Metric.score`."""
        scorer = self.metric.scorer
        results = map(scorer._compute_score_from_stats, self.counts.sum(1).tolist())
        signature = str(scorer.get_signature())
        return [
            Score(result.name, float(result.score), signature, self.num_sentences)
            for result in results
        ]

    def sentence_scores(self) -> list[list[float]]:
        """Return the score of each sentence alone, for each system.

        BLEU leaves out orders longer than the sentence (sacrebleu's `effective_order`).
        """
        scorer = copy.copy(self.metric.scorer)
        if isinstance(scorer, BLEU):
            scorer.effective_order = True
        alone = replace(self.metric, scorer=scorer)
        return [alone.score_sums(sentences).tolist() for sentences in self.counts]


def build_metric(name: MetricName, config: EvaluationConfig, target_language: str) -> Metric:
    """Return a metric with the settings of a config."""
    match name:
        case "bleu":
            tokenize: str = config.bleu.tokenize
            if tokenize == "auto":
                tokenize = TOKENIZERS_BY_LANGUAGE.get(base_language(target_language), "13a")
            options = ("-tok", tokenize, *(("-lc",) if config.bleu.lowercase else ()))
            return Metric("bleu", _bleu(tokenize, config.bleu.lowercase), options)
        case "chrf":
            word_order = config.chrf.word_order
            options = ("--chrf-word-order", str(word_order))
            return Metric("chrf", CHRF(word_order=word_order), options)
        case "ter":
            return Metric("ter", TER(), ())
    raise UsageError("`metrics`", f"must be one of {', '.join(get_args(MetricName))}", got=name)


def _bleu(tokenize: str, lowercase: bool) -> BLEU:
    try:
        # `force` leaves out sacrebleu's warning of tokenized text; `score_warnings` has ours.
        return BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    except OSError as error:
        what = "needs a model that sacrebleu cannot download"
        got = f"{tokenize}: {error}"
        remedy = "connect to the internet, or choose another tokenizer"
        raise ConfigError([Problem("evaluation.bleu.tokenize", what, got, remedy)]) from None
    except RuntimeError:
        if tokenize not in TOKENIZER_EXTRAS:
            raise
        what = "needs MeCab and its dictionary, which are not installed"
        remedy = f"pip install 'tformer[{TOKENIZER_EXTRAS[tokenize]}]'"
        raise ConfigError([Problem("evaluation.bleu.tokenize", what, tokenize, remedy)]) from None
