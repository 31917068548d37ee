"""The native engine with a small random model, in float64 where nothing else is said."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.errors import DeviceError
from tformer_cli.model.build import build_model
from tformer_cli.model.encoder_decoder import EncoderDecoder
from tformer_cli.model.network import Seq2Seq
from tformer_cli.search.engine import EMPTY, Request, SpecialTokens
from tformer_cli.search.native_engine import NativeEngine, log_coverage
from tformer_cli.search.teacher_forcing import Aligner
from tformer_cli.search.workers import WorkersEngine

V, START, END, SUPPRESSED = 31, 2, 3, (0, 1, 2, 4, 5)
SPECIAL_TOKENS = SpecialTokens(START, END, SUPPRESSED)
SEARCHES = [GreedyConfig(max_length=12), BeamConfig(beam_size=3, max_length=12)]


def small_model(seed: int = 11, dtype: torch.dtype = torch.float64) -> Seq2Seq:
    config = EncoderDecoderConfig(
        dim=12,
        num_heads=3,
        feedforward_dim=16,
        num_encoder_layers=1,
        num_decoder_layers=2,
        tie_embeddings="none",
    )
    model = build_model(config, source_size=V, target_size=V, seed=seed).to(dtype)
    # Large matrices let sentences differ, and a long vector lets some end before the limit.
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter)
    model.output.weight.data[END] *= 2
    return model.eval()


def native_engine(seed: int = 11, dtype: torch.dtype = torch.float64) -> NativeEngine:
    model, cpu = small_model(seed, dtype), torch.device("cpu")
    return NativeEngine(model, SPECIAL_TOKENS, device=cpu, precision=torch.float32)


@pytest.mark.parametrize("part", ["model", "others"])
def test_a_model_that_memory_has_no_room_for_is_refused(part):
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")

    model, other, cpu = small_model(), small_model(), torch.device("cpu")
    (model if part == "model" else other).to = full
    with pytest.raises(DeviceError) as caught:
        NativeEngine(model, SPECIAL_TOKENS, device=cpu, precision=torch.float32, others=[other])
    assert str(caught.value) == (
        "cpu: not enough memory for the model (CUDA out of memory.); "
        "free some, or use another `device`"
    )


def requests(count: int = 9) -> list[Request]:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(0, 9, (count,), generator=generator).tolist()
    return [
        Request(
            [*torch.randint(6, V, (length,), generator=generator).tolist(), END] if length else []
        )
        for length in lengths
    ]


def asked(*sources: list[int]) -> list[Request]:
    return [Request(source) for source in sources]


def greedy_without_cache(engine: NativeEngine, sentence: list[int], max_length: int) -> list[int]:
    """Run the whole decoder again for every token."""
    (model,), source = engine.models, torch.tensor([sentence])
    memory = model.encode(source, torch.ones_like(source, dtype=torch.bool))
    row = [START]
    while len(row) <= max_length and row[-1] != END:
        logits = model.output(model.decoder(torch.tensor([row]), memory))[0, -1]
        logits[list(SUPPRESSED)] = -torch.inf
        if len(row) == 1:
            logits[END] = -torch.inf
        row.append(int(logits.argmax()))
    return row[1:-1] if row[-1] == END else row[1:]


def test_greedy_with_cache_equals_greedy_without():
    engine, inputs = native_engine(), [one for one in requests(80) if one.source]
    with torch.inference_mode():
        expected = [greedy_without_cache(engine, one.source, 12) for one in inputs]
    found = engine.translate(inputs, GreedyConfig(max_length=12))
    assert [list(best.token_ids) for (best,) in found] == expected
    assert len({len(row) for row in expected}) > 2, "a test in which no row ends early says little"


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam"])
def test_the_size_of_batches_changes_nothing(search):
    engine, inputs = native_engine(), requests(30)
    expected = engine.translate(inputs, search)
    for max_slots in (1, 2, 7):
        engine.max_slots = max_slots
        found = engine.translate(inputs, search)
        assert [best.token_ids for (best,) in found] == [best.token_ids for (best,) in expected]


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam"])
def test_in_float32_batches_and_workers_change_no_translation_but_near_ties(search):
    engine, inputs = native_engine(dtype=torch.float32), requests(60)
    expected = [best for (best,) in engine.translate(inputs, search)]
    others = [WorkersEngine(engine, 3).translate(inputs, search)]
    for max_slots in (1, 7, 50):
        engine.max_slots = max_slots
        others.append(engine.translate(inputs, search))
    # Another order of the lines.
    others.append(engine.translate(inputs[::-1], search)[::-1])
    pairs = [(one, two) for found in others for (one,), two in zip(found, expected, strict=True)]
    assert len(pairs) == 300
    num_near_ties = 0
    for one, two in pairs:
        assert one.score == pytest.approx(two.score, abs=1e-3)
        num_near_ties += one.token_ids != two.token_ids
    assert num_near_ties <= 3


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam"])
def test_nor_does_how_many_tokens_of_sources_are_at_work(search, monkeypatch):
    engine, inputs = native_engine(), requests(30)
    expected = engine.translate(inputs, search)
    for most in (1, 100, 400):
        monkeypatch.setattr("tformer_cli.search.native_engine.MAX_BATCH_TOKENS", most)
        found = engine.translate(inputs, search)
        assert [best.token_ids for (best,) in found] == [best.token_ids for (best,) in expected]


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam"])
def test_an_empty_sentence_gives_an_empty_hypothesis_at_its_index(search):
    found = native_engine().translate(asked([7, END], [], [8, 9, END], []), search)
    assert found[1] == found[3] == [EMPTY]
    assert found[0][0].token_ids
    assert found[2][0].token_ids


def test_groups_of_a_beam_translate_an_empty_sentence_once():
    search = BeamConfig(beam_size=4, num_beam_groups=2, max_length=9)
    inputs = asked([7, END], [], [8, 9, END])
    found = native_engine().translate(inputs, search, nbest=4)
    assert found[1] == [EMPTY]
    assert all(len({one.token_ids for one in every}) == len(every) for every in found)


def test_greedy_search_has_one_hypothesis_however_many_are_asked():
    found = native_engine().translate(asked([7, END], [8, 9, END]), SEARCHES[0], nbest=3)
    assert [len(hypotheses) for hypotheses in found] == [1, 1]


def test_progress_counts_every_sentence_once():
    counts: list[int] = []
    inputs = requests(25)
    native_engine().translate(inputs, SEARCHES[0], on_done=counts.append)
    assert sum(counts) == len(inputs)


def test_nbest_is_sorted_and_has_no_suppressed_token():
    found = native_engine().translate(requests(), BeamConfig(beam_size=4, max_length=9), nbest=4)
    for hypotheses in found:
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len(hypotheses) == 4
        for hypothesis in hypotheses:
            assert not set(hypothesis.token_ids) & {*SUPPRESSED, END}


def test_a_large_vocabulary_lets_fewer_sentences_work_together(monkeypatch):
    engine, inputs = native_engine(), requests(20)
    expected = engine.translate(inputs, BeamConfig(beam_size=2, max_length=9))
    monkeypatch.setattr("tformer_cli.search.native_engine.MAX_LOGITS", 2 * 2 * V)
    widths = []
    step = EncoderDecoder.decode_step

    def watched(model, target, cache):
        widths.append(len(target))
        return step(model, target, cache)

    monkeypatch.setattr(EncoderDecoder, "decode_step", watched)
    found = engine.translate(inputs, BeamConfig(beam_size=2, max_length=9))
    assert max(widths) == 2
    assert [best.token_ids for (best,) in found] == [best.token_ids for (best,) in expected]


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam"])
def test_with_eight_bits_the_size_of_batches_changes_nothing_either(search, monkeypatch):
    monkeypatch.setattr("tformer_cli.inference.linear.MIN_INT8_WEIGHTS", 1)
    model, inputs = small_model(), requests(20)
    engine = NativeEngine(model, SPECIAL_TOKENS, device=torch.device("cpu"), precision=torch.int8)
    assert engine.models[0].output.weight.dtype == torch.int8
    expected = engine.translate(inputs, search)
    engine.max_slots = 3
    found = engine.translate(inputs, search)
    assert [best.token_ids for (best,) in found] == [best.token_ids for (best,) in expected]


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
    aligner = Aligner(engine.models, SPECIAL_TOKENS, device=torch.device("cpu"))
    changed = 0
    for request, hypotheses in zip(inputs, found, strict=True):
        if not request.source:
            assert hypotheses == [EMPTY] * (100 if groups == 1 else 1)
            continue
        plain, scores = [], []
        for one in hypotheses:
            written = [*one.token_ids, END] if one.finished else list(one.token_ids)
            ((_, (attention,)),) = aligner.attention([(request.source, [written])], num_layers=1)
            plain.append(one.log_prob / len(written) ** length_penalty)
            scores.append(plain[-1] + 0.7 * log_coverage(attention))
        assert [one.score for one in hypotheses] == pytest.approx(scores, rel=1e-5)
        assert scores == sorted(scores, reverse=True)
        changed += plain != sorted(plain, reverse=True)
    assert changed > 0, "a penalty that changes no order shows little"


def test_the_rest_of_the_batch_changes_nothing():
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


RANKED = BeamConfig(beam_size=4, max_length=12)
PENALTIES = [1.0, 0.0, 0.6, 2.0, 0.3]


@pytest.mark.parametrize(
    ("search", "num_searches"),
    [
        (RANKED, 2),
        (replace(RANKED, patience=0.5), 2),
        (replace(RANKED, patience=2.0, min_length=4, no_repeat_ngram_size=2), 2),
        (replace(RANKED, coverage_penalty=0.7), 1),
        (replace(RANKED, repetition_penalty=1.5), 5),
        (replace(RANKED, num_beam_groups=2), 5),
    ],
)
def test_one_search_serves_all_length_penalties_that_only_rank(search, num_searches):
    engine, inputs = native_engine(), requests(40)
    cached = engine.with_cache()
    searches: list[object] = []
    decode = engine.decode
    engine.decode = lambda job, *rest: searches.append(job) or decode(job, *rest)
    found, counts = [], []
    for penalty in PENALTIES:
        config = replace(search, length_penalty=penalty)
        done: list[int] = []
        found.append(cached.translate(inputs, config, nbest=2, on_done=done.append))
        counts.append(sum(done))
    assert len(searches) == num_searches
    assert counts == [len(inputs)] * len(PENALTIES)
    for penalty, hypotheses in zip(PENALTIES, found, strict=True):
        # To the bit, with scores.
        assert hypotheses == engine.translate(
            inputs, replace(search, length_penalty=penalty), nbest=2
        )


def test_workers_rank_the_hypotheses_of_one_search_too():
    workers, inputs = WorkersEngine(native_engine(), 2), requests(40)
    cached = workers.with_cache()
    found = []
    for penalty in PENALTIES:
        config = replace(RANKED, length_penalty=penalty)
        found.append(cached.translate(inputs, config))
        assert found[-1] == workers.translate(inputs, config)
    assert token_ids(found[0]) != token_ids(found[3]), "penalties that change no order show little"
