"""Minimum-Bayes-risk decoding: the translation that agrees most with all that a search finds."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.errors import UsageError
from tformer_cli.search.request import Hypothesis

# Candidates of sampling, where no other number is asked for.
NUM_SAMPLES = 32
# Digits of a utility that count; those behind them are rounding.
DIGITS = 9

Utility = Literal["chrf", "bleu"]
Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MBR:
    """How to choose among candidates (Kumar and Byrne 2004; Eikema and Aziz 2022).

    Attributes:
        utility: how like each other two sentences are: chrF2, or BLEU with exponential smoothing
            and effective order; both as sacrebleu scores a sentence.
        num_candidates: how many translations of a line to choose from; where it is None the beam
            size, or 32 of sampling.
    """

    utility: Utility = "chrf"
    num_candidates: int | None = None

    def __post_init__(self) -> None:
        """Check the choice.

        Raises:
            UsageError: there is no such utility, or there are no candidates.
        """
        if self.utility not in get_args(Utility):
            raise UsageError(
                "`utility`", f"must be one of {', '.join(get_args(Utility))}", got=self.utility
            )
        if self.num_candidates is not None and self.num_candidates < 1:
            raise UsageError("`num_candidates`", "must be at least 1", got=str(self.num_candidates))

    def num_wanted(self, decoding: DecodingConfig) -> int:
        """Return how many candidates a search has to find.

        Raises:
            UsageError: it keeps fewer.
        """
        if isinstance(decoding, GreedyConfig):
            raise UsageError(
                "`mbr`",
                "has no effect on greedy search",
                remedy="use `BeamConfig(beam_size=8)`, or decoding.kind=sample",
            )
        if not isinstance(decoding, BeamConfig):
            return self.num_candidates or NUM_SAMPLES
        if self.num_candidates is not None and self.num_candidates > decoding.beam_size:
            raise UsageError(
                "`num_candidates`",
                f"must be at most the beam size ({decoding.beam_size})",
                got=str(self.num_candidates),
                remedy=f"use `BeamConfig(beam_size={self.num_candidates})`, or "
                "decoding.kind=sample",
            )
        return self.num_candidates or decoding.beam_size

    def ranked(
        self, candidates: Sequence[Hypothesis], texts: Sequence[str], *, has_blanks: bool
    ) -> list[Hypothesis]:
        """Return the candidates by their mean utility, each text once, highest first.

        Args:
            candidates: best first by their own scores, which decide where utilities are equal.
            texts: what each of them says.
            has_blanks: whether blanks part words; where they do not, BLEU is over characters.

        Returns:
            Candidates whose `score` is the utility, 0 to 100.
        """
        # Each distinct text is compared once, and counts as often as it was found.
        firsts: dict[str, Hypothesis] = {}
        for candidate, text in zip(candidates, texts, strict=True):
            firsts.setdefault(text, candidate)
        counts = Counter(texts)
        shares = np.array([counts[text] / len(texts) for text in firsts])
        means = self._utilities(list(firsts), has_blanks) @ shares
        scored = [
            replace(candidate, score=mean)
            for candidate, mean in zip(firsts.values(), means.tolist(), strict=True)
        ]
        return sorted(scored, key=lambda one: -round(one.score, DIGITS))

    def _utilities(self, texts: Sequence[str], has_blanks: bool) -> Matrix:
        return chrf(texts) if self.utility == "chrf" else bleu(texts, bleu_tokenizer(has_blanks))


def chrf(texts: Sequence[str]) -> Matrix:
    """Return the sentence chrF2 (Popović 2015) of each text, a row, against each other, a column.

    As sacrebleu does by default: n-grams of up to six characters, blanks left out, and precision
    and recall are means over the lengths that both texts have.
    """
    precision, recall, num_orders = np.zeros((3, len(texts), len(texts)))
    for matches, totals in overlaps(["".join(text.split()) for text in texts], 6):
        have = np.minimum(totals[:, None], totals) > 0
        precision += matches / np.maximum(totals, 1)[:, None]
        recall += matches / np.maximum(totals, 1)
        num_orders += have
    precision, recall = (part / np.maximum(num_orders, 1) for part in (precision, recall))
    weighted = 4 * precision + recall
    return 100 * 5 * precision * recall / np.where(weighted > 0, weighted, 1.0)


def bleu(texts: Sequence[str], tokenize: Callable[[str], str]) -> Matrix:
    """Return the sentence BLEU of each text, a row, against each other, a column.

    As sacrebleu does by `effective_order`: orders that a text is too short for are left out, and
    of those without a match the first counts as half a match, the next as a quarter (NIST).

    Args:
        texts: sentences.
        tokenize: parts tokens by blanks.
    """
    words = [tuple(tokenize(text.rstrip()).split()) for text in texts]
    lengths = np.array([len(sentence) for sentence in words], dtype=np.float64)
    shape = (len(texts), len(texts))
    log_precision, num_orders, has_match = np.zeros(shape), np.zeros(len(texts)), np.zeros(shape)
    credit = np.ones(shape)
    for matches, totals in overlaps(words, 4):
        is_long = totals > 0
        credit[matches == 0] /= 2
        counted = np.where(matches == 0, credit, matches) / np.maximum(totals, 1)[:, None]
        log_precision += np.where(is_long[:, None], np.log(counted), 0.0)
        num_orders += is_long
        has_match += matches
    shortness = np.maximum(lengths / np.maximum(lengths, 1)[:, None], 1.0)  # reference / own
    brevity = np.exp(1 - shortness)
    precision = np.exp(log_precision / np.maximum(num_orders, 1)[:, None])
    return np.where(has_match > 0, 100 * brevity * precision, 0.0)


def bleu_tokenizer(has_blanks: bool) -> Callable[[str], str]:
    """Return sacrebleu's tokenizer 13a, or for a language without blanks that of characters."""
    from sacrebleu.metrics.bleu import BLEU

    tokenizer: Callable[[str], str] = BLEU(tokenize="13a" if has_blanks else "char").tokenizer
    return tokenizer


def overlaps(
    sequences: Sequence[str | tuple[str, ...]], most: int
) -> Iterator[tuple[Matrix, Matrix]]:
    """Yield for n-grams of each order up to `most` how many two sequences share.

    Returns:
        Matches (n, n) of each with each, an n-gram as often as both have it, and totals (n,).
    """
    for order in range(1, most + 1):
        ngrams = [
            Counter(sequence[place : place + order] for place in range(len(sequence) - order + 1))
            for sequence in sequences
        ]
        columns: dict[str | tuple[str, ...], int] = {}
        for own in ngrams:
            for ngram in own:
                columns.setdefault(ngram, len(columns))
        counts = np.zeros((len(sequences), len(columns)))
        for row, own in zip(counts, ngrams, strict=True):
            row[[columns[ngram] for ngram in own]] = list(own.values())
        matches = np.zeros((len(sequences), len(sequences)))
        # min(a, b) is the number of those k from 1 that both reach.
        for k in range(1, int(counts.max(initial=0)) + 1):
            reached = (counts >= k).astype(np.float64)
            matches += reached @ reached.T
        yield matches, counts.sum(axis=1)
