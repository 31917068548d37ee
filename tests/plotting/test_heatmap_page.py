"""The page: its content, and that no text of a sentence is anything but text."""

import json
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st
from sentences import BIAS, TURNS, VECTORS, maps, sentence

from tformer_cli.plotting.heatmap_page import SCRIPT, STYLE, page, save_page
from tformer_cli.plotting.sentence import Sentence

EVIL = ["<script>alert(1)</script>", "</script>", "<!--", "&lt;", '"', "'", "{x}"]


class Reader(HTMLParser):
    """Notes the elements of a page, their attributes, and the text in each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.texts.append("")

    def handle_data(self, data):
        if self.texts:
            self.texts[-1] += data

    def content(self) -> dict:
        place = next(
            n for n, (_, found) in enumerate(self.elements) if found.get("id") == "content"
        )
        return json.loads(self.texts[place])


PLAIN = Reader(page(sentence(maps(["a"], ["b"]))))


def test_the_content_is_what_there_is_to_draw():
    cross = maps(["犬", "が"], ["▁dog", "</s>"], num_layers=2, num_heads=3)
    content = Reader(page(sentence(cross, tables=(VECTORS, TURNS, BIAS)))).content()
    (found,) = content["maps"]
    assert found["weights"] == cross.weights
    assert (found["rows"], found["columns"]) == (["犬", "が"], ["▁dog", "</s>"])
    assert (found["layers"], found["heads"]) == ([1, 2], [1, 2, 3])
    assert found["title"] == "Cross-attention"
    tables = content["positions"]
    assert [table["values"] for table in tables] == [VECTORS.values, TURNS.values, BIAS.values]
    assert tables[1]["title"] == "Rotary turns of the encoder and the decoder"


@given(st.lists(st.one_of(st.sampled_from(EVIL), st.text(max_size=8)), min_size=1, max_size=4))
def test_whatever_a_token_is_it_stays_a_text(tokens):
    source = " ".join(tokens)
    reader = Reader(page(sentence(maps(tokens, tokens), source=source)))
    assert reader.elements == PLAIN.elements
    (found,) = reader.content()["maps"]
    assert found["rows"] == found["columns"] == tokens


def test_sentences_are_escaped():
    evil = Sentence("<b>&amp;", "</p><i>", [maps(["a"], ["b"])], [])
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
    for text in (SCRIPT, STYLE):
        # What http there is, is the name of a kind of elements.
        assert text.replace("http://www.w3.org/2000/svg", "").count("//www") == 0
        assert "url(" not in text
        assert "innerHTML" not in text


def test_a_page_without_a_translation_has_none():
    alone = Sentence("a", None, [maps(["a"], ["a"], part="encoder")], [])
    assert "None" not in page(alone)


def test_a_page_is_written_whole(tmp_path):
    found = sentence(maps(["犬"], ["b"]))
    save_page(found, tmp_path / "deep" / "heatmap.html")
    assert (tmp_path / "deep" / "heatmap.html").read_text(encoding="utf-8") == page(found)
