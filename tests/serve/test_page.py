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
    type_and_wait(page, "\n".join(lines))
    assert page.locator("#target").text_content() == "\n".join(translator.translate(lines))
    assert [one["text"] for one in asked] == [["ab c", "fg a"], ["c de", "b"], ["ga"]]


@pytest.mark.slow
def test_requests_have_no_more_bytes_than_the_server_takes(begin, translator, browser):
    _, url = begin("--max-body", "400")
    page = browser.new_page()
    asked = []
    page.on("request", lambda one: asked.append(one.post_data_buffer) if one.post_data else None)
    page.goto(url)
    # Characters of three bytes, of which a line has 60 and more.
    lines = [f"ab {letter * 20} c" for letter in "中文字一二三四"] + ["fg a", "b"]
    type_and_wait(page, "\n".join(lines))
    assert page.locator("#status.error").count() == 0
    assert page.locator("#target").text_content() == "\n".join(translator.translate(lines))
    assert [text for body in asked for text in json.loads(body)["text"]] == lines
    assert max(map(len, asked)) <= 400
    # Each has several lines, so their bytes are those of UTF-8 rather than of escapes.
    assert len(asked) < len(lines)


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


@pytest.mark.slow
def test_a_line_that_is_too_long_is_named_and_the_others_are_translated(
    begin, translator, open_page
):
    _, url = begin("--max-characters", "8")
    page = open_page(url)
    # Each letter counts once, as in Python.
    lines = ["ab c", "abcdefga", "abc abcde", "\U00010330" * 8, "", "fg a", "a" * 10]
    type_and_wait(page, "\n".join(lines))
    expected = translator.translate(lines)
    expected[2] = expected[6] = ""
    assert page.locator("#target").text_content() == "\n".join(expected)
    said = page.locator("#status")
    assert said.text_content() == (
        "Lines of more than 8 characters are not translated; split them: 3, 7"
    )
    # The words that light up lie below theirs.
    assert page.locator("#mirror").text_content() == "\n".join(lines)
    page.locator("#source").evaluate("source => source.setSelectionRange(0, 0)")
    page.locator("#alternatives [aria-pressed=true]").wait_for()
    assert "split them: 3, 7" in said.text_content()
    lines[2] = "abc"
    page.fill("#source", "\n".join(lines[:6]))
    (expected[2],) = translator.translate(["abc"])
    page.wait_for_function(
        "text => document.querySelector('#target').textContent === text",
        arg="\n".join(expected[:6]),
    )
    assert "not translated" not in said.text_content()


@pytest.mark.slow
def test_a_line_that_no_request_can_have_is_named_and_the_others_are_translated(
    begin, translator, open_page
):
    _, url = begin("--max-body", "400", "--max-characters", "500")
    page = open_page(url)
    lines = ["ab c", "ab c " * 80, "fg a", "a" * 501]
    type_and_wait(page, "\n".join(lines))
    expected = translator.translate(lines)
    expected[1] = expected[3] = ""
    assert page.locator("#target").text_content() == "\n".join(expected)
    assert page.locator("#target .draft").count() == 0
    assert page.locator("#status").text_content() == (
        "Lines of too many bytes are not translated; split them: 2\n"
        "Lines of more than 500 characters are not translated; split them: 4"
    )


# Requests wait while `held` is true.
HOLD = """
const send = window.fetch;
window.held = false;
window.fetch = async (...request) => {
  while (window.held) await new Promise((resume) => setTimeout(resume, 10));
  return send(...request);
};
"""
FOCUSED = "document.activeElement"


@pytest.fixture
def open_page(browser):
    """Open a page, and hold its script to have no fault."""
    mistakes = []

    def open_page(url: str, **settings: object):
        page = browser.new_page(**settings)
        page.on("pageerror", lambda error: mistakes.append(str(error)))
        page.add_init_script(HOLD)
        page.goto(url)
        return page

    yield open_page
    assert mistakes == []


def type_and_wait(page, text: str):
    """Type a text; return the words of its translation."""
    page.fill("#source", text)
    words = page.locator("#target:not([aria-busy]) .unit")
    words.first.wait_for()
    return words


