"""Pages and pictures of attention maps against the numbers and tokens that they show."""

import itertools
import math
import sys
import warnings
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from pages import Reader
from sentences import BIAS, TURNS, VECTORS, WINDOW, maps, sentence, table

from tformer_cli.errors import UsageError
from tformer_cli.plotting import heatmap
from tformer_cli.plotting.attention_maps import AttentionMaps
from tformer_cli.plotting.curves import COLORS, DASHES
from tformer_cli.plotting.heatmap import (
    BUNDLED_FONT,
    MASKED_COLOR,
    SIGNS,
    WEIGHTS,
    draw_heatmap,
    draw_map,
    draw_scale,
    draw_table,
    label,
    labels,
    page,
    pick_fonts,
    save_heatmap,
    table_title,
)
from tformer_cli.plotting.page import PAGE_TEMPLATES

EVIL = ["<script>alert(1)</script>", "</script>", "<!--", "&lt;", '"', "'", "{x}"]


PLAIN = Reader(page(sentence(maps(["a"], ["b"]))))


def test_the_content_is_what_there_is_to_draw():
    cross = maps(["犬", "が"], ["▁dog", "</s>"], num_layers=2, num_heads=3)
    content = Reader(page(sentence(cross, tables=(VECTORS, TURNS, BIAS)))).content()
    (found,) = content["maps"]
    np.testing.assert_allclose(found["weights"], cross.weights, rtol=1e-5)
    assert (found["rows"], found["columns"]) == (["犬", "が"], ["▁dog", "</s>"])
    assert (found["layers"], found["heads"]) == ([1, 2], [1, 2, 3])
    assert found["title"] == "Cross-attention"
    tables = content["positions"]
    for plain, expected in zip(tables, (VECTORS, TURNS, BIAS), strict=True):
        values = np.array(plain["values"], float)
        np.testing.assert_allclose(
            np.where(np.isnan(values), -np.inf, values), expected.values, 1e-5
        )
    assert tables[1]["title"] == "Rotary embedding of the encoder and the decoder"


@given(st.lists(st.one_of(st.sampled_from(EVIL), st.text(max_size=8)), min_size=1, max_size=4))
def test_whatever_a_token_is_it_stays_a_text(tokens):
    source = " ".join(tokens)
    reader = Reader(page(sentence(maps(tokens, tokens), source=source)))
    assert reader.elements == PLAIN.elements
    (found,) = reader.content()["maps"]
    assert found["rows"] == found["columns"] == tokens


def test_sentences_are_escaped():
    evil = AttentionMaps("<b>&amp;", "</p><i>", [maps(["a"], ["b"])], [])
    text = page(evil)
    assert "<title>&lt;b&gt;&amp;amp;</title>" in text
    assert '<p class="text" dir="auto">&lt;/p&gt;&lt;i&gt;</p>' in text


def test_a_page_needs_nothing_from_elsewhere():
    elements = PLAIN.elements
    policies = [
        found["content"] for tag, found in elements if tag == "meta" and "http-equiv" in found
    ]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"]
    assert not any({"src", "href"} & set(found) for _, found in elements)
    for text in [file.read_text() for file in PAGE_TEMPLATES.iterdir()]:
        # What http there is, is the name of a kind of elements.
        assert text.replace("http://www.w3.org/2000/svg", "").count("//www") == 0
        assert "url(" not in text
        assert "innerHTML" not in text


def test_a_page_names_the_language_of_its_own_words():
    assert PLAIN.elements[0] == ("html", {"lang": "en"})


def test_a_page_without_a_translation_has_none():
    alone = AttentionMaps("a", None, [maps(["a"], ["a"], part="encoder")], [])
    assert "None" not in page(alone)


def test_a_page_is_written_whole(tmp_path):
    found = sentence(maps(["犬"], ["b"]))
    save_heatmap(found, tmp_path / "deep" / "heatmap.html")
    assert (tmp_path / "deep" / "heatmap.html").read_text(encoding="utf-8") == page(found)


