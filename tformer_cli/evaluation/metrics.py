"""Scores of translations by sacrebleu, with its signatures, and what makes them wrong."""

import copy
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from tformer_cli.config.schema.config import Config, EvaluationConfig
from tformer_cli.config.schema.text import Bitext, ParallelText, PlainText
from tformer_cli.corpus.overlap import overlap_warnings
from tformer_cli.corpus.reader import counted, read_texts
from tformer_cli.errors import ConfigError, Problem, UsageError
from tformer_cli.text.language import (
    are_exchanged,
    base_language,
    is_language_code,
    language_of_name,
    language_of_script,
)

# sacrebleu's tokenizers for languages without whitespace between words.
TOKENIZERS_BY_LANGUAGE = {
    **dict.fromkeys(("zh", "yue", "wuu"), "zh"),
    "ja": "ja-mecab",
    "ko": "ko-mecab",
}
# The extra of this package that a tokenizer needs.
TOKENIZER_EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}

# Those that split punctuation from words.
_SPLITTING = {"13a", "intl"}

# The mark of a piece of a word, as sentencepiece and subword-nmt write it, and no bar of a chart.
_SUBWORD = re.compile(r"(?<![▁-█])▁(?![▁-█])|(?<=[^\s@])@@(?=\s|$)")
# A text with a larger fraction of lines with such a piece is cut; a line may have no rare word.
_MAX_FRACTION = 0.1

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
        # `force` leaves out sacrebleu's warning of tokenized text; `tokenized_warning` is ours.
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


def tokenized_warning(metric: Metric, references: Sequence[str]) -> Problem | None:
    """Return what says that BLEU tokenizes references that are tokenized, if so."""
    tokenizer = next((option for option in metric.options if option in _SPLITTING), None)
    num_tokenized = sum(reference.endswith(" .") for reference in references)
    if tokenizer is None or 2 * num_tokenized <= len(references):
        return None
    what = "tokenizes tokenized text: most references end in a space and a period"
    remedy = "write evaluation.bleu.tokenize: none, or detokenize the text"
    return Problem("evaluation.bleu.tokenize", what, tokenizer, remedy)


def subword_warning(metric: Metric, file: Path, lines: Sequence[str]) -> Problem | None:
    """Return what says that BLEU counts the subwords of a file as words, if so."""
    if metric.name != "bleu" or "none" in metric.options:
        return None
    cut = [line for line in lines if _SUBWORD.search(line)]
    if len(cut) <= _MAX_FRACTION * len(lines):
        return None
    what = "is cut into subwords, which BLEU counts as words"
    piece = next(filter(_SUBWORD.search, cut[0].split()))
    return Problem(str(file), what, piece, "join them to words: BLEU is of raw text")


def script_of_no_words(metric: Metric, references: Sequence[str]) -> str | None:
    """Return the language of references between whose words BLEU finds no spaces, if so."""
    if "13a" not in metric.options:
        return None
    script = language_of_script(references)
    return script if script in TOKENIZERS_BY_LANGUAGE else None


def reference_warning(metric: Metric, file: Path, references: Sequence[str]) -> Problem | None:
    """Return what makes BLEU wrong by the references in a file; subwords are tokenized too."""
    return subword_warning(metric, file, references) or tokenized_warning(metric, references)


def config_warnings(
    config: Config, *, on_done: Callable[[int], object] = lambda count: None
) -> Iterator[Problem]:
    """Yield what makes scores of a config wrong: languages, BLEU's tokenizer, overlapping texts.

    The training text is read; `on_done` is called with the number of its lines or pairs.
    """
    yield from _language_warnings(config)
    data = config.data
    tests = {f"data.test.{name}": text for name, text in data.test.items()}
    training = counted(read_texts(data.train), on_done)
    valid = {f"data.{name}": text for name, text in data.valid_texts.items()}
    yield from overlap_warnings(training, valid | tests, data.unit)


def _language_warnings(config: Config) -> Iterator[Problem]:
    data = config.data
    for side in ("source_language", "target_language")[: data.train[0].num_sides]:
        keys: dict[str, str] = {}  # where each language is named first
        for name, text in data.texts().items():
            if own := getattr(text, side, None):
                keys.setdefault(own, f"data.{name}.{side}")
            else:
                keys.setdefault(getattr(data, side), f"data.{side}")
        for language, key in keys.items():
            if not is_language_code(language):
                yield Problem(key, "is not an ISO code", language, "write en, for instance")
    for name, text in data.texts().items():
        if isinstance(text, ParallelText):
            named = language_of_name(text.source), language_of_name(text.target)
            if are_exchanged(data.direction_of(text), named):
                what = "has the other direction by the names of its files"
                got = f"{text.source.name}, {text.target.name}"
                yield Problem(f"data.{name}", what, got, "exchange source and target")
    for text in data.valid_texts.values():
        if not isinstance(text, PlainText):
            yield from _tokenizer_warnings(config, text)


def _tokenizer_warnings(config: Config, text: Bitext) -> Iterator[Problem]:
    _, target = config.data.direction_of(text)
    try:
        bleu = build_metric("bleu", config.evaluation, target)
    except ConfigError as error:
        yield from error.problems
        return
    targets = [target for _, target in read_texts([text])]
    problem = reference_warning(bleu, text.target_file, targets)
    if problem is not None:
        yield problem
    script = script_of_no_words(bleu, targets)
    if script is not None:
        what = f"splits words at spaces, but the target looks like language {script}"
        remedy = f"write data.target_language: {script}"
        if base_language(target) in TOKENIZERS_BY_LANGUAGE:
            remedy = "write evaluation.bleu.tokenize: auto"
        yield Problem("evaluation.bleu.tokenize", what, "13a", remedy)
