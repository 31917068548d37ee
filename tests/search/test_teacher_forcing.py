"""Scores of targets by a small random model in float64, beside a plain forward pass of its own."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from search.test_engine import END, SPECIAL_TOKENS, START, SUPPRESSED, V, small_model
from transfers import Transfers

from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig
from tformer_cli.kernels import softmax
from tformer_cli.model.network import Seq2Seq
from tformer_cli.search import teacher_forcing
from tformer_cli.search.engine import Request
from tformer_cli.search.native_engine import NativeEngine
from tformer_cli.search.teacher_forcing import ModelScorer

CPU = torch.device("cpu")
PAIRS = [
    ([7, 8, END], [9, 10, 11]),
    ([12, END], [13] * 11),
    ([16] * 9 + [END], [6]),
    ([6, 22, END], [22, 21]),
    ([8, END], [9, 10, 11, 12, 13]),
]


@pytest.fixture
def scorer() -> ModelScorer:
    return ModelScorer([small_model()], SPECIAL_TOKENS, device=CPU)


@torch.inference_mode()
def plain(model: Seq2Seq, source: list[int], target: list[int]) -> torch.Tensor:
    """The logits (len(target) + 1, V) of one pair by itself."""
    ids = torch.tensor([source])
    row = torch.tensor([[START, *target]])
    return model.eval()(ids, torch.ones_like(ids).bool(), row, torch.arange(row.numel()))


def by_hand(model: Seq2Seq, source: list[int], target: list[int]) -> list[float]:
    """Log probabilities over the ids that may come next, token by token."""
    found = []
    for position, (logits, right) in enumerate(
        zip(plain(model, source, target), [*target, END], strict=True)
    ):
        possible = {*range(V)} - {*SUPPRESSED} - ({END} if position == 0 else set())
        total = logits[sorted(possible)].logsumexp(0)
        found.append((logits[right] - total).item() if right in possible else -math.inf)
    return found


def test_scores_are_log_probabilities_over_what_may_come_next(scorer):
    for (source, target), found in zip(PAIRS, scorer.score(PAIRS), strict=True):
        assert found == pytest.approx(by_hand(scorer.models[0], source, target), rel=1e-9)


@pytest.mark.parametrize("prefix", [[], [9], [9, 10]])
def test_what_may_come_next_has_probability_one_together(scorer, prefix):
    source = [7, 8, END]
    found = scorer.score([(source, [*prefix, token]) for token in range(V) if token != END])
    total = sum(math.exp(log_probs[len(prefix)]) for log_probs in found)
    if prefix:
        ((*_, end),) = scorer.score([(source, prefix)])
        total += math.exp(end)
    assert total == pytest.approx(1.0, rel=1e-9)


def test_a_token_is_no_less_probable_than_over_all_ids(scorer):
    for (source, target), found in zip(PAIRS, scorer.score(PAIRS), strict=True):
        everything = plain(scorer.models[0], source, target).log_softmax(-1)
        over_all = everything[range(len(target) + 1), [*target, END]].tolist()
        assert all(one > other for one, other in zip(found, over_all, strict=True))


@pytest.mark.parametrize(
    "search",
    [
        GreedyConfig(max_length=12),
        BeamConfig(beam_size=4, max_length=12),
        BeamConfig(beam_size=4, num_beam_groups=2, max_length=12),
    ],
    ids=["greedy", "beam", "groups"],
)
def test_scores_of_hypotheses_are_what_the_search_says_of_them(scorer, search):
    sources = [[one, other, END] for one in range(6, V) for other in range(6, V)]
    nbest = search.beam_size if isinstance(search, BeamConfig) else 1
    requests = [Request(tuple(source)) for source in sources]
    found = NativeEngine(scorer.models[0], SPECIAL_TOKENS, device=CPU).translate(
        requests, search, nbest=nbest
    )
    finished = [
        (source, hypothesis)
        for source, hypotheses in zip(sources, found, strict=True)
        for hypothesis in hypotheses
        if hypothesis.finished
    ]
    assert len({len(hypothesis.token_ids) for _, hypothesis in finished}) > 2
    scores = scorer.score([(source, hypothesis.token_ids) for source, hypothesis in finished])
    assert [sum(log_probs) for log_probs in scores] == pytest.approx(
        [hypothesis.log_prob for _, hypothesis in finished], abs=1e-4
    )


def test_a_suppressed_id_is_impossible_and_what_follows_is_not(scorer):
    target = [9, 1, 10]
    (found,) = scorer.score([([7, END], target)])
    assert [math.isinf(log_prob) for log_prob in found] == [False, True, False, False]
    assert found == pytest.approx(by_hand(scorer.models[0], [7, END], target), rel=1e-9)


def test_an_empty_target_is_impossible(scorer):
    assert scorer.score([([7, END], []), ([8, END], [])]) == [(-math.inf,)] * 2


def test_an_empty_source_has_the_empty_target_alone(scorer):
    pairs = [PAIRS[0], ([], []), PAIRS[1], ([], [9, 10])]
    found = scorer.score(pairs)
    assert found[1] == (0.0,)
    assert found[3] == (-math.inf,) * 3
    assert [found[0], found[2]] == [
        pytest.approx(by_hand(scorer.models[0], *pair), rel=1e-9) for pair in PAIRS[:2]
    ]


def test_no_pairs_have_no_scores(scorer):
    assert scorer.score([]) == []


IDS = st.lists(st.integers(6, V - 1), max_size=7)


@settings(max_examples=8)
@given(
    pairs=st.lists(st.tuples(IDS, IDS), max_size=9),
    batch_tokens=st.integers(1, 60),
    chunk_rows=st.integers(1, 9),
)
def test_the_rest_of_the_batch_changes_nothing(pairs, batch_tokens, chunk_rows):
    scorer = ModelScorer([small_model()], SPECIAL_TOKENS, device=CPU)
    inputs = [([*source, END] if source else [], target) for source, target in pairs]
    alone = [scorer.score([pair])[0] for pair in inputs]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(teacher_forcing, "BATCH_TOKENS", batch_tokens)
        patched.setattr(teacher_forcing, "CHUNK_ROWS", chunk_rows)
        counts: list[int] = []
        found = scorer.score(inputs, on_done=counts.append)
    assert sum(counts) == len(inputs)
    for together, by_itself in zip(found, alone, strict=True):
        assert together == pytest.approx(by_itself, rel=1e-9)


@pytest.mark.parametrize("factor", [1, 3])
def test_logits_are_held_in_chunks_and_batches_keep_to_their_budget(scorer, factor, monkeypatch):
    rows, shapes = [], []
    scorer.models[0].output.register_forward_hook(
        lambda _, inputs, output: rows.append(len(output))
    )
    scorer.models[0].decoder.register_forward_hook(
        lambda _, inputs, out: shapes.append(out.shape[:2])
    )
    monkeypatch.setattr(teacher_forcing, "CHUNK_ROWS", 4)
    monkeypatch.setattr(teacher_forcing, "BATCH_TOKENS", 30)
    # A GPU takes more at a time.
    monkeypatch.setattr(teacher_forcing, "batch_size_factor", lambda device: factor)
    scorer.score(PAIRS * 5)
    assert max(rows) == 4 * factor
    assert sum(rows) == 5 * sum(len(target) + 1 for _, target in PAIRS)
    sizes = [batch * width for batch, width in shapes]
    assert 30 * (factor - 1) < max(sizes) <= 30 * factor
    assert len(shapes) < 5 * len(PAIRS)


def test_a_batch_waits_for_the_device_once(scorer, monkeypatch):
    # That of a CPU looks at its sums.
    monkeypatch.setattr(softmax, "logsumexp", lambda logits: logits.logsumexp(dim=-1))
    monkeypatch.setattr(teacher_forcing, "CHUNK_ROWS", 4)
    # The mask is on the host.
    monkeypatch.setattr(
        teacher_forcing, "flat_positions", lambda mask: torch.from_numpy(np.flatnonzero(mask))
    )
    with Transfers() as transfers:
        scorer.score(PAIRS)
    assert transfers.names == ["tolist"]


def test_dropout_is_off(scorer):
    scorer.models[0].train()
    assert scorer.score(PAIRS) == scorer.score(PAIRS)


def test_precision_is_that_of_the_matrix_products():
    model = small_model().float()
    for parameter in model.parameters():
        parameter.data.mul_(0.3)
    wide, narrow = (
        ModelScorer([model], SPECIAL_TOKENS, device=CPU, precision=precision).score(PAIRS)
        for precision in (torch.float32, torch.bfloat16)
    )
    assert wide != narrow
    for one, other in zip(wide, narrow, strict=True):
        assert one == pytest.approx(other, abs=0.01)


def test_an_ensemble_has_the_mean_of_the_probabilities():
    models = [small_model(), small_model()]
    for parameter in models[1].parameters():
        parameter.data.mul_(0.5)
    alone = [ModelScorer([model], SPECIAL_TOKENS, device=CPU).score(PAIRS) for model in models]
    together = ModelScorer(models, SPECIAL_TOKENS, device=CPU).score(PAIRS)
    for one, other, found in zip(*alone, together, strict=True):
        expected = [
            -math.inf if -math.inf in both else math.log(sum(map(math.exp, both)) / 2)
            for both in zip(one, other, strict=True)
        ]
        assert found == pytest.approx(expected)
