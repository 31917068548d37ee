"""Translation of a document: sentence by sentence, with inline tags carried by word alignment."""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Unpack

from tformer_cli.config.schema.text import Direction, PairsFile
from tformer_cli.corpus.prefetch import chunks
from tformer_cli.corpus.records import declared_languages
from tformer_cli.documents.carry import Alignment, carry_tags
from tformer_cli.documents.document import Document, check_same_kind, read_document
from tformer_cli.documents.segment import Offsets, Segment
from tformer_cli.errors import Problem
from tformer_cli.search.engine import OnWarning
from tformer_cli.storage.atomic import open_atomic
from tformer_cli.text.language import base_language, language_tag
from tformer_cli.text.segments import sentence_ends, text_spans
from tformer_cli.text.spans import OPAQUE, KeptSpans, Span
from tformer_cli.translate.options import TranslateOptions
from tformer_cli.translate.postprocess import Translation
from tformer_cli.translate.preprocess import InputLine
from tformer_cli.translate.translator import WINDOW_LINES, Translator

# Spans that stay as they are, by the kind of document, whatever the options say. A program breaks
# where it formats a message that lacks a placeholder.
KEPT_BY_ENDING: dict[str, tuple[str, ...]] = {".po": ("placeholders",)}


class DocumentReport(NamedTuple):
    """What a document had: its extension, and counts."""

    kind: str
    segments: int  # that have letters
    sentences: int
    tags: int  # inline
    lost_tags: int  # whose words have no translation


def translate_document(
    translator: Translator,
    path: Path,
    output: Path,
    *,
    field: str | None = None,
    on_start: Callable[[int], object] = lambda count: None,
    **options: Unpack[TranslateOptions],
) -> DocumentReport:
    """Write a document with the translations of its segments, and return what it had.

    Args:
        translator: what translates the sentences; without alignments, inline tags are put by
            their position.
        path: the document, plain or `.gz`; its extension is one of `PARSERS`.
        output: the same kind of file, which appears whole; it may be `path`.
        field: key of the text in each object of a `.jsonl` file; None for `text`.
        on_start: called with the number of sentences.
        options: those of `TranslateOptions`.

    Raises:
        TformerError: the document cannot be read, translated or written.
    """
    check_same_kind(path, output)
    source_language, target_language = translator.direction.languages
    document = read_document(
        path,
        field=field,
        source_language=language_tag(source_language),
        target_language=language_tag(target_language),
    )
    on_warning: OnWarning = options.get("on_warning", lambda problem: None)
    num_tags = sum(len(segment.tags) for segment in document.segments)
    if num_tags and translator.load_aligner is None:
        what = "has inline tags that are put by position: this model aligns no words"
        on_warning(Problem(str(path), what))
    if document.kind in (".xlf", ".xliff"):
        _warn_of_languages(path, (source_language, target_language), on_warning)
    if not document.segments:
        on_warning(Problem(str(path), "has no text to translate"))
    sentences = [sentence_spans(segment.text) for segment in document.segments]
    num_sentences = sum(map(len, sentences))
    on_start(num_sentences)
    options["keep"] = (*KEPT_BY_ENDING.get(document.kind, ()), *options.get("keep", ()))
    lost = list[Problem]()
    # The output is opened first: what cannot be written is not translated.
    with open_atomic(output) as file:
        options["scored"] = False
        options["aligned"] = num_tags > 0 and translator.load_aligner is not None
        file.write(document.translated(_translate(translator, document, sentences, lost, options)))
    for problem in lost:
        on_warning(problem)
    kind = document.kind.removeprefix(".")
    return DocumentReport(kind, len(document.segments), num_sentences, num_tags, len(lost))


def _warn_of_languages(path: Path, languages: Direction, on_warning: OnWarning) -> None:
    """Warn of an XLIFF file that names other languages than those of the model.

    Those of a memory choose its units; in an XLIFF file all units are of the same two.
    """
    declared = declared_languages(PairsFile(pairs=path))
    pairs = list(zip(map(base_language, declared), map(base_language, languages), strict=False))
    # The code of a model may have three letters where that of the file has two.
    if any(len(own) == len(other) and own != other for own, other in pairs):
        got = f"{' to '.join(declared)}, and the model {' to '.join(languages)}"
        on_warning(Problem(str(path), "is of other languages than the model", got))


