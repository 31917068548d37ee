"""What is done to a line before it is cut into tokens."""

import unicodedata
from dataclasses import dataclass
from typing import Literal

from tformer_cli.config.schema.tokenizer import LearntTokenizerConfig

LINE_BREAKS_TO_SPACES = str.maketrans("\r\n", "  ")


@dataclass(frozen=True, slots=True)
class Normalizer:
    """The spelling that a tokenizer of one side sees.

    CR and LF become blanks, so that no token holds a line break, and a line of nothing but white
    space becomes empty. The rest is text as it was, unless one of these is asked for:

    Attributes:
        lowercase: lower-case the line.
        nfkc: bring it into Unicode normal form KC.
    """

    lowercase: bool = False
    nfkc: bool = False

    @classmethod
    def of_side(
        cls, config: LearntTokenizerConfig, side: Literal["source", "target"]
    ) -> "Normalizer":
        """Return what a configuration asks for on one side."""
        sides = (side, "both")
        return cls(
            # A word tokenizer has no such setting: its rules lower-case everything anyway.
            lowercase=config.kind != "word" and config.lowercase in sides,
            nfkc=config.nfkc in sides,
        )

    def __call__(self, line: str) -> str:
        """Return the line in this spelling; doing it again changes nothing."""
        if line.isspace():
            return ""
        line = line.translate(LINE_BREAKS_TO_SPACES)
        if self.nfkc:
            line = unicodedata.normalize("NFKC", line)
        if self.lowercase:
            line = line.lower()
            if self.nfkc:
                # J with a caron is two code points in this form, j with a caron is one.
                line = unicodedata.normalize("NFKC", line)
        return line
