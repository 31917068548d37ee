"""Pictures against the numbers and tokens that they show."""

import itertools
import sys
import warnings
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from sentences import BIAS, TURNS, VECTORS, WINDOW, maps, sentence

from tformer_cli.errors import UsageError
from tformer_cli.plotting import heatmap_picture
from tformer_cli.plotting.heatmap_picture import draw, missing_glyphs, save

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
    return draw(ALL)


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
    figure = draw(sentence(maps(tokens, tokens, num_layers=num_layers, num_heads=num_heads)))
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
    for axes in map_axes(figure):
        box = axes.get_window_extent()
        rows, columns = axes.images[0].get_array().shape
        assert box.width / columns == pytest.approx(box.height / rows)


def test_titles_name_the_stacks(figure):
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert texts[::2] == [
        "Encoder self-attention",
        "Decoder self-attention",
        "Cross-attention",
        "Position vectors of the encoder",
        "Rotary turns of the encoder and the decoder",
        "Attention bias by distance of the decoder",
        "Attention bias by distance of the encoder",
    ]


def test_characters_that_no_font_has_are_named_and_drawn_without_a_warning(tmp_path):
    # Private characters, which are in no font but one of their inventor.
    strange = sentence(maps(["a\U0010fffd", "\U0010fffc"], ["b"]))
    with warnings.catch_warnings(record=True) as caught:
        save(draw(strange), tmp_path / "heatmap.png")
    assert caught == []
    problem = missing_glyphs(strange, tmp_path / "heatmap.png")
    assert str(problem) == (
        f"{tmp_path}/heatmap.png: has boxes for characters that no installed font has; "
        r"got \U0010fffd\U0010fffc; install a font that has them, or write .svg or .html"
    )
    assert missing_glyphs(strange, tmp_path / "heatmap.svg") is None
    assert missing_glyphs(ALL, tmp_path / "heatmap.png") is None


@pytest.mark.parametrize("suffix", MAGIC)
def test_a_picture_is_a_function_of_the_numbers(tmp_path, suffix):
    """Neither the time of day nor the settings of the user change a byte."""
    small = sentence(maps(["a"], ["b"]))
    one, two = (tmp_path / f"{name}{suffix}" for name in ("one", "two"))
    save(draw(small), one)
    with mpl.rc_context({"font.size": 20, "svg.fonttype": "path"}):
        save(draw(small), two)
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes().startswith(MAGIC[suffix])


def test_an_svg_holds_tokens_as_text_of_their_own_direction(tmp_path):
    tokens = ["<script>", "犬&猫", "▁الكلب", "שלום"]
    save(draw(sentence(maps(tokens, tokens))), tmp_path / "heatmap.svg")
    root = ElementTree.parse(tmp_path / "heatmap.svg").getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [texts.count(token) for token in tokens] == [2, 2, 2, 2]
    assert "unicode-bidi:plaintext" in root.find(".//{http://www.w3.org/2000/svg}style").text


def test_a_picture_that_no_viewer_opens_is_refused(monkeypatch):
    monkeypatch.setattr(heatmap_picture, "MAX_DOTS", 10**6)
    with pytest.raises(UsageError) as caught:
        draw(ALL)
    figure_size = str(caught.value).split("got ")[1].split(";")[0]
    assert str(caught.value) == (
        f"the picture: would have more than 1 million dots; got {figure_size}; "
        "choose a part, a layer or a head, or write .html"
    )
    width, height = (int(side.replace(",", "")) for side in figure_size.split(" x "))
    assert width * height > 10**6


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError) as caught:
        draw(ALL)
    assert str(caught.value) == (
        "tformer heatmap: needs matplotlib, which is not installed; "
        "write .html, or install it with: pip install 'tformer[plot]'"
    )
