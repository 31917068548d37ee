"""Whether another program, given our weights, translates as we do: real lines say."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.search.engine import Engine
from tformer_cli.search.request import Hypothesis, Request

# How far apart the scores of two engines may be: log probabilities a token.
TOLERANCE = 1e-4
BEAM_SIZE = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """Two translations of a line that are not the same.

    Attributes:
        line: number of the line, from 0.
        rank: of the translations, from 0, the best.
        ours: what our engine found; None if it found nothing more.
        theirs: likewise.
    """

    line: int
    rank: int
    ours: Hypothesis | None
    theirs: Hypothesis | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of a search by two engines.

    Attributes:
        search: the search.
        num_lines: that were translated.
        num_equal: of them whose translations have equal tokens.
        ties: differing translations that both engines find equally good.
        differences: the others, and translations of equal tokens whose scores differ.
        ours: the best translation of each line by our engine.
        theirs: likewise.
    """

    search: DecodingConfig
    num_lines: int
    num_equal: int
    ties: tuple[Difference, ...]
    differences: tuple[Difference, ...]
    ours: tuple[Hypothesis, ...]
    theirs: tuple[Hypothesis, ...]

    @property
    def num_best_equal(self) -> int:
        """Lines whose best translations have equal tokens."""
        return sum(map(_have_equal_tokens, self.ours, self.theirs))


def searches(max_length: int) -> list[DecodingConfig]:
    """Return the searches that engines are compared by.

    Args:
        max_length: longest translation in tokens.
    """
    return [
        GreedyConfig(max_length=max_length),
        BeamConfig(beam_size=BEAM_SIZE, max_length=max_length),
    ]


def compare(
    ours: Engine,
    theirs: Engine,
    requests: Sequence[Request],
    search: DecodingConfig,
    *,
    on_done: Callable[[int], object] = lambda count: None,
) -> Comparison:
    """Let two engines translate the same; by beam search all that is in the beam is compared.

    Args:
        ours: says what is right.
        theirs: is asked whether it says the same.
        requests: none of them empty.
        search: greedy or beam search.
        on_done: called with the number of requests whenever an engine has done some.

    Raises:
        DeviceError: memory does not suffice for a single request.
    """
    nbest = search.beam_size if isinstance(search, BeamConfig) else 1
    found, others = (
        engine.translate(requests, search, nbest=nbest, on_done=on_done)
        for engine in (ours, theirs)
    )
    ties: list[Difference] = []
    differences: list[Difference] = []
    differing_lines = set()
    for line, (own, other) in enumerate(zip(found, others, strict=True)):
        for rank, pair in enumerate(itertools.zip_longest(own, other)):
            difference = Difference(line, rank, *pair)
            if not _have_equal_tokens(*pair):
                differing_lines.add(line)
                is_tie = _is_tie(difference, ours, theirs, requests[line], search)
                (ties if is_tie else differences).append(difference)
            elif not _has_equal_scores(difference):
                differences.append(difference)
    return Comparison(
        search,
        num_lines=len(requests),
        num_equal=len(requests) - len(differing_lines),
        ties=tuple(ties),
        differences=tuple(differences),
        ours=tuple(best for best, *_ in found),
        theirs=tuple(best for best, *_ in others),
    )


def _have_equal_tokens(own: Hypothesis | None, other: Hypothesis | None) -> bool:
    if own is None or other is None:
        return False
    return (own.token_ids, own.finished) == (other.token_ids, other.finished)


def _has_equal_scores(pair: Difference) -> bool:
    assert pair.ours is not None
    assert pair.theirs is not None
    return abs(score(pair.ours) - score(pair.theirs)) <= TOLERANCE


def score(found: Hypothesis) -> float:
    """Return the log probability a token, the end token among them."""
    return found.log_prob / max(1, len(found.token_ids) + found.finished)


def _is_tie(
    pair: Difference, ours: Engine, theirs: Engine, request: Request, search: DecodingConfig
) -> bool:
    """Return whether both engines give both translations one score, rounding apart.

    A beam search ranks whole translations. Greedy search parts at a token, and what comes behind
    it has no say: there the scores are those of the tokens up to that one.
    """
    if pair.ours is None or pair.theirs is None:
        return False
    both = pair.ours, pair.theirs
    lengths = [len(one.token_ids) + one.finished for one in both]
    if isinstance(search, GreedyConfig):
        lengths = [_common(*both) + 1] * 2
    scores = []
    for engine in (ours, theirs):
        all_log_probs = engine.scorer.score([(request.source, one.token_ids) for one in both])
        for log_probs, length in zip(all_log_probs, lengths, strict=True):
            scores.append(math.fsum(log_probs[:length]) / length)
    return max(scores) - min(scores) <= TOLERANCE


def _common(one: Hypothesis, other: Hypothesis) -> int:
    """Return how many tokens two translations begin with alike."""
    pairs = zip(one.token_ids, other.token_ids, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