@pytest.mark.slow
def test_the_focus_goes_where_it_is_sent_from_an_open_word(begin, open_page):
    _, url = begin()
    page = open_page(url)
    words = type_and_wait(page, "fg ab c")
    before = page.locator("#target").text_content()
    words.first.click()
    page.locator("#source").click()
    assert page.evaluate(f"{FOCUSED}.id") == "source"
    words.first.click()
    page.keyboard.press("Tab")
    assert page.evaluate(f"{FOCUSED}.parentElement.parentElement.id") == "alternatives"
    words.first.click()
    page.keyboard.press("Escape")
    assert page.evaluate(f"{FOCUSED}.textContent") == words.first.text_content()
    assert page.locator("#target").text_content() == before


@pytest.mark.slow
def test_no_word_of_a_line_is_changed_while_the_line_is_translated(begin, translator, open_page):
    _, url = begin()
    page = open_page(url)
    words = type_and_wait(page, "fg ab c")
    page.evaluate("held = true")
    word = "G" if words.first.text_content() != "G" else "F"
    words.first.click()
    page.keyboard.type(word)
    page.keyboard.press("Enter")
    page.locator("#target .unit").last.click()
    assert page.locator("#target input").count() <= 1
    page.keyboard.press("Escape")
    page.evaluate("held = false")
    page.locator(".kept").first.wait_for()
    (completed,) = translator.translate(["fg ab c"], prefixes=[word])
    assert page.locator("#target").text_content() == completed


@pytest.mark.slow
def test_a_right_key_takes_the_focus_to_the_text(begin, open_page, tmp_path):
    (tmp_path / "keys").write_text("the key\n")
    _, url = begin("--api-keys", str(tmp_path / "keys"))
    page = open_page(url)
    page.keyboard.type("fg")
    key = page.locator("#key")
    key.wait_for()
    key.focus()
    page.keyboard.type("another")
    page.keyboard.press("Enter")
    page.get_by_text("is not valid").wait_for()
    assert page.evaluate(f"{FOCUSED}.id") == "key"
    key.fill("the key")
    page.keyboard.press("Enter")
    page.locator("#target .unit").first.wait_for()
    assert page.evaluate(f"{FOCUSED}.id") == "source"


@pytest.mark.slow
def test_a_long_name_of_a_run_fits_a_phone(begin, open_page):
    _, url = begin()
    page = open_page(url, viewport={"width": 320, "height": 600})
    page.locator("option").evaluate("option => { option.text = 'a-run'.repeat(40); }")
    assert page.evaluate("document.documentElement.scrollWidth") == 320


DRAFT = 'event: draft\ndata: {"index": 0, "text": "B"}\n\n'


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        lambda route: route.abort(),
        lambda route: route.fulfill(body=DRAFT, content_type="text/event-stream"),
        lambda route: route.fulfill(status=502, body="<html>Bad gateway</html>"),
    ],
)
def test_a_server_that_stops_leaves_a_draft_and_says_so(begin, translator, open_page, answer):
    _, url = begin()
    page = open_page(url)
    words = type_and_wait(page, "fg ab c")
    page.route("**/api/translate", answer)
    word = "G" if words.first.text_content() != "G" else "F"
    words.first.click()
    page.keyboard.type(word)
    page.keyboard.press("Enter")
    status = page.get_by_text("The server does not answer; is it running?")
    status.wait_for()
    assert page.locator("#target input").count() == 0
    assert page.locator("#target .draft").count() == 1
    # What is typed next asks anew.
    page.unroute("**/api/translate")
    (expected,) = translator.translate(["fg ab"])
    page.fill("#source", "fg ab")
    page.wait_for_function(
        "text => document.querySelector('#target').textContent === text", arg=expected
    )
    page.locator("#target:not([aria-busy])").wait_for()
    assert page.locator("#target .draft").count() == status.count() == 0


@pytest.mark.slow
def test_a_text_is_kept_for_its_tab_alone(begin, translator, browser):
    _, url = begin()
    window = browser.new_context()
    page = window.new_page()
    page.goto(url)
    text = "ab c\n" * 20 + "fg a"
    type_and_wait(page, text)
    expected = "\n".join(translator.translate(text.split("\n")))
    page.reload()
    page.locator("#target:not([aria-busy]) .unit").first.wait_for()
    assert page.locator("#source").input_value() == text
    assert page.locator("#target").text_content() == expected
    assert page.locator("#source").evaluate("part => part.scrollHeight <= part.clientHeight")
    other = window.new_page()
    other.goto(url)
    other.locator("option").first.wait_for(state="attached")
    assert other.locator("#source").input_value() == ""
    page.fill("#source", "")
    page.reload()
    assert page.locator("#source").input_value() == ""


