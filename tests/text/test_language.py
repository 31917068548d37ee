"""Which language a file name or a script tells."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.text.language import (
    base_language,
    choose_languages,
    is_language_code,
    language_of_name,
    language_of_script,
    language_tag,
    scripts_of,
)


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("corpus.en", "en"),
        ("corpus.zh", "zh"),
        ("corpus.DE", "de"),
        ("train.en-de.de", "de"),
        ("train.en-de.en.gz", "en"),
        ("corpus.tok.de", "de"),
        ("corpus.de.tok.gz", "de"),
        ("corpus.de.txt", "de"),
        ("en.txt", "en"),
        ("news.zh-CN", "zh-CN"),
        ("news.pt_BR.gz", "pt_BR"),
        ("news.zh_Hant_TW", "zh_Hant_TW"),
        ("dev.eng_Latn", "eng_Latn"),
        ("train.en-de.txt", None),
        ("corpus.txt", None),
        ("corpus.src", None),
        ("train.source", None),
        ("corpus", None),
        ("corpus.de.old", None),
        ("corpus.xx", None),
        ("corpus.eng", None),
    ],
)
def test_language_of_a_file_name(name: str, language: str | None) -> None:
    assert language_of_name(Path("folder.de") / name) == language


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("两只狗在雪地里玩耍。\n2024", "zh"),
        ("犬が二匹、雪の中で遊んでいる。", "ja"),
        ("カタカナ", "ja"),
        ("개 두 마리가 눈 속에서 놀고 있다.", "ko"),
        ("Δύο σκυλιά παίζουν στο χιόνι.", "el"),
        ("สุนัขสองตัวเล่นหิมะ", "th"),
        ("ორი ძაღლი თოვლში თამაშობს", "ka"),
        ("iPhone 的價格是 499 USD，而 Pixel 比它便宜得多，也更好用，大家都知道這一點", "zh"),
        ("Two dogs play in the snow.", None),
        ("Two dogs say 漢字 and かな.", None),
        ("Две собаки играют в снегу.", None),
        ("كلبان يلعبان في الثلج", None),
        ("दो कुत्ते बर्फ में खेलते हैं", None),
        ("123 !?", None),
        ("", None),
    ],
)
def test_language_of_a_script(text: str, language: str | None) -> None:
    assert language_of_script(text.split("\n")) == language


def test_only_the_beginning_of_a_text_is_read() -> None:
    lines = iter(["Δύο σκυλιά"] * 5000)
    assert language_of_script(lines) == "el"
    assert len(list(lines)) == 4000


@pytest.mark.parametrize("code", ["en", "EN", "zh", "zh-Hans", "pt_BR", "eng", "eng_Latn", "no"])
def test_iso_codes(code: str) -> None:
    assert is_language_code(code)


@pytest.mark.parametrize(
    "word", ["German", "source", "target", "xx", "", "e", "de en", "en-de-", "日本"]
)
def test_words_that_are_no_iso_codes(word: str) -> None:
    assert not is_language_code(word)


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ("pt_BR", "pt"),
        ("zh-Hans", "zh"),
        ("zho_Hant", "zh"),
        ("cmn", "zh"),
        ("kor_Hang", "ko"),
        ("eng_Latn", "en"),
        ("arb_Arab", "ar"),
        ("nob_Latn", "nb"),
        ("yue_Hant", "yue"),
        ("ace_Arab", "ace"),
        ("xx", "xx"),
    ],
)
def test_codes_of_a_language_are_told_as_one(code: str, language: str) -> None:
    assert base_language(code) == language


@pytest.mark.parametrize(("code", "other"), [("zho_Hans", "zh"), ("rus", "ru"), ("deu", "de")])
def test_codes_of_a_language_have_its_scripts(code: str, other: str) -> None:
    assert scripts_of(code) == scripts_of(other) != frozenset()


@pytest.mark.parametrize(
    ("code", "tag"),
    [
        ("pt_BR", "pt-BR"),
        ("EN-gb", "en-GB"),
        ("deu_Latn", "de"),
        ("jpn_Jpan", "ja"),
        ("zho_Hant", "zh-Hant"),
        ("sr-cyrl-rs", "sr-Cyrl-RS"),
        ("ace_Arab", "ace-Arab"),
        ("de-DE-1996", "de-DE-1996"),
        ("es-419", "es-419"),
    ],
)
def test_tags_of_codes_name_a_script_where_there_are_several(code: str, tag: str) -> None:
    assert language_tag(code) == tag


# Each code with its language and its tag.
CODES = {
    "pt": ("pt", "pt"),
    "POR": ("pt", "pt"),
    "por_Latn": ("pt", "pt"),
    "pt-BR": ("pt", "pt-BR"),
    "pt_br": ("pt", "pt-BR"),
    "pt-PT": ("pt", "pt-PT"),
    "zh": ("zh", "zh"),
    "zho_Hant": ("zh", "zh-Hant"),
    "zh-hant": ("zh", "zh-Hant"),
    "zh_Hans": ("zh", "zh-Hans"),
    "de-AT": ("de", "de-AT"),
    "x": ("x", "x"),
}
CODE = st.sampled_from(list(CODES))


@given(st.lists(CODE, unique=True), st.tuples(CODE, CODE))
def test_each_side_has_its_own_code_of_its_language(codes, wanted) -> None:
    # All pairs that keep the rules; of codes of one tag, the first counts.
    firsts = [
        code for code in codes if CODES[code] not in map(CODES.get, codes[: codes.index(code)])
    ]
    exact = [[code for code in firsts if CODES[code] == CODES[own]] for own in wanted]
    related = [[code for code in firsts if CODES[code][0] == CODES[own][0]] for own in wanted]
    pairs = [
        (source, target)
        for source in exact[0] or [*related[0], None]
        for target in exact[1] or [*related[1], None]
        if source is None or source != target or exact[0] == exact[1] == [source]
    ]
    order = [*codes, None]
    first = min(pairs, key=lambda pair: [order.index(code) for code in pair])
    assert choose_languages(codes, wanted) == list(first)