@pytest.mark.slow
def test_a_cell_is_read_by_pointer_and_by_keys(browser, tmp_path):
    file = tmp_path / "heatmap.html"
    rows, columns = ["犬", "が", "</s>"], ["▁a", "▁dog"]
    cross = maps(rows, columns, num_heads=2)
    save_heatmap(sentence(cross, tables=(VECTORS,)), file)
    page = browser.new_page()
    mistakes = []
    page.on("pageerror", lambda error: mistakes.append(str(error)))
    page.on("console", lambda message: mistakes.append(message.text))
    page.goto(file.as_uri())
    readout = page.locator(".readout")

    def said(row: int, column: int) -> str:
        weight = cross.weights[0][0][row][column]
        end = ": masked" if weight == 0 else f" with weight {weight:.3f}"
        return f"layer 1, head 1: {rows[row]} attends to {columns[column]}{end}"

    page.locator("tbody td").nth(3).hover()
    assert readout.text_content() == said(1, 1)
    # Tab goes to the cell that was read last, and the arrow keys end at the edge.
    page.locator(".heads button").last.focus()
    page.keyboard.press("Tab")
    assert readout.text_content() == said(1, 1)
    for key, (row, column) in {
        "Up": (0, 1),
        "Right": (0, 1),
        "Left": (0, 0),
        "Down": (1, 0),
    }.items():
        page.keyboard.press(f"Arrow{key}")
        assert readout.text_content() == said(row, column)
        assert page.locator("td[tabindex='0']").count() == 1
    marked = page.locator("th.on").all_text_contents()
    assert marked == ["▁a", "が"]
    page.locator("nav button").last.click()
    page.locator("canvas.table").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert readout.text_content() == f"position 1, component 1: {VECTORS.values[1][1]:.3f}"
    assert mistakes == []


MAGIC = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<?xml"}
WORDS = ["▁der", "▁alte", "▁Hund", "</s>"]
ALL = sentence(
    maps(WORDS, WORDS, part="encoder", num_layers=2, num_heads=3),
    maps(["<s>", "$x$"], ["<s>", "$x$"], part="decoder", num_heads=2),
    maps(["_a", "</s>"], WORDS),
    tables=(VECTORS, TURNS, BIAS, WINDOW),
)


@pytest.fixture(scope="module")
def figure():
    return draw_heatmap(ALL)


def map_axes(figure):
    return [axes for axes in figure.axes if axes.get_title(loc="left").startswith("layer")]


def ticks(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def test_each_head_of_each_layer_is_a_picture_of_its_weights(figure):
    drawn = iter(map_axes(figure))
    for one in ALL.maps:
        for layer, heads in zip(one.layers, one.weights, strict=True):
            for head, weights in zip(one.heads, heads, strict=True):
                axes = next(drawn)
                assert axes.get_title(loc="left") == f"layer {layer}, head {head}"
                (image,) = axes.images
                np.testing.assert_array_equal(image.get_array(), weights)
    assert next(drawn, None) is None


def test_labels_are_the_tokens_as_they_are(figure):
    axes = map_axes(figure)
    assert (ticks(axes[0].yaxis), ticks(axes[0].xaxis)) == (WORDS, WORDS)
    # The other heads of a line share the labels on its left.
    assert (ticks(axes[1].yaxis), ticks(axes[1].xaxis)) == ([], WORDS)
    assert (ticks(axes[-1].yaxis), ticks(axes[-1].xaxis)) == (["_a", "</s>"], WORDS)
    labels = axes[-2].xaxis.get_ticklabels()
    assert [label.get_text() for label in labels] == ["<s>", "$x$"]
    assert not any(label.get_parse_math() for label in labels)


@pytest.mark.parametrize(
    ("num_tokens", "num_layers", "num_heads"), [(1, 2, 2), (2, 1, 20), (40, 1, 2)]
)
def test_nothing_overlaps_and_labels_have_room(num_tokens, num_layers, num_heads):
    tokens = [f"▁token{number}" for number in range(num_tokens)]
    figure = draw_heatmap(
        sentence(maps(tokens, tokens, num_layers=num_layers, num_heads=num_heads))
    )
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in map_axes(figure)]
    assert len(boxes) == num_layers * num_heads
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    for box in boxes:
        assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 <= box.y1 <= figure.bbox.y1
    first = map_axes(figure)[0]
    extents = [label.get_window_extent() for label in first.yaxis.get_ticklabels()]
    for one, other in itertools.pairwise(extents):
        assert not one.overlaps(other)


