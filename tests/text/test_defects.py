"""Defects of translations against hand-made lines, without and with a reference."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.text.defects import foreign_words, lost_numbers, term_defects, text_defects
from tformer_cli.text.spans import OPAQUE, KeptSpans


def kinds(source, translation, languages=("en", "de"), reference=None):
    return [each.kind for each in text_defects(source, translation, reference, languages=languages)]


@pytest.mark.parametrize(
    ("source", "translation", "languages", "expected"),
    [
        ("the old dog sleeps", "der alte Hund schläft", ("en", "de"), []),
        ("the old dog sleeps", "the old dog sleeps", ("en", "de"), ["copies"]),
        ("Peter Smith, Berlin 2008", "Peter Smith, Berlin 2008", ("en", "de"), []),
        ("the old dog sleeps", "der old dog sleeps", ("en", "de"), ["untranslated"]),
        ("a dog", "ein Hund Hund Hund", ("en", "de"), ["loops"]),
        ("very, very, very good", "sehr, sehr, sehr gut", ("en", "de"), []),
        ("a dog", " ", ("en", "de"), ["empty"]),
        ("", "", ("en", "de"), []),
        ("一只狗", "a 狗狗 dog", ("zh", "en"), ["wrong script"]),
        ("a dog", "Собака", ("en", "de"), ["wrong script"]),
        ("5 µm oder 10 µm", "5 µm or 10 µm", ("de", "en"), []),
        ("NBA games are on", "NBA比赛正在进行", ("en", "zh"), []),
        ("a dog", "a dog", ("en", "ja"), ["wrong script"]),
        ("a dog", " ".join("bcdefghijklmnop"), ("en", "de"), ["wrong length"]),
        ("一" * 40, "one", ("zh", "en"), ["wrong length"]),
    ],
)
def test_each_text_has_its_defects(source, translation, languages, expected):
    assert kinds(source, translation, languages) == expected


@given(st.text("ab 狗。12", max_size=20), st.text("ab 狗。12", max_size=20))
def test_a_reference_has_no_defect(source, reference):
    assert kinds(source, reference, ("zh", "en"), reference) == []


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("人々のテーブル", "ja", ()),
        ("x = π", "en", ()),
        ("пʼять обʼєктів", "uk", ()),
        ("ﾊﾞｽとﾊﾞﾅﾅ", "ja", ()),
        ("한국 a small dog", "en", ("한국",)),
        ("https://a.org 你好", "zh", ()),
        ("anything 你好", "xyz", ()),
        ("zdravo здраво", "sr", ()),
    ],
)
def test_foreign_words_are_in_another_script(text, language, expected):
    assert foreign_words(text, language) == expected


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        ("in 2008", "im Jahr 2009", ("2008",)),
        ("1,000.5 and 3 dogs", "1.000,5 und drei Hunde", ()),
        ("3 dogs", "5 Hunde", ("3",)),
        ("15万人", "150,000 people", ()),
        ("16 dogs", "Hunde", ("16",)),
        ("{0} dogs", "Hunde", ()),
        ("9" * 5000, "Hunde", ("9" * 5000,)),
        ("0" * 5000, "Hunde", ()),
    ],
)
def test_numbers_are_lost_with_their_digits(source, translation, expected):
    assert lost_numbers(source, translation) == expected


def test_terms_are_lost_and_added():
    defects = term_defects("a {b} <i>c</i>", "{x} <i>c <i>", KeptSpans.of(OPAQUE))
    assert [(each.kind, each.words) for each in defects] == [
        ("lost placeholders", ("{b}", "</i>")),
        ("added placeholders", ("{x}", "<i>")),
    ]
