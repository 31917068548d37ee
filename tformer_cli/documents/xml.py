"""XML: elements with the characters that they span, so that all else keeps its bytes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape, unescape
from xml.parsers import expat

from tformer_cli.documents.segment import Content, Segment, TextKind, Token
from tformer_cli.errors import DataError

MAX_DEPTH = 256
_TAG = re.compile(r"""<(?:[^<>"']|"[^"]*"|'[^']*')*>""")
_NO_TEXT = re.compile(r"(<!--.*?-->|<\?.*?\?>)|<!\[CDATA\[(.*?)\]\]>", re.DOTALL)


@dataclass(slots=True)
class Element:
    """An element and the characters of its tags; `name` and attributes have their prefixes.

    `preserves` is whether whitespace counts: `xml:space` of it, or of an element around it.
    """

    name: str
    attributes: dict[str, str]
    start: int
    content_start: int
    content_end: int = 0
    end: int = 0
    preserves: bool = False
    children: list["Element"] = field(default_factory=list)

    def iter(self) -> Iterator["Element"]:
        """Yield the element and all within it, in the order of the file."""
        waiting = [self]
        while waiting:
            element = waiting.pop()
            yield element
            waiting += reversed(element.children)

    def first(self, name: str) -> "Element | None":
        """Return the first child of a name."""
        return next((child for child in self.children if child.name == name), None)


def parse(content: Content) -> Element:
    """Return the root of a text in XML.

    Raises:
        DataError: it is not XML, not UTF-8, or declares entities or elements.
    """
    return _Builder(content).root


def text_tokens(raw: str, kind: TextKind = "text") -> Iterator[Token]:
    """Yield the text between two tags; comments and instructions are tokens of their own."""
    position = 0
    for match in _NO_TEXT.finditer(raw):
        yield Token(kind, unescape(raw[position : match.start()]))
        yield Token("point", match[1]) if match[1] else Token(kind, match[2])
        position = match.end()
    yield Token(kind, unescape(raw[position:]))


def escaped(text: str) -> str:
    """Return a text for XML, without the characters that XML does not allow."""
    return escape(re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "", text), quote=False)


def encode_markup(segment: Segment) -> str:
    """Return a segment with its tags, as HTML or XML."""
    return segment.markup(escaped)


class _Builder:
    """Builds elements from the events of expat, which counts in bytes."""

    def __init__(self, content: Content) -> None:
        self.content = content
        self.root = Element("", {}, 0, 0)
        self._opened = [self.root]
        self._bytes = content.text.encode()
        self._position = self._byte = 0
        self._parser = parser = expat.ParserCreate("utf-8")
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.XmlDeclHandler = self._declaration
        parser.StartDoctypeDeclHandler = self._doctype
        try:
            parser.Parse(self._bytes, True)
        except expat.ExpatError as error:
            where = content.where(self._offset(parser.ErrorByteIndex))
            raise DataError(where, "is not XML", got=expat.errors.messages[error.code]) from None
        (self.root,) = self.root.children

    def _offset(self, byte: int) -> int:
        """Return the index of the character at a byte, which is not before that of the last."""
        self._position += len(self._bytes[self._byte : byte].decode(errors="ignore"))
        self._byte = byte
        return self._position

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        start = self._offset(self._parser.CurrentByteIndex)
        if len(self._opened) > MAX_DEPTH:
            raise DataError(self.content.where(start), "is nested too deeply")
        tag = _TAG.match(self.content.text, start)
        element = Element(name, attributes, start, tag.end() if tag else start)
        space = attributes.get("xml:space")
        element.preserves = space == "preserve" if space else self._opened[-1].preserves
        self._opened[-1].children.append(element)
        self._opened.append(element)

    def _end(self, name: str) -> None:
        element, text = self._opened.pop(), self.content.text
        if text[element.content_start - 2 : element.content_start] == "/>":
            element.content_end = element.end = element.content_start
        else:
            element.content_end = self._offset(self._parser.CurrentByteIndex)
            element.end = text.index(">", element.content_end) + 1

    def _declaration(self, version: str, encoding: str | None, standalone: int) -> None:
        if (encoding or "utf-8").lower() not in ("utf-8", "utf8", "us-ascii"):
            remedy = "convert the document"
            raise DataError(self.content.where(0), "must be UTF-8", got=encoding, remedy=remedy)

    def _doctype(self, name: str, system: str | None, public: str | None, has_subset: int) -> None:
        if has_subset:
            raise DataError(self.content.where(0), "declares entities or elements of its own")
