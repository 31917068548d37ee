"""Consistency losses against autograd over whole logits, and what the passes draw."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from together import together
from torch import Tensor, nn
from torch.nn import functional
from toy import MASKED, write_toy
from train_states import INITIAL, step_batches, train_state

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.training import ConsistencyConfig, RDropConfig, SimCutConfig
from tformer_cli.corpus.batch import Batch, collate
from tformer_cli.corpus.store import Example
from tformer_cli.device import autocast
from tformer_cli.distributed import World, process_group
from tformer_cli.errors import ConfigError
from tformer_cli.model.blocks.embeddings import KeptTokens
from tformer_cli.text.special_tokens import EOS_ID
from tformer_cli.training import loss
from tformer_cli.training.loss import (
    CACHED_ROWS,
    ROWS_ON_CPU,
    Objective,
    consistency_sum,
    cut_tokens,
    objective_of,
    paired_hidden_states,
)
from tformer_cli.training.step import TrainState, accumulate_gradients, train_steps

D, V = 5, 11
KINDS = [SimCutConfig(weight=2.0, cutoff=0.3), RDropConfig(weight=3.0)]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)


def kl(first: Tensor, second: Tensor) -> Tensor:
    """KL(first || second) of logits (N, V), summed over rows."""
    log_probs = (logits.log_softmax(dim=-1) for logits in (second, first))
    return functional.kl_div(*log_probs, reduction="sum", log_target=True)


def expected_loss(
    kind: ConsistencyConfig, first: Tensor, second: Tensor, targets: Tensor, smoothing: float
) -> Tensor:
    """The papers' formulas: Gao et al. 2022, section 3; Liang et al. 2021, equation 4, halved."""
    losses = [
        functional.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
        for logits in (first, second)
    ]
    if isinstance(kind, SimCutConfig):
        return losses[0] + kind.weight * kl(first, second)
    symmetric = (kl(first, second) + kl(second, first)) / 2
    return (sum(losses) + kind.weight * symmetric) / 2


@kinds
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("num_tokens", [0, 1, CACHED_ROWS, ROWS_ON_CPU + 70])
def test_loss_and_gradients_equal_autograd(kind, num_tokens, smoothing, bias):
    states = torch.randn(2 * num_tokens, D, dtype=torch.float64, requires_grad=True)
    output = nn.Linear(D, V, bias=bias, dtype=torch.float64)
    targets = torch.randint(V, (num_tokens,))
    found = consistency_sum(states, output, targets, smoothing, objective_of(kind)).objective
    expected = expected_loss(kind, *output(states).chunk(2), targets, smoothing)
    inputs = [states, *output.parameters()]
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(0.3 * found, inputs), torch.autograd.grad(0.3 * expected, inputs)
    )


