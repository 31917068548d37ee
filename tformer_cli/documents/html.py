"""HTML: text between the tags of blocks, with inline tags in it."""

import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from itertools import accumulate
from typing import Literal, NamedTuple

from tformer_cli.documents.segment import Content, Entry, Segment, Token
from tformer_cli.documents.xml import encode_markup
from tformer_cli.errors import DataError

_COMMENT = "!--"
_INLINE = re.compile(
    f"{_COMMENT}|a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|input|ins|kbd|"
    "label|mark|math|q|s|samp|script|small|span|strike|strong|sub|sup|svg|time|tt|u|var|wbr"
)
_OPAQUE = re.compile(
    "code|iframe|kbd|math|noscript|object|pre|samp|script|style|svg|template|textarea|var"
)
_VOID = re.compile("area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr")
_ROW_GROUPS = "thead|tbody|tfoot"
# What begins after the end of an element whose end tag may be left out.
_ENDED_BY = {
    "p": re.compile(
        "address|article|aside|blockquote|details|div|dl|fieldset|figcaption|figure|footer|form|"
        "h[1-6]|header|hgroup|hr|main|menu|nav|ol|p|pre|search|section|table|ul|"
        f"li|dt|dd|td|th|tr|{_ROW_GROUPS}"
    ),
    "li": re.compile("li"),
    **dict.fromkeys(("dt", "dd"), re.compile("dt|dd")),
    **dict.fromkeys(("option", "optgroup"), re.compile("option|optgroup")),
    **dict.fromkeys(("td", "th"), re.compile(f"td|th|tr|{_ROW_GROUPS}")),
    "tr": re.compile(f"tr|{_ROW_GROUPS}"),
    **dict.fromkeys(_ROW_GROUPS.split("|"), re.compile(_ROW_GROUPS)),
}
# In a `meta`, or in the declaration of XHTML.
_CHARSET = re.compile(
    r"(?:<meta\b[^<>]*\bcharset|\A\s*<\?xml\b[^<>]*\bencoding)\s*=\s*[\"']?([\w-]+)", re.IGNORECASE
)

PieceKind = Literal["text", "open", "close", "point", "kept"]


class _Piece(NamedTuple):
    """Text, a tag, a comment or a tag without an end (`point`), or an element kept as it is."""

    kind: PieceKind
    name: str
    start: int
    end: int


def html_entries(content: Content) -> Iterator[Entry]:
    """Yield the segments of a page: what stands between two tags that are not inline.

    Code, scripts, attributes and elements with translate="no" are kept as they are.

    Raises:
        DataError: the page is not UTF-8.
    """
    charset = _CHARSET.search(content.text)
    if charset and charset[1].lower() not in ("utf-8", "utf8", "us-ascii"):
        got, remedy = charset[1], "convert the document"
        raise DataError(content.where(charset.start()), "must be UTF-8", got=got, remedy=remedy)
    run: list[_Piece] = []
    for piece in _PageParser(content.text).pieces():
        if piece.kind == "text" or _INLINE.fullmatch(piece.name):
            run.append(piece)
            continue
        yield from _entries(content.text, run)
        run = []
    yield from _entries(content.text, run)


class _PageParser(HTMLParser):
    """Notes where each piece of a page begins; it ends where the next one begins."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self.text = text
        self._lines = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
        self._begun: list[_Piece] = []
        self.feed(text)
        self.close()

    def pieces(self) -> Iterator[_Piece]:
        """Yield all pieces; an element that is kept as it is is one, to the end if it has none."""
        starts = [*(piece.start for piece in self._begun), len(self.text)]
        index = 0
        while index < len(self._begun):
            piece = self._begun[index]
            index = _end_of_kept(self._begun, index) if piece.kind == "kept" else index + 1
            yield piece._replace(end=starts[index])

    def _begin(self, kind: PieceKind, name: str = "") -> None:
        line, column = self.getpos()
        start = self._lines[line - 1] + column
        self._begun.append(_Piece(kind, name, start, start))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        is_kept = _OPAQUE.fullmatch(tag) or (dict(attrs).get("translate") or "").lower() == "no"
        self._begin("point" if _VOID.fullmatch(tag) else "kept" if is_kept else "open", tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._begin("point", tag)

    def handle_endtag(self, tag: str) -> None:
        self._begin("close", tag)

    def handle_data(self, data: str) -> None:
        self._begin("text")

    def handle_entityref(self, name: str) -> None:
        self._begin("text")

    def handle_charref(self, name: str) -> None:
        self._begin("text")

    def handle_comment(self, data: str) -> None:
        self._begin("point", _COMMENT)

    def handle_decl(self, decl: str) -> None:
        self._begin("point")

    def unknown_decl(self, data: str) -> None:
        self._begin("point")

    def handle_pi(self, data: str) -> None:
        self._begin("point")


def _end_of_kept(pieces: list[_Piece], first: int) -> int:
    """Return the index of the piece that follows an element."""
    opened = [pieces[first].name]
    for index in range(first + 1, len(pieces)):
        piece = pieces[index]
        if _is_beyond(piece, opened):
            return index
        if piece.name != opened[0] and _INLINE.fullmatch(piece.name):
            continue
        if piece.kind in ("open", "kept"):
            opened.append(piece.name)
        elif piece.kind == "close" and piece.name in opened:
            while opened.pop() != piece.name:
                pass
        if not opened:
            return index + 1
    return len(pieces)


def _is_beyond(piece: _Piece, opened: list[str]) -> bool:
    """Whether a tag ends an element that needs no end tag: a sibling's, or the parent's end."""
    ended_by = _ENDED_BY.get(opened[0])
    if ended_by is None or piece.kind == "text" or piece.name == _COMMENT:
        return False
    if piece.kind == "close":
        return not (piece.name in opened or piece.name == "p" or _INLINE.fullmatch(piece.name))
    return ended_by.fullmatch(piece.name) is not None and all(map(_ENDED_BY.get, opened))


def _entries(text: str, run: list[_Piece]) -> Iterator[Entry]:
    """Yield the entry of inline pieces, if there are any; whitespace around it is not in it."""
    if run:
        content = text[run[0].start : run[-1].end]
        start = run[0].start + len(content) - len(content.lstrip())
        end = start + len(content.strip())
        segment = Segment.of(
            _token(piece, text[max(piece.start, start) : min(piece.end, end)]) for piece in run
        )
        yield Entry((start, end), (start, end), segment, encode_markup)


def _token(piece: _Piece, raw: str) -> Token:
    if piece.kind == "text":
        return Token("text", unescape(raw))
    return Token("point" if piece.kind == "kept" else piece.kind, raw, piece.name)
