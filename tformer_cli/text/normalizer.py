"""Normalization of a line before tokenization."""

import unicodedata
from dataclasses import dataclass
from typing import Literal

from tformer_cli.config.schema.tokenizer import LearnedTokenizerConfig


@dataclass(frozen=True, slots=True)
class Normalizer:
    """Normalization on one side; applying it twice changes nothing more.

    CR and LF become spaces, so no token contains a line break. A line of whitespace becomes empty.
    Lowercasing and Unicode normalization form KC are optional.
    """

    lowercase: bool = False
    nfkc: bool = False

    @classmethod
    def of_side(
        cls, config: LearnedTokenizerConfig, side: Literal["source", "target"]
    ) -> "Normalizer":
        """Return the normalizer that a config asks for on one side."""
        sides = (side, "both")
        return cls(
            # A word tokenizer lowercases by its own rules and has no such key.
            lowercase=config.kind != "word" and config.lowercase in sides,
            nfkc=config.nfkc in sides,
        )

    def __call__(self, line: str) -> str:
        """Return the normalized line."""
        if line.isspace():
            return ""
        line = replace_line_breaks(line)
        if self.nfkc:
            line = unicodedata.normalize("NFKC", line)
        if self.lowercase:
            line = line.lower()
            if self.nfkc:
                # Lowercasing can undo NFKC: J with caron is two code points, j with caron is one.
                line = unicodedata.normalize("NFKC", line)
        return line


def replace_line_breaks(text: str) -> str:
    """Return the text with a space for each CR and LF."""
    # `translate` looks up each character, which costs 25 times as much.
    return text.replace("\r", " ").replace("\n", " ")
