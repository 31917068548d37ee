"""Message catalogs of gettext: what has no translation yet gets one."""

import re
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from tformer_cli.documents.segment import Content, Entry, Offsets, Segment
from tformer_cli.errors import DataError

_STRING = re.compile(r'[ \t]*"((?:[^"\\\n]|\\.)*)"[ \t]*\r?')
_KEYWORD = re.compile(r"[ \t]*(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)(?=[ \t\"])")
_CHARSET = re.compile(r"charset=([\w-]+)")
# The header of a language without a singular, such as Chinese.
_ONE_FORM = re.compile(r"\bnplurals\s*=\s*1\b")
# Characters of an escape, or the bytes of several in octal or hexadecimal digits.
_ESCAPE = re.compile(r"((?:\\(?:[0-7]{1,3}|x[0-9A-Fa-f]+))+)|\\(.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPED = str.maketrans(
    {
        character: rf"\{letter}"
        for letter, character in [*_ESCAPES.items(), ('"', '"'), ("\\", "\\")]
    }
)


class _Text(NamedTuple):
    keyword: str
    text: str
    span: Offsets  # of its strings


def po_entries(content: Content) -> Iterator[Entry]:
    """Yield each `msgid` whose `msgstr` is empty; plural forms have the translation of the plural.

    The first of several forms is that of the singular.

    Raises:
        DataError: a line is no message, or the catalog is not UTF-8.
    """
    encode = partial(_encode, "\r\n" if "\r\n" in content.text else "\n")
    singular = plural = None
    of_singular = "msgstr[0]"
    for part in _texts(content):
        if part.keyword == "msgid":
            singular, plural = part, None
        elif part.keyword == "msgid_plural":
            plural = part
        elif part.keyword.startswith("msgstr") and singular is not None:
            if not singular.text:
                _check_charset(content, part)
                of_singular = "" if _ONE_FORM.search(part.text) else of_singular
            source = singular if plural is None or part.keyword == of_singular else plural
            if not part.text:
                yield Entry(source.span, part.span, Segment(source.text), encode)


def _texts(content: Content) -> Iterator[_Text]:
    """Yield each keyword with its text, which may go over several lines."""
    keyword, parts, span, position = "", list[str](), (0, 0), 0
    for number, line in enumerate(content.text.split("\n"), start=1):
        match = _KEYWORD.match(line)
        if match:
            yield from [_Text(keyword, "".join(parts), span)] if keyword else []
            keyword, parts = match[1], []
            span = (position + match.end(),) * 2
        start = match.end() if match else 0
        string = _STRING.fullmatch(line, start)
        if string and keyword:
            parts.append(_unescaped(string[1], f"{content.name}:{number}"))
            first = span[0] if len(parts) > 1 else position + string.start(1) - 1
            span = first, position + string.end(1) + 1
        elif match or (line.strip(" \t\r") and not line.lstrip(" \t").startswith("#")):
            raise DataError(f"{content.name}:{number}", "must be a message of gettext")
        position += len(line) + 1
    yield from [_Text(keyword, "".join(parts), span)] if keyword else []


def _check_charset(content: Content, header: _Text) -> None:
    charset = _CHARSET.search(header.text)
    if charset and charset[1].lower() not in ("utf-8", "us-ascii", "charset"):
        got, remedy = charset[1], "convert the document"
        raise DataError(content.where(header.span[0]), "must be UTF-8", got=got, remedy=remedy)


def _unescaped(text: str, where: str) -> str:
    try:
        return _ESCAPE.sub(_character, text)
    except UnicodeDecodeError:
        raise DataError(where, "must be UTF-8", remedy="convert the document") from None


def _character(escape: re.Match[str]) -> str:
    """Return what an escape stands for; of a number, gettext takes the last eight bits."""
    if escape[2]:
        return _ESCAPES.get(escape[2], escape[2])
    numbers = re.findall(r"(x?)(\w+)", escape[1])
    return bytes(int(digits, 16 if x else 8) & 0xFF for x, digits in numbers).decode()


def _encode(newline: str, segment: Segment) -> str:
    """Return a text as strings, one for each of its lines."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", segment.text) or [""]
    strings = [f'"{line.translate(_ESCAPED)}"' for line in lines]
    return newline.join(['""', *strings] if len(strings) > 1 else strings)
