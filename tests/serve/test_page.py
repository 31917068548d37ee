"""The page: languages; and in a browser a translation, its alignment, a word that is changed."""

import json
import shutil
import subprocess
import unicodedata
from pathlib import Path

import pytest
from test_server import begin

import tformer_cli

__all__ = ["begin"]

STATIC = Path(tformer_cli.__file__).with_name("serve") / "static"
# A letter, and codes of languages that are written so.
CODES = {
    "ا": "ar fa ar_AR arb_Arab pes_Arab azb_Arab kas_Arab",
    "א": "he yi he_IL heb_Hebr ydd_Hebr",
    "ހ": "dv",
    "अ": "hi hin_Deva kas_Deva",
    "中": "zh zh_CN zho_Hant",
    "a": "en de fr_XX eng_Latn sr_Latn source",
}
SHOW = """
import {{ direction, languageName, languageTag }} from {module};
const shown = (code) => [code, languageTag(code), languageName(code), direction(code)];
console.log(JSON.stringify({codes}.map(shown)));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_languages_are_known_by_the_codes_of_imported_models():
    module = json.dumps((STATIC / "language.js").as_uri())
    names, tags = {}, {}
    for letter, codes in CODES.items():
        script = SHOW.format(module=module, codes=json.dumps(codes.split()))
        command = ["node", "--input-type=module", "--eval", script]
        is_right_to_left = unicodedata.bidirectional(letter) in ("R", "AL")
        for code, tag, name, direction in json.loads(subprocess.check_output(command, text=True)):
            assert (code, direction) == (code, "rtl" if is_right_to_left else "ltr")
            names[code], tags[code] = name, tag
    assert names["source"] == "source"
    assert [names[code] for code in ("ar", "zho_Hant")] == ["Arabic", "Traditional Chinese"]
    assert [tags[code] for code in ("de", "fr_XX", "heb_Hebr", "zho_Hant", "source")] == [
        "de",
        "fr-XX",
        "he-Hebr",
        "zh-Hant",
        "source",
    ]
    assert not any("_" in tag for tag in tags.values())


@pytest.mark.slow
def test_a_sentence_is_typed_read_and_changed(begin, translator, browser):
    _, url = begin()
    page = browser.new_page(viewport={"width": 360, "height": 700})
    mistakes = []
    page.on("pageerror", lambda error: mistakes.append(str(error)))
    page.on("console", lambda message: mistakes.append(message.text))
    page.goto(url)
    page.fill("#source", "fg ab c <b>a</b>")
    words = page.locator("#target:not([aria-busy]) .unit")
    words.first.wait_for()
    (expected,) = translator.translate(["fg ab c <b>a</b>"])
    assert page.locator("#target").text_content() == expected
    assert page.locator("#target b").count() == 0
    ((best, *_),) = translator.nbest(["fg ab c <b>a</b>"], 2, inspected=True)
    said = page.locator("#status").text_content()
    assert all(word in said for defect in best.defects for word in defect.words)
    assert ("lost placeholders" in said) == any(
        defect.kind == "lost placeholders" for defect in best.defects
    )
    assert ("Confidence" in said) == (best.confidence is not None)
    words.first.hover()
    assert page.locator("#target .word").count() == 1
    assert page.locator("#mirror .partner").count() >= 1
    word = "G" if words.first.text_content() != "G" else "F"
    words.first.press("Enter")
    page.keyboard.type(word)
    page.keyboard.press("Enter")
    page.locator(".kept").first.wait_for()
    (completed,) = translator.translate(["fg ab c <b>a</b>"], prefixes=[word])
    assert page.locator("#target").text_content() == completed
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert mistakes == []


@pytest.mark.slow
def test_more_lines_than_a_request_may_have_are_several_requests(begin, translator, browser):
    _, url = begin("--max-texts", "2")
    page = browser.new_page()
    asked = []
    page.on("request", lambda one: asked.append(one.post_data_json) if one.post_data else None)
    page.goto(url)
    lines = ["ab c", "fg a", "", "c de", "b", "ga"]
    page.fill("#source", "\n".join(lines))
    page.locator("#target:not([aria-busy]) .unit").first.wait_for()
    assert page.locator("#target").text_content() == "\n".join(translator.translate(lines))
    assert [one["text"] for one in asked] == [["ab c", "fg a"], ["c de", "b"], ["ga"]]


@pytest.mark.slow
def test_lines_are_translated_one_by_one(begin, translator, browser):
    _, url = begin()
    page = browser.new_page()
    asked = []
    page.on("request", lambda one: asked.append(one.post_data_json) if one.post_data else None)
    page.goto(url)
    lines = ["ab c", "", "fg a", "c de"]
    expected = translator.translate(lines)
    page.fill("#source", "\n".join(lines))
    words = page.locator("#target:not([aria-busy]) .unit")
    words.first.wait_for()
    assert page.locator("#target").text_content() == "\n".join(expected)
    assert page.locator("#mirror").text_content() == "\n".join(lines)
    # The cursor is in the last line.
    best = page.locator("#alternatives [aria-pressed=true] bdi")
    assert best.text_content() == expected[-1]
    # A word of the first line is changed, and then a line is typed in front of the last one.
    word = "G" if words.first.text_content() != "G" else "F"
    words.first.press("Enter")
    page.keyboard.type(word)
    page.keyboard.press("Enter")
    page.locator(".kept").first.wait_for()
    (expected[0],) = translator.translate(lines[:1], prefixes=[word])
    assert best.text_content() == expected[0]
    lines.insert(3, "b")
    expected[3:3] = translator.translate(["b"])
    page.focus("#source")
    page.locator("#source").evaluate("(source) => source.setSelectionRange(11, 11)")
    page.keyboard.insert_text("b\n")
    page.wait_for_function(
        "text => document.querySelector('#target').textContent === text", arg="\n".join(expected)
    )
    assert page.locator("#source").input_value() == "\n".join(lines)
    assert [one["text"] for one in asked] == [["ab c", "fg a", "c de"], ["ab c"], ["b"]]
    assert [one.get("prefixes") for one in asked] == [None, [word], None]