def test_cells_are_square(figure):
    figure.draw_without_rendering()
    for axes in map_axes(figure):
        box = axes.get_window_extent()
        rows, columns = axes.images[0].get_array().shape
        assert box.width / columns == pytest.approx(box.height / rows)


def test_titles_name_the_stacks(figure):
    sections = [part for section in figure.subfigs for part in section.subfigs]
    titles = [part.get_suptitle() for part in sections]
    assert [title for title in titles if title] == [
        "Encoder self-attention",
        "Decoder self-attention",
        "Cross-attention",
        "Position vectors of the encoder",
        "Rotary embedding of the encoder and the decoder",
        "Attention bias by distance of the decoder",
        "Attention bias by distance of the encoder",
    ]


def test_characters_that_no_font_has_are_named_and_drawn_without_a_warning(tmp_path):
    # Private characters, which are in no font but one of their inventor.
    strange = sentence(maps(["a\U0010fffd", "\U0010fffc"], ["b"]))
    with warnings.catch_warnings(record=True) as caught:
        problem = save_heatmap(strange, tmp_path / "heatmap.png")
    assert caught == []
    assert str(problem) == (
        f"{tmp_path}/heatmap.png: has boxes for characters that no installed font has "
        r"(\U0010fffd\U0010fffc); install a font that has them, or write .svg or .html"
    )
    assert save_heatmap(strange, tmp_path / "heatmap.svg") is None
    assert save_heatmap(sentence(maps(WORDS, WORDS)), tmp_path / "heatmap.png") is None


@pytest.mark.parametrize("suffix", MAGIC)
def test_a_picture_is_a_function_of_the_numbers(tmp_path, suffix):
    """Neither the time of day nor the settings of the user change a byte."""
    small = sentence(maps(["a"], ["b"]))
    one, two = (tmp_path / f"{name}{suffix}" for name in ("one", "two"))
    save_heatmap(small, one)
    with mpl.rc_context({"font.size": 20, "svg.fonttype": "path"}):
        save_heatmap(small, two)
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes().startswith(MAGIC[suffix])


def test_an_svg_holds_tokens_as_text_of_their_own_direction(tmp_path):
    tokens = ["<script>", "犬&猫", "▁الكلب", "שלום"]
    save_heatmap(sentence(maps(tokens, tokens)), tmp_path / "heatmap.svg")
    root = ElementTree.parse(tmp_path / "heatmap.svg").getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [texts.count(token) for token in tokens] == [2, 2, 2, 2]
    assert "unicode-bidi:plaintext" in root.find(".//{http://www.w3.org/2000/svg}style").text


def test_a_picture_that_no_viewer_opens_is_refused(monkeypatch):
    monkeypatch.setattr(heatmap, "MAX_DOTS", 10**6)
    with pytest.raises(UsageError) as caught:
        draw_heatmap(ALL)
    figure_size = str(caught.value).split(" (")[1].split(")")[0]
    assert str(caught.value) == (
        f"the picture: would have more than 1 million dots ({figure_size}); "
        "choose a part, a layer or a head, or write .html"
    )
    width, height = (int(side.replace(",", "")) for side in figure_size.split(" x "))
    assert width * height > 10**6


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError) as caught:
        draw_heatmap(ALL)
    assert str(caught.value) == (
        "tformer heatmap: needs matplotlib, which is not installed; "
        "write .html, or install it with: pip install 'tformer[plot]'"
    )


def empty():
    return Figure().add_subplot()


