"""A segment of a document: its text, and the inline tags around parts of it."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

Offsets = tuple[int, int]
TextKind = Literal["text", "verbatim"]


class Token(NamedTuple):
    """Text, or inline markup as the document has it.

    A run of whitespace of a `text` is one space; that of a `verbatim` text stays, for it may end a
    line. A `point` is markup between two words. A `break` is one that no pair of tags goes around.
    """

    kind: TextKind | Literal["open", "close", "point", "break"]
    text: str
    name: str = ""  # of an element: a `close` ends the last `open` of its name


class Tag(NamedTuple):
    """An inline tag around characters of a text, or between two of them (`start == end`)."""

    start: int
    end: int
    opening: str  # as the document has it, such as `<b>`
    closing: str = ""
    parent: int | None = None  # index of the innermost tag around it
    is_word: bool = False  # whether a space keeps it from the words beside it


class Segment(NamedTuple):
    """A text, and its inline tags in the order of their openings."""

    text: str
    tags: tuple[Tag, ...] = ()

    @classmethod
    def of(cls, tokens: Iterable[Token]) -> "Segment":
        """Join tokens.

        A tag that is opened or closed elsewhere in the document is a tag between two words.
        """
        tokens = list(tokens)
        ends = _matching_ends(tokens)
        starts = {end: start for start, end in ends.items()}
        parts, length = list[str](), 0
        tags, outer = list[Tag](), list[int]()
        for index, token in enumerate(tokens):
            if token.kind in ("text", "verbatim"):
                is_verbatim = token.kind == "verbatim"
                text = token.text if is_verbatim else re.sub(r"[ \t\r\n\f]+", " ", token.text)
                parts.append(text)
                length += len(text)
            elif index in starts:
                closed = outer.pop()
                tags[closed] = tags[closed]._replace(end=length, closing=token.text)
            else:
                parent = outer[-1] if outer else None
                outer += [len(tags)] if index in ends else []
                tags.append(Tag(length, length, token.text, parent=parent))
        return cls("".join(parts), tuple(tags))

    def tokens(self) -> Iterator[Token]:
        """Yield text and tags, each of which opens once and closes within its parent.

        Where tags overlap, the earlier one keeps the characters.
        """
        children = defaultdict(list)
        for index, tag in sorted(enumerate(self.tags), key=lambda pair: pair[1].start):
            children[tag.parent].append(index)
        position = 0
        opened = [(Tag(0, len(self.text), ""), iter(children[None]))]
        while opened:
            tag, inner = opened[-1]
            first = next(inner, None)
            end = tag.end if first is None else min(self.tags[first].start, tag.end)
            if end > position:
                yield Token("text", self.text[position:end])
                position = end
            if first is not None:
                child = self.tags[first]
                if child.is_word and self.text[position - 1 : position].strip():
                    yield Token("text", " ")
                yield Token("open", child.opening)
                end = max(position, min(child.end, tag.end))
                opened.append((child._replace(end=end), iter(children[first])))
            else:
                opened.pop()
                yield from [Token("close", tag.closing)] if opened else []
                if tag.is_word and self.text[position : position + 1].isalnum():
                    yield Token("text", " ")

    def markup(self, escape: Callable[[str], str]) -> str:
        """Return the text with its tags."""
        return "".join(
            escape(token.text) if token.kind == "text" else token.text for token in self.tokens()
        )


class Entry(NamedTuple):
    """A segment, the span of the text that it is read from, and the one that is replaced."""

    source: Offsets
    target: Offsets
    segment: Segment
    encode: Callable[[Segment], str]  # what replaces the target


class Insertion(NamedTuple):
    """What a file has more at a position once it has translations."""

    position: int
    text: str


class Content(NamedTuple):
    """The text of a file, and what is read of it."""

    name: str
    text: str
    field: str
    source_language: str
    target_language: str
    unit: str = "\n"  # pattern of what ends a line, as messages count them

    def where(self, position: int) -> str:
        """Return the file and the line of a character, counted from 1."""
        return f"{self.name}:{self.num_ends(0, position) + 1}"

    def num_ends(self, start: int, end: int) -> int:
        """Return how many lines end between two characters."""
        return len(re.compile(self.unit).findall(self.text, start, end))


def _matching_ends(tokens: list[Token]) -> dict[int, int]:
    """Return the index of the end tag of each tag, by the index of the tag."""
    ends, opened, names = dict[int, int](), list[int](), Counter[str]()
    for index, token in enumerate(tokens):
        if token.kind == "open":
            opened.append(index)
            names[token.name] += 1
        elif token.kind == "break":
            opened, names = [], Counter()
        elif token.kind == "close" and names[token.name]:
            while token.name != (name := tokens[opened[-1]].name):
                opened.pop()
                names[name] -= 1
            ends[opened.pop()] = index
            names[token.name] -= 1
    return ends
