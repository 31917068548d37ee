"""Scores of translations by sacrebleu, with its signatures, and what makes them wrong."""

import copy
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from tformer_cli.choices import MetricName
from tformer_cli.config.schema.config import Config, EvaluationConfig
from tformer_cli.config.schema.data import ParallelText
from tformer_cli.corpus.held_out import counted, overlap_warnings
from tformer_cli.corpus.reader import read_lines, read_texts
from tformer_cli.errors import ConfigError, Problem, UsageError
from tformer_cli.text.language import base_language, is_language_code, language_of_script

# sacrebleu's tokenizers for languages without whitespace between words.
TOKENIZERS_BY_LANGUAGE = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
# The extra of this package that a tokenizer needs.
TOKENIZER_EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}


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

    def sentence_scores(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[float]:
        """Score each translation alone, against line n of each text of references.

        BLEU leaves out orders longer than the sentence (sacrebleu's `effective_order`).
        """
        scorer = copy.copy(self.scorer)
        if isinstance(scorer, BLEU):
            scorer.effective_order = True
        lines = zip(hypotheses, *references, strict=True)
        return [float(scorer.sentence_score(line, rest).score) for line, *rest in lines]

    @property
    def lower_is_better(self) -> bool:
        """Whether the metric counts errors."""
        return self.name == "ter"

    def command(self, reference_file: Path, hypothesis_file: Path) -> str:
        """Return the command line with which sacrebleu itself prints the same score."""
        files = [str(reference_file), "-i", str(hypothesis_file)]
        return shlex.join(["sacrebleu", *files, "-m", self.name, *self.options])


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
        return BLEU(tokenize=tokenize, lowercase=lowercase)
    except RuntimeError:
        if tokenize not in TOKENIZER_EXTRAS:
            raise
        what = "needs MeCab and its dictionary, which are not installed"
        remedy = f"pip install 'tformer[{TOKENIZER_EXTRAS[tokenize]}]'"
        raise ConfigError([Problem("evaluation.bleu.tokenize", what, tokenize, remedy)]) from None


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
    yield from overlap_warnings(training, {"data.valid": data.valid, **tests}, data.unit)


def _language_warnings(config: Config) -> Iterator[Problem]:
    data = config.data
    languages = {"source_language": data.source_language}
    if isinstance(data.valid, ParallelText):
        languages["target_language"] = data.target_language
    for key, language in languages.items():
        if not is_language_code(language):
            remedy = "write en, for instance"
            yield Problem(f"data.{key}", "is not an ISO code", language, remedy)
    if not isinstance(data.valid, ParallelText):
        return
    try:
        bleu = build_metric("bleu", config.evaluation, data.target_language)
    except ConfigError as error:
        yield from error.problems
        return
    script = language_of_script(read_lines(data.valid.target))
    if "13a" in bleu.options and script in TOKENIZERS_BY_LANGUAGE:
        what = f"splits words at spaces, but the target looks like language {script}"
        remedy = f"write data.target_language: {script}"
        yield Problem("evaluation.bleu.tokenize", what, "13a", remedy)