def test_all_maps_have_one_scale_and_what_is_unseen_stands_out():
    for weights in ([[0.2, 0.8]], [[0.5, 0.5], [1.0, 0.0]]):
        axes = empty()
        draw_map(axes, np.array(weights, np.float32), "layer 1, head 1")
        (image,) = axes.images
        np.testing.assert_array_equal(image.get_array(), np.array(weights, np.float32))
        assert (0 < image.norm.vmin < 1e-300, image.norm.vmax) == (True, 1)
        colors = image.to_rgba(np.array([[0.0, 1e-30, 0.5, 1.0]]), bytes=True)[0, :, :3]
        names = ["#{:02x}{:02x}{:02x}".format(*color) for color in colors]
        middle = [int(WEIGHTS[1][at : at + 2], 16) for at in (1, 3, 5)]
        assert colors[2] == pytest.approx(middle, abs=1)
        assert [*names[:2], names[3]] == [MASKED_COLOR, WEIGHTS[0], WEIGHTS[2]]


def test_the_scale_has_the_colors_of_maps():
    scale, map_ = empty(), empty()
    draw_scale(scale)
    draw_map(map_, np.ones((1, 1)), "")
    (solids,) = [part for part in scale.collections if isinstance(part, QuadMesh)]
    numbers = np.linspace(0.01, 1, 20)
    np.testing.assert_allclose(
        solids.to_rgba(numbers[None]), map_.images[0].to_rgba(numbers[None]), atol=0.01
    )


@pytest.mark.parametrize(("positions", "most"), [(VECTORS, 2.0), (TURNS, 1.0)])
def test_tables_are_pictures_around_zero(positions, most):
    axes = empty()
    draw_table(axes, positions)
    (image,) = axes.images
    np.testing.assert_array_equal(image.get_array(), positions.values)
    assert (image.norm.vmin, image.norm.vmax) == (-most, most)
    middle = image.to_rgba(np.array([[0.0]]), bytes=True)[0, 0, :3]
    assert SIGNS[1] == "#ffffff"
    assert min(middle) >= 253


def test_pairs_that_turn_are_named_by_their_wavelength():
    axes = empty()
    draw_table(axes, TURNS)
    found = [label.get_text() for label in axes.get_xticklabels()]
    assert found == ["6.3", "62.8", "628", "6,283"]


@pytest.mark.parametrize(
    ("table", "names"), [(BIAS, ["head 1", "head 2"]), (WINDOW, ["all heads"])]
)
def test_a_bias_is_a_line_for_each_head_that_ends_where_nothing_is_seen(table, names):
    axes = empty()
    draw_table(axes, table)
    for line, values in zip(axes.lines, table.values, strict=True):
        expected = np.where(np.isfinite(values), values, math.nan)
        np.testing.assert_array_equal(line.get_xdata(), table.columns)
        np.testing.assert_array_equal(line.get_ydata(), expected)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == names
    assert axes.get_xlim() == (table.columns[0] - 0.5, table.columns[-1] + 0.5)


def test_no_two_heads_have_one_line():
    count = len(COLORS) * len(DASHES)
    heads = list(range(1, count + 1))
    axes = empty()
    draw_table(axes, table("bias", ["encoder"], heads, [0, 1], [[0.0, 1.0]] * count))
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == count


@pytest.fixture
def installed(monkeypatch):
    """Install fonts, by their names and characters."""

    def install(**families: str) -> None:
        files = {BUNDLED_FONT: "abc", **families}
        monkeypatch.setattr(heatmap, "_font_files", lambda: {name: name for name in files})
        monkeypatch.setattr(heatmap, "_characters", lambda name: frozenset(files[name]))

    return install


@pytest.mark.parametrize(
    ("texts", "families", "missing"),
    [
        (["abc"], [BUNDLED_FONT], ""),
        ([], [BUNDLED_FONT], ""),
        (["a犬"], [BUNDLED_FONT, "Kanji"], ""),
        (["犬が", "ب"], [BUNDLED_FONT, "Wide", "Kufi"], ""),
        (["a犬🙂x", "🙂"], [BUNDLED_FONT, "Kanji"], "🙂x"),
        # Joiners and vowel points are not looked up.
        (["ب\u200d\u064e"], [BUNDLED_FONT, "Kufi"], ""),
    ],
)
def test_few_fonts_have_all_characters(installed, texts, families, missing):
    installed(Kanji="犬", Wide="犬が", Kufi="ب")
    assert pick_fonts(texts) == (families, missing)