@pytest.mark.slow
def test_a_model_is_kept_for_its_tab_while_the_server_has_it(
    begin, toy_run, translator, browser, tmp_path
):
    other = shutil.copytree(toy_run, tmp_path / "other")
    _, url = begin(str(other))
    window = browser.new_context()
    page = window.new_page()
    page.goto(url)
    choice = page.locator("#model")
    label = "document.querySelector('#model').selectedOptions[0].text"
    choice.locator("option").nth(1).wait_for(state="attached")
    assert page.evaluate(label).endswith(" · run")
    type_and_wait(page, "ab c")
    with page.expect_response("**/api/translate") as answer:
        choice.select_option(index=1)
    assert answer.value.request.post_data_json["model"] == "other"
    with page.expect_response("**/api/translate") as answer:
        page.reload()
    assert answer.value.request.post_data_json["model"] == "other"
    assert page.evaluate(label).endswith(" · other")
    page.locator("#target:not([aria-busy]) .unit").first.wait_for()
    assert page.locator("#target").text_content() == translator.translate(["ab c"])[0]
    # Another tab has the first one, and so has this one when its model is gone.
    tab = window.new_page()
    tab.goto(url)
    tab.locator("option").nth(1).wait_for(state="attached")
    assert tab.evaluate(label).endswith(" · run")

    def without_other(route):
        listed = route.fetch().json()
        listed["models"] = [each for each in listed["models"] if each["name"] == "run"]
        route.fulfill(json=listed)

    page.route("**/api/models", without_other)
    with page.expect_response("**/api/translate") as answer:
        page.reload()
    assert answer.value.request.post_data_json["model"] == "run"


@pytest.mark.slow
def test_a_browser_that_keeps_nothing_translates(begin, translator, open_page):
    _, url = begin()
    page = open_page("about:blank")
    page.add_init_script(
        """Object.defineProperty(window, "sessionStorage", {
          get() { throw new DOMException("denied", "SecurityError"); },
        });"""
    )
    page.goto(url)
    type_and_wait(page, "fg ab")
    assert page.locator("#target").text_content() == translator.translate(["fg ab"])[0]


@pytest.mark.slow
def test_models_are_asked_for_again_by_what_is_typed(begin, translator, open_page):
    _, url = begin()
    page = open_page("about:blank")
    page.route("**/api/models", lambda route: route.abort())
    page.goto(url)
    page.get_by_text("The server does not answer; is it running?").wait_for()
    page.unroute("**/api/models")
    type_and_wait(page, "fg ab")
    assert page.locator("#target").text_content() == translator.translate(["fg ab"])[0]


@pytest.mark.slow
def test_a_screen_reader_hears_the_line_at_hand_once(begin, translator, open_page):
    _, url = begin()
    page = open_page(url)
    page.evaluate(
        """() => {
          window.heard = [];
          const listen = () => heard.push(announcement.textContent);
          const announcement = document.querySelector("#announcement[role=status]");
          new MutationObserver(listen).observe(announcement, { childList: true });
        }"""
    )
    lines = ["ab c", "fg a", "c de"]
    page.locator("#source").focus()
    page.keyboard.insert_text("\n".join(lines))
    page.locator("#target:not([aria-busy]) .unit").first.wait_for()
    expected = translator.translate(lines)
    assert page.evaluate("heard") == expected[-1:]
    assert page.locator("#announcement").bounding_box()["width"] <= 1


@pytest.mark.slow
def test_a_word_is_found_among_those_of_its_line_alone(begin, open_page):
    _, url = begin()
    page = open_page(url, viewport={"width": 1200, "height": 2000})
    type_and_wait(page, "\n".join(["ab c de"] * 20 + ["fg a b"]))
    box = page.locator("#mirror .unit").last.bounding_box()
    page.evaluate(
        """() => {
          const measure = Element.prototype.getClientRects;
          window.measured = 0;
          Element.prototype.getClientRects = function () {
            window.measured += 1;
            return measure.call(this);
          };
        }"""
    )
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    lit = page.locator("#mirror .word")
    assert lit.all_text_contents() == ["b"]
    assert 0 < page.evaluate("measured") <= 3
    page.locator("#target .unit").first.hover()
    assert lit.count() == 0
    assert page.locator(".word").count() == 1
