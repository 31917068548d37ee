"""Inline tags of a segment carried to its translation by word alignment."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import NamedTuple

from tformer_cli.documents.segment import Offsets, Segment, Tag


class Alignment(NamedTuple):
    """The words of a text and of its translation, in their order, and which of them are aligned."""

    source: Sequence[Offsets]
    target: Sequence[Offsets]
    links: Collection[tuple[int, int]]  # (source word, target word)
    kept: Sequence[Offsets] = ()  # spans of the translation that stay whole, such as `{name}`


def carry_tags(
    segment: Segment, translation: str, alignment: Alignment
) -> tuple[Segment, list[Tag]]:
    """Return a translation with all tags of its source, and the tags whose words have no target.

    A tag around words is put around the longest run of target words that are aligned to them, with
    unaligned words between. A tag without such words, or between two words, is put where it
    separates the fewest aligned pairs; such tags keep their order. One that stands for a
    word, such as `<code>f()</code>`, does so in the translation.
    """
    carrier = _Carrier(segment, translation, alignment)
    for tag in segment.tags:
        carrier.put(tag)
    return Segment(translation, tuple(carrier.placed)), carrier.lost


class _Carrier:
    """Puts the tags of a segment into its translation, one after the other."""

    def __init__(self, segment: Segment, translation: str, alignment: Alignment) -> None:
        self.segment = segment
        self.translation = translation
        self.source, self.target, self.links, kept = alignment
        self.kept = {position for start, end in kept for position in range(start, end)}
        self.targets = defaultdict[int, set[int]](set)
        for source, target in self.links:
            self.targets[source].add(target)
        self.linked = {target for _, target in self.links}
        self.source_starts, self.source_ends = _bounds(self.source)
        self.target_starts, self.target_ends = _bounds(self.target)
        self.placed: list[Tag] = []
        self.lost: list[Tag] = []
        # By the tag around them: the target words with a tag, and the last tag between two words.
        self._taken: defaultdict[int | None, set[int]] = defaultdict(set)
        self._last: defaultdict[int | None, int] = defaultdict(int)

    def put(self, tag: Tag) -> None:
        """Put a tag, whose parent has been put, and note whether its words are lost."""
        text = self.segment.text
        outer, parent = Tag(0, len(self.translation), ""), Tag(0, len(text), "")
        if tag.parent is not None:
            outer, parent = self.placed[tag.parent], self.segment.tags[tag.parent]
        has_text = text[tag.start : tag.end].strip() != ""
        span = self._span(tag, parent, outer) if has_text else None
        is_word = False
        if span is None:
            position = max(self._position(tag.start), self._last[tag.parent])
            position = min(max(position, outer.start), outer.end)
            self._last[tag.parent] = position
            span = position, position
            self.lost += [tag] if has_text else []
            is_word = not has_text and not outer.is_word and _is_word(text, tag.start)
        else:
            self._taken[tag.parent].update(self._target_words(*span))
        self.placed.append(tag._replace(start=span[0], end=span[1], is_word=is_word))

    def _span(self, tag: Tag, parent: Tag, outer: Tag) -> Offsets | None:
        """Return the characters that a tag is put around, if there are any."""
        text = self.segment.text
        if not (text[parent.start : tag.start] + text[tag.end : parent.end]).strip():
            return outer.start, outer.end
        words = range(
            bisect_right(self.source_ends, tag.start), bisect_left(self.source_starts, tag.end)
        )
        targets = self._longest_run(words, outer, self._taken[tag.parent])
        if not targets:
            return None
        start, end = self.target[targets[0]][0], self.target[targets[-1]][1]
        within = self.translation.find(text[tag.start : tag.end], start, end)
        if len(words) == 1 and within >= 0:
            # A part of a word, such as the index of a formula.
            return within, within + tag.end - tag.start
        return self._trimmed(start, end, text[tag.start], text[tag.end - 1])

    def _trimmed(self, start: int, end: int, first: str, last: str) -> Offsets:
        """Return a span without punctuation at an end where the source has a word.

        Punctuation of what stays whole is no such.
        """
        characters = enumerate(self.translation[start:end], start)
        inner = [character.isalnum() or position in self.kept for position, character in characters]
        if not any(inner):
            return start, end
        left = inner.index(True) if first.isalnum() else 0
        right = inner[::-1].index(True) if last.isalnum() else 0
        return start + left, end - right

    def _longest_run(self, words: range, outer: Tag, taken: Collection[int]) -> list[int]:
        """Return the target words aligned to `words` in the longest run without any of others."""
        inside = self._target_words(outer.start, outer.end)
        best: list[int] = []
        run: list[int] = []
        for target in sorted({target for word in words for target in self.targets[word]}):
            if target not in inside or target in taken:
                continue
            between = range(run[-1] + 1, target) if run else ()
            if any(word in self.linked or word in taken for word in between):
                run = []
            run.append(target)
            best = run if len(run) > len(best) else best
        return best

    def _target_words(self, start: int, end: int) -> range:
        """Return the target words within some characters."""
        return range(bisect_left(self.target_starts, start), bisect_right(self.target_ends, end))

    def _position(self, position: int) -> int:
        """Return where a tag between two words separates the fewest aligned pairs."""
        word = bisect_right(self.source_ends, position)
        if word == len(self.source) or not self.target:
            return len(self.translation)
        if word == 0:
            return 0
        costs = [0] * (len(self.target) + 1)
        for source, target in self.links:
            # Moving the boundary behind the target word separates the pair, or no longer does.
            costs[target + 1] += 1 if source >= word else -1
        totals = list(accumulate(costs))
        before = totals.index(min(totals))
        follows_word = self.segment.text[position : position + 1].isspace()
        if before == len(self.target) or (before and follows_word):
            return self.target[before - 1][1]
        return self.target[before][0]


def _is_word(text: str, position: int) -> bool:
    """Return whether a tag between two characters has whitespace before it, and no word behind."""
    before, behind = text[:position][-1:], text[position:][:1]
    return not before.strip() and not behind.isalnum()


def _bounds(spans: Sequence[Offsets]) -> tuple[list[int], list[int]]:
    return [start for start, _ in spans], [end for _, end in spans]
