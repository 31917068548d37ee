"""Token ids to text: the hypotheses of a line's pieces become its translations."""

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

from tformer_cli.config.schema.text import Direction
from tformer_cli.search.engine import Hypothesis, OnDraft, Request
from tformer_cli.text.defects import Defect
from tformer_cli.text.segments import (
    aligned_units,
    first_word_indices,
    unit_indices,
    unit_texts,
    word_separator,
)
from tformer_cli.text.tokenizer import Tokenizers

if TYPE_CHECKING:
    from tformer_cli.search.teacher_forcing import Aligner

# How a translation was found that replaces one with defects.
Repair = Literal["n-best", "constraints", "no repetition", "splice"]

# Decimals of scores that are written: more are mostly rounding errors, which depend on the batch.
SCORE_DECIMALS = 4


@dataclass(frozen=True, slots=True)
class Translation:
    """A translation of a line.

    Attributes:
        text: the translation.
        tokens: its tokens, EOS excluded.
        score: score of the search; the mean over the pieces of a line.
        log_prob: natural logarithm of its probability; the sum over the pieces of a line.
        finished: whether every piece ended with EOS and not at the length limit.
        source_tokens: tokens of the line, EOS excluded; None without alignments.
        source_words: what alignments count in the source; None without alignments.
        words: what alignments count in the translation; None without alignments.
        alignments: pairs (source word, target word), counted from 0, if asked for; in a language
            without whitespace each token counts as a word.
        defects: what is wrong with it, if asked for.
        repair: how it was found, if the first one had more defects. After a splice, tokens, scores
            and alignments are those of the text before.
        confidence: the sentence chrF that is expected of it, 0 to 1, if asked for; None unless a
            single run that is calibrated translates by its own search, with scores.
    """

    text: str
    tokens: tuple[str, ...]
    score: float
    log_prob: float
    finished: bool
    source_tokens: tuple[str, ...] | None = None
    alignments: tuple[tuple[int, int], ...] | None = None
    source_words: tuple[str, ...] | None = None
    words: tuple[str, ...] | None = None
    defects: tuple[Defect, ...] = ()
    repair: Repair | None = None
    confidence: float | None = None


