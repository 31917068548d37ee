"""Scores of translations, by sacrebleu, with its signatures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from tformer_cli.config.schema.evaluation import EvaluationConfig
from tformer_cli.errors import ConfigError, Problem, UsageError

MetricName = Literal["bleu", "chrf", "ter"]

# sacrebleu's own choice for languages that put no blanks between words.
TOKENIZERS_BY_LANGUAGE = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
# Of ours, by the tokenizer that needs it.
EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}


@dataclass(frozen=True, slots=True)
class Score:
    """A score and all it takes to get it again.

    Attributes:
        name: BLEU, chrF2, TER, ...
        score: the number, in points of 100.
        signature: sacrebleu's description of how it was computed.
        num_sentences: sentences it was computed over.
    """

    name: str
    score: float
    signature: str
    num_sentences: int

    def __str__(self) -> str:
        return f"{self.name} = {self.score:.2f}  ({self.signature})"


@dataclass(frozen=True, slots=True)
class Metric:
    """One of sacrebleu's metrics with its settings.

    Attributes:
        name: its name here and on sacrebleu's command line.
        scorer: sacrebleu's object.
        options: what gives the same settings on sacrebleu's command line.
    """

    name: MetricName
    scorer: BLEU | CHRF | TER
    options: tuple[str, ...]

    def score(self, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
        """Compare detokenised translations with raw references, line by line."""
        assert len(hypotheses) == len(references)
        result = self.scorer.corpus_score(list(hypotheses), [list(references)])
        return Score(
            name=result.name,
            score=float(result.score),
            signature=str(self.scorer.get_signature()),
            num_sentences=len(hypotheses),
        )


def build_metric(name: MetricName, config: EvaluationConfig, target_language: str) -> Metric:
    """Return a metric with the settings of a config.

    Raises:
        UsageError: there is no metric of this name.
        ConfigError: its tokenizer is not installed.
    """
    if name == "bleu":
        tokenize: str = config.bleu.tokenize
        if tokenize == "auto":
            language = target_language.lower().replace("_", "-").split("-")[0]
            tokenize = TOKENIZERS_BY_LANGUAGE.get(language, "13a")
        options = ["-tok", tokenize, *(["-lc"] if config.bleu.lowercase else [])]
        return Metric("bleu", _bleu(tokenize, config.bleu.lowercase), tuple(options))
    if name == "chrf":
        word_order = config.chrf.word_order
        options = ["--chrf-word-order", str(word_order)]
        return Metric("chrf", CHRF(word_order=word_order), tuple(options))
    if name == "ter":
        return Metric("ter", TER(), ())
    raise UsageError("`metrics`", f"must be one of {', '.join(get_args(MetricName))}", got=name)


def _bleu(tokenize: str, lowercase: bool) -> BLEU:
    try:
        return BLEU(tokenize=tokenize, lowercase=lowercase)
    except RuntimeError:
        if tokenize not in EXTRAS:
            raise
        problem = Problem(
            "evaluation.bleu.tokenize",
            "needs MeCab and its dictionary, which are not installed",
            tokenize,
            f"pip install 'tformer[{EXTRAS[tokenize]}]'",
        )
        raise ConfigError([problem]) from None