def _translate(
    translator: Translator,
    document: Document,
    sentences: Sequence[Sequence[Offsets]],
    lost: list[Problem],
    options: TranslateOptions,
) -> list[Segment]:
    """Return the translation of each segment; add the tags that are not carried to `lost`."""
    segments = list(zip(document.segments, sentences, document.where, strict=True))
    lines = (
        InputLine(segment.text[start:end], where=where)
        for segment, spans, where in segments
        for start, end in spans
    )
    windows = translator.translate_windows(
        chunks(lines, WINDOW_LINES), 1, has_phrases=False, **options
    )
    translations = (line.translations[0] for window in windows for line in window)
    separator = translator.postprocessor.separator
    kept = KeptSpans.of([*options.get("keep", ()), *OPAQUE])
    translated = []
    for segment, spans, where in segments:
        parts = [next(translations) for _ in spans]
        carried, tags = carry_tags(segment, *joined(segment.text, spans, parts, separator, kept))
        what = "has an inline tag around words without a translation"
        lost += [Problem(where, what, tag.opening) for tag in tags]
        translated.append(carried)
    return translated


def sentence_spans(text: str) -> list[Offsets]:
    """Return the characters of each sentence of a text, none of which goes over a line."""
    spans = []
    for line in re.finditer(r"[^\n]+", text):
        for start, end in pairwise([0, *sentence_ends(line[0])]):
            sentence = line[0][start:end]
            if sentence.strip():
                first = line.start() + start + len(sentence) - len(sentence.lstrip())
                spans.append((first, first + len(sentence.strip())))
    return spans


def joined(
    text: str,
    spans: Sequence[Offsets],
    translations: Sequence[Translation],
    separator: str,
    kept: KeptSpans,
) -> tuple[str, Alignment]:
    """Return the translation of a text of several sentences, and the alignment of its words.

    The whitespace around the text, and around its lines, stays; other sentences have the separator
    of the target language between them.
    """
    result, position = "", 0
    source, target = list[Offsets](), list[Offsets]()
    links = list[tuple[int, int]]()
    for (start, end), translation in zip(spans, translations, strict=True):
        gap = text[position:start]
        result += gap if not position or "\n" in gap else separator
        words, new_words, pairs = _aligned_words(text[start:end], translation, kept)
        links += [(len(source) + i, len(target) + j) for i, j in pairs]
        source += [(start + first, start + last) for first, last in words]
        target += [(len(result) + first, len(result) + last) for first, last in new_words]
        result += translation.text
        position = end
    result += text[position:]
    whole = [(span.start, span.end) for span in kept.find(result)]
    return result, Alignment(source, target, links, whole)


def _aligned_words(
    sentence: str, translation: Translation, kept: KeptSpans
) -> tuple[Sequence[Offsets], Sequence[Offsets], Sequence[tuple[int, int]]]:
    """Return the words of a sentence and of its translation, and their pairs.

    Without alignments, words at the same share of the sentence are pairs. A repaired translation
    may be aligned without its kept spans: each that both sides have is a pair of words.
    """
    if translation.alignments is None:
        source, target = (
            [word.span() for word in re.finditer(r"\S+", text)]
            for text in (sentence, translation.text)
        )
        return source, target, [(j * len(source) // len(target), j) for j in range(len(target))]
    pairs = kept.pairs(sentence, translation.text) if translation.repair else []
    source = _spans(sentence, translation.source_words or (), [one for one, _ in pairs])
    target = _spans(translation.text, translation.words or (), [other for _, other in pairs])
    first, other = len(source) - len(pairs), len(target) - len(pairs)
    links = [*translation.alignments, *((first + i, other + i) for i in range(len(pairs)))]
    source_order, target_order = _order(source), _order(target)
    return (
        sorted(source),
        sorted(target),
        [(source_order[one], target_order[two]) for one, two in links],
    )


def _spans(text: str, words: Sequence[str], kept: Sequence[Span]) -> list[Offsets]:
    """Return the characters of each word outside of kept spans, and then those of the spans.

    A word that is not found has none, behind the word before. One around a span ends before it.
    """
    outside = text
    for span in kept:
        outside = outside[: span.start] + " " * len(span.text) + outside[span.end :]
    spans = [(0, 0)]
    for start, end in text_spans(outside, words):
        last = min((span.start for span in kept if start < span.start < end), default=end)
        spans.append((start, last) if end else (spans[-1][1],) * 2)
    return [*spans[1:], *((span.start, span.end) for span in kept)]


def _order(words: Sequence[Offsets]) -> list[int]:
    """Return the index of each word in their order in the text."""
    order = sorted(range(len(words)), key=words.__getitem__)
    return sorted(range(len(words)), key=order.__getitem__)
