"""SubRip subtitles: numbered cues of a time and some lines of text."""

import re
from collections.abc import Iterator

from tformer_cli.documents.segment import Content, Entry, Offsets, Segment, Token

# More than these would be captions without punctuation, not a sentence.
MAX_CUES_OF_SENTENCE = 4
# Programs also write times without hours or milliseconds, and leave the number out.
_NUMBER = r"\ufeff?[ \t]*\d+[ \t]*\r?\n(?:[ \t]*\r?\n)?"
_TIME = r"-?\d+(?:[ \t]*:[ \t]*-?\d+){1,3}(?:[,.;]\d*)?"
_TIMES = rf"\ufeff?[ \t]*{_TIME}[ \t]*--+[ \t]*>[ \t]*{_TIME}[^\r\n]*(?:\r?\n|\Z)"
_HEADER = re.compile(rf"^(?:{_NUMBER})?{_TIMES}", re.MULTILINE)
# Headers between cues, tags of style, as `<i>` and `{\an8}`, and line breaks.
_MARKUP = re.compile(
    rf"(?<!\s)(?:(?P<header>\s*{_HEADER.pattern}\s*)|\s*?(?P<line>\r?\n)\s*)|(?P<override>\{{\\[^{{}}]*\}})|"
    r"<(?P<slash>/?)(?P<name>[bius]|font)\b[^<>]*>",
    re.MULTILINE | re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?…:][\"'”’»)]*(?:<[^<>]*>)*$")


def srt_entries(content: Content) -> Iterator[Entry]:
    """Yield the text of each cue, without the whitespace around it.

    A cue ends where the next one begins, so an empty line within it belongs to its text. A cue that
    begins with a lowercase letter, and the cue before it that ends no sentence, are one segment, in
    which the header is inline markup. What is before the first cue stays as it is.
    """
    spans, num_joined, before = list[Offsets](), 1, ""
    for start, end in _cue_spans(content.text):
        cue = content.text[start:end]
        if num_joined < MAX_CUES_OF_SENTENCE and _continues(before, cue):
            spans[-1] = spans[-1][0], end
            num_joined += 1
        else:
            spans.append((start, end))
            num_joined = 1
        before = cue
    for span in spans:
        yield Entry(span, span, Segment.of(_tokens(content.text[slice(*span)])), _encode)


def _cue_spans(text: str) -> Iterator[Offsets]:
    headers = list(_HEADER.finditer(text))
    ends = [header.start() for header in headers[1:]] + [len(text)]
    for header, end in zip(headers, ends, strict=False):
        cue = text[header.end() : end]
        start = header.end() + len(cue) - len(cue.lstrip())
        yield start, max(start, header.end() + len(cue.rstrip()))


def _continues(before: str, cue: str) -> bool:
    return before != "" and cue[:1].islower() and not _SENTENCE_END.search(before)


def _tokens(cues: str) -> Iterator[Token]:
    """Yield the tokens of one or more cues."""
    position = 0
    for match in _MARKUP.finditer(cues):
        yield Token("text", cues[position : match.start()])
        position = match.end()
        if match["name"]:
            name = match["name"].lower()
            yield Token("close" if match["slash"] else "open", match[0], name)
        elif match["override"]:
            yield Token("point", match[0])
        else:
            yield Token("text", " ")
            yield Token("break", match[0]) if match["header"] else Token("point", match["line"])
    yield Token("text", cues[position:])


def _encode(segment: Segment) -> str:
    """Return the text of one or more cues."""
    parts, cue = list[str](), ""
    for token in segment.tokens():
        if token.kind == "text":
            cue += re.sub(r"\s", " ", token.text)
        elif _HEADER.search(token.text):
            parts += [_without_empty_lines(cue), token.text]
            cue = ""
        else:
            cue += token.text
    return "".join([*parts, _without_empty_lines(cue)])


def _without_empty_lines(cue: str) -> str:
    return re.sub(r"(?<!\s)\s*?(\r?\n)\s*", r"\1", cue.strip())
