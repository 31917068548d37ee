"""Penalties and bans beside those of transformers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from search.tables import CPU, END, SPECIAL_TOKENS, START
from transformers import NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.search.logits_processors import (
    LogitsProcessor,
    ban_phrase,
    ban_repeated_ngrams,
    penalize_frequency,
    penalize_repetition,
)
from tformer_cli.search.request import Request
from tformer_cli.search.state import Sequences

V, K = 7, 2


def written(histories: list[list[list[int]]]) -> Sequences:
    """Sequences in places of different lengths, with leftovers behind the shorter ones."""
    processor = LogitsProcessor(GreedyConfig(), SPECIAL_TOKENS, CPU)
    rows = processor.start([Request((END,))] * len(histories), K)
    rows.tokens = torch.randint(1, V, (len(histories), K, 12))
    rows.tokens[:, :, 0] = START
    for place, place_rows in enumerate(histories):
        rows.lengths[place] = len(place_rows[0])
        for number, row in enumerate(place_rows):
            rows.tokens[place, number, 1 : len(row) + 1] = torch.tensor(row)
    return rows


def scores(count: int) -> torch.Tensor:
    scores = torch.randn(count, K, V).log_softmax(-1)
    scores[..., START] = -torch.inf
    return scores


lengths = st.lists(st.integers(0, 11), min_size=1, max_size=4)


@st.composite
def histories(draw: st.DrawFn) -> list[list[list[int]]]:
    token = st.integers(1, V - 1)
    return [
        [draw(st.lists(token, min_size=length, max_size=length)) for _ in range(K)]
        for length in draw(lengths)
    ]


@given(histories(), st.sampled_from([0.5, 1.3, 2.0]))
def test_repetition_is_penalized_as_in_transformers(histories, penalty):
    before = scores(len(histories))
    after = before.clone()
    penalize_repetition(after, written(histories), penalty)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)
    for place, rows in enumerate(histories):
        expected = before[place]
        if rows[0]:
            expected = theirs(torch.tensor(rows), expected)
        torch.testing.assert_close(after[place], expected)


@given(histories(), st.integers(1, 4))
def test_repeated_ngrams_are_banned_as_in_transformers(histories, size):
    before = scores(len(histories))
    after = before.clone()
    ban_repeated_ngrams(after, written(histories), size)
    theirs = NoRepeatNGramLogitsProcessor(size)
    for place, rows in enumerate(histories):
        expected = before[place]
        if len(rows[0]) >= size:
            expected = theirs(torch.tensor(rows), expected)
        assert torch.equal(after[place], expected)


@pytest.mark.parametrize("size", [12, 13, 100])
def test_ngrams_longer_than_all_rows_ban_nothing(size):
    rows = written([[[1] * 11] * K])
    before = scores(1)
    after = before.clone()
    ban_repeated_ngrams(after, rows, size)
    assert torch.equal(after, before)


@given(histories())
def test_frequency_penalty_counts_each_occurrence(histories):
    before = scores(len(histories))
    after = before.clone()
    penalize_frequency(after, written(histories), 0.25)
    for place, rows in enumerate(histories):
        for number, row in enumerate(rows):
            counts = torch.tensor([row.count(token) for token in range(V)])
            expected = before[place, number] - 0.25 * counts
            torch.testing.assert_close(after[place, number], expected)


@pytest.mark.parametrize(
    ("row", "phrase", "is_banned"),
    [
        ([], [4], True),
        ([5, 6], [4], True),
        ([5, 6], [6, 4], True),
        ([5, 6], [5, 6, 4], True),
        ([6, 5], [6, 4], False),
        ([6], [5, 6, 4], False),
    ],
)
def test_a_phrase_is_banned_where_its_beginning_is_written(row, phrase, is_banned):
    rows = torch.tensor([row, [1] * len(row)], dtype=torch.long)
    before = scores(1)[0]
    after = before.clone()
    ban_phrase(after, rows, phrase)
    assert (after[0, 4] == -torch.inf) == is_banned
    assert (after[1, 4] == -torch.inf) == (len(phrase) == 1)
    after[:, 4] = before[:, 4]
    assert torch.equal(after, before)
