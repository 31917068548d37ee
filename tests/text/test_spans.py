"""Spans that translations keep: what they are, and that a splice brings each back."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.errors import UsageError
from tformer_cli.text.spans import PATTERNS, KeptSpans, find_spans

ALL = KeptSpans.of(list(PATTERNS))
SPANS = ["{name}", "%s", "%(n)d", "<b>", "</b>", "https://a.org/x?y=1", "me@x.org", "12:45", "7"]
WORDS = ["a", "dog", "you,", "know.", "我们", "<", "{", "%", "7", "</b>", "www.", "@x.org", "12"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("See https://a.b/c?x=1. Or (www.a.org)!", ["https://a.b/c?x=1", "www.a.org"]),
        ("写信到me@x.org。看http://a.b/{id}谢谢", ["me@x.org", "http://a.b/{id}"]),
        ("${a} {{ b }} {0} {user.name}", ["${a}", "{{ b }}", "{0}", "{user.name}"]),
        ("%s %1$s %(n)d %.2f %5d", ["%s", "%1$s", "%(n)d", "%.2f", "%5d"]),
        ('<a href="x y">b</a><br/> 1 < 2 > 0', ['<a href="x y">', "</a>", "<br/>", "1", "2", "0"]),
        ("50% off, 100% sure", ["50", "100"]),
        ("{ see below } <3", ["3"]),
    ],
)
def test_spans_are_found_without_what_surrounds_them(line, expected):
    assert [span.text for span in find_spans(line)] == expected


def test_the_time_is_linear_in_a_long_line():
    # Quadratic time would be minutes.
    for unit in ("a", "%0", "{0} 1 ", "."):
        line = unit * 50_000
        assert "".join(span.text for span in find_spans(line)) == re.sub("[a%. ]", "", line)
    assert [span.text for span in find_spans("%" + "0" * 50_000)] == ["0" * 50_000]


def test_a_regular_expression_takes_precedence():
    kept = KeptSpans.of([r"No\. \d+", "numbers"])
    assert [(span.kind, span.text) for span in kept.find("No. 5 and 6")] == [
        (r"No\. \d+", "No. 5"),
        ("numbers", "6"),
    ]


def test_what_is_neither_a_kind_nor_a_regular_expression_is_refused():
    with pytest.raises(UsageError, match=r"`keep`: names no spans \(\[\); choose from: addresses"):
        KeptSpans.of(["["])
    with pytest.raises(UsageError, match=r"`keep`: names no spans \(an empty text\); choose from"):
        KeptSpans.of(["numbers", ""])
    for kind, meant in (("placeholder", "placeholders"), ("address", "addresses")):
        message = rf"`keep`: is no kind of spans \({kind}\); write {meant}, or for the word itself"
        with pytest.raises(UsageError, match=message):
            KeptSpans.of([kind])
    assert KeptSpans.of(["(?:number)"]).find("a number 1")[0].text == "number"


@given(
    st.lists(st.sampled_from([*SPANS, "the", "我们", "old dog"]), max_size=8).map(" ".join),
    st.lists(st.sampled_from([*WORDS, *SPANS]), max_size=8).map(" ".join) | st.text(max_size=12),
    st.sampled_from([" ", ""]),
)
def test_a_spliced_translation_has_each_span_as_often_as_its_source(source, translation, separator):
    text = ALL.splice(source, translation, separator)
    assert text is not None
    counts = [Counter(span.text for span in find_spans(line)) for line in (source, text)]
    for span in find_spans(source):
        count = counts[1][span.text]
        same = (
            count >= counts[0][span.text]
            if span.kind == "numbers"
            else count == counts[0][span.text]
        )
        assert same, (span, text)


@pytest.mark.parametrize(
    ("source", "translation", "separator", "expected"),
    [
        ("Say <b>hello</b> now", "Sag hallo jetzt", " ", "Sag <b>hallo</b> jetzt"),
        ("{name} sleeps.", "schläft.", " ", "{name} schläft."),
        ("we have %s", "我们有", "", "我们有%s"),
        ("a <b>dog</b>", "ein <b> <b>Hund</b>", " ", "ein <b> Hund</b>"),
        ("a <b><i>dog</i></b> now", "ein Hund jetzt", " ", "ein <b> <i>Hund</i></b> jetzt"),
    ],
)
def test_a_splice_keeps_spaces_right(source, translation, separator, expected):
    assert ALL.splice(source, translation, separator) == expected


def test_the_time_of_a_splice_is_linear_in_its_spans():
    # Quadratic time would be minutes.
    source = " ".join(f"<b>dog</b> {number}" for number in range(2_000))
    translation = " ".join(f"Hund {number}" for number in range(2_000))
    assert ALL.splice(source, translation, " ") == source.replace("dog", "Hund")


def test_a_splice_that_cannot_be_exact_is_refused():
    assert KeptSpans.of([r"(?<=No\. )\d+"]).splice("No. 5", "x", " ") is None
