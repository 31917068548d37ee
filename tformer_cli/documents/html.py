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
_CHARSET = re.compile(r"<meta\b[^<>]*\bcharset\s*=\s*[\"']?([\w-]+)", re.IGNORECASE)


Kind = Literal["text", "open", "close", "point", "kept"]


class _Piece(NamedTuple):
    """Text, a tag, a comment or a tag without an end (`point`), or an element kept as it is."""

    kind: Kind
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
        ends = [piece.start for piece in self._begun[1:]] + [len(self.text)]
        begun = iter(zip(self._begun, ends, strict=False))
        for piece, end in begun:
            depth = int(piece.kind == "kept")
            while depth and (inner := next(begun, None)):
                if inner[0].name == piece.name:
                    depth += {"open": 1, "kept": 1, "close": -1}.get(inner[0].kind, 0)
                end = inner[1]
            yield piece._replace(end=end)

    def _begin(self, kind: Kind, name: str = "") -> None:
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
