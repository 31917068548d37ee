"""Minimum-Bayes-risk decoding against sacrebleu's own scores in a double loop."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig, SampleConfig
from tformer_cli.errors import UsageError
from tformer_cli.search.engine import Hypothesis
from tformer_cli.translate.mbr import rerank
from tformer_cli.translate.options import MBR

WORDS = ["ein", "Hund", "rennt", "schnell.", "über", "a,b", "3.5", "die", "die", "Wiese", "犬が"]
SENTENCES = st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)
UTILITIES = st.sampled_from(["chrf", "bleu"])


def hypotheses(count: int) -> list[Hypothesis]:
    return [Hypothesis((number,), -number, -number, True) for number in range(count)]


def sacrebleu_score(utility: str, uses_whitespace: bool, text: str, reference: str) -> float:
    tokenize = "13a" if uses_whitespace else "char"
    metric = CHRF() if utility == "chrf" else BLEU(effective_order=True, tokenize=tokenize)
    return metric.sentence_score(text, [reference]).score


@settings(max_examples=20)
@given(UTILITIES, st.lists(SENTENCES, min_size=1, max_size=5), st.booleans())
def test_utilities_are_the_means_of_what_sacrebleu_says(utility, texts, uses_whitespace):
    found = rerank(utility, hypotheses(len(texts)), texts, uses_whitespace=uses_whitespace)
    means = {
        text: sum(sacrebleu_score(utility, uses_whitespace, text, other) for other in texts)
        / len(texts)
        for text in texts
    }
    chosen = [texts[one.token_ids[0]] for one in found]
    assert sorted(chosen) == sorted(means), "each text comes once"
    assert [one.score for one in found] == pytest.approx([means[text] for text in chosen])
    assert [one.score for one in found] == pytest.approx(sorted(means.values(), reverse=True))


@given(UTILITIES, st.lists(SENTENCES, min_size=1, max_size=4), st.integers(2, 3))
def test_finding_everything_more_often_changes_nothing(utility, texts, times):
    once = rerank(utility, hypotheses(len(texts)), texts, uses_whitespace=True)
    more = texts * times
    often = rerank(utility, hypotheses(len(more)), more, uses_whitespace=True)
    assert [one.token_ids for one in often] == [one.token_ids for one in once]


@given(UTILITIES, st.lists(SENTENCES, min_size=1, max_size=4))
def test_what_nearly_all_say_wins(utility, texts):
    more = [*texts, *[texts[-1]] * 50]
    best = rerank(utility, hypotheses(len(more)), more, uses_whitespace=True)[0]
    if texts[-1]:
        assert more[best.token_ids[0]] == texts[-1]


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_of_equal_utilities_the_score_of_the_search_decides(utility):
    # Anagrams of whole words of one length: each is as like the other as the other way round.
    texts = ["ab cd", "cd ab"]
    first, second = rerank(utility, hypotheses(2), texts, uses_whitespace=True)
    assert first.score == pytest.approx(second.score)
    assert (first.token_ids, second.token_ids) == ((0,), (1,))


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
@pytest.mark.parametrize("count", [1, 5])
def test_what_all_agree_on_has_full_utility(utility, count):
    found = rerank(utility, hypotheses(count), ["a b c d e f"] * count, uses_whitespace=True)
    (only,) = found
    assert only.score == pytest.approx(100)
    assert (only.token_ids, only.log_prob) == ((0,), 0)


def test_the_middle_one_wins_over_the_most_probable():
    texts = ["one two three", "ein Hund rennt", "ein Hund rannte", "ein Huhn rannte"]
    for utility in ("chrf", "bleu"):
        best = rerank(utility, hypotheses(4), texts, uses_whitespace=True)[0]
        assert texts[best.token_ids[0]] == "ein Hund rannte"
        assert math.isfinite(best.score)


def test_the_search_says_how_many_candidates_there_are():
    assert MBR().num_hypotheses(SampleConfig()) == 32
    assert MBR(num_candidates=7).num_hypotheses(SampleConfig()) == 7
    assert MBR().num_hypotheses(BeamConfig(beam_size=6)) == 6
    assert MBR(num_candidates=4).num_hypotheses(BeamConfig(beam_size=6)) == 4


def test_a_search_that_keeps_fewer_candidates_is_refused():
    with pytest.raises(UsageError) as raised:
        MBR(num_candidates=32).num_hypotheses(BeamConfig(beam_size=5))
    assert str(raised.value) == (
        "`num_candidates`: must be at most the beam size 5 (32); "
        "use `BeamConfig(beam_size=32)`, or decoding.kind=sample"
    )
    with pytest.raises(UsageError) as raised:
        MBR().num_hypotheses(GreedyConfig())
    assert str(raised.value) == (
        "`mbr`: has no effect on greedy search; use `BeamConfig(beam_size=8)`, or "
        "decoding.kind=sample"
    )


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (("foo",), "`utility`: must be one of chrf, bleu (foo)"),
        (("bleu", 0), "`num_candidates`: must be at least 1 (0)"),
        (("bleu", -3), "`num_candidates`: must be at least 1 (-3)"),
    ],
)
def test_a_choice_that_is_none_is_refused(choice, message):
    with pytest.raises(UsageError) as caught:
        MBR(*choice)
    assert str(caught.value) == message
