"""JSON Lines: an object a line, of which the text under one key is translated."""

import json
import re
from collections.abc import Iterator

from tformer_cli.documents.segment import Content, Entry, Offsets, Segment
from tformer_cli.errors import DataError, has_surrogate

_DECODER = json.JSONDecoder()
_WHITESPACE = re.compile(r"[ \t\r]*")


def jsonl_entries(content: Content) -> Iterator[Entry]:
    """Yield the string under the field on each line that is not empty.

    Raises:
        DataError: a line is no object, or does not have the key exactly once, with text.
    """
    position = 0
    # Only a line feed ends a line: a string may contain U+2028 and its like.
    for number, line in enumerate(content.text.split("\n"), start=1):
        if line.strip():
            where = f"{content.name}:{number}"
            try:
                json.loads(line)
                ((start, end),) = _string_spans(line, content.field)
            except (ValueError, IndexError, RecursionError):
                what = "must be a JSON object with text under the field"
                remedy = "name its key by `field`"
                raise DataError(where, what, got=content.field, remedy=remedy) from None
            segment = Segment(json.loads(line[start:end]))
            if has_surrogate(segment.text):
                what = "has half of a surrogate pair, which is no character"
                raise DataError(where, what)
            span = position + start, position + end
            yield Entry(span, span, segment, _encode)
        position += len(line) + 1


def _encode(segment: Segment) -> str:
    return json.dumps(segment.text, ensure_ascii=False)


def _string_spans(line: str, field: str) -> list[Offsets]:
    """Return the spans of the strings under a key of a valid object; nested ones are others."""
    spans = []
    position = _skip(line, 0)
    if line[position] != "{":
        return []
    while line[position] != "}":
        key, position = _DECODER.raw_decode(line, _skip(line, position + 1))
        start = _skip(line, _skip(line, position) + 1)
        value, end = _DECODER.raw_decode(line, start)
        if key == field and isinstance(value, str):
            spans.append((start, end))
        position = _skip(line, end)
    return spans


def _skip(line: str, position: int) -> int:
    match = _WHITESPACE.match(line, position)
    return match.end() if match else position
