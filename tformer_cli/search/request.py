"""What is asked of a search about one sentence."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """A sentence to translate.

    Attributes:
        source: its token ids, the end token included; none at all has an empty translation.
        prefix: what the translation begins with.
        banned: sequences of ids that the translation does not contain behind its prefix.
        required: sequences of ids that the translation contains, each as often as it is listed.
        number: of the line that it is from; with the seed it decides what is drawn at random.
        first_word: number of the word of that line that it begins in, counted from 0.
    """

    source: Sequence[int]
    prefix: tuple[int, ...] = ()
    banned: tuple[tuple[int, ...], ...] = ()
    required: tuple[tuple[int, ...], ...] = ()
    number: int = 0
    first_word: int = 0
