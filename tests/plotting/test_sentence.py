"""Tokens as labels, and titles of tables."""

import pytest
from sentences import BIAS, TURNS, maps, sentence

from tformer_cli.plotting.sentence import labels, shown, table_title


@pytest.mark.parametrize(
    ("token", "label"),
    [
        ("▁Hund", "▁Hund"),
        ("a\tb\x85", r"a\tb\x85"),
        ("כלב", "כלב"),
        ("  ", "␣␣"),
        ("x" * 24, "x" * 24),
        ("x" * 25, "x" * 23 + "…"),
    ],
)
def test_a_label_is_one_short_line(token, label):
    assert shown(token) == label


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
    assert table_title(TURNS) == "Rotary turns of the encoder and the decoder"
