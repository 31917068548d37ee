"""Segments of several sentences are translated by sentences, and none is lost."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.documents.carry import carry_tags
from tformer_cli.documents.segment import Segment, Tag
from tformer_cli.errors import DataError
from tformer_cli.text.spans import KeptSpans
from tformer_cli.translate.documents import joined, sentence_spans, translate_document
from tformer_cli.translate.postprocess import Translation
from tformer_cli.translate.translator import TranslatedLine

NOTHING = KeptSpans.of([])
# Longer than any gap between words that a tokenizer has changed.
ADDRESS = "http://www.example.org/a/page"


def translation(text, source, links=None):
    words = (tuple(source.split()), tuple(text.split())) if links is not None else (None, None)
    return Translation(
        text, (), 0.0, 0.0, finished=True, source_words=words[0], words=words[1], alignments=links
    )


class Shouting:
    """Translates by capital letters, word by word, and remembers the sentences."""

    direction = SimpleNamespace(languages=("en", "de"))
    postprocessor = SimpleNamespace(separator=" ")

    def __init__(self, *, has_aligner=True):
        self.load_aligner = object if has_aligner else None
        self.seen = []

    def translate_windows(self, windows, count, *, has_phrases, aligned, **options):
        for window in windows:
            self.seen += [(line.where, line.text) for line in window]
            yield [TranslatedLine(1, line.text, [self._one(line.text, aligned)]) for line in window]

    def _one(self, text, aligned):
        if "fail" in text:
            raise DataError("line", "fails")
        links = tuple((i, i) for i, _ in enumerate(text.split())) if aligned else None
        return translation(text.upper(), text, links)


@pytest.fixture
def film(tmp_path):
    path = tmp_path / "film.srt"
    path.write_text("1\n00:00:01,000 --> 00:00:02,500\nOne <i>two</i>.\nThree!\n", encoding="utf-8")
    return path


def test_sentences_are_translated_one_by_one(film):
    translator, output = Shouting(), film.with_name("out.srt")
    totals = []
    report = translate_document(translator, film, output, on_start=totals.append)
    assert translator.seen == [(f"{film}:3", "One two."), (f"{film}:3", "Three!")]
    assert output.read_text(encoding="utf-8").endswith("\nONE <i>TWO</i>.\nTHREE!\n")
    assert (report, totals) == (("srt", 1, 2, 2, 0), [2])


def test_without_an_aligner_tags_are_put_by_position(film):
    warnings, output = [], film.with_name("out.srt")
    translate_document(Shouting(has_aligner=False), film, output, on_warning=warnings.append)
    assert output.read_text(encoding="utf-8").endswith("\nONE <i>TWO</i>.\nTHREE!\n")
    (warning,) = warnings
    assert str(warning) == (
        f"{film}: has inline tags that are put by position: this model aligns no words"
    )


def test_a_tag_that_is_not_carried_is_named(film):
    class Dropping(Shouting):
        def _one(self, text, aligned):
            return translation("x", text, ((0, 0),))

    warnings = []
    report = translate_document(
        Dropping(), film, film.with_name("out.srt"), on_warning=warnings.append
    )
    what = "has an inline tag around words without a translation"
    assert [str(warning) for warning in warnings] == [f"{film}:3: {what} (<i>)"]
    assert report.lost_tags == 1


def test_nothing_is_written_if_a_translation_fails(film):
    output = film.with_name("out.srt")
    output.write_text("before", encoding="utf-8")
    film.write_text(film.read_text(encoding="utf-8") + "fail", encoding="utf-8")
    with pytest.raises(DataError, match="fails"):
        translate_document(Shouting(), film, output)
    assert output.read_text(encoding="utf-8") == "before"
    assert sorted(film.parent.iterdir()) == [film, output]


def test_a_document_is_written_with_its_translations(tmp_path):
    path, output = tmp_path / "data.jsonl", tmp_path / "out.jsonl"
    path.write_text('{"id": 7, "body": "One. Two."}\n{"body": "", "id": 8}\n', encoding="utf-8")
    report = translate_document(Shouting(), path, output, field="body")
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert rows == [{"id": 7, "body": "ONE. TWO."}, {"body": "", "id": 8}]
    assert report == ("jsonl", 1, 2, 0, 0)


def test_codes_of_a_model_become_the_tags_of_a_memory(tmp_path):
    class OfThreeLetters(Shouting):
        direction = SimpleNamespace(languages=("eng_Latn", "zho_Hant"))

    path, output = tmp_path / "a.tmx", tmp_path / "out.tmx"
    unit = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'
    content = f"<tmx><tu>{unit.format('en', 'a')}{{}}</tu></tmx>"
    path.write_text(content.format(""), encoding="utf-8")
    translate_document(OfThreeLetters(), path, output)
    assert output.read_text(encoding="utf-8") == content.format(unit.format("zh-Hant", "A"))


def test_languages_without_spaces_get_none():
    text = "好。 很好。"
    spans = sentence_spans(text)
    parts = [translation(text[start:end], text[start:end]) for start, end in spans]
    assert joined(text, spans, parts, "", NOTHING)[0] == "好。很好。"


@given(st.text(alphabet="aAb.!? \n\u202b"))
def test_joined_sentences_are_the_text(text):
    spans = sentence_spans(text)
    parts = [translation(text[start:end], text[start:end], ()) for start, end in spans]
    result, alignment = joined(text, spans, parts, " ", NOTHING)
    assert result.split() == text.split()
    assert result.count("\n") == text.count("\n")
    assert [result[slice(*span)] for span in alignment.target] == result.split()


def test_a_tag_over_two_sentences_is_carried():
    segment = Segment("One two. Three four.", (Tag(4, 14, "<b>", "</b>"),))
    spans = sentence_spans(segment.text)
    identity = ((0, 0), (1, 1))
    parts = [translation(text, text, identity) for text in ("One two.", "Three four.")]
    carried, lost = carry_tags(segment, *joined(segment.text, spans, parts, " ", NOTHING))
    assert (carried, lost) == (segment, [])


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("See {a} {b} now.", "JETZT {b} {a} SEE."),
        ("See ({a}) now, {b}", "{a} JETZT () {b}, SEE"),
        ("{a}, {b} now", "JETZT {b}, {a}"),
    ],
)
def test_tags_around_kept_spans_and_behind_them_are_carried(source, target):
    spans = {"a": ADDRESS, "b": "{placeholder_of_a_name}"}
    text, translated = source.format(**spans), target.format(**spans)
    # The model has translated the line without the spans.
    words, source_words = ((each.format(a="", b="")).split() for each in (target, source))
    (now,) = (index for index, word in enumerate(source_words) if word.startswith("now"))
    links = ((now, words.index("JETZT")),)
    part = replace(
        translation(translated, text, links),
        source_words=tuple(source_words),
        words=tuple(words),
        repair="splice",
    )
    tagged = [("<a>", spans["a"]), ("<b>", spans["b"]), ("<i>", "now")]
    tags = [
        Tag(text.index(word), text.index(word) + len(word), opening) for opening, word in tagged
    ]
    segment = Segment(text, tuple(sorted(tags)))
    kept = KeptSpans.of(["addresses", "placeholders"])
    carried, lost = carry_tags(segment, *joined(text, [(0, len(text))], [part], " ", kept))
    around = {tag.opening: carried.text[tag.start : tag.end] for tag in carried.tags}
    assert (around, lost) == ({"<a>": spans["a"], "<b>": spans["b"], "<i>": "JETZT"}, [])


@pytest.mark.parametrize(
    ("source", "target", "links"),
    [
        ("<b>{name} now</b> go.", "JETZT {name}, LOS.", ((0, 1), (1, 0), (2, 2))),
        ("go <b>now {name}</b>", "LOS {name} JETZT", ((0, 0), (1, 2), (2, 1))),
        ("go <b>now</b> on", "LOS {name} ON", ((0, 0), (1, 1), (2, 2))),
    ],
)
def test_no_tag_divides_a_kept_span(source, target, links):
    start, end = source.index("<b>"), source.index("</b>") - len("<b>")
    text = source.replace("<b>", "").replace("</b>", "")
    segment = Segment(text, (Tag(start, end, "<b>", "</b>"),))
    part = translation(target, text, links)
    kept = KeptSpans.of(["placeholders"])
    carried, lost = carry_tags(segment, *joined(text, [(0, len(text))], [part], " ", kept))
    (tag,) = carried.tags
    assert "{name}" in carried.text[tag.start : tag.end]
    # Other punctuation stays outside of a tag that ends with a word.
    assert (carried.text[tag.end : tag.end + 1] == ",", lost) == ("," in target, [])


def test_a_repaired_page_keeps_its_links(tmp_path):
    class Repairing(Shouting):
        def _one(self, text, aligned):
            own = super()._one(text.replace(ADDRESS, ""), aligned)
            return replace(
                own, text=text.upper().replace(ADDRESS.upper(), ADDRESS), repair="splice"
            )

    page = f"<p>one <a href='x'>{ADDRESS}</a> <b>two</b></p>"
    path, output, warnings = tmp_path / "a.html", tmp_path / "b.html", []
    path.write_text(page, encoding="utf-8")
    translate_document(Repairing(), path, output, repair=True, on_warning=warnings.append)
    assert output.read_text(encoding="utf-8") == page.replace("one", "ONE").replace("two", "TWO")
    assert warnings == []
