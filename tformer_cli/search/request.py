"""What goes into a search and what comes out of it."""

from collections.abc import Sequence
from dataclasses import dataclass

Phrase = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Token ids with a meaning to a search."""

    bos: int  # begins every sequence
    eos: int  # ends every finished sequence
    suppressed: Sequence[int]  # no hypothesis contains them


@dataclass(frozen=True, slots=True)
class Request:
    """A sentence to translate."""

    source: Sequence[int]  # with EOS; an empty source has the empty hypothesis
    prefix: Phrase = ()  # forced first tokens of the hypothesis
    banned: tuple[Phrase, ...] = ()  # not in the hypothesis after its prefix
    required: tuple[Phrase, ...] = ()  # in the hypothesis, each as often as it is listed
    number: int = 0  # of the line; with the seed it determines sampling noise
    first_word: int = 0  # index of the word of the line that the source begins with


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A translation in token ids."""

    token_ids: Phrase  # without BOS and EOS
    log_prob: float  # natural logarithm of the probability, with EOS if finished
    score: float  # what the search ranks by, higher is better
    finished: bool  # ended with EOS, not at the length limit


EMPTY = Hypothesis(token_ids=(), log_prob=0.0, score=0.0, finished=True)