@dataclass(kw_only=True)
class Postprocessor:
    """Decodes hypotheses and joins the pieces of a line."""

    tokenizers: Tokenizers
    separator: str  # between two sentences of the target language: a space, or nothing
    source_separator: str  # the same for the source language

    @classmethod
    def of_direction(cls, tokenizers: Tokenizers, languages: Direction) -> Self:
        """Return that of a source and a target language."""
        source, target = map(word_separator, languages)
        return cls(tokenizers=tokenizers, separator=target, source_separator=source)

    def decode(self, pieces: Sequence[Hypothesis]) -> Translation:
        """Return the translation of a line from one hypothesis for each of its pieces."""
        target = self.tokenizers.target
        texts = [target.decode(piece.token_ids) for piece in pieces]
        return Translation(
            text=self.separator.join(text for text in texts if text),
            tokens=tuple(token for piece in pieces for token in target.tokens(piece.token_ids)),
            score=sum(piece.score for piece in pieces) / len(pieces),
            log_prob=sum(piece.log_prob for piece in pieces),
            finished=all(piece.finished for piece in pieces),
        )

    def draft_lines(
        self, requests: Sequence[Sequence[Request]], on_draft: Callable[[int, str], object]
    ) -> OnDraft:
        """Return a callback for pieces, which gives `on_draft` a line and its text so far."""
        target = self.tokenizers.target
        texts = [[""] * len(pieces) for pieces in requests]
        pieces = [(line, part) for line, parts in enumerate(texts) for part in range(len(parts))]

        def on_piece(index: int, ids: Sequence[int]) -> None:
            line, part = pieces[index]
            # A character may lack some of its bytes yet.
            texts[line][part] = target.decode(ids).rstrip("\ufffd")
            on_draft(line, self.separator.join(text for text in texts[line] if text))

        return on_piece

    def decode_lines(
        self,
        requests: Sequence[Sequence[Request]],
        chosen: Sequence[Sequence[Sequence[Hypothesis]]],
        aligner: "Aligner | None",
    ) -> Iterator[list[Translation]]:
        """Yield the translations of each line, with word alignments if there is an aligner.

        `requests` are the pieces of each line; a translation in `chosen` has a hypothesis for each.
        """
        if aligner is None:
            yield from ([self.decode(pieces) for pieces in line] for line in chosen)
            return
        lines = list(zip(requests, chosen, strict=True))
        sentences = [
            (piece.source, [hypotheses[index].token_ids for hypotheses in translations])
            for pieces, translations in lines
            for index, piece in enumerate(pieces)
        ]
        # All lines have the same tags, and their translations the same start.
        parts = [piece for pieces in requests for piece in pieces]
        num_tags = max((piece.num_tags for piece in parts), default=0)
        num_start = max((len(piece.start) for piece in parts), default=0)
        links = iter(aligner.align(sentences, num_tags, num_start))
        for pieces, translations in lines:
            by_translation = zip(*[next(links) for _ in pieces], strict=True)
            yield [
                self._with_alignments(self.decode(hypotheses), pieces, hypotheses, token_links)
                for hypotheses, token_links in zip(translations, by_translation, strict=True)
            ]

    def _with_alignments(
        self,
        translation: Translation,
        pieces: Sequence[Request],
        hypotheses: Sequence[Hypothesis],
        links: Sequence[Sequence[int | None]],
    ) -> Translation:
        """Turn the source position of each target token into pairs of words."""
        source, target = self.tokenizers.source, self.tokenizers.target
        sources = [piece.source[piece.num_tags : -1] for piece in pieces]
        targets = [hypothesis.token_ids for hypothesis in hypotheses]
        # A space ends the last word of a piece. Without whitespace, words are not counted.
        texts = [f"{target.decode(ids)} " for ids in targets]
        starts = itertools.accumulate(map(len, sources), initial=0)
        positions = [
            None if link is None else start + link
            for start, piece in zip(starts, links, strict=False)
            for link in piece
        ]
        first_words = [piece.first_word for piece in pieces]
        source_units = unit_indices(source, sources, first_words, self.source_separator)
        units = unit_indices(target, targets, first_word_indices(texts), self.separator)
        source_ids, ids = (list(itertools.chain.from_iterable(each)) for each in (sources, targets))
        return replace(
            translation,
            source_tokens=tuple(source.tokens(source_ids)),
            alignments=aligned_units(positions, source_units, units),
            source_words=unit_texts(source, source_ids, source_units),
            words=unit_texts(target, ids, units),
        )


def best_combinations(
    pieces: Sequence[Sequence[Hypothesis]], count: int
) -> list[tuple[Hypothesis, ...]]:
    """Return the `count` combinations of one hypothesis a piece with the highest sums of scores.

    The hypotheses of a piece come best first. Sums that differ by rounding alone, as those of a
    sentence that comes twice in a line, count as equal; the later pieces then vary first.
    """
    best: list[tuple[float, tuple[Hypothesis, ...]]] = [(0.0, ())]
    for hypotheses in pieces:
        # For ranks i and j, counted from 1, at least i * j - 1 other pairs are no worse.
        pairs = (
            (total + hypothesis.score, (*combination, hypothesis))
            for rank, (total, combination) in enumerate(best, start=1)
            for hypothesis in hypotheses[: count // rank]
        )
        best = heapq.nlargest(count, pairs, key=lambda pair: round(pair[0], SCORE_DECIMALS))
    return [combination for _, combination in best]


def sample_combinations(
    requests: Sequence[Request], pieces: Sequence[Sequence[Hypothesis]]
) -> list[tuple[Hypothesis, ...]]:
    """Return independent samples of a line, those with the highest sums of scores first.

    Each has another sample of each piece, at random, by the numbers of the requests. The best
    combinations would share the most probable samples.
    """
    shuffled = [
        random.Random(request.number).sample(samples, len(samples))
        for request, samples in zip(requests, pieces, strict=True)
    ]
    combinations = zip(*shuffled, strict=True)
    return sorted(combinations, key=lambda parts: -sum(part.score for part in parts))
