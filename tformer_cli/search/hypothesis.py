"""What a search returns."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A translation in token ids.

    Attributes:
        token_ids: without the start and the end token.
        log_prob: natural logarithm of its probability, the end token's included where it is
            finished.
        score: what the search ranks by, higher is better.
        finished: whether it ends with the end token, rather than at the length limit.
    """

    token_ids: tuple[int, ...]
    log_prob: float
    score: float
    finished: bool


EMPTY = Hypothesis(token_ids=(), log_prob=0.0, score=0.0, finished=True)
