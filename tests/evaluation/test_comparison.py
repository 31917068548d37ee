"""Comparisons against scores of each resample, of every possible shuffle, and sacrebleu's tests."""

import itertools
import random

import numpy as np
import pytest
import sacrebleu
import torch
from sacrebleu.significance import PairedTest

from tformer_cli.config.schema.config import EvaluationConfig
from tformer_cli.evaluation.compare import compare_systems, score_systems
from tformer_cli.evaluation.metrics import build_metric

WORDS = (
    "der",
    "die",
    "das",
    "Hund",
    "Katze",
    "schläft",
    "trinkt",
    "sieht",
    "ein",
    "rotes",
    ".",
    ",",
)
SCORES = {
    "bleu": sacrebleu.corpus_bleu,
    "chrf": sacrebleu.corpus_chrf,
    "ter": sacrebleu.corpus_ter,
}


def sentences(count, seed):
    chooser = random.Random(seed)
    return [" ".join(chooser.choices(WORDS, k=chooser.randint(5, 12))) for _ in range(count)]


def with_noise(lines, share, seed):
    chooser = random.Random(seed)
    return [
        " ".join(
            chooser.choice(WORDS) if chooser.random() < share else word for word in line.split()
        )
        for line in lines
    ]


REFERENCES = sentences(24, 1)
GOOD = with_noise(REFERENCES, 0.2, 2)
FAIR = with_noise(REFERENCES, 0.3, 3)
BAD = with_noise(REFERENCES, 0.6, 4)


def compared(systems, name="bleu", references=(REFERENCES,), resamples=100, seed=12345):
    metric = build_metric(name, EvaluationConfig(), "de")
    statistics = metric.statistics(systems, references)
    return compare_systems("text", [statistics], resamples=resamples, seed=seed).scores[name]


@pytest.mark.parametrize("name", SCORES)
def test_scores_are_those_of_an_evaluation(name):
    metric = build_metric(name, EvaluationConfig(), "de")
    systems = {"bad": BAD, "good": GOOD}
    for scored in compared(systems, name):
        assert scored.score == metric.score(systems[scored.system], REFERENCES)


