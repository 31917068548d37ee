"""What goes into a search and what comes out of it."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Token ids with a meaning to a search.

    Attributes:
        bos: first token of every sequence.
        eos: last token of every finished sequence.
        suppressed: tokens that no hypothesis contains.
    """

    bos: int
    eos: int
    suppressed: Sequence[int]


@dataclass(frozen=True, slots=True)
class Request:
    """A sentence to translate.

    Attributes:
        source: token ids, EOS included; an empty source has the empty hypothesis.
        prefix: forced first tokens of the hypothesis.
        banned: phrases that the hypothesis does not contain after its prefix.
        required: phrases that the hypothesis contains, each as often as it is listed.
        number: number of the line; with the seed it determines sampling noise.
        first_word: index of the word of the line at which the source begins.
    """

    source: Sequence[int]
    prefix: tuple[int, ...] = ()
    banned: tuple[tuple[int, ...], ...] = ()
    required: tuple[tuple[int, ...], ...] = ()
    number: int = 0
    first_word: int = 0


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A translation in token ids.

    Attributes:
        token_ids: without BOS and EOS.
        log_prob: natural logarithm of the probability, that of EOS included if finished.
        score: what the search ranks by, higher is better.
        finished: whether it ended with EOS and not at the length limit.
    """

    token_ids: tuple[int, ...]
    log_prob: float
    score: float
    finished: bool


EMPTY = Hypothesis(token_ids=(), log_prob=0.0, score=0.0, finished=True)
