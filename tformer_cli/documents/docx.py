"""Word documents: the paragraphs of a .docx file, its tables, headers, footers and notes."""

import io
import lzma
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from tformer_cli.documents.segment import Content, Entry, Segment, Tag, Token
from tformer_cli.documents.xml import Element, escaped, parse, text_tokens
from tformer_cli.errors import DataError

# Parts of the file that have text of the document, and the maximum size of one, in bytes.
TEXT_PARTS = re.compile(r"word/(?:document\d*|header\d*|footer\d*|footnotes|endnotes)\.xml")
MAX_PART_SIZE = 1 << 28
# What may be around the runs of a paragraph.
_CONTAINERS = {
    *("w:bdo", "w:customXml", "w:dir", "w:fldSimple", "w:hyperlink", "w:ins", "w:moveTo"),
    *("w:sdtContent", "w:smartTag"),
}
# Properties, which what opens has in itself, marks of a spelling checker and of pages, and where a
# word may be divided.
_DROPPED = {
    *("w:rPr", "w:customXmlPr", "w:smartTagPr"),
    *("w:proofErr", "w:lastRenderedPageBreak", "w:softHyphen"),
}
# What separates words without being text.
_SPACES = {"w:tab", "w:ptab", "w:br", "w:cr"}
_FIELD_MARK = re.compile(r"<w:fldChar\b[^<>]*\bw:fldCharType=[\"'](begin|separate|end)")
PARAGRAPH_END = r"</w:p>|<w:p(?:\s[^<>]*)?/>"  # also that of one without content
# What an archive raises that is damaged, in any compression, or has a password.
_UNREADABLE = (
    *(zipfile.BadZipFile, EOFError, OSError, RuntimeError, ValueError),
    *(lzma.LZMAError, zlib.error),
)
_RUN, _RUN_END = "<w:r>", "</w:r>"


def read_parts(content: bytes, name: str) -> dict[str, str]:
    """Return the text of the parts of a .docx file by their names.

    Raises:
        DataError: it is no .docx file, or a part is too large or not UTF-8.
    """
    try:
        parts = {}
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            # All parts are read: a damaged one is found before anything is translated.
            for info in archive.infolist():
                if info.file_size > MAX_PART_SIZE:
                    what = f"must be at most {MAX_PART_SIZE >> 20} MiB large"
                    raise DataError(f"{name}/{info.filename}", what, got=f"{info.file_size:,}")
                part = archive.read(info)
                if TEXT_PARTS.fullmatch(info.filename):
                    parts[info.filename] = part.decode()
        return parts
    except UnicodeDecodeError:
        raise DataError(name, "must be UTF-8", remedy="convert the document") from None
    except _UNREADABLE as error:
        raise DataError(name, "cannot be read as a document", got=str(error)) from None


def write_parts(content: bytes, parts: Mapping[str, str]) -> bytes:
    """Return a .docx file with other parts; all else in it stays."""
    output = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(output, "w") as new:
        new.comment = old.comment
        for info in old.infolist():
            text = parts.get(info.filename)
            new.writestr(info, old.read(info) if text is None else text.encode())
    return output.getvalue()


def docx_entries(content: Content) -> Iterator[Entry]:
    """Yield the text of each paragraph of a part, with its formats as inline tags.

    A paragraph with a text box is what stands before it, the paragraphs in it, and the rest.

    Raises:
        DataError: the part is not XML.
    """
    entries = [
        _entry(content.text, elements)
        for paragraph in parse(content).iter()
        if paragraph.name == "w:p"
        for elements in _between_paragraphs(paragraph)
    ]
    yield from sorted(entries, key=lambda entry: entry.source)


def _between_paragraphs(paragraph: Element) -> Iterator[list[Element]]:
    """Yield the elements of a paragraph between those that have paragraphs in them."""
    elements: list[Element] = []
    for child in paragraph.children:
        if child.name != "w:pPr" and all(inner.name != "w:p" for inner in child.iter()):
            elements.append(child)
        elif elements:
            yield elements
            elements = []
    yield from [elements] if elements else []


def _entry(text: str, elements: list[Element]) -> Entry:
    """Return the entry of some elements of a paragraph; its main format is no tag."""
    lengths = Counter[str]()
    for run in (element for element in elements if element.name == "w:r"):
        lengths[_format(text, run)] += len(_text(text, run))
    main = max(lengths, key=lambda key: lengths[key], default=_RUN)
    tokens = _with_fields(_joined(_tokens(text, elements, main)))
    span = elements[0].start, elements[-1].end
    return Entry(span, span, Segment.of(tokens), partial(_encode, main))


