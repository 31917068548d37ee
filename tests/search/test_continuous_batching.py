"""Slots of sentences that are done: who takes them, and how far they are decoded."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from search.tables import CPU, END, SPECIAL_TOKENS, TableStepper, random_tables
from search.test_engine import SPECIAL_TOKENS as MODEL_TOKENS
from search.test_engine import requests, small_model
from torch import Tensor
from transfers import Transfers

from tformer_cli.config.schema.decoding import (
    BeamConfig,
    DecodingConfig,
    GreedyConfig,
    SampleConfig,
)
from tformer_cli.kernels import softmax
from tformer_cli.search import logits_processors
from tformer_cli.search.beam import BeamSearch
from tformer_cli.search.continuous_batching import decode_all
from tformer_cli.search.engine import Job, Request
from tformer_cli.search.native_engine import build_search
from tformer_cli.search.sample import GreedySearch
from tformer_cli.search.stepper import ModelStepper

MOST = 9
TOKENS = 40
SEARCHES = [
    lambda: GreedySearch(GreedyConfig(max_length=MOST), SPECIAL_TOKENS, CPU),
    lambda: BeamSearch(BeamConfig(beam_size=2, max_length=MOST), SPECIAL_TOKENS, CPU),
]


def assert_each_is_as_alone(found, tables, search, asked):
    for number, request in enumerate(asked):
        ((_, alone),) = decode_all(TableStepper(tables), search(), [request], lambda _: 1)
        for one, other in zip(found[number], alone, strict=True):
            assert (one.token_ids, one.finished) == (other.token_ids, other.finished)
            # A vector of a processor rounds a power unlike what is left over beside vectors.
            assert (one.log_prob, one.score) == pytest.approx((other.log_prob, other.score))


class LearnedPositions(TableStepper):
    """Counts the tokens of each slot; there is no position beyond the last of a translation."""

    def start(self, sentences, num_beams):
        super().start(sentences, num_beams)
        self.lengths = torch.zeros(len(sentences), dtype=torch.long)

    def insert(self, slots, sentences, lookahead):
        super().insert(slots, sentences, lookahead)
        self.lengths[slots] = 0

    def step(self, ids: Tensor) -> Tensor:
        self.lengths += 1
        assert self.lengths.max() <= MOST
        return super().step(ids)

    def select(self, slots):
        super().select(slots)
        self.lengths = self.lengths[slots]


@settings(max_examples=12)
@given(st.integers(0, 10_000), st.integers(1, 60), st.sampled_from(SEARCHES))
def test_no_slot_is_decoded_beyond_the_longest_translation(seed, num_slots, search):
    tables = random_tables(seed, sentences=70, vocab_size=5)
    # Some sentences end at once, and some at the limit alone.
    tables[::3, :, END] += 4
    tables[1::7, :, END] = -torch.inf
    asked = [Request((number, END)) for number in range(len(tables))]
    found = decode_all(LearnedPositions(tables), search(), asked, lambda _: num_slots)
    assert sorted(number for number, _ in found) == list(range(len(tables)))


class Budgeted(TableStepper):
    """Adds up the source tokens at work, padding included, and notes how many slots there were."""

    def start(self, sentences, num_beams):
        self.widths = [len(sentence) for sentence in sentences]
        self.counts = []
        super().start(sentences, num_beams)

    def insert(self, slots, sentences, lookahead):
        for slot, sentence in zip(slots.tolist(), sentences, strict=True):
            self.widths[slot] = len(sentence)
        super().insert(slots, sentences, lookahead)

    def step(self, ids: Tensor) -> Tensor:
        assert len(self.widths) * max(self.widths) <= TOKENS or len(self.widths) == 1
        self.counts.append(len(self.widths))
        return super().step(ids)

    def select(self, slots):
        self.widths = [self.widths[slot] for slot in slots.tolist()]
        super().select(slots)


@settings(max_examples=12)
@given(st.integers(0, 10_000), st.lists(st.integers(2, 50), max_size=40), st.sampled_from(SEARCHES))
def test_no_more_tokens_are_at_work_than_there_is_room_for(seed, widths, search):
    widths.sort(reverse=True)
    tables = random_tables(seed, sentences=len(widths), vocab_size=5)
    asked = [Request((number, *[END] * (width - 1))) for number, width in enumerate(widths)]
    stepper = Budgeted(tables)
    found = dict(decode_all(stepper, search(), asked, lambda longest: TOKENS // longest or 1))
    assert_each_is_as_alone(found, tables, search, asked)


@pytest.mark.parametrize("search", SEARCHES)
def test_shorter_sources_have_more_slots(search):
    tables = random_tables(2, sentences=60, vocab_size=5)
    widths = sorted(range(2, 32), reverse=True)
    asked = [Request((number, *[END] * (width - 1))) for number, width in enumerate(widths)]
    stepper = Budgeted(tables)
    list(decode_all(stepper, search(), asked, lambda longest: TOKENS // longest))
    assert stepper.counts[0] == 1
    assert max(stepper.counts) > 3


class Counting(TableStepper):
    """Counts how often a sentence begins."""

    def start(self, sentences, num_beams):
        super().start(sentences, num_beams)
        self.num_begun = len(sentences)

    def insert(self, slots, sentences, lookahead):
        super().insert(slots, sentences, lookahead)
        self.num_begun += len(sentences)


@pytest.mark.parametrize("search", [GreedyConfig, BeamConfig])
def test_translations_of_short_sources_are_no_stragglers_before_twice_sixteen_tokens(search):
    tables = random_tables(4, sentences=60, vocab_size=5)
    # Most end soon, so that little is usual; every seventh ends at the limit.
    tables[:, :, END] += 4
    tables[::7, :, END] = -torch.inf
    asked = [Request((number, END)) for number in range(len(tables))]
    config = search(max_length=2 * 16)
    subject = build_search(Job([], config, 1, True), SPECIAL_TOKENS, CPU)
    stepper = Counting(tables)
    found = dict(decode_all(stepper, subject, asked, lambda _: 8))
    assert {len(found[number][0].token_ids) for number in range(0, 60, 7)} == {32}
    assert stepper.num_begun == 60


class Aging(TableStepper):
    """Notes how many slots there were, and how long the oldest sentence had been there."""

    def start(self, sentences, num_beams):
        super().start(sentences, num_beams)
        self.ages, self.history = [0] * len(sentences), []

    def insert(self, slots, sentences, lookahead):
        super().insert(slots, sentences, lookahead)
        for slot in slots.tolist():
            self.ages[slot] = 0

    def step(self, ids: Tensor) -> Tensor:
        self.ages = [age + 1 for age in self.ages]
        self.history.append((len(self.ages), max(self.ages)))
        return super().step(ids)

    def select(self, slots):
        super().select(slots)
        self.ages = [self.ages[slot] for slot in slots.tolist()]


@pytest.mark.parametrize(
    "search",
    [
        lambda: GreedySearch(GreedyConfig(max_length=99), SPECIAL_TOKENS, CPU),
        lambda: BeamSearch(BeamConfig(beam_size=2, max_length=99), SPECIAL_TOKENS, CPU),
    ],
)
def test_a_runaway_translation_is_requeued_once_and_restarted_last(search):
    tables = random_tables(4, sentences=400, vocab_size=5)
    tables[:, :, END] += 4
    endless = [7, 250]
    tables[endless, :, END] = -torch.inf
    asked = [Request((number, END)) for number in range(len(tables))]
    stepper = Aging(tables)
    found = dict(decode_all(stepper, search(), asked, lambda _: 40))
    assert_each_is_as_alone(found, tables, search, asked)
    assert all(len(found[number][0].token_ids) == 99 for number in endless)
    # While others wait for a slot nobody is much older than twice sixteen tokens.
    assert max(age for num_slots, age in stepper.history if num_slots == 40) < 2 * 16 + 10
    assert max(age for _, age in stepper.history) == 99


def transfers_of_steps(config: DecodingConfig) -> list[tuple[list[str], bool]]:
    """Of each step, what waits for the device, and whether the step has given hypotheses."""
    asked = [request for request in requests(30) if request.source]
    search = build_search(Job(asked, config, 1, True), MODEL_TOKENS, CPU)
    stepper = ModelStepper([small_model()], MODEL_TOKENS, CPU, torch.float32)
    results = []
    with torch.inference_mode():
        stepper.start([request.source for request in asked], search.num_beams)
        state, num_finished = search.start(asked), 0
        while num_finished < len(asked):
            stored = [len(beam.stored) for beam in getattr(state, "hypotheses", ())]
            with Transfers() as transfers:
                step = search.step(state, stepper)
                if step.beam_indices is not None:
                    stepper.reorder(step.beam_indices)
            num_finished += len(step.finished)
            has_stored = stored != [len(beam.stored) for beam in getattr(state, "hypotheses", ())]
            results.append((transfers.names, bool(step.finished) or has_stored))
    return results


@pytest.mark.parametrize(
    ("config", "of_hypotheses"),
    [
        (GreedyConfig(max_length=12), 2),
        (SampleConfig(max_length=12), 2),
        (BeamConfig(beam_size=2, max_length=12), 3),
    ],
    ids=["greedy", "sample", "beam"],
)
def test_a_step_waits_for_the_device_once_and_for_hypotheses(config, of_hypotheses, monkeypatch):
    # As on a GPU: on a CPU sums are checked, which costs nothing there.
    monkeypatch.setattr(logits_processors, "logsumexp", lambda logits: logits.logsumexp(dim=-1))
    monkeypatch.setattr(softmax, "logsumexp", lambda logits: logits.logsumexp(dim=-1))
    steps = transfers_of_steps(config)
    assert {len(names) for names, has_hypotheses in steps if not has_hypotheses} == {1}
    assert {len(names) for names, has_hypotheses in steps if has_hypotheses} == {1 + of_hypotheses}
