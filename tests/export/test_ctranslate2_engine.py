"""CTranslate2 behind our interface of an engine."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from exportable import BASE, LINES, lively
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig, SampleConfig
from tformer_cli.errors import UsageError
from tformer_cli.export import ctranslate2_engine
from tformer_cli.export.ctranslate2 import CTranslate2Format
from tformer_cli.export.ctranslate2_engine import (
    BATCHES_AHEAD,
    MAX_BATCH,
    MIN_BATCH,
    OTHER_ENGINE,
    TRIAL_SHARE,
    TRIALS,
    Trials,
    shrinking_batches,
)
from tformer_cli.search.engine import EMPTY, Request, SpecialTokens
from tformer_cli.search.native_engine import NativeEngine
from tformer_cli.text.special_tokens import EOS_ID, UNK_ID

pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")


@pytest.fixture(scope="module")
def model():
    return lively(replace(BASE, num_kv_heads=1))


@pytest.fixture(scope="module")
def theirs(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    form = CTranslate2Format()
    form.write(model, folder)
    return form.engine(model, folder)


@pytest.fixture(scope="module")
def ours(model):
    roles = SpecialTokens(*model.tokenizers.special_ids(model.config.model.kind))
    return NativeEngine(model.model, roles, device=torch.device("cpu"))


@pytest.fixture(scope="module")
def requests(model):
    encoded = [model.tokenizers.source.encode(line) for line in LINES]
    return [Request([*ids, EOS_ID] if ids else []) for ids in encoded]


@pytest.mark.parametrize(
    ("search", "nbest"),
    [
        (GreedyConfig(max_length=9), 1),
        (BeamConfig(beam_size=4, max_length=9, length_penalty=0.5), 4),
        (BeamConfig(beam_size=3, max_length=12, length_penalty=0.0, patience=2.0), 2),
        (BeamConfig(beam_size=1, max_length=12, patience=1.4), 1),
    ],
)
def test_hypotheses_are_those_of_our_engine(ours, theirs, requests, search, nbest):
    done = []
    expected = ours.translate(requests, search, nbest=nbest)
    found = theirs.translate(requests, search, nbest=nbest, on_done=done.append)
    for own, other in zip(expected, found, strict=True):
        assert [(one.token_ids, one.finished) for one in other] == [
            (one.token_ids, one.finished) for one in own
        ]
        for kind in ("log_prob", "score"):
            assert [getattr(one, kind) for one in other] == pytest.approx(
                [getattr(one, kind) for one in own], rel=1e-4, abs=1e-4
            )
    assert found[LINES.index("")] == [EMPTY] * nbest
    assert sum(done) == len(LINES)


def test_what_nobody_asks_for_is_not_scored(theirs, requests):
    expected = theirs.translate(requests, GreedyConfig(max_length=9))
    found = theirs.translate(requests, GreedyConfig(max_length=9), scored=False)
    assert [best.token_ids for (best,) in found] == [best.token_ids for (best,) in expected]
    unscored = [best for (best,) in found if best is not EMPTY]
    assert unscored
    assert all(math.isnan(best.score) and math.isnan(best.log_prob) for best in unscored)


@pytest.mark.parametrize("nbest", [1, 3])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_neither_batches_nor_what_is_under_way_change_hypotheses(
    nbest, num_threads, model, requests, tmp_path, monkeypatch
):
    form = CTranslate2Format()
    form.write(model, tmp_path)
    module = "tformer_cli.export.ctranslate2_engine"
    monkeypatch.setattr(f"{module}.num_threads", lambda: num_threads)
    engine = form.engine(model, tmp_path)
    assert engine.translator.num_translators == num_threads
    search = BeamConfig(beam_size=3, max_length=9)
    many = requests * 7
    expected = engine.translate(many, search, nbest=nbest)
    monkeypatch.setattr(ctranslate2_engine, "MAX_BATCH", 2)
    monkeypatch.setattr(ctranslate2_engine, "MIN_BATCH", 1)
    done = []
    found = engine.translate(many, search, nbest=nbest, on_done=done.append)
    for own, other in zip(expected, found, strict=True):
        assert [one.token_ids for one in other] == [one.token_ids for one in own]
        assert [one.score for one in other] == pytest.approx(
            [one.score for one in own], rel=1e-4, abs=1e-4
        )
    blank, *batches = done
    assert blank == 7 * LINES.count("")
    assert max(batches) == 2
    assert sum(done) == len(many)


class Late:
    """A translator of an engine that gives what is asked last, and knows how much it owes."""

    def __init__(self):
        self.owed = self.most_owed = 0

    def translate_batch(self, sources, **_):
        self.owed += len(sources)
        self.most_owed = max(self.most_owed, self.owed)
        return [SimpleNamespace(result=self.result) for _ in sources]

    def result(self):
        self.owed -= 1
        return SimpleNamespace(hypotheses=[["</s>"]], scores=[-1.0])


@pytest.mark.parametrize("num_threads", [1, 3])
def test_few_sentences_are_under_way_however_many_there_are(num_threads, theirs, monkeypatch):
    late = Late()
    monkeypatch.setattr(theirs, "translator", late)
    monkeypatch.setattr(theirs, "num_threads", num_threads)
    found = theirs.translate([Request((17, EOS_ID))] * 5000, GreedyConfig())
    assert len(found) == 5000
    assert late.owed == 0
    assert late.most_owed == (BATCHES_AHEAD * num_threads + 1) * MAX_BATCH


@given(count=st.integers(0, 1000), num_threads=st.integers(1, 17))
def test_batches_shrink_to_the_share_of_a_thread(count, num_threads):
    batches = list(shrinking_batches(range(count), num_threads))
    assert [number for batch in batches for number in batch] == list(range(count))
    sizes = [len(batch) for batch in batches]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes, default=0) <= MAX_BATCH
    assert min(sizes[:-1], default=MIN_BATCH) >= MIN_BATCH
    for batch in batches:
        # Whoever gets none of what is left waits for no more than a share of it.
        left = count - batch[0]
        assert len(batch) <= max(MIN_BATCH, math.ceil(left / num_threads))


def test_given_targets_have_the_log_probabilities_of_our_scorer(ours, theirs, requests):
    targets = [(17, 18, 19), (20,), (), (22, UNK_ID, 23), (), (17,), (18, 18), (), (19, 20)]
    pairs = [(one.source, ids) for one, ids in zip(requests, targets, strict=True)]
    pairs.append(((), (17, 18)))
    expected, found = (engine.scorer.score(pairs) for engine in (ours, theirs))
    for own, other in zip(expected, found, strict=True):
        if own and own[0] == -math.inf:
            assert other[0] == -math.inf
        else:
            assert other == pytest.approx(own, rel=1e-4, abs=1e-4)


def test_an_end_token_that_is_certain_leaves_numbers(theirs, requests, monkeypatch):
    monkeypatch.setattr(
        theirs.scorer, "_log_probs", lambda sources, targets: [[0.0] for _ in targets]
    )
    (found,) = theirs.scorer.score([(requests[0].source, ())])
    assert found == (-math.inf,)


@pytest.mark.parametrize(
    ("search", "message", "neutral"),
    [
        (SampleConfig(), "decoding.kind: has no exact counterpart in CTranslate2 (sample)", "beam"),
        (
            BeamConfig(coverage_penalty=0.2),
            "decoding.coverage_penalty: has no exact counterpart in CTranslate2 (0.2)",
            "0.0",
        ),
        (
            BeamConfig(beam_size=4, num_beam_groups=2),
            "decoding.num_beam_groups: has no exact counterpart in CTranslate2 (2)",
            "1",
        ),
        (
            GreedyConfig(no_repeat_ngram_size=3),
            "decoding.no_repeat_ngram_size: has no exact counterpart in CTranslate2 (3)",
            "0",
        ),
        (
            GreedyConfig(min_length=2),
            "decoding.min_length: has no exact counterpart in CTranslate2 (2)",
            "1",
        ),
        (
            BeamConfig(beam_size=1, patience=2.0),
            "decoding.patience: has no exact counterpart in CTranslate2 (2)",
            "1",
        ),
    ],
)
def test_searches_that_it_does_otherwise_are_refused(theirs, requests, search, message, neutral):
    with pytest.raises(UsageError) as raised:
        theirs.translate(requests, search)
    assert str(raised.value) == f"{message}; {OTHER_ENGINE}, or set it to {neutral}"


@pytest.mark.parametrize(("patience", "most"), [(0.5, 3), (0.3, 2), (0.05, 0)])
def test_more_translations_than_patience_leaves_are_refused(theirs, requests, patience, most):
    """Five times the patience, halves upwards."""
    search = BeamConfig(beam_size=5, max_length=9, patience=patience)
    if most > 0:
        assert {len(found) for found in theirs.translate(requests, search, nbest=most)} == {most}
    with pytest.raises(UsageError) as raised:
        theirs.translate(requests, search, nbest=most + 1)
    assert str(raised.value) == (
        f"decoding.patience: leaves CTranslate2 fewer than the {most + 1} requested translations "
        f"of a line ({patience}); raise it, or {OTHER_ENGINE}"
    )


@pytest.mark.parametrize(
    ("request_", "where"),
    [
        (Request((17, EOS_ID), prefix=(20,)), "`prefixes`"),
        (Request((17, EOS_ID), banned=((20,),)), "`banned`"),
        (Request((17, EOS_ID), required=((20,),)), "`required` and `terminology`"),
    ],
)
def test_demands_that_it_cannot_meet_are_refused(theirs, request_, where):
    with pytest.raises(UsageError) as raised:
        theirs.translate([request_], GreedyConfig())
    assert str(raised.value) == (
        f"{where}: has no exact counterpart in CTranslate2; {OTHER_ENGINE}"
    )


def test_what_has_no_position_is_refused_before_it_fails(theirs):
    with pytest.raises(UsageError) as raised:
        theirs.translate([], GreedyConfig(max_length=5000))
    assert str(raised.value) == (
        "decoding.max_length: has more tokens than the 4096 positions of the exported model "
        "(5000); lower it"
    )
    with pytest.raises(UsageError) as raised:
        theirs.translate([Request([17] * 4096 + [EOS_ID])], GreedyConfig())
    assert str(raised.value) == (
        "a line: has more tokens than the 4096 positions of the exported model (4097); "
        "lower `max_source_length`"
    )


@given(slower=st.floats(1.0, 20.0), fast=st.sampled_from([1, 4]), count=st.integers(50, 400))
def test_the_number_of_threads_follows_the_faster_one_and_trials_cost_little(slower, fast, count):
    trials = Trials((1, 4))

    def seconds_of(speeds):
        threads = trials.next()
        trials.add(threads, speeds[threads])
        return speeds[threads]

    seconds = sum(seconds_of({fast: 1.0, 5 - fast: slower}) for _ in range(count))
    # The first trials, and the one that the sentences since have not paid for.
    assert seconds <= count * (1 + TRIAL_SHARE) + (TRIALS + 1) * (slower - 1) + 1e-9
    # The other one becomes the faster: each of its trials says so.
    for _ in range(TRIALS * math.ceil(slower / TRIAL_SHARE + 1)):
        seconds_of({fast: slower, 5 - fast: 1.0})
    seconds = sum(seconds_of({fast: slower, 5 - fast: 1.0}) for _ in range(count))
    assert seconds <= count * (1 + TRIAL_SHARE) + 2 * (slower - 1) + 1e-9
