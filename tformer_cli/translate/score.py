"""Forced decoding: how probable a model finds given translations."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tformer_cli.corpus.prefetch import chunks
from tformer_cli.corpus.store_builder import too_long_error
from tformer_cli.errors import Problem, check_utf8
from tformer_cli.search.engine import Scorer
from tformer_cli.text.special_tokens import EOS_ID
from tformer_cli.text.tokenizer import Tokenizers, with_eos

# Maximum source or target length that is scored, in tokens: attention is quadratic in it.
MAX_TOKENS = 4096
# Pairs that are read before they are sorted by length and scored.
WINDOW_PAIRS = 8192


@dataclass(frozen=True, slots=True)
class ScoredPair:
    """A given translation of a line, and its probability.

    Attributes:
        source: the line.
        target: the translation.
        tokens: of the translation, EOS included.
        token_log_probs: natural logarithm of the probability of each token, given the ones before
            it; -inf for a token that no search generates there; NaN in a pair that is too long.
    """

    source: str
    target: str
    tokens: tuple[str, ...]
    token_log_probs: tuple[float, ...]

    @property
    def log_prob(self) -> float:
        """Natural logarithm of the probability of the translation."""
        return sum(self.token_log_probs)


def score_pairs(
    scorer: Scorer,
    tokenizers: Tokenizers,
    pairs: Iterable[tuple[str, str]],
    *,
    names: tuple[str, str] = ("source", "target"),
    tags: Sequence[int] = (),
    target_tags: Sequence[int] = (),
    on_done: Callable[[int], object] = lambda count: None,
    on_warning: Callable[[Problem], object] = lambda problem: None,
) -> Iterator[ScoredPair]:
    """Yield the token log probabilities of given translations, in the order given.

    The tokens are those of the tokenizer. A search can generate the same text by other tokens,
    with another probability.

    Args:
        scorer: scores token ids.
        tokenizers: of the same model.
        pairs: (source, target) lines, read ahead by `WINDOW_PAIRS`.
        names: files of both sides, for messages.
        tags: ids that each source begins with.
        target_tags: ids that each target begins with.
        on_done: called with the number of pairs whenever some are scored.
        on_warning: called for each pair with a side of more than `MAX_TOKENS`, which has no score.

    Raises:
        UsageError: a text is not UTF-8.
    """
    number = 1
    for window in chunks(pairs, WINDOW_PAIRS):
        for line, pair in enumerate(window, start=number):
            for name, text in zip(names, pair, strict=True):
                check_utf8(f"{name}:{line}", text)
        encoded = tokenizers.source.encode_batch([source for source, _ in window])
        sources = [[*tags, *ids] if ids else ids for ids in encoded]
        encoded = tokenizers.target.encode_batch([target for _, target in window])
        # Without a source there is the empty translation alone, in no language.
        starts = [target_tags if ids else () for ids in sources]
        targets = [[*start, *ids] for start, ids in zip(starts, encoded, strict=True)]
        if scorer.max_length is not None:
            for name, sentences in zip(names, (sources, targets), strict=True):
                for line, ids in enumerate(sentences, start=number):
                    if len(ids) >= scorer.max_length:
                        raise too_long_error(f"{name}:{line}", len(ids) + 1, scorer.max_length)
        lengths = [max(map(len, sides)) for sides in zip(sources, targets, strict=True)]
        for line, length in enumerate(lengths, start=number):
            if length > MAX_TOKENS:
                what = f"has a side of more than {MAX_TOKENS} tokens, and the pair is not scored"
                on_warning(Problem(f"{names[0]}:{line}", what, f"{length} tokens"))
        short_pairs = [
            (with_eos(source), target) if length <= MAX_TOKENS else ([], [])
            for source, target, length in zip(sources, targets, lengths, strict=True)
        ]
        log_probs = scorer.score(short_pairs, on_done=on_done)
        scored = zip(window, starts, targets, lengths, log_probs, strict=True)
        for (source, target), start, ids, length, token_log_probs in scored:
            # The language of a target is given.
            token_log_probs = token_log_probs[len(start) :]
            tokens = tuple(tokenizers.target.tokens([*ids, EOS_ID]))[len(start) :]
            if length > MAX_TOKENS:
                token_log_probs = (math.nan,) * len(tokens)
            yield ScoredPair(source, target, tokens, token_log_probs)
        number += len(window)
