"""What counts as the same translation, with engines that say what they are told to."""

from dataclasses import dataclass, field, replace

import pytest

from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig
from tformer_cli.export.check import Difference, compare_engines
from tformer_cli.export.plain import PlainFormat
from tformer_cli.search.engine import Hypothesis, Request

SENTENCE = Request(source=(7, 8, 3))
ONE = Hypothesis((20, 21, 22), log_prob=-4.0, score=-1.0, finished=True)
OTHER = Hypothesis((20, 25, 26), log_prob=-4.0, score=-1.0, finished=True)
BEAM = BeamConfig(beam_size=2)
GREEDY = GreedyConfig()


@dataclass
class Told:
    """An engine that finds what it is given, and scores by a table."""

    found: list[list[Hypothesis]]
    log_probs: dict[tuple[int, ...], tuple[float, ...]] = field(default_factory=dict)

    @property
    def scorer(self):
        return self

    def translate(self, requests, config, *, nbest, on_done):
        on_done(len(requests))
        return self.found

    def score(self, pairs):
        return [self.log_probs[ids] for _, ids in pairs]


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (GreedyConfig(max_length=30), BeamConfig(max_length=30)),
        (BeamConfig(beam_size=1, length_penalty=0.5, max_length=30), BeamConfig(max_length=30)),
        (
            BeamConfig(beam_size=4, length_penalty=1.4, max_length=30, no_repeat_ngram_size=3),
            BeamConfig(beam_size=4, length_penalty=1.4, max_length=30),
        ),
    ],
)
def test_searches_are_greedy_and_the_beam_of_the_run(own, expected):
    assert PlainFormat().searches(own) == [GreedyConfig(max_length=30), expected]


def test_equal_translations_have_no_differences():
    seen = []
    engine = Told([[ONE, OTHER]])
    found = compare_engines(engine, Told([[ONE, OTHER]]), [SENTENCE], BEAM, on_done=seen.append)
    assert (found.num_lines, found.num_equal, found.num_best_equal) == (1, 1, 1)
    assert found.ties == found.differences == ()
    assert seen == [1, 1]


@pytest.mark.parametrize(("change", "differs"), [(3e-4, False), (5e-4, True)])
def test_scores_of_equal_tokens_agree_token_for_token(change, differs):
    """1e-4 a token, of which there are four."""
    theirs = replace(ONE, log_prob=ONE.log_prob + change)
    found = compare_engines(Told([[ONE]]), Told([[theirs]]), [SENTENCE], GREEDY)
    assert found.num_equal == 1
    assert found.differences == ((Difference(0, 0, ONE, theirs),) if differs else ())


def test_an_unfinished_translation_is_another_one():
    found = compare_engines(
        Told([[ONE]], {(20, 21, 22): (-1.0,) * 4}),
        Told([[replace(ONE, finished=False)]], {(20, 21, 22): (-1.0, -1.0, -1.0, -9.0)}),
        [SENTENCE],
        BEAM,
    )
    assert found.num_equal == 0


@pytest.mark.parametrize(
    ("ours", "theirs", "is_tie"),
    [
        ([-1.0, -1.0], [-1.0, -1.00005], True),
        # One of the engines prefers what it found.
        ([-1.0, -1.01], [-1.0, -1.0], False),
        # Each engine finds both equally good, but one finds them better.
        ([-1.0, -1.0], [-1.2, -1.2], False),
        ([-1.0, float("-inf")], [-1.0, -1.0], False),
    ],
)
def test_a_beam_ties_where_both_engines_score_both_alike(ours, theirs, is_tie):
    engines = [
        Told([[own]], {ONE.token_ids: (scores[0],) * 4, OTHER.token_ids: (scores[1],) * 4})
        for own, scores in ((ONE, ours), (OTHER, theirs))
    ]
    found = compare_engines(*engines, [SENTENCE], BEAM)
    difference = (Difference(0, 0, ONE, OTHER),)
    assert (found.ties, found.differences) == ((difference, ()) if is_tie else ((), difference))
    assert (found.num_equal, found.num_best_equal) == (0, 0)


@pytest.mark.parametrize(("second", "is_tie"), [(-2.0, True), (-2.1, False)])
def test_greedy_search_ties_at_the_token_where_translations_part(second, is_tie):
    """What comes behind it has no say."""
    log_probs = {ONE.token_ids: (-1.0, -2.0, -3.0, 0.0), OTHER.token_ids: (-1.0, second, 0.0, 0.0)}
    found = compare_engines(
        Told([[ONE]], log_probs), Told([[OTHER]], log_probs), [SENTENCE], GREEDY
    )
    assert (len(found.ties), len(found.differences)) == ((1, 0) if is_tie else (0, 1))


def test_a_translation_that_one_lacks_is_a_difference():
    found = compare_engines(Told([[ONE, OTHER]]), Told([[ONE]]), [SENTENCE], BEAM)
    assert found.differences == (Difference(0, 1, OTHER, None),)
    assert (found.num_equal, found.num_best_equal) == (0, 1)
