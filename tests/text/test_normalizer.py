"""The spelling that a tokenizer sees."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.config.schema.tokenizer import CharConfig, Sides, SubwordConfig, WordConfig
from tformer_cli.text.normalizer import Normalizer, replace_line_breaks

ANY = st.builds(Normalizer, lowercase=st.booleans(), nfkc=st.booleans())


@given(ANY, st.text())
def test_normalizer_changes_nothing_the_second_time(normalizer: Normalizer, line: str) -> None:
    once = normalizer(line)
    assert normalizer(once) == once


def test_normalizer_keeps_its_form_when_lower_case_composes() -> None:
    assert Normalizer(lowercase=True, nfkc=True)("J\u030c") == "\u01f0"


@given(ANY, st.text(alphabet="a\r\n\u2028"))
def test_normalizer_leaves_no_line_break(normalizer: Normalizer, line: str) -> None:
    assert "\n" not in normalizer(line)
    assert "\r" not in normalizer(line)


@given(st.text(alphabet="a\r\n\u00e9\u2028\x85"))
def test_each_cr_and_lf_becomes_a_space(text: str) -> None:
    assert replace_line_breaks(text) == re.sub("[\r\n]", " ", text)


@given(st.text(alphabet=st.characters(exclude_characters="\r\n")))
def test_normalizer_leaves_text_as_it_is_unless_asked(line: str) -> None:
    assert Normalizer()(line) == ("" if line.strip() == "" else line)


@pytest.mark.parametrize("line", [" ", "\t", "\u00a0", "\u3000 \u2003"])
def test_normalizer_empties_a_line_of_whitespace(line: str) -> None:
    assert Normalizer()(line) == ""


def test_normalizer_does_what_it_is_asked() -> None:
    assert Normalizer(lowercase=True)("ＡÉ ß") == "ａé ß"
    assert Normalizer(nfkc=True)("Ａe\u0301 ﬁ") == "Aé fi"
    assert Normalizer(lowercase=True, nfkc=True)("ＡE\u0301") == "aé"


@pytest.mark.parametrize(
    ("sides", "source", "target"),
    [
        ("none", False, False),
        ("source", True, False),
        ("target", False, True),
        ("both", True, True),
    ],
)
def test_normalizer_of_side_reads_the_config(sides: Sides, source: bool, target: bool) -> None:
    for lowercase in (SubwordConfig(lowercase=sides), CharConfig(lowercase=sides)):
        assert Normalizer.of_side(lowercase, "source") == Normalizer(lowercase=source)
        assert Normalizer.of_side(lowercase, "target") == Normalizer(lowercase=target)
    for nfkc in (SubwordConfig(nfkc=sides), CharConfig(nfkc=sides), WordConfig(nfkc=sides)):
        assert Normalizer.of_side(nfkc, "source") == Normalizer(nfkc=source)
        assert Normalizer.of_side(nfkc, "target") == Normalizer(nfkc=target)
