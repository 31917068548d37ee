"""The coverage penalty, by the formula and over a small model."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from search.test_engine import END, SPECIAL_TOKENS, native_engine, requests

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.search.alignment import Aligner
from tformer_cli.search.engine import log_coverage
from tformer_cli.search.request import EMPTY
from tformer_cli.search.workers import WorkersEngine

SEARCH = BeamConfig(beam_size=4, max_length=12, patience=2.0, coverage_penalty=0.7)


@given(st.lists(st.lists(st.sampled_from([0.0, 0.2, 0.7]), min_size=3, max_size=3), min_size=1))
def test_log_coverage_is_the_sum_of_logarithms_up_to_one(rows):
    expected = 0.0
    for column in zip(*rows, strict=True):
        if 0 < sum(column) < 1:
            expected += math.log(sum(column))
    found = log_coverage(torch.tensor(rows, dtype=torch.float64))
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("length_penalty", "groups"), [(0.0, 1), (1.0, 1), (1.0, 2)])
def test_the_best_of_all_that_is_stored_wins_with_its_coverage(length_penalty, groups):
    engine, inputs = native_engine(), requests(12)
    search = replace(SEARCH, length_penalty=length_penalty, num_beam_groups=groups)
    # No sentence stores so many, so all that it stores come out.
    found = engine.translate(inputs, search, nbest=100)
    aligner = Aligner(engine.models, SPECIAL_TOKENS.bos, device=torch.device("cpu"))
    changed = 0
    for request, hypotheses in zip(inputs, found, strict=True):
        if not request.source:
            assert hypotheses == [EMPTY] * (100 if groups == 1 else 1)
            continue
        plain, scores = [], []
        for one in hypotheses:
            written = [*one.token_ids, END] if one.finished else list(one.token_ids)
            ((_, (attention,)),) = aligner.attention([(request.source, [written])])
            plain.append(one.log_prob / len(written) ** length_penalty)
            scores.append(plain[-1] + 0.7 * log_coverage(attention))
        assert [one.score for one in hypotheses] == pytest.approx(scores, rel=1e-5)
        assert scores == sorted(scores, reverse=True)
        changed += plain != sorted(plain, reverse=True)
    assert changed > 0, "a penalty that changes no order shows little"


def test_the_company_of_a_sentence_changes_nothing():
    engine, inputs = native_engine(), requests(15)
    expected = engine.translate(inputs, SEARCH, nbest=2)
    for num_beams in (1, 7, 20):
        engine.max_slots = num_beams
        found = engine.translate(inputs, SEARCH, nbest=2)
        assert token_ids(found) == token_ids(expected)
    found = WorkersEngine(engine, 2).translate(inputs, SEARCH, nbest=2)
    assert token_ids(found) == token_ids(expected)


def token_ids(results):
    return [[one.token_ids for one in hypotheses] for hypotheses in results]
