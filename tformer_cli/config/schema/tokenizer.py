"""Tokenization: `tokenizer`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from tformer_cli.config.schema.fields import MAX_COUNT, Bounds, Count
from tformer_cli.errors import Problem

Sides = Literal["none", "source", "target", "both"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SubwordConfig:
    """Subwords that sentencepiece learns from the training text."""

    kind: Literal["subword"] = "subword"
    """Subwords (sentencepiece)."""
    algorithm: Literal["bpe", "unigram"] = "bpe"
    """Byte-pair encoding, or a unigram language model."""
    vocab_size: Annotated[int, Bounds(ge=32, le=1_000_000)] = 8000
    """Vocabulary size, including 16 special tokens."""
    shared: bool = True
    """One vocabulary for both languages, or one for each."""
    character_coverage: Annotated[float, Bounds(gt=0, le=1)] = 1.0
    """Fraction of the text's characters in the vocabulary; 0.9995 suits Chinese and Japanese."""
    byte_fallback: bool = True
    """Encode characters outside the vocabulary as UTF-8 bytes, so that no token is unknown."""
    sample_lines: Count = 1_000_000
    """Lines of each side to learn from, sampled uniformly from the training text."""
    lowercase: Sides = "none"
    """Sides to lowercase."""
    nfkc: Sides = "none"
    """Sides to normalize to Unicode NFKC."""

    def conflicts(self) -> Iterator[Problem]:
        smallest = 16 + 256 + 1
        if self.byte_fallback and self.vocab_size < smallest:
            yield Problem(
                "vocab_size",
                f"must be at least {smallest} with byte_fallback, which adds 16 special pieces and "
                "256 bytes",
                remedy="enlarge it or set byte_fallback: false",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class WordConfig:
    """Words of torchtext's basic_english, for teaching: text cannot be restored."""

    kind: Literal["word"] = "word"
    """Words (torchtext basic_english: lowercased, punctuation split off or dropped)."""
    min_frequency: Count = 2
    """Minimum frequency of a word in the vocabulary."""
    max_size: Annotated[int, Bounds(ge=32, le=MAX_COUNT)] = 50_000
    """Maximum vocabulary size, including 16 special tokens."""
    shared: bool = False
    """One vocabulary for both languages, or one for each."""
    nfkc: Sides = "none"
    """Sides to normalize to Unicode NFKC."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CharConfig:
    """Characters."""

    kind: Literal["char"] = "char"
    """Characters."""
    min_frequency: Count = 1
    """Minimum frequency of a character in the vocabulary."""
    shared: bool = True
    """One vocabulary for both languages, or one for each."""
    lowercase: Sides = "none"
    """Sides to lowercase."""
    nfkc: Sides = "none"
    """Sides to normalize to Unicode NFKC."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MarianConfig:
    """Subwords of an imported Marian model, which are not learned from text."""

    kind: Literal["marian"] = "marian"
    """Subwords of an imported Marian model (`tformer import`)."""
    shared: bool = True
    """One vocabulary for both languages, or one for each; each has its own sentencepiece model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class M2MConfig:
    """Subwords and language tokens of an imported M2M-100, NLLB or mBART-50 model."""

    kind: Literal["m2m"] = "m2m"
    """Subwords and language tokens of an imported M2M-100, NLLB or mBART-50 model."""

    @property
    def shared(self) -> bool:
        """Whether there is one vocabulary for both languages: always."""
        return True


@dataclass(frozen=True, kw_only=True, slots=True)
class T5TokenizerConfig:
    """Subwords of an imported T5, which are not learned from text."""

    kind: Literal["t5"] = "t5"
    """Subwords of an imported T5, mT5 or MADLAD-400 (`tformer import`)."""

    @property
    def shared(self) -> bool:
        """One vocabulary for all languages."""
        return True


LearnedTokenizerConfig = SubwordConfig | WordConfig | CharConfig
ImportedTokenizerConfig = MarianConfig | M2MConfig | T5TokenizerConfig
TokenizerConfig = LearnedTokenizerConfig | ImportedTokenizerConfig