def test_both_divergences_have_weights_of_their_own():
    logits = torch.randn(2 * 6, V, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(V, (6,))
    eye = nn.Linear(V, V, bias=False, dtype=torch.float64)
    nn.init.eye_(eye.weight)
    objective = Objective(cross_entropies=(0.25, 0.75), divergences=(2.0, 0.5))
    found = consistency_sum(logits, eye, targets, 0.1, objective)
    first, second = logits.chunk(2)
    losses = [
        functional.cross_entropy(x, targets, label_smoothing=0.1, reduction="sum")
        for x in (first, second)
    ]
    weighted = 2 * kl(first, second) + 0.5 * kl(second, first)
    expected = 0.25 * losses[0] + 0.75 * losses[1] + weighted
    torch.testing.assert_close(found.objective, expected)
    torch.testing.assert_close(found.divergence, weighted.detach() / 2.5)
    gradients = [torch.autograd.grad(total, logits) for total in (found.objective, expected)]
    torch.testing.assert_close(*gradients)


@kinds
def test_sums_hold_what_is_reported(kind):
    states, targets = torch.randn(20, D), torch.randint(V, (10,))
    output = nn.Linear(D, V)
    passes = output(states).chunk(2)
    if kind == KINDS[0]:
        passes = passes[:1]
    found = consistency_sum(states, output, targets, 0.1, objective_of(kind))
    for smoothing, total in ((0.1, found.loss), (0.0, found.nll)):
        losses = [
            functional.cross_entropy(x, targets, label_smoothing=smoothing, reduction="sum")
            for x in passes
        ]
        torch.testing.assert_close(total, torch.stack(losses).mean().detach())
    num_correct = [int((x.argmax(dim=-1) == targets).sum()) for x in passes]
    assert found.num_correct == sum(num_correct) / len(passes)
    assert found.divergence > 0


def test_no_more_logits_exist_at_once_than_with_one_pass(monkeypatch):
    monkeypatch.setattr(loss, "ROWS_ON_CPU", 4)
    output, sizes = nn.Linear(D, V), []
    output.register_forward_hook(lambda module, inputs, logits: sizes.append(len(logits)))
    targets = torch.randint(V, (5,))
    consistency_sum(torch.randn(10, D), output, targets, 0.1, objective_of(KINDS[0]))
    assert sizes == [4, 4, 2]


@kinds
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_logits_have_a_gradient_as_exact_as_their_digits(kind, dtype):
    states = torch.randn(200, 64, requires_grad=True)
    output = nn.Linear(64, 500)
    targets = torch.randint(500, (100,))
    factor = 2.0**10
    with autocast(torch.device("cpu"), dtype):
        sums = consistency_sum(states, output, targets, 0.1, objective_of(kind), factor)
    inputs = [states, *output.parameters()]
    expected = expected_loss(kind, *output(states).chunk(2), targets, 0.1)
    assert sums.objective.item() == pytest.approx(expected.item(), rel=2**-8)
    found = torch.autograd.grad(sums.objective, inputs)
    for one, other in zip(found, torch.autograd.grad(expected, inputs), strict=True):
        assert one.dtype == torch.float32
        assert float((one / factor - other).norm() / other.norm()) < 2**-6


SENTENCES = [Example(i, [7, 8 + i] * (i + 1), [9, 10 + i] * (4 - i)) for i in range(4)]


def gradients_of(state: TrainState) -> dict[str, Tensor]:
    return {name: weight.grad for name, weight in state.model.named_parameters()}


@kinds
def test_a_step_has_the_gradient_of_the_papers_loss_of_two_passes(kind, monkeypatch):
    """Two passes one by one, in which a hook cuts embeddings; without dropout, which would vary."""
    kept = []

    def recorded(batch: Batch, cutoff: float) -> KeptTokens:
        kept.append(cut_tokens(batch, cutoff))
        return kept[-1]

    monkeypatch.setattr(loss, "cut_tokens", recorded)
    batch = collate(SENTENCES)
    subject, reference = (train_state(dropout=0.0, consistency=kind) for _ in range(2))
    totals, _ = accumulate_gradients(subject, [batch], num_tokens=batch.num_target_tokens)
    assert len(kept) == (kind == KINDS[0])
    model = reference.model.train()
    inputs = batch.source, batch.source_mask, batch.target_in, batch.target_positions
    first = model(*inputs)
    for masks in kept:
        for stack, mask in zip(model.stacks(), masks, strict=True):
            whole, cut = mask.chunk(2)
            assert whole.all()
            assert not cut.all()
            stack.embeddings.tokens.register_forward_hook(
                lambda module, ids, output, cut=cut: output * cut[..., None]
            )
    second = model(*inputs)
    expected = expected_loss(kind, first, second, batch.targets, 0.1)
    (expected / batch.num_target_tokens).backward()
    for name, gradient in gradients_of(reference).items():
        torch.testing.assert_close(gradients_of(subject)[name], gradient, rtol=1e-4, atol=1e-6)
    smoothed = functional.cross_entropy(first, batch.targets, label_smoothing=0.1, reduction="sum")
    assert totals[0].item() == pytest.approx(smoothed.item(), rel=1e-5)


def test_two_passes_have_dropout_of_their_own():
    model = train_state(dropout=0.3).model.train()
    first, second = paired_hidden_states(model, collate(SENTENCES)).chunk(2)
    assert (first != second).any(dim=-1).all()
    model.eval()
    first, second = paired_hidden_states(model, collate(SENTENCES)).chunk(2)
    torch.testing.assert_close(first, second)


def test_tokens_are_cut_with_their_probability_but_for_the_ends():
    torch.manual_seed(1)
    batch = collate([Example(0, [7] * 99, [9] * 99) for _ in range(100)])
    for ids, mask in zip(
        (batch.source, batch.target_in), cut_tokens(batch, cutoff=0.2), strict=True
    ):
        whole, cut = mask.chunk(2)
        assert whole.all()
        ordinary = ids > 6
        # Four standard deviations of 9,900 draws.
        assert cut[ordinary].float().mean().item() == pytest.approx(0.8, abs=0.016)
        assert cut[~ordinary].all()
    assert (batch.source == EOS_ID).sum() == 100


@kinds
def test_draws_are_a_function_of_the_step_and_the_process(kind):
    def totals(step: int, rank: int) -> list[float]:
        progress = replace(INITIAL, step=step)
        subject = train_state(progress=progress, consistency=kind)
        subject = replace(subject, world=World(rank, 2))
        return accumulate_gradients(subject, [collate(SENTENCES)], num_tokens=20)[0].tolist()

    one_by_one = [totals(step, rank) for step in (0, 1) for rank in (0, 1)]
    assert one_by_one == [totals(step, rank) for step in (0, 1) for rank in (0, 1)]
    assert len({tuple(sums) for sums in one_by_one}) == 4


def cut_even_ids(batch: Batch, cutoff: float) -> KeptTokens:
    """Cut the same tokens however a batch is cut into micro-batches."""
    masks = ((ids % 2 == 1) | (ids < 7) for ids in (batch.source, batch.target_in))
    return KeptTokens(*(torch.cat((torch.ones_like(mask), mask)) for mask in masks))


@kinds
def test_micro_batches_change_the_step_by_rounding_only(kind, monkeypatch):
    monkeypatch.setattr(loss, "cut_tokens", cut_even_ids)
    reports, ends = [], []
    for parts in ([SENTENCES], [SENTENCES[:1], SENTENCES[1:]]):
        subject = train_state(dropout=0.0, consistency=kind, clip_norm=None)
        steps = train_steps(subject, step_batches(*map(collate, parts)))
        reports.append(next(steps))
        ends.append([state["exp_avg"] for state in subject.optimizer.state.values()])
    for name in ("loss", "nll", "accuracy", "divergence", "grad_norm"):
        values = [getattr(report, name) for report in reports]
        assert values[0] == pytest.approx(values[1], rel=1e-5, abs=1e-6)
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-6)


