"""HTML: blocks are segments, and what is no text of the page stays."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.documents.carry import Alignment, carry_tags
from tformer_cli.documents.document import read_document
from tformer_cli.errors import DataError


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    def read(content):
        path = tmp_path_factory.getbasetemp() / "page.html"
        path.write_text(content, encoding="utf-8", newline="")
        return read_document(path)

    return read


@pytest.mark.parametrize(
    ("page", "texts"),
    [
        ("<h1>One</h1> two<p>three <b>four</b>\n  five</p>", ["One", "two", "three four five"]),
        ("<title>T</title><meta content='no'><td>a<td>b", ["T", "a", "b"]),
        ("a<!-- no --> b<script>if (a < b) '<p>'</script> c", ["a b c"]),
        ("one<br>two<hr/>three", ["one", "two", "three"]),
        ("<pre>no</pre><p>use <code>no <b>no</b></code> now", ["use  now"]),
        ("<div translate='no'>no<div>no</div>no</div>yes", ["yes"]),
        ("<p translate=no>no<b>no<p>a<p translate=no>no<!-- <p> --><hr>b", ["a", "b"]),
        ("<div><p translate=no>no<button><p>no</p></button>no</div>yes", ["yes"]),
        ("<ul><li translate=no>no<ul><li>no<li>no</ul>no</p>no<li>a</ul>b", ["a", "b"]),
        ("<ul><li><p translate=no>no<li translate=no><p>no<li>a", ["a"]),
        ("<dl><dt translate=no>no<dd>a<dt>b<dd translate=no>no</dl>c", ["a", "b", "c"]),
        ("<select><option translate=no>no<option>a</select>", ["a"]),
        (
            "<table><tr><td translate=no>no<table><tr><td>no<td>no</table>no<td>a"
            "<tr translate=no><td>no<td>no<tbody translate=no><tr><td>no<tr><td>no<tbody><td>b",
            ["a", "b"],
        ),
        ("a &lt;b&gt; &amp; caf&eacute;&#33;", ["a <b> & café!"]),
        ("<style>no", []),
        ("12 <p>– | 3.5", []),
        ('<a title="a > b">c</a>', ["c"]),
    ],
)
def test_the_text_of_blocks_is_translated(read, page, texts):
    assert [segment.text for segment in read(page).segments] == texts


def test_inline_tags_are_carried(read):
    document = read('<p class=x>\n  The <a href="?a&amp;b">red</a> car.\n</p>')
    (segment,) = document.segments
    links = [(0, 0), (1, 2), (2, 1)]
    words = [(0, 3), (4, 7), (8, 12)], [(0, 2), (3, 10), (11, 21)]
    carried, lost = carry_tags(segment, "La voiture R&B<rouge.", Alignment(*words, links))
    assert lost == []
    assert document.translated([carried]).decode() == (
        '<p class=x>\n  La voiture <a href="?a&amp;b">R&amp;B&lt;rouge</a>.\n</p>'
    )


class Tags(HTMLParser):
    """The tags and the text of a page, by an independent walk."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, *attrs))

    def handle_endtag(self, tag):
        self.tags.append(f"/{tag}")

    def handle_data(self, data):
        self.text += data


@given(
    st.lists(
        st.sampled_from(
            [
                "<p>",
                "</p>",
                "<b>",
                "</b>",
                "<a/x>",
                "</a>",
                "<br>",
                "<img/>",
                "one\t",
                "&lt;",
                "<pre>",
                "</pre>",
                "two\n",
                "<!--c-->",
                "<script>",
                "</script>",
                "<",
                "a&b",
                "ü",
            ]
        )
    )
)
def test_no_tag_is_lost_and_all_text_is_replaced(read, pieces):
    page = "".join(pieces)
    document = read(page)
    assert document.translated(document.segments).decode() == page
    translations = [s._replace(text=s.text.upper()) for s in document.segments]
    written = Tags(document.translated(translations).decode())
    assert sorted(map(str, written.tags)) == sorted(map(str, Tags(page).tags))
    assert written.text.lower().split() == Tags(page).text.lower().split()


@pytest.mark.parametrize(
    "page", ["\n<meta charset='latin-1'>", "\n<?xml version='1.0' encoding = 'latin-1'?><html>"]
)
def test_a_page_in_another_encoding_is_refused(read, page):
    with pytest.raises(DataError, match=r"html:\d: must be UTF-8 \(latin-1\); convert"):
        read(page)
