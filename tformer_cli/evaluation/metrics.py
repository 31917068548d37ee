"""Scores of translations by sacrebleu, with its signatures."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from tformer_cli.config.schema.config import EvaluationConfig
from tformer_cli.errors import ConfigError, Problem, UsageError

MetricName = Literal["bleu", "chrf", "ter"]

# sacrebleu's tokenizers for languages without whitespace between words.
TOKENIZERS_BY_LANGUAGE = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
# The extra of this package that a tokenizer needs.
EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}


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
    """A metric of sacrebleu with its settings.

    Attributes:
        name: its name here and on sacrebleu's command line.
        scorer: sacrebleu's object.
        options: the same settings on sacrebleu's command line.
    """

    name: MetricName
    scorer: BLEU | CHRF | TER
    options: tuple[str, ...]

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

    def command(self, reference_file: Path, hypothesis_file: Path) -> str:
        """Return the command line with which sacrebleu itself prints the same score."""
        files = [str(reference_file), "-i", str(hypothesis_file)]
        return shlex.join(["sacrebleu", *files, "-m", self.name, *self.options])


def build_metric(name: MetricName, config: EvaluationConfig, target_language: str) -> Metric:
    """Return a metric with the settings of a config.

    Raises:
        UsageError: there is no metric of this name.
        ConfigError: its tokenizer is not installed.
    """
    match name:
        case "bleu":
            tokenize: str = config.bleu.tokenize
            if tokenize == "auto":
                language = target_language.lower().replace("_", "-").split("-")[0]
                tokenize = TOKENIZERS_BY_LANGUAGE.get(language, "13a")
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
        if tokenize not in EXTRAS:
            raise
        what = "needs MeCab and its dictionary, which are not installed"
        remedy = f"pip install 'tformer[{EXTRAS[tokenize]}]'"
        raise ConfigError([Problem("evaluation.bleu.tokenize", what, tokenize, remedy)]) from None
