"""The benchmark of cleaning: dirt where it is said to be, and its figures by hand."""

from collections import Counter

import pytest
from cleaning import KINDS, make_dirty, measure

PAIRS = [
    (f"a dog number {i} runs here .", f"ein Hund Nummer {i} rennt hier .") for i in range(4000)
]
OTHERS = ["un chien court ici ."] * len(PAIRS)


def test_pairs_called_clean_are_as_they_were_and_others_are_not():
    dirty, kinds = make_dirty(PAIRS, OTHERS, [("test", "Test")], seed=1)
    for before, after, kind in zip(PAIRS, dirty, kinds, strict=True):
        assert (before == after) == (kind == "clean")
    counts = Counter(kinds)
    for kind, (share, _, _) in KINDS.items():
        assert counts[kind] / len(PAIRS) == pytest.approx(share, rel=0.5)


def test_figures_by_hand():
    kinds = ["markup", "markup", "clean", "clean", "source copied", "target of another pair"]
    # The rule of markup drops one of two of its kind, a clean pair, and a copy.
    rows = {row["kind"]: row for row in measure(kinds, {1: "markup", 3: "markup", 5: "markup"})}
    markup = rows["markup"]
    assert markup["precision"] == pytest.approx(2 / 3)
    assert (markup["recall"], markup["dropped"]) == (0.5, 0.5)
    copied = rows["source copied"]
    assert (copied["precision"], copied["recall"], copied["dropped"]) == (None, 0.0, 1.0)
    assert rows["target of another pair"]["dropped"] == 0.0
    assert rows["clean"]["dropped"] == 0.5
