"""Terms in lines, against a search by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.errors import DataError
from tformer_cli.text.terminology import Terminology


def terminology(*terms: str, language: str = "en") -> Terminology:
    return Terminology(terms, "terms.tsv", source_language=language)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("The dog sleeps.", ["Hund"]),
        ("dog", ["Hund"]),
        ("the dogs of dogma, a bulldog", []),
        ("The Dog sleeps.", []),
        ("A dog's (dog) life", ["Hund"]),
        ("an old dog and a cat", ["Katze"]),
        ("a cat, a dog", ["Katze", "Hund"]),
        ("a dog, an old dog", ["Hund"]),
        ("", []),
    ],
)
def test_terms_are_whole_words_and_the_longest_counts(line, wanted):
    terms = terminology("dog\tHund", "old dog and\tKatze", "cat\tKatze", "an old dog\tHund")
    assert terms.target_terms(line) == wanted


def test_a_term_may_begin_or_end_with_a_mark():
    terms = terminology("C++\tCpp", ".NET\tNet")
    assert terms.target_terms("C++ and .NET, C++11") == ["Cpp", "Net"]
    assert terminology("C\tC").target_terms("C++ C_x") == ["C"]


def test_a_mark_of_a_script_belongs_to_its_word():
    assert terminology("क\tka").target_terms("कि") == []


def test_a_language_without_blanks_has_terms_anywhere():
    terms = terminology("東京\tTokio", "京都\tKyoto", "東京都\tPräfektur Tokio", language="ja")
    assert terms.target_terms("私は東京へ") == ["Tokio"]
    assert terms.target_terms("東京都と京都") == ["Präfektur Tokio", "Kyoto"]


@given(
    st.dictionaries(st.text("ab", min_size=1, max_size=3), st.sampled_from("XYZ"), max_size=5),
    st.text("ab", max_size=12),
)
def test_terms_are_found_as_one_by_one_from_the_longest(terms, line):
    found, rest = {}, line
    for term in sorted(terms, key=len, reverse=True):
        while (place := rest.find(term)) >= 0:
            rest = rest[:place] + "." * len(term) + rest[place + len(term) :]
            found[place] = terms[term]
    # Equally long terms that overlap compete by place, which finding them in turn ignores.
    if len({len(term) for term in terms}) == len(terms):
        expected = list(dict.fromkeys(found[place] for place in sorted(found)))
        rows = [f"{term}\t{target}" for term, target in terms.items()]
        assert terminology(*rows, language="zh").target_terms(line) == expected


def test_blank_lines_and_repeated_ones_say_nothing_new():
    assert terminology("", "dog\tHund", " ", "dog \t Hund").targets == {"dog": "Hund"}


@pytest.mark.parametrize("line", ["dog", "dog\t", "\tHund", "dog\tHund\tm"])
def test_a_line_that_is_no_term_is_named(line):
    with pytest.raises(DataError) as caught:
        terminology("", "cat\tKatze", line)
    assert str(caught.value) == (
        f"terms.tsv:3: must be a source term, a tab and a target term; got {line!r}"
    )


def test_a_second_translation_is_refused():
    with pytest.raises(DataError) as caught:
        terminology("dog\tHund", "", "dog\tKöter")
    assert str(caught.value) == (
        "terms.tsv:3: has another translation than line 1; got 'Köter' for 'dog'; "
        "keep one of the two"
    )