def _format(text: str, run: Element) -> str:
    """Return how a run of the same format begins."""
    properties = run.first("w:rPr")
    return _RUN + ("" if properties is None else text[properties.start : properties.end])


def _text(text: str, element: Element) -> str:
    raws = (
        text[child.content_start : child.content_end]
        for child in element.children
        if child.name == "w:t"
    )
    return "".join(token.text for raw in raws for token in text_tokens(raw) if token.kind == "text")


def _tokens(text: str, elements: list[Element], main: str) -> Iterator[Token]:
    """Yield the tokens of elements; runs of the main format have no tags."""
    for element in elements:
        inner = element.first("w:sdtContent") or element
        if element.name == "w:r":
            yield from _run_tokens(text, element, main)
        elif inner.name in _CONTAINERS:
            properties = inner.first(f"{inner.name}Pr")
            start = properties.end if properties else inner.content_start
            yield Token("open", text[element.start : start], element.name)
            yield from _tokens(text, inner.children, "")
            yield Token("close", text[inner.content_end : element.end], element.name)
        elif element.name not in _DROPPED:
            yield Token("point", text[element.start : element.end])


def _run_tokens(text: str, run: Element, main: str) -> Iterator[Token]:
    """Yield the tokens of a run, in which all that is no text becomes a run of its own."""
    format = _format(text, run)
    has_tag = format != main and _text(text, run) != ""
    if has_tag:
        yield Token("open", format, "w:r")
    for child in run.children:
        if child.name == "w:t":
            yield from text_tokens(text[child.content_start : child.content_end])
        elif child.name == "w:noBreakHyphen":
            yield Token("text", "-")
        elif child.name not in _DROPPED:
            if child.name in _SPACES:
                yield Token("text", " ")
            yield Token("point", f"{format}{text[child.start : child.end]}{_RUN_END}")
    if has_tag:
        yield Token("close", _RUN_END, "w:r")


def _joined(tokens: Iterable[Token]) -> Iterator[Token]:
    """Yield tokens with one tag around consecutive runs of the same format."""
    end, format = None, ""
    for token in tokens:
        if end is not None and token.text == format:
            end = None
            continue
        yield from [end] if end is not None else []
        end = token if token.text == _RUN_END else None
        if end is None:
            format = token.text if token.name == "w:r" else format
            yield token
    yield from [end] if end is not None else []


def _with_fields(tokens: Iterable[Token]) -> Iterator[Token]:
    """Yield tokens with a pair of tags around the result of a field, such as a page number.

    Only marks within the same element are a pair, so tags never cross.
    """
    begun, opened = "", list[int]()
    for index, token in enumerate(tokens):
        mark = _FIELD_MARK.search(token.text) if token.kind == "point" else None
        kind = mark[1] if mark else ""
        if kind == "begin" or (begun and token.kind == "point" and kind == ""):
            begun += token.text
        elif kind == "end" and not begun:
            yield Token("close", token.text, f"field {opened[-1:]}")
        elif kind:
            has_result = begun and kind == "separate"
            name = f"field {opened[-1:]}"
            yield Token("open" if has_result else "point", begun + token.text, name)
            begun = ""
        else:
            yield from [Token("point", begun)] if begun else []
            begun = ""
            if token.kind == "open":
                opened.append(index)
            elif token.kind == "close":
                opened.pop()
            yield token
    yield from [Token("point", begun)] if begun else []


def _encode(main: str, segment: Segment) -> str:
    """Return a segment as runs; text outside of all runs has the main format.

    Marks of fields that are no pair keep their order, wherever their positions are.
    """
    marks = iter([tag.opening for tag in segment.tags if _is_unpaired_mark(tag)])
    tags = [tag._replace(opening="") if _is_unpaired_mark(tag) else tag for tag in segment.tags]
    formats, parts = [main], list[str]()
    for token in segment._replace(tags=tuple(tags)).tokens():
        if token.kind == "text":
            text = escaped(token.text)
            parts.append(f'{formats[-1]}<w:t xml:space="preserve">{text}</w:t>{_RUN_END}')
        elif token.text == _RUN_END:
            formats.pop()
        elif token.text.startswith(_RUN) and _RUN_END not in token.text:
            formats.append(token.text)
        else:
            is_mark = token.kind == "open" and not token.text
            parts.append(next(marks) if is_mark else token.text)
    return "".join(parts)


def _is_unpaired_mark(tag: Tag) -> bool:
    marks = _FIELD_MARK.findall(tag.opening)
    is_whole = (marks[:1], marks[-1:]) == (["begin"], ["end"])
    return not tag.closing and bool(marks) and not is_whole
