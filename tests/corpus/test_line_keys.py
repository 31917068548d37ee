"""Lines that count as equal, and lines that do not."""

import pytest

from tformer_cli.corpus.line_keys import line_key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A dog.", "a DOG."),
        ("A dog.", "  A\tdog. "),
        ("ﬁne", "fine"),
        ("Straße", "STRASSE"),
        ("ｆｕｌｌ　ｗｉｄｔｈ", "full width"),
        ("é", "e\u0301"),
        ("", " \u3000"),
    ],
)
def test_lines_that_count_as_equal(one: str, other: str) -> None:
    assert line_key(one) == line_key(other)


@pytest.mark.parametrize(
    ("one", "other"), [("A dog.", "A dog"), ("a b", "ab"), ("", "."), ("ä", "a")]
)
def test_lines_that_count_as_different(one: str, other: str) -> None:
    assert line_key(one) != line_key(other)
