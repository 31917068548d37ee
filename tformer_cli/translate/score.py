"""Lines and given translations in, how probable they are out, in the order given."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tformer_cli.corpus.pipeline import too_long_error
from tformer_cli.corpus.prefetch import chunks
from tformer_cli.errors import Problem
from tformer_cli.search.scoring import Scorer
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.text.vocabulary import EOS_ID

# Longest source or target that is scored, in tokens. Attention takes time by the square of that.
MAX_TOKENS = 4096
# Pairs read before they are sorted by length and scored, as many as lines of a translator's window.
WINDOW_PAIRS = 8192


@dataclass(frozen=True, slots=True)
class ScoredPair:
    """A line with a given translation, and how probable a model finds that.

    Attributes:
        source: the line.
        target: the translation.
        tokens: of the translation, `</s>` at the end.
        token_log_probs: natural logarithm of the probability of each token, given those before
            it; -inf of one that no search can write there; NaN in a pair that is too long.
    """

    source: str
    target: str
    tokens: tuple[str, ...]
    token_log_probs: tuple[float, ...]

    @property
    def log_prob(self) -> float:
        """Natural logarithm of the probability of the whole translation."""
        return sum(self.token_log_probs)


def score_pairs(
    scorer: Scorer,
    tokenizers: Tokenizers,
    pairs: Iterable[tuple[str, str]],
    *,
    names: tuple[str, str] = ("source", "target"),
    on_done: Callable[[int], object] = lambda count: None,
    on_warning: Callable[[Problem], object] = lambda problem: None,
) -> Iterator[ScoredPair]:
    """Yield each line and its translation with their log probabilities, in the order given.

    The tokens are those that the text of the translation becomes. A search may have written the
    same text with others, and then says another number of it.

    Args:
        scorer: of token ids.
        tokenizers: of the model behind the scorer.
        pairs: (source, target) lines, read ahead by a window.
        names: of the files that they are from, for messages.
        on_done: called with the number of pairs whenever some are scored.
        on_warning: called with each pair that has a side of more than MAX_TOKENS, which is not
            scored.

    Raises:
        DataError: a line is longer than the positions that the model has learnt.
    """
    number = 1
    for window in chunks(pairs, WINDOW_PAIRS):
        sources = tokenizers.source.encode_batch([source for source, _ in window])
        targets = tokenizers.target.encode_batch([target for _, target in window])
        if scorer.max_length is not None:
            for name, sentences in zip(names, (sources, targets), strict=True):
                for place, ids in enumerate(sentences, start=number):
                    if len(ids) >= scorer.max_length:
                        raise too_long_error(f"{name}:{place}", len(ids) + 1, scorer.max_length)
        long = {
            place: max(len(source), len(target))
            for place, (source, target) in enumerate(zip(sources, targets, strict=True))
            if max(len(source), len(target)) > MAX_TOKENS
        }
        for place, length in long.items():
            on_warning(
                Problem(
                    f"{names[0]}:{number + place}",
                    f"has a side of more than {MAX_TOKENS} tokens, and the pair is not scored",
                    f"{length} tokens",
                )
            )
        found = scorer.score(
            [
                ([], []) if place in long else ([*ids, EOS_ID] if ids else [], target)
                for place, (ids, target) in enumerate(zip(sources, targets, strict=True))
            ],
            on_done=on_done,
        )
        for place, ((source, target), ids) in enumerate(zip(window, targets, strict=True)):
            tokens = tuple(tokenizers.target.tokens([*ids, EOS_ID]))
            log_probs = (math.nan,) * len(tokens) if place in long else found[place]
            yield ScoredPair(source, target, tokens, log_probs)
        number += len(window)
