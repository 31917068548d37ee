"""Pages of reports, parsed: nothing comes from elsewhere, texts stay texts, sizes are bounded."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import Reader

from tformer_cli.plotting import report
from tformer_cli.plotting.curves import History
from tformer_cli.plotting.page import PAGE_TEMPLATES
from tformer_cli.plotting.report import (
    Breakdown,
    BucketScores,
    Page,
    SentenceList,
    Table,
    learning_curves,
    render,
    save_page,
)

EVIL = [
    "<script>alert(1)</script>",
    "</script>",
    "<!--",
    "&lt;",
    "\"'`",
    "${x} $title",
    "\u2028\u2029\x00\r",
    "\u202e\u2066\u2069",
    "שלום (abc)",
]
TEXTS = st.one_of(st.sampled_from(EVIL), st.text(max_size=8))


def page(lines, *, title="t", lists=(), marks=None) -> Page:
    return Page(
        title=title,
        facts={title: title},
        systems=[title],
        languages=("en", "de"),
        tables=[],
        charts=[],
        breakdowns=[],
        lists=lists,
        sources=lines,
        references=[lines],
        hypotheses=[lines],
        scores=[[0.0] * len(lines)],
        marks=marks or {},
    )


PLAIN = Reader(render(page(["a"])))


def test_a_page_needs_nothing_from_elsewhere():
    policies = [each["content"] for _, each in PLAIN.elements if "http-equiv" in each]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"]
    assert not any({"src", "href"} & set(each) for _, each in PLAIN.elements)
    script = (PAGE_TEMPLATES / "report.js").read_text(encoding="utf-8")
    assert "innerHTML" not in script
    # Each text of the user decides on its own direction.
    assert script.count("dir:") == script.count('dir: "auto"') > 3


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_whatever_a_text_is_it_stays_a_text(lines):
    title = lines[0]
    listed = SentenceList(title, title, [(0, tuple(lines))])
    text = render(page(lines, title=title, lists=[listed], marks={0: [["", *lines]]}))
    assert not {"\u2028", "\u2029"} & set(text.split("</header>")[1])
    reader = Reader(text)
    assert reader.elements == PLAIN.elements
    content = reader.content()
    assert content["facts"] == {title: title}
    assert content["lists"][0]["lines"] == [[0, lines]]
    assert [each["source"] for each in content["sentences"]] == lines
    assert content["sentences"][0]["hypotheses"] == [["", *lines]]


def test_a_path_of_any_bytes_can_be_written(tmp_path):
    odd = b"run\xff".decode("utf-8", "surrogateescape")
    save_page(page(["a"], title=odd), tmp_path / "page.html")
    content = Reader((tmp_path / "page.html").read_text(encoding="utf-8")).content()
    assert content["systems"] == [odd]


def test_lists_texts_and_words_are_bounded():
    lines = ["x" * 5000] * 300
    words = ("y" * 5000,) * 50
    listed = SentenceList("all", "", [(line, words) for line in range(300)])
    content = page(lines, lists=[listed]).as_plain()
    (plain,) = content["lists"]
    assert (plain["total"], len(plain["lines"])) == (300, report.MAX_LISTED)
    for _, cut in plain["lines"]:
        assert len(cut) == report.MAX_LISTED_WORDS
        assert {len(word) for word in cut} == {report.MAX_TEXT}
    assert {sentence["source"] for sentence in content["sentences"]} == {"x" * 999 + "…"}
    assert content["num_sentences"] == len(content["sentences"]) == 300


def test_a_page_of_many_long_sentences_holds_the_listed_ones_first(monkeypatch):
    monkeypatch.setattr(report, "MAX_BYTES", 100_000)
    lines = ["<\u2028" + "語" * 300] * 500
    listed = SentenceList("last", "", [(line, ()) for line in range(499, 489, -1)])
    text = render(page(lines, lists=[listed]))
    templates = sum(len((PAGE_TEMPLATES / f"report.{x}").read_bytes()) for x in ("js", "css"))
    assert 90_000 < len(text.encode()) - templates < 105_000
    content = Reader(text).content()
    shown = [sentence["line"] for sentence in content["sentences"]]
    assert content["num_sentences"] == 500
    assert shown == [*range(len(shown) - 10), *range(490, 500)]
    # Where not even those fit, none is listed that the page lacks.
    monkeypatch.setattr(report, "MAX_BYTES", 10_000)
    content = page(lines, lists=[listed]).as_plain()
    shown = {sentence["line"] for sentence in content["sentences"]}
    assert {line for line, _ in content["lists"][0]["lines"]} == shown < set(range(490, 500))


@pytest.mark.parametrize("num_points", [1, 2, 499, 500, 501, 12_345])
def test_curves_have_few_points_and_the_last_one(tmp_path, num_points):
    points = [(step, 1 / (step + 1)) for step in range(num_points)]
    history = History(tmp_path, {"train_loss": points, "grad_norm": points, "valid_bleu": points})
    loss, bleu = learning_curves(history)
    assert (list(loss.curves), list(bleu.curves)) == (["train_loss"], ["valid_bleu"])
    curve = loss.curves["train_loss"]
    assert curve == sorted(set(curve) & set(points))
    assert curve[-1] == points[-1]
    assert min(num_points, 250) <= len(curve) <= 500


@pytest.fixture
def open_page(browser, tmp_path):
    """Open a page, and hold its script to have no fault."""
    mistakes = []

    def open_page(content: Page, **settings: object):
        file = tmp_path / "page.html"
        save_page(content, file)
        opened = browser.new_page(**settings)
        opened.on("pageerror", lambda error: mistakes.append(str(error)))
        opened.on("console", lambda message: mistakes.append(message.text))
        opened.goto(file.as_uri())
        return opened

    yield open_page
    assert mistakes == []


SCORES = Table("Scores", "", ["", *"abcdefgh"], [["BLEU", *["0.123456789"] * 8]])


@pytest.mark.slow
def test_arrows_turn_the_pages_of_sentences_where_nothing_else_wants_them(open_page):
    opened = open_page(
        replace(page(["a"] * 50), tables=[SCORES]),
        viewport={"width": 360, "height": 600},
        bypass_csp=True,  # to wait for what scrolls, playwright needs the eval that a page forbids
    )
    position = opened.locator("output")
    opened.keyboard.press("ArrowRight")
    assert position.text_content() == "21–40 of 50"
    opened.keyboard.press("Shift+ArrowLeft")
    assert position.text_content() == "21–40 of 50"
    table = opened.locator(".scroll")
    table.focus()
    opened.keyboard.press("ArrowRight")
    opened.wait_for_function("document.querySelector('.scroll').scrollLeft > 0")
    assert position.text_content() == "21–40 of 50"


@pytest.mark.slow
def test_the_focus_stays_at_the_first_and_at_the_last_page(open_page):
    opened = open_page(page(["a"] * 30))
    focused = "document.activeElement.textContent"
    opened.get_by_role("button", name="Next").focus()
    opened.keyboard.press("Enter")
    assert opened.evaluate(focused) == "Back"
    opened.keyboard.press("Enter")
    assert opened.evaluate(focused) == "Next"


@pytest.mark.slow
@pytest.mark.parametrize("last", [1, 12_000, 1_000_000])
def test_the_labels_of_axes_are_whole_and_differ(open_page, tmp_path, last):
    history = History(tmp_path, {"valid_loss": [(last, 0.0004)]})
    opened = open_page(replace(page(["a"]), charts=learning_curves(history)))
    chart = opened.locator(".charts svg").bounding_box()
    labels = opened.locator(".charts text")
    texts = labels.all_text_contents()
    steps = [float(text.replace(",", "")) for text in texts if text.replace(",", "").isdigit()]
    # Both axes begin at 0.
    assert len(set(texts)) == len(texts) - 1
    assert steps[-1] == last
    assert "0.2" not in texts
    for label in labels.all():
        box = label.bounding_box()
        assert chart["x"] <= box["x"] <= box["x"] + box["width"] <= chart["x"] + chart["width"]


@pytest.mark.slow
@pytest.mark.parametrize("last", [1, 12_000, 1_000_000])
@pytest.mark.parametrize("width", [320, 400])
def test_the_labels_of_axes_can_be_read_on_a_phone(open_page, tmp_path, last, width):
    history = History(tmp_path, {"valid_loss": [(last, 0.0004)]})
    opened = open_page(
        replace(page(["a"]), charts=learning_curves(history)),
        viewport={"width": 900, "height": 600},
    )
    # A phone that was held across.
    opened.set_viewport_size({"width": width, "height": 600})
    labels = opened.locator(".charts text")
    scale = labels.first.evaluate("label => label.getScreenCTM().a")
    size = labels.first.evaluate("label => parseFloat(getComputedStyle(label).fontSize)")
    assert scale * size >= 10.9
    boxes = sorted(
        (box["y"], box["x"], box["width"]) for box in (each.bounding_box() for each in labels.all())
    )
    lowest = boxes[-1][0]
    steps = [(x, x + width) for y, x, width in boxes if y > lowest - 2]
    assert len(steps) >= 2
    assert all(end + 3 < start for (_, end), (start, _) in itertools.pairwise(steps))
    assert steps[-1][1] <= width


@pytest.mark.slow
def test_a_page_of_large_letters_fits_a_phone(open_page):
    tables = [SCORES._replace(title="Confidence: test_2016_flickr")]
    opened = open_page(
        replace(
            page(["a"], lists=[SentenceList("untranslated", "", [(0, ["a" * 50])])]), tables=tables
        ),
        viewport={"width": 320, "height": 600},
    )
    opened.evaluate(
        """() => {
          const parts = [...document.querySelectorAll("body *")];
          const sizes = parts.map((part) => parseFloat(getComputedStyle(part).fontSize));
          parts.forEach((part, i) => { part.style.fontSize = `${2 * sizes[i]}px`; });
        }"""
    )
    assert opened.evaluate("document.documentElement.scrollWidth") == 320


@pytest.mark.slow
def test_bars_fit_a_page_that_has_room_for_them(open_page):
    score = (50.0, 40.0, 60.0)
    buckets = [BucketScores("100 to 999", 1000, {"BLEU": [score], "chrF2": [score]})]
    opened = open_page(
        replace(page(["a"]), breakdowns=[Breakdown("Length", "", buckets)]),
        viewport={"width": 700, "height": 600},
    )
    room, width = opened.locator(".scroll").evaluate("part => [part.clientWidth, part.scrollWidth]")
    assert width == room
    # All bars have the same scale.
    first, second = (bar.bounding_box()["width"] for bar in opened.locator(".meter svg").all())
    assert abs(first - second) < 1


@pytest.mark.slow
def test_what_has_the_focus_has_a_name(open_page):
    opened = open_page(replace(page(["a"]), tables=[SCORES]))
    opened.get_by_role("group", name="Scores").focus()
    assert opened.evaluate("document.activeElement.className") == "scroll"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_a_hint_stands_out_as_a_note_does(open_page, mode):
    opened = open_page(page(["a"]), color_scheme=mode)
    hint = "getComputedStyle(document.querySelector('input'), '::placeholder').color"
    note = "getComputedStyle(document.querySelector('.note')).color"
    assert opened.evaluate(hint) == opened.evaluate(note)
