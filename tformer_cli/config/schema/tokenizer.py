"""How text becomes tokens: `tokenizer`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from tformer_cli.config.schema.limits import MOST, Bounds, Conflict, Count

Sides = Literal["none", "source", "target", "both"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SubwordConfig:
    """Pieces of words, learnt by sentencepiece from the training text."""

    kind: Literal["subword"] = "subword"
    """Pieces of words (sentencepiece)."""
    algorithm: Literal["bpe", "unigram"] = "bpe"
    """Byte-pair encoding, or a unigram language model."""
    vocab_size: Annotated[int, Bounds(minimum=32, maximum=1_000_000)] = 8000
    """Number of pieces, the 16 special ones included."""
    shared: bool = True
    """One vocabulary for both languages, or one each."""
    character_coverage: Annotated[float, Bounds(above=0, maximum=1)] = 1.0
    """Share of the text's characters that get a piece; 0.9995 suits Chinese and Japanese."""
    byte_fallback: bool = True
    """Spell characters without a piece as UTF-8 bytes, so that nothing is unknown."""
    sample_lines: Count = 1_000_000
    """Lines of each side to learn from, drawn evenly from the whole training text."""
    lowercase: Sides = "none"
    """Sides to lower-case."""
    nfkc: Sides = "none"
    """Sides to bring into Unicode normal form KC."""

    def conflicts(self) -> Iterator[Conflict]:
        smallest = 16 + 256 + 1
        if self.byte_fallback and self.vocab_size < smallest:
            yield Conflict(
                "vocab_size",
                f"must be at least {smallest} with byte_fallback (16 special pieces, 256 bytes)",
                str(self.vocab_size),
                "enlarge it or set byte_fallback: false",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class WordConfig:
    """Whole words by torchtext's basic_english: for teaching; the text cannot be restored."""

    kind: Literal["word"] = "word"
    """Whole words (torchtext basic_english: lower-cased, punctuation split off or dropped)."""
    min_frequency: Count = 2
    """Rarer words are unknown."""
    max_size: Annotated[int, Bounds(minimum=32, maximum=MOST)] = 50_000
    """Largest vocabulary, the 16 special tokens included."""
    shared: bool = False
    """One vocabulary for both languages, or one each."""
    nfkc: Sides = "none"
    """Sides to bring into Unicode normal form KC."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CharConfig:
    """Single characters."""

    kind: Literal["char"] = "char"
    """Single characters."""
    min_frequency: Count = 1
    """Rarer characters are unknown."""
    shared: bool = True
    """One vocabulary for both languages, or one each."""
    lowercase: Sides = "none"
    """Sides to lower-case."""
    nfkc: Sides = "none"
    """Sides to bring into Unicode normal form KC."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MarianConfig:
    """The pieces of an imported Marian model, which are not learnt from text."""

    kind: Literal["marian"] = "marian"
    """Pieces of words as an imported Marian model has them (`tformer import`)."""
    shared: bool = True
    """One vocabulary for both languages, or one each; each is cut by a model of its own."""


LearnedTokenizerConfig = SubwordConfig | WordConfig | CharConfig
TokenizerConfig = LearnedTokenizerConfig | MarianConfig
