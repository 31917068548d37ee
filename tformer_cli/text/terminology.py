"""Terms of one language, each with its translation."""

import unicodedata
from collections.abc import Iterable

from tformer_cli.errors import DataError
from tformer_cli.text.segments import word_separator


class Terminology:
    """Which translations the terms of a line demand."""

    def __init__(self, lines: Iterable[str], name: str, *, source_language: str) -> None:
        """Read terms.

        Args:
            lines: of a source term, a tab and a target term each; blank ones say nothing.
            name: of the file that they are from, for messages.
            source_language: where its words stand between blanks, terms are whole words.

        Raises:
            DataError: a line is something else, or gives a term a second translation.
        """
        self.targets: dict[str, str] = {}
        self._whole_words = word_separator(source_language) != ""
        places: dict[str, int] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            parts = [part.strip() for part in line.split("\t")]
            if len(parts) != 2 or not all(parts):
                raise DataError(
                    f"{name}:{number}",
                    "must be a source term, a tab and a target term",
                    got=repr(line),
                )
            source, target = parts
            if self.targets.setdefault(source, target) != target:
                raise DataError(
                    f"{name}:{number}",
                    f"has another translation than line {places[source]}",
                    got=f"{target!r} for {source!r}",
                    remedy="keep one of the two",
                )
            places.setdefault(source, number)
        self._lengths = sorted({len(term) for term in self.targets}, reverse=True)

    def target_terms(self, line: str) -> list[str]:
        """Return the target terms of a line, each once, in the order of their source terms.

        Of terms that overlap the longest counts, and of equally long ones the first. Upper and
        lower case differ.
        """
        is_taken = [False] * len(line)
        found = []
        for length in self._lengths:
            for start in range(len(line) - length + 1):
                end = start + length
                term = line[start:end]
                if (
                    term in self.targets
                    and not any(is_taken[start:end])
                    and not (
                        self._whole_words and (_is_within(line, start) or _is_within(line, end))
                    )
                ):
                    is_taken[start:end] = [True] * length
                    found.append((start, self.targets[term]))
        return list(dict.fromkeys(target for _, target in sorted(found)))


def _is_within(line: str, place: int) -> bool:
    """Say whether a place is between two characters of one word."""
    return 0 < place < len(line) and _is_of_word(line[place - 1]) and _is_of_word(line[place])


def _is_of_word(character: str) -> bool:
    # Vowel signs of many scripts are marks, and no letters.
    return character.isalnum() or unicodedata.category(character)[0] == "M" or character == "_"
