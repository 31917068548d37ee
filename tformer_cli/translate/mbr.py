"""Minimum-Bayes-risk decoding: choose the candidate that is most like all others."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tformer_cli.choices import Utility
from tformer_cli.search.engine import Hypothesis

# Decimals of a utility that count; the others are rounding errors.
UTILITY_DECIMALS = 9

Matrix = NDArray[np.float64]


def rerank(
    utility: Utility,
    candidates: Sequence[Hypothesis],
    texts: Sequence[str],
    *,
    uses_whitespace: bool,
) -> list[Hypothesis]:
    """Return the candidates with distinct texts, by mean utility, highest first.

    The mean utility, 0 to 100, becomes their `score`; their order breaks ties. Without
    whitespace between words, BLEU is over characters.
    """
    ranked = rank_texts(utility, texts, uses_whitespace=uses_whitespace)
    return [replace(candidates[index], score=mean) for index, mean in ranked]


def rank_texts(
    utility: Utility, texts: Sequence[str], *, uses_whitespace: bool
) -> list[tuple[int, float]]:
    """Return the index of each distinct text, where it is first, and its mean utility; as `rerank`.

    Each distinct text is compared once, and weighted by its number of candidates.
    """
    counts = Counter(texts)
    distinct = list(counts)
    weights = np.array([count / len(texts) for count in counts.values()])
    is_chrf = utility == "chrf"
    utilities = chrf(distinct) if is_chrf else bleu(distinct, bleu_tokenizer(uses_whitespace))
    means = (utilities @ weights).tolist()
    ranked = zip(map(texts.index, distinct), means, strict=True)
    return sorted(ranked, key=lambda pair: -round(pair[1], UTILITY_DECIMALS))


def chrf(texts: Sequence[str]) -> Matrix:
    """Return the sentence chrF2 (Popović 2015) of each text (row) against each (column).

    sacrebleu's defaults: character n-grams up to 6 without whitespace; precision and recall are
    averaged over the orders that both texts have.
    """
    precision, recall, num_orders = np.zeros((3, len(texts), len(texts)))
    for matches, totals in ngram_overlaps(["".join(text.split()) for text in texts], 6):
        precision += matches / np.maximum(totals, 1)[:, None]
        recall += matches / np.maximum(totals, 1)
        num_orders += np.minimum(totals[:, None], totals) > 0
    precision, recall = (part / np.maximum(num_orders, 1) for part in (precision, recall))
    weighted = 4 * precision + recall
    return 100 * 5 * precision * recall / np.where(weighted > 0, weighted, 1.0)


def bleu(texts: Sequence[str], tokenize: Callable[[str], str]) -> Matrix:
    """Return the sentence BLEU of each text (row) against each (column).

    sacrebleu's `effective_order`: orders longer than the text are left out. Orders without a match
    are smoothed: the first counts as 1/2 of a match, the next as 1/4 (NIST).
    """
    words = [tuple(tokenize(text.rstrip()).split()) for text in texts]
    lengths = np.array([len(sentence) for sentence in words], dtype=np.float64)
    shape = (len(texts), len(texts))
    log_precision = np.zeros(shape)
    num_orders = np.zeros(len(texts))
    has_match = np.zeros(shape)
    smoothed = np.ones(shape)
    for matches, totals in ngram_overlaps(words, 4):
        has_order = totals > 0
        smoothed[matches == 0] /= 2
        counts = np.where(matches == 0, smoothed, matches) / np.maximum(totals, 1)[:, None]
        log_precision += np.where(has_order[:, None], np.log(counts), 0.0)
        num_orders += has_order
        has_match += matches
    # Reference length divided by own length.
    shortness = np.maximum(lengths / np.maximum(lengths, 1)[:, None], 1.0)
    brevity_penalty = np.exp(1 - shortness)
    precision = np.exp(log_precision / np.maximum(num_orders, 1)[:, None])
    return np.where(has_match > 0, 100 * brevity_penalty * precision, 0.0)


def bleu_tokenizer(uses_whitespace: bool) -> Callable[[str], str]:
    """Return sacrebleu's tokenizer 13a, or that of characters for a language without whitespace."""
    from sacrebleu.metrics.bleu import BLEU

    tokenizer: Callable[[str], str] = BLEU(tokenize="13a" if uses_whitespace else "char").tokenizer
    return tokenizer


def ngram_overlaps(
    sequences: Sequence[str | tuple[str, ...]], max_order: int
) -> Iterator[tuple[Matrix, Matrix]]:
    """Yield the clipped n-gram matches (n, n) and the n-gram counts (n,) of each order."""
    for order in range(1, max_order + 1):
        ngrams = [
            Counter(sequence[i : i + order] for i in range(len(sequence) - order + 1))
            for sequence in sequences
        ]
        distinct = dict.fromkeys(itertools.chain.from_iterable(ngrams))
        columns = {ngram: column for column, ngram in enumerate(distinct)}
        counts = np.zeros((len(sequences), len(columns)))
        for row, counter in zip(counts, ngrams, strict=True):
            row[[columns[ngram] for ngram in counter]] = list(counter.values())
        matches = np.zeros((len(sequences), len(sequences)))
        # min(a, b) is the number of k >= 1 with k <= a and k <= b.
        for k in range(1, int(counts.max(initial=0)) + 1):
            reached = (counts >= k).astype(np.float64)
            matches += reached @ reached.T
        yield matches, counts.sum(axis=1)
