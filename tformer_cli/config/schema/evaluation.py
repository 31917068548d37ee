"""The scores: `evaluation`."""

from dataclasses import dataclass, field
from typing import Literal

from tformer_cli.config.schema.limits import CountOrZero


@dataclass(frozen=True, kw_only=True, slots=True)
class BleuConfig:
    """How sacrebleu computes BLEU; all of it shows in the signature."""

    tokenize: Literal[
        "auto", "13a", "intl", "char", "none", "zh", "ja-mecab", "ko-mecab", "spm", "flores200"
    ] = "auto"
    """sacrebleu's tokenizer; auto is zh, ja-mecab or ko-mecab by the target language, else 13a."""
    lowercase: bool = False
    """Ignore case."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChrfConfig:
    """How sacrebleu computes chrF."""

    word_order: CountOrZero = 0
    """Longest word n-gram that counts beside characters; 2 is chrF++."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """The scores."""

    bleu: BleuConfig = field(default_factory=BleuConfig)
    """BLEU (Papineni et al. 2002)."""
    chrf: ChrfConfig = field(default_factory=ChrfConfig)
    """chrF (Popović 2015)."""