@pytest.mark.parametrize("name", SCORES)
def test_bootstrap_is_that_of_each_resample_scored_alone(name):
    count, seed = 60, 7
    chosen = np.random.default_rng(seed).choice(24, size=(count, 24))
    fair, good = (
        np.array(
            [
                SCORES[name]([lines[i] for i in rows], [[REFERENCES[i] for i in rows]]).score
                for rows in chosen
            ]
        )
        for lines in (FAIR, GOOD)
    )
    first, second = compared({"fair": FAIR, "good": GOOD}, name, resamples=count, seed=seed)
    for scores, scored in ((fair, first), (good, second)):
        ordered = np.sort(scores)
        half = (ordered[-1 - count // 40] - ordered[count // 40]) / 2
        mean = scores.mean()
        assert scored.interval == pytest.approx((mean - half, mean + half), abs=1e-3)
    differences = np.abs(good - fair)
    observed = abs(second.score.score - first.score.score)
    num_larger = (differences - differences.mean() > observed).sum()
    assert second.contrast.p_bootstrap == (num_larger + 1) / (count + 1)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("count", [31, 32, 100])
def test_intervals_and_p_values_are_those_of_sacrebleu(name, count, monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    systems = {"fair": FAIR, "good": GOOD, "same": FAIR}
    scorers = {name: build_metric(name, EvaluationConfig(), "de").scorer}
    (bootstraps,), (shuffles,) = (
        [column for key, column in test()[1].items() if key != "System"]
        for test in (
            PairedTest(list(systems.items()), scorers, [REFERENCES], kind, count)
            for kind in ("bs", "ar")
        )
    )
    first, second, third = compared(systems, name, resamples=count, seed=7)
    for scored, result in zip((first, second, third), bootstraps, strict=True):
        assert scored.score.score == result.score
        interval = result.mean - result.ci, result.mean + result.ci
        assert scored.interval == pytest.approx(interval)
    contrast = second.contrast
    assert contrast.p_bootstrap == bootstraps[1].p_value
    if name == "ter":
        # Other shuffles have the same difference, which sacrebleu does not count.
        assert contrast.p_randomization > shuffles[1].p_value
    else:
        assert contrast.p_randomization == shuffles[1].p_value
    assert third.contrast.difference == 0


@pytest.mark.parametrize("name", SCORES)
def test_statistics_of_some_lines_are_those_of_a_text_of_them(name):
    metric = build_metric(name, EvaluationConfig(), "de")
    references = [REFERENCES, with_noise(REFERENCES, 0.1, 5)]
    chosen = metric.statistics({"fair": FAIR, "good": GOOD}, references).select([5, 2, 11])
    for score, lines in zip(chosen.scores(), (FAIR, GOOD), strict=True):
        texts = [[text[5], text[2], text[11]] for text in (lines, *references)]
        assert score.score == SCORES[name](texts[0], texts[1:]).score
        assert score.num_sentences == 3


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("num_differing", [2, 6])
def test_randomization_is_that_of_every_shuffle(name, num_differing):
    other = [*BAD[:num_differing], *GOOD[num_differing:]]
    pairs = list(zip(GOOD, other, strict=True))

    def difference(sides):
        """The absolute difference if line n of the first is taken from side n."""
        rest = [0] * (24 - num_differing)
        one, two = zip(
            *((pair[i], pair[1 - i]) for pair, i in zip(pairs, [*sides, *rest], strict=True)),
            strict=True,
        )
        return abs(SCORES[name](one, [REFERENCES]).score - SCORES[name](two, [REFERENCES]).score)

    observed = difference([0] * num_differing)
    shuffled = [difference(sides) for sides in itertools.product((0, 1), repeat=num_differing)]
    expected = np.mean([each >= observed - 1e-9 for each in shuffled])
    _, scored = compared({"good": GOOD, "other": other}, name, resamples=2000)
    assert scored.contrast.p_randomization == pytest.approx(expected, abs=0.03)


def test_shuffles_with_the_same_difference_count():
    right, wrong = "a b c d", "a b c x"
    systems = {"first": [*[wrong] * 7, right], "second": [*[right] * 7, wrong]}
    _, scored = compared(systems, "ter", [[right] * 8], resamples=2000)
    # One or none of eight sentences, or seven or all of them, are exchanged.
    assert scored.contrast.p_randomization == pytest.approx(18 / 256, abs=0.015)
    assert scored.contrast.verdict == "undecided"


@pytest.mark.parametrize("systems", [{"bad": BAD}, {"bad": BAD, "good": GOOD}])
def test_scores_without_a_test_have_the_intervals_of_a_comparison(systems):
    statistics = [
        build_metric(name, EvaluationConfig(), "de").statistics(systems, [REFERENCES])
        for name in SCORES
    ]
    scores = score_systems(statistics)
    for name, scored in scores.items():
        expected = compared({**systems, "fair": FAIR}, name, resamples=1000)[: len(systems)]
        assert [one.system for one in scored] == [*systems]
        assert [one.score for one in scored] == [one.score for one in expected]
        np.testing.assert_allclose(
            [one.interval for one in scored], [one.interval for one in expected], rtol=1e-6
        )
        assert {one.contrast for one in scored} == {None}


def test_one_sentence_alone_is_never_significant():
    _, scored = compared({"good": GOOD, "other": ["", *GOOD[1:]]})
    assert scored.contrast.difference != 0
    assert scored.contrast.p_randomization == 1
    assert scored.contrast.verdict == "undecided"


@pytest.mark.parametrize("name", SCORES)
def test_equal_translations_do_not_differ(name):
    _, scored = compared({"good": GOOD, "same": list(GOOD)}, name)
    contrast = scored.contrast
    assert (contrast.difference, contrast.p_bootstrap, contrast.p_randomization) == (0, 1, 1)
    assert (contrast.num_wins, contrast.num_ties, contrast.num_losses) == (0, 24, 0)
    assert contrast.verdict == "undecided"


@pytest.mark.parametrize("name", SCORES)
def test_the_other_order_mirrors_the_contrast(name):
    baseline, better = compared({"bad": BAD, "good": GOOD}, name)
    first, worse = compared({"good": GOOD, "bad": BAD}, name)
    assert (baseline.contrast, first.contrast) == (None, None)
    one, other = better.contrast, worse.contrast
    assert (one.verdict, other.verdict) == ("better", "worse")
    assert one.difference == -other.difference
    assert (one.difference < 0) == (name == "ter")
    assert (one.num_wins, one.num_ties, one.num_losses) == (
        other.num_losses,
        other.num_ties,
        other.num_wins,
    )
    assert one.num_wins > one.num_losses
    assert (one.p_bootstrap, one.p_randomization) == (other.p_bootstrap, other.p_randomization)
    assert (baseline.interval, better.interval) == (worse.interval, first.interval)


def test_each_system_is_compared_with_the_first():
    *_, third = compared({"fair": FAIR, "good": GOOD, "bad": BAD})
    _, alone = compared({"fair": FAIR, "bad": BAD})
    assert third == alone


def test_a_sentence_may_have_several_references():
    other = with_noise(REFERENCES, 0.1, 5)
    for name, score in SCORES.items():
        for scored, lines in zip(
            compared({"fair": FAIR, "good": GOOD}, name, [REFERENCES, other]),
            (FAIR, GOOD),
            strict=True,
        ):
            assert scored.score.score == score(lines, [REFERENCES, other]).score
            assert scored.score.signature.startswith("nrefs:2|")


def test_a_seed_gives_one_result_and_leaves_other_state_alone():
    states = torch.get_rng_state(), np.random.get_state()[1].copy()
    once, again, other = (compared({"fair": FAIR, "good": GOOD}, seed=seed) for seed in (1, 1, 2))
    assert once == again
    assert once[1].interval != other[1].interval
    assert once[1].contrast.p_bootstrap != other[1].contrast.p_bootstrap
    assert torch.equal(states[0], torch.get_rng_state())
    assert (states[1] == np.random.get_state()[1]).all()
