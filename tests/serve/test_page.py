"""The page in a browser: a translation, its alignment, and a word that is changed."""

import pytest
from test_server import begin

__all__ = ["begin"]


@pytest.fixture
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        try:
            chromium = running.chromium.launch()
        except playwright.Error:
            pytest.skip("Chromium is not installed for playwright")
        yield chromium
        chromium.close()


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