@kinds
def test_where_memory_runs_out_both_passes_are_halved(kind, monkeypatch):
    monkeypatch.setattr(loss, "cut_tokens", cut_even_ids)
    subject, roomy = (train_state(dropout=0.0, consistency=kind) for _ in range(2))
    sizes, hidden_states = [], subject.model.hidden_states

    def limited(source: Tensor, *rest: object) -> Tensor:
        sizes.append(len(source))
        if len(source) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return hidden_states(source, *rest)

    monkeypatch.setattr(subject.model, "hidden_states", limited)
    found, expected = (
        next(train_steps(state, step_batches(collate(SENTENCES)))) for state in (subject, roomy)
    )
    assert sizes == [8, 4, 4]
    assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
    assert found.divergence == pytest.approx(expected.divergence, rel=1e-4, abs=1e-6)


@kinds
def test_processes_take_the_step_of_one(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(loss, "cut_tokens", cut_even_ids)

    def step(rank: int) -> None:
        with process_group("cpu") as world:
            alone, subject = (train_state(dropout=0.0, consistency=kind) for _ in range(2))
            subject = replace(subject, world=world)
            batches = step_batches(collate(SENTENCES[rank::2]))
            (found,) = islice(train_steps(subject, batches), 1)
            (expected,) = islice(train_steps(alone, step_batches(collate(SENTENCES))), 1)
            for name in ("loss", "nll", "accuracy", "divergence", "grad_norm", "num_tokens"):
                value = getattr(expected, name)
                assert getattr(found, name) == pytest.approx(value, rel=1e-5, abs=1e-6)

    ended = together(2, step, tmp_path)
    assert [process.code for process in ended] == [0, 0], ended


@kinds
def test_a_loss_scale_changes_no_digit_of_a_step(kind):
    norms = []
    for factor in (1.0, 2.0**20):
        subject = train_state(consistency=kind, progress=replace(INITIAL, loss_scale=factor))
        report = next(train_steps(subject, step_batches(collate(SENTENCES))))
        norms.append((report.loss, report.divergence, report.grad_norm))
    assert norms[0] == norms[1]


@kinds
def test_a_consistent_model_learns_and_its_passes_draw_near(kind):
    subject = train_state(dropout=0.2, consistency=kind)
    reports = list(islice(train_steps(subject, step_batches(collate(SENTENCES))), 80))
    divergences = [report.divergence for report in reports]
    assert reports[-1].nll < reports[0].nll / 2
    plain = train_state(dropout=0.2)
    list(islice(train_steps(plain, step_batches(collate(SENTENCES))), 80))
    plain.config = replace(plain.config, consistency=kind)
    apart = next(train_steps(plain, step_batches(collate(SENTENCES)))).divergence
    assert divergences[-1] < apart / 2


def test_a_single_pass_reports_no_divergence():
    assert next(train_steps(train_state(), step_batches(collate(SENTENCES)))).divergence is None


def test_r_drop_without_dropout_is_refused(tmp_path):
    config = write_toy(tmp_path)
    settings = "training.consistency={kind: r_drop}", "model.dropout=0"
    with pytest.raises(ConfigError) as caught:
        load_config(config, settings)
    assert str(caught.value) == (
        "`settings` training.consistency: needs dropout, without which two passes are one "
        "(r_drop); raise model.dropout, or write {kind: simcut}"
    )
    load_config(config, (*settings, "model.feedforward_dropout=0.1"))


def test_simcut_of_a_masked_encoder_is_refused(tmp_path: Path):
    config = write_toy(tmp_path, config=MASKED)
    with pytest.raises(ConfigError) as caught:
        load_config(config, ("training.consistency={kind: simcut}",))
    assert str(caught.value) == (
        "`settings` training.consistency: cuts a source and a target, and a masked_encoder has "
        "none (simcut); write {kind: r_drop}, or null"
    )
    load_config(config, ("training.consistency={kind: r_drop}",))
