"""Translation units of TMX and XLIFF: what has no translation yet gets one."""

from collections.abc import Iterator
from functools import partial
from xml.sax.saxutils import quoteattr

from tformer_cli.documents.segment import (
    Content,
    Entry,
    Insertion,
    Offsets,
    Segment,
    TextKind,
    Token,
)
from tformer_cli.documents.xml import Element, encode_markup, parse, text_tokens
from tformer_cli.text.language import language_tag

# Attributes with the languages of sources and targets: of XLIFF 1.2, and of XLIFF 2.
_LANGUAGE_KEYS = (("source-language", "target-language"), ("srcLang", "trgLang"))
# Inline elements around text, and those that begin and end what others are around.
_AROUND = {"g", "hi", "mrk", "pc"}
_BEGINS, _ENDS = {"bpt", "bx", "sc", "sm"}, {"ept", "ex", "ec", "em"}


def tmx_entries(content: Content) -> Iterator[Entry]:
    """Yield the source of each unit of a memory whose target is missing or empty.

    Raises:
        DataError: the memory is not XML.
    """
    for unit in parse(content).iter():
        if unit.name != "tu":
            continue
        languages = content.source_language, content.target_language
        variant, translated = _variants(unit, languages)
        source = variant and variant.first("seg")
        if variant and source and translated is None:
            opening = f"<tuv xml:lang={quoteattr(content.target_language)}><seg>"
            yield _entry(content, source, (variant.end, variant.end), opening, "</seg></tuv>")
        elif source and translated and (target := translated.first("seg")):
            yield from _empty(content, source, target)


def xliff_entries(content: Content) -> Iterator[Entry | Insertion]:
    """Yield the source of each unit, of XLIFF 1.2 or 2, whose target is missing or empty.

    A file that names the language of its sources alone gets that of the targets, which XLIFF 2
    demands of it.

    Raises:
        DataError: the file is not XML.
    """
    root = parse(content)
    prefix = _prefix(root)
    yield from _target_languages(root, content.target_language)
    for unit in _translatable(root):
        source, target = (unit.first(f"{prefix}{name}") for name in ("source", "target"))
        if unit.name not in (f"{prefix}trans-unit", f"{prefix}segment") or not source:
            continue
        if target:
            yield from _empty(content, source, target)
        else:
            end = (unit.first(f"{prefix}seg-source") or source).end
            has_own = source.preserves and "xml:space" in source.attributes
            space = ' xml:space="preserve"' if has_own else ""
            opening = f"<{prefix}target{space}>"
            yield _entry(content, source, (end, end), opening, f"</{prefix}target>")


def _target_languages(root: Element, language: str) -> Iterator[Insertion]:
    """Yield the language of the targets for each element that names that of its sources alone."""
    for element in root.iter():
        is_empty = element.content_start == element.end
        for source, target in _LANGUAGE_KEYS:
            if source in element.attributes and target not in element.attributes and not is_empty:
                yield Insertion(element.content_start - 1, f" {target}={quoteattr(language)}")


def _prefix(element: Element) -> str:
    """Return the prefix of a name with its colon, or nothing."""
    return element.name[: element.name.find(":") + 1]


def _translatable(element: Element, is_translatable: bool = True) -> Iterator[Element]:
    """Yield an element and those within it; `translate` counts until one of them has another."""
    translate = element.attributes.get("translate")
    is_translatable = translate != "no" and (is_translatable or translate == "yes")
    if is_translatable:
        yield element
    for child in element.children:
        yield from _translatable(child, is_translatable)


def _variants(unit: Element, languages: tuple[str, str]) -> list[Element | None]:
    """Return the variant of each language, or else of a region of it, or of what it is a region of.

    Of `pt` and `pt-BR`, that of one is not that of the other.
    """
    variants: dict[str, Element] = {}
    for variant in unit.children:
        if variant.name == "tuv":
            language = variant.attributes.get("xml:lang") or variant.attributes.get("lang") or ""
            variants.setdefault(language_tag(language), variant)
    wanted = list(map(language_tag, languages))
    chosen = [variants.get(code) for code in wanted]
    for side, code in enumerate(wanted):
        if chosen[side] is None:
            relatives = (
                variant
                for own, variant in variants.items()
                if own and (own.startswith(f"{code}-") or code.startswith(f"{own}-"))
            )
            chosen[side] = next((each for each in relatives if each not in chosen), None)
    return chosen


def _empty(content: Content, source: Element, target: Element) -> Iterator[Entry]:
    """Yield the entry of a unit if its target is empty."""
    text = content.text
    if target.content_start == target.end:
        opening = text[target.start : target.end - 2].rstrip() + ">"
        yield _entry(content, source, (target.start, target.end), opening, f"</{target.name}>")
    elif not text[target.content_start : target.content_end].strip():
        yield _entry(content, source, (target.content_start, target.content_end), "", "")


def _entry(content: Content, source: Element, target: Offsets, opening: str, closing: str) -> Entry:
    segment = Segment.of(_tokens(content.text, source))
    span = source.content_start, source.content_end
    return Entry(span, target, segment, partial(_encode, opening, closing))


def _encode(opening: str, closing: str, segment: Segment) -> str:
    return opening + encode_markup(segment) + closing


def _tokens(text: str, element: Element) -> Iterator[Token]:
    """Yield the text and the inline elements of an element."""
    position = element.content_start
    kind: TextKind = "verbatim" if element.preserves else "text"
    children = iter(element.children)
    for child in children:
        yield from text_tokens(text[position : child.start], kind)
        position = child.end
        raw, attributes = text[child.start : child.end], child.attributes
        keys = ("startRef", "i", "rid", "id")
        # What begins in an element must end in it.
        pair = f"{element.start} {next((attributes[key] for key in keys if key in attributes), '')}"
        name = child.name.removeprefix(_prefix(element))
        if name == "mrk" and _is_protected(child):
            yield Token("point", raw)
        elif name == "sm" and _is_protected(child):
            # To the end of the mark, or of the element if that comes first.
            ends = (end.end for end in children if _ends(end, child))
            position = next(ends, element.content_end)
            yield Token("point", text[child.start : position])
        elif name in _AROUND:
            yield Token("open", text[child.start : child.content_start], child.name)
            yield from _tokens(text, child)
            yield Token("close", text[child.content_end : child.end], child.name)
        elif name in _BEGINS:
            yield Token("open", raw, pair)
        elif name in _ENDS:
            yield Token("close", raw, pair)
        else:
            yield Token("point", raw)
    yield from text_tokens(text[position : element.content_end], kind)


def _ends(end: Element, mark: Element) -> bool:
    is_end = end.name.removeprefix(_prefix(end)) == "em"
    return is_end and end.attributes.get("startRef") == mark.attributes.get("id")


def _is_protected(mark: Element) -> bool:
    return mark.attributes.get("translate") == "no" or mark.attributes.get("mtype") == "protected"