@given(st.text(alphabet="ab犬がبx", max_size=12))
def test_what_is_missing_is_in_no_font(text):
    with pytest.MonkeyPatch.context() as patch:
        files = {BUNDLED_FONT: "ab", "One": "犬が", "Other": "がب"}
        patch.setattr(heatmap, "_font_files", lambda: {name: name for name in files})
        patch.setattr(heatmap, "_characters", lambda name: frozenset(files[name]))
        families, missing = pick_fonts([text])
    written = "".join(files[family] for family in families)
    assert all((one in written) != (one in missing) for one in text)
    assert set(missing) == set(text) & {"x"}


def test_fonts_of_this_machine_are_read():
    assert pick_fonts(["Übergröße ▁…", "▁الكلب", "Ελλάδα"]) == ([BUNDLED_FONT], "")
    families, missing = pick_fonts(["\U0010fffd"])
    assert (families, missing) == ([BUNDLED_FONT], "\U0010fffd")


def test_fonts_that_matplotlib_cannot_read_have_no_characters(tmp_path):
    file = tmp_path / "broken.ttf"
    file.write_bytes(b"no font")
    assert heatmap._characters(str(file)) == frozenset()


def test_fonts_for_formulas_and_boxes_are_left_alone():
    names = set(heatmap._font_files())
    assert BUNDLED_FONT in names
    bundled = {
        name for name, file in heatmap._font_files().items() if file.startswith(mpl.get_data_path())
    }
    assert bundled <= {BUNDLED_FONT}


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("▁Hund", "▁Hund"),
        ("a\tb\x85", r"a\tb\x85"),
        ("כלב", "כלב"),
        ("  ", "␣␣"),
        ("x" * 24, "x" * 24),
        ("x" * 25, "x" * 23 + "…"),
    ],
)
def test_a_label_is_one_short_line(token, expected):
    assert label(token) == expected


def test_labels_are_all_tokens_that_are_shown():
    assert labels(sentence(maps(["a"], ["b", " "]), maps(["c"], ["d"]))) == [
        "a",
        "b",
        "␣",
        "c",
        "d",
    ]


def test_a_title_names_the_stacks_of_a_table():
    assert table_title(BIAS) == "Attention bias by distance of the decoder"
    assert table_title(TURNS) == "Rotary embedding of the encoder and the decoder"


@pytest.mark.slow
def test_the_maps_of_many_heads_scroll_on_a_phone(browser, tmp_path):
    file = tmp_path / "heatmap.html"
    save_heatmap(sentence(maps(["a"], ["b"], num_heads=16)), file)
    page = browser.new_page(viewport={"width": 320, "height": 600})
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    page.locator(".heads button").last.focus()
    box = page.locator(".heads button").last.bounding_box()
    assert 0 <= box["x"] <= box["x"] + box["width"] <= 320


@pytest.mark.slow
def test_each_line_of_a_page_has_a_style_of_its_own_beside_its_name(browser, tmp_path):
    file = tmp_path / "heatmap.html"
    heads = list(range(1, len(COLORS) * len(DASHES) + 1))
    bias = table("bias", ["encoder"], heads, [0, 1], [[0.0, float(-head)] for head in heads])
    save_heatmap(sentence(maps(["a"], ["b"]), tables=(bias,)), file)
    page = browser.new_page()
    page.goto(file.as_uri())
    page.locator("nav button").last.click()
    styles = [
        page.locator(f"main {kind}").evaluate_all(
            "lines => lines.map((line) => { const style = getComputedStyle(line);"
            " return style.stroke + style.strokeDasharray; })"
        )
        for kind in ("path", ".legend line")
    ]
    assert styles[0] == styles[1]
    assert len(set(styles[0])) == len(heads)
    names = page.locator(".legend span")
    assert names.all_text_contents() == [f"head {head}" for head in heads]
    # Names are as legible as all text.
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert names.first.evaluate("name => getComputedStyle(name).color") == ink
    page.get_by_role("img", name="Attention bias by distance of the encoder").wait_for()
