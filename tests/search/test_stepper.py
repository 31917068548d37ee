"""Encoding sources, and ensembles against means of probabilities in float64."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from search.tables import (
    CPU,
    END,
    SPECIAL_TOKENS,
    START,
    TableStepper,
    ascending_tables,
    next_log_probs,
)
from search.test_engine import SEARCHES, requests, small_model
from search.test_engine import SPECIAL_TOKENS as MODEL_TOKENS

from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig, SampleConfig
from tformer_cli.inference.two_stage_argmax import TwoStageArgmax
from tformer_cli.model.blocks.attention import KeyValue
from tformer_cli.model.network import Seq2Seq
from tformer_cli.search.beam import BeamSearch, DiverseBeamSearch
from tformer_cli.search.continuous_batching import decode_all
from tformer_cli.search.engine import Job, Request, longest_first
from tformer_cli.search.native_engine import NativeEngine, build_search
from tformer_cli.search.sample import GreedySearch, SampleSearch
from tformer_cli.search.stepper import ModelStepper
from tformer_cli.search.workers import WorkersEngine


def test_each_sentence_is_encoded_once_and_no_more_together_than_there_are_slots():
    model, few, counts = small_model(), 12, []
    prefill = model.prefill

    def counted(source, mask):
        counts.append(len(source))
        return prefill(source, mask)

    model.prefill = counted
    asked = requests(100)
    asked = [asked[number] for number in longest_first(asked)]
    search = build_search(Job(asked, SEARCHES[0], 1, True), MODEL_TOKENS, CPU)
    stepper = ModelStepper([model], MODEL_TOKENS, CPU, torch.float32)
    with torch.inference_mode():
        found = dict(decode_all(stepper, search, asked, lambda longest: few))
    assert len(found) == sum(counts) == len(asked)
    assert max(counts) == few
    assert len(counts) < 2 * len(asked) / few


def test_two_stage_argmax_changes_no_translation():
    model, asked = small_model(), [one for one in requests(90) if one.source]
    found = []
    for two_stage in (None, TwoStageArgmax(model.output)):
        search = build_search(Job(asked, SEARCHES[0], 1, False), MODEL_TOKENS, CPU)
        stepper = ModelStepper([model], MODEL_TOKENS, CPU, torch.float32, two_stage)
        with torch.inference_mode():
            results = decode_all(stepper, search, asked, lambda longest: 40)
            found.append({number: best[0].token_ids for number, best in results})
    assert found[0] == found[1]
    assert len(found[0]) == len(asked)


V = 7
SEARCHES_OF_TABLES = {
    "greedy": lambda: GreedySearch(GreedyConfig(max_length=9), SPECIAL_TOKENS, CPU),
    "beam": lambda: BeamSearch(BeamConfig(beam_size=3, max_length=9), SPECIAL_TOKENS, CPU, nbest=3),
    "groups": lambda: DiverseBeamSearch(
        BeamConfig(beam_size=4, num_beam_groups=2, max_length=9), SPECIAL_TOKENS, CPU, nbest=4
    ),
    "sample": lambda: SampleSearch(SampleConfig(max_length=9), SPECIAL_TOKENS, CPU, nbest=2),
}


def search(stepper, kind, count, num_slots=None):
    asked = [Request((number, END), number=number) for number in range(count)]
    room = num_slots or count
    found = decode_all(stepper, SEARCHES_OF_TABLES[kind](), asked, lambda _: room)
    return [hypotheses for _, hypotheses in sorted(found, key=lambda one: one[0])]


class TableModel:
    """A model whose keys are the first ids of its sources, which name tables."""

    def __init__(self, tables):
        self.tables = tables

    def init_cache(self, num_slots, num_beams):
        return TableCache(num_slots)

    def prefill(self, source, mask):
        keys = source[:, None, :, None]
        return [KeyValue(keys, keys)]

    def attended_source(self, mask):
        return mask

    def decode_step(self, ids, cache):
        cache.lengths = cache.lengths + 1
        return self.tables[cache.numbers[:, None], ids].clone()


class TableCache:
    def __init__(self, num_slots):
        self.numbers = torch.zeros(num_slots, dtype=torch.long)
        self.lengths = torch.zeros_like(self.numbers)

    def insert(self, slots, layers, mask):
        self.numbers[slots] = layers[0].keys[:, 0, 0, 0]
        self.lengths[slots] = 0

    def reorder(self, beam_indices):
        assert len(beam_indices) == len(self.numbers)

    def select(self, slots):
        self.numbers, self.lengths = self.numbers[slots], self.lengths[slots]


def ensemble_of(tables):
    return ModelStepper([TableModel(table) for table in tables], SPECIAL_TOKENS, CPU, torch.float32)


def mean_table(tables):
    """The table of the ensemble, which START and END at the start of a row need not be part of."""
    result = torch.full_like(tables[0], -torch.inf)
    for sentence, last in itertools.product(range(len(result)), range(V)):
        log_probs = [
            next_log_probs(table[sentence], last, is_first=last == START) for table in tables
        ]
        mean = torch.tensor(log_probs, dtype=torch.float64).exp().mean(dim=0)
        result[sentence, last] = mean.log()
    return result


@settings(max_examples=12)
@given(st.sampled_from(sorted(SEARCHES_OF_TABLES)), st.integers(0, 1000), st.integers(1, 4))
def test_every_search_sees_the_mean_of_the_probabilities(kind, seed, num_slots):
    tables = [ascending_tables(seed + n, sentences=4, vocab_size=V) for n in range(3)]
    ensemble = ensemble_of(tables)
    found = search(ensemble, kind, 4, num_slots)
    expected = search(TableStepper(mean_table(tables)), kind, 4)
    for one, two in zip(found, expected, strict=True):
        assert [h.token_ids for h in one] == [h.token_ids for h in two]
        assert [h.log_prob for h in one] == pytest.approx([h.log_prob for h in two], rel=1e-5)


@given(st.sampled_from(sorted(SEARCHES_OF_TABLES)), st.integers(0, 1000))
def test_a_table_with_itself_is_the_table(kind, seed):
    table = ascending_tables(seed, sentences=3, vocab_size=V)
    members = ensemble_of([table, table])
    for one, two in zip(
        search(members, kind, 3), search(TableStepper(table), kind, 3), strict=True
    ):
        assert [h.token_ids for h in one] == [h.token_ids for h in two]
        assert [h.log_prob for h in one] == pytest.approx([h.log_prob for h in two], rel=1e-5)


def test_the_logits_of_a_single_model_are_not_changed():
    table = ascending_tables(1, sentences=2, vocab_size=V)
    stepper = ensemble_of([table])
    stepper.start([(0, END), (1, END)], 1)
    ids = torch.tensor([[START], [3]])
    assert torch.equal(stepper.step(ids), table[[0, 1], [START, 3]][:, None])


def drawn_model(seed: int) -> Seq2Seq:
    torch.manual_seed(seed)
    return small_model(seed)


def ensemble_engine(*seeds: int) -> NativeEngine:
    first, *others = map(drawn_model, seeds)
    return NativeEngine(first, MODEL_TOKENS, device=CPU, others=others)


@pytest.mark.parametrize("config", SEARCHES, ids=["greedy", "beam"])
def test_a_model_with_itself_translates_as_it_does_alone(config):
    found = ensemble_engine(11, 11).translate(requests(12), config)
    expected = ensemble_engine(11).translate(requests(12), config)
    assert [best.token_ids for (best,) in found] == [best.token_ids for (best,) in expected]
    for (one,), (two,) in zip(found, expected, strict=True):
        assert one.log_prob == pytest.approx(two.log_prob, rel=1e-6)


def greedy_by_hand(models, source, max_length):
    """Run whole decoders again for every token, and take the mean of their probabilities."""
    mask = torch.ones((1, len(source)), dtype=torch.bool)
    memories = [model.encode(torch.tensor([source]), mask) for model in models]
    row, log_prob = [MODEL_TOKENS.bos], 0.0
    while len(row) <= max_length and row[-1] != MODEL_TOKENS.eos:
        probabilities = []
        for model, memory in zip(models, memories, strict=True):
            logits = model.output(model.decoder(torch.tensor([row]), memory))[0, -1]
            possible = torch.ones_like(logits, dtype=torch.bool)
            possible[list(MODEL_TOKENS.suppressed)] = False
            possible[MODEL_TOKENS.eos] = len(row) > 1
            weights = (logits - logits.max()).exp() * possible
            probabilities.append(weights / weights.sum())
        mean = sum(probabilities) / len(probabilities)
        log_prob += float(mean.max().log())
        row.append(int(mean.argmax()))
    return row[1:-1] if row[-1] == MODEL_TOKENS.eos else row[1:], log_prob


def test_several_models_translate_by_the_mean_of_their_probabilities():
    models, inputs = [drawn_model(seed) for seed in (11, 12, 13)], requests(15)
    found = ensemble_engine(11, 12, 13).translate(inputs, GreedyConfig(max_length=8))
    alone = ensemble_engine(11).translate(inputs, GreedyConfig(max_length=8))
    assert found != alone
    with torch.inference_mode():
        for request, (best,) in zip(inputs, found, strict=True):
            if request.source:
                ids, log_prob = greedy_by_hand(models, request.source, 8)
                assert list(best.token_ids) == ids
                assert best.log_prob == pytest.approx(log_prob, rel=1e-6)


def test_ensembles_translate_in_several_processes():
    engine, inputs = ensemble_engine(11, 12), requests(10)
    config = BeamConfig(beam_size=3, max_length=9)
    found = WorkersEngine(engine, 2).translate(inputs, config, nbest=2)
    assert [[one.token_ids for one in many] for many in found] == [
        [one.token_ids for one in many] for many in engine.translate(inputs, config, nbest=2)
    ]
