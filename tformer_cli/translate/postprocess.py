"""Translations in words: what hypotheses in token ids make of a line."""

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tformer_cli.search.alignment import Aligner
from tformer_cli.search.request import Hypothesis, Request
from tformer_cli.text.segments import aligned_units, first_word_indices, unit_indices
from tformer_cli.text.tokenizer import Tokenizers


@dataclass(frozen=True, slots=True)
class Translation:
    """One translation of a line.

    Attributes:
        text: the translation.
        tokens: its tokens as the model wrote them.
        score: what the search ranked it by; of a line in pieces the mean over them.
        log_prob: natural logarithm of its probability; of a line in pieces the sum over them.
        finished: whether it ends where the model ends it, rather than at the length limit; of a
            line in pieces whether all of them do.
        source_tokens: the tokens of the line as the model read them; None without alignments.
        alignments: pairs of a word of the line, as its tokenizer spells it, and a word that comes
            from it, counted from 0, where they were asked for; in a language without blanks each
            token counts as a word.
    """

    text: str
    tokens: tuple[str, ...]
    score: float
    log_prob: float
    finished: bool
    source_tokens: tuple[str, ...] | None = None
    alignments: tuple[tuple[int, int], ...] | None = None


class Postprocessor:
    """Puts hypotheses into words."""

    def __init__(self, tokenizers: Tokenizers, *, blank: str, source_blank: str) -> None:
        """Join the tokenizers and what stands between sentences.

        Args:
            tokenizers: of the model.
            blank: what joins the translations of the pieces of a line.
            source_blank: likewise in the source language.
        """
        self.tokenizers = tokenizers
        self.blank = blank
        self.source_blank = source_blank

    def translation(self, pieces: Sequence[Hypothesis]) -> Translation:
        """Return what the translations of the pieces of a line make together."""
        target = self.tokenizers.target
        texts = [target.decode(piece.token_ids) for piece in pieces]
        return Translation(
            text=self.blank.join(text for text in texts if text),
            tokens=tuple(token for piece in pieces for token in target.tokens(piece.token_ids)),
            score=sum(piece.score for piece in pieces) / len(pieces),
            log_prob=sum(piece.log_prob for piece in pieces),
            finished=all(piece.finished for piece in pieces),
        )

    def aligned(
        self,
        aligner: Aligner,
        lines_in_pieces: Sequence[Sequence[Request]],
        chosen: Sequence[Sequence[Sequence[Hypothesis]]],
    ) -> Iterator[list[Translation]]:
        """Yield the translations of each line with their alignments.

        Args:
            aligner: says what tokens look at.
            lines_in_pieces: what was asked of each line.
            chosen: the ways to translate each line, each of them a hypothesis a piece.
        """
        both = list(zip(lines_in_pieces, chosen, strict=True))
        links = iter(
            aligner.align(
                [
                    (piece.source, [parts[place].token_ids for parts in ways])
                    for pieces, ways in both
                    for place, piece in enumerate(pieces)
                ]
            )
        )
        for pieces, ways in both:
            links_of_ways = zip(*[next(links) for _ in pieces], strict=True)
            yield [
                self._with_alignments(self.translation(parts), pieces, parts, links_of_parts)
                for parts, links_of_parts in zip(ways, links_of_ways, strict=True)
            ]

    def _with_alignments(
        self,
        translation: Translation,
        pieces: Sequence[Request],
        parts: Sequence[Hypothesis],
        links: Sequence[Sequence[int]],
    ) -> Translation:
        """Return a translation with what the links between the tokens of its pieces make of it."""
        source, target = self.tokenizers.source, self.tokenizers.target
        sources = [piece.source[:-1] for piece in pieces]
        written = [part.token_ids for part in parts]
        # With a blank behind each: in a language that has none there, nobody counts words.
        texts = [f"{target.decode(ids)} " for ids in written]
        starts = itertools.accumulate((len(ids) for ids in sources), initial=0)
        return replace(
            translation,
            source_tokens=tuple(source.tokens([token for ids in sources for token in ids])),
            alignments=aligned_units(
                [start + link for start, own in zip(starts, links, strict=False) for link in own],
                unit_indices(
                    source, sources, [piece.first_word for piece in pieces], self.source_blank
                ),
                unit_indices(target, written, first_word_indices(texts), self.blank),
            ),
        )


def best_combinations(
    pieces: Sequence[Sequence[Hypothesis]], count: int
) -> list[tuple[Hypothesis, ...]]:
    """Return the `count` ways to take a translation of each piece whose scores sum highest.

    Args:
        pieces: the translations of each piece, best first.
        count: how many ways are wanted; fewer come where there are fewer.

    Returns:
        One translation a piece, the best way first.
    """
    best: list[tuple[float, tuple[Hypothesis, ...]]] = [(0.0, ())]
    for hypotheses in pieces:
        # Of ranks i and j, counted from one, i * j - 1 other pairs are no worse.
        pairs = (
            (total + hypothesis.score, (*chosen, hypothesis))
            for rank, (total, chosen) in enumerate(best, start=1)
            for hypothesis in hypotheses[: count // rank]
        )
        best = heapq.nlargest(count, pairs, key=lambda pair: pair[0])
    return [chosen for _, chosen in best]
