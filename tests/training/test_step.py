"""The loop on random batches."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest
import torch
from train_states import INITIAL, batch, step_batches, train_state
from transfers import Transfers

from tformer_cli.config.schema.training import AdamWConfig, MuonConfig
from tformer_cli.corpus.batch import collate
from tformer_cli.corpus.bucketing import DataPosition
from tformer_cli.corpus.store import Example
from tformer_cli.distributed import SINGLE_PROCESS, World
from tformer_cli.errors import TrainingError
from tformer_cli.model.network import Network
from tformer_cli.training import step
from tformer_cli.training.ema import MovingAverage
from tformer_cli.training.optim import build_optimizer
from tformer_cli.training.step import NonFiniteStep, StepBatch, accumulate_gradients, train_steps


def test_reported_loss_is_the_mean_over_target_tokens():
    subject = train_state(label_smoothing=0.0)
    subject.model.eval()
    one = batch()
    with torch.no_grad():
        logits = subject.model(one.source, one.source_mask, one.target_in, one.target_positions)
    targets = one.target_out[one.target_mask]
    expected = torch.nn.functional.cross_entropy(logits, targets)
    for module in subject.model.modules():
        if hasattr(module, "p"):
            module.p = 0.0
        if hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
    (report,) = islice(train_steps(subject, step_batches(one)), 1)
    assert report.loss == pytest.approx(expected.item(), rel=1e-5)
    assert report.nll == pytest.approx(expected.item(), rel=1e-5)
    assert report.num_tokens == 6


def test_the_loss_falls_on_a_batch_that_comes_again():
    reports = list(islice(train_steps(train_state(), step_batches(batch())), 60))
    assert [report.step for report in reports] == list(range(1, 61))
    assert reports[-1].nll < reports[0].nll / 2
    assert reports[-1].accuracy == 1.0


def test_clipping_limits_the_step_and_reports_the_norm_before_it():
    norms = {}
    for clip_norm in (None, 1e-3):
        subject = train_state(clip_norm=clip_norm)
        (report,) = islice(train_steps(subject, step_batches(batch())), 1)
        norms[clip_norm] = report.grad_norm
        moments = [state["exp_avg"] for state in subject.optimizer.state.values()]
        norm = torch.stack([moment.norm() for moment in moments]).norm().item() / (1 - 0.9)
        expected = report.grad_norm if clip_norm is None else clip_norm
        assert norm == pytest.approx(expected, rel=1e-3)
    assert norms[None] == pytest.approx(norms[1e-3])


def test_a_step_takes_the_time_that_its_batch_takes_to_come(monkeypatch):
    now = 0.0

    def slow() -> Iterator[StepBatch]:
        nonlocal now
        for group in step_batches(batch()):
            now += 7.0
            yield group

    monkeypatch.setattr(step.time, "perf_counter", lambda: now)
    taken = train_steps(train_state(), slow())
    assert next(taken).seconds == 7.0
    # What is done between two steps is none of their time.
    now += 100.0
    assert next(taken).seconds == 7.0


def test_the_moving_average_is_a_part_of_a_step_and_of_its_time(monkeypatch):
    now = 0.0

    class SlowAverage(MovingAverage):
        def update(self, model: Network, step: int) -> None:
            nonlocal now
            now += 3.0
            super().update(model, step)

    monkeypatch.setattr(step.time, "perf_counter", lambda: now)
    state = train_state()
    state.ema = SlowAverage(state.model, 0.9)
    steps = train_steps(state, step_batches(batch()))
    assert [next(steps).seconds for _ in range(2)] == [3.0, 3.0]
    assert state.progress.seconds == 6.0


def test_dropout_is_a_function_of_the_step():
    def losses(first_step: int, count: int) -> list[float]:
        # A learning rate of zero, so that only dropout tells the steps apart.
        progress = replace(INITIAL, step=first_step - 1)
        steps = train_steps(train_state(rate=0.0, progress=progress), step_batches(batch()))
        return [report.loss for report in islice(steps, count)]

    assert losses(1, 5)[3:] == losses(4, 2)
    assert len(set(losses(1, 5))) == 5


def test_each_process_draws_dropout_of_its_own():
    def loss(world: World) -> float:
        subject = replace(train_state(progress=replace(INITIAL, step=2)), world=world)
        totals, _ = accumulate_gradients(subject, [batch()], num_tokens=6)
        return totals[0].item()

    losses = [loss(World(rank, 4)) for rank in range(4)]
    assert len(set(losses)) == 4
    assert losses == [loss(World(rank, 4)) for rank in range(4)]
    # The first of several draws what a process alone does.
    assert losses[0] == loss(SINGLE_PROCESS)


@pytest.mark.parametrize("optimizer", [AdamWConfig(), MuonConfig()], ids=lambda one: one.kind)
def test_a_step_waits_for_the_device_once(optimizer):
    subject = train_state(clip_norm=1e-3, gradient_accumulation_steps=2)
    subject.optimizer = build_optimizer(optimizer, subject.model)
    steps = train_steps(subject, step_batches(batch(), batch()))
    next(steps)
    with Transfers() as transfers:
        next(steps)
    # The loss and the norm of the gradient, together.
    assert transfers.names == ["tolist"]


def weights(subject) -> dict[str, torch.Tensor]:
    return {name: x.detach().clone() for name, x in subject.model.named_parameters()}


def test_a_gradient_that_is_not_finite_moves_nothing_and_the_step_is_taken_with_the_next_batch():
    bad = replace(batch(), num_target_tokens=0)  # Its mean is a division by zero.
    good = collate([Example(0, [5], [6, 7])])
    course = [
        StepBatch([bad], DataPosition(0, 3), DataPosition(0, 4)),
        StepBatch([good], DataPosition(0, 4), DataPosition(0, 5)),
    ]
    progress = replace(INITIAL, step=6, data_position=(0, 3))
    subject, unharmed = train_state(progress=progress), train_state(progress=progress)
    steps = train_steps(subject, iter(course))
    before = weights(subject)
    fault = next(steps)
    assert isinstance(fault, NonFiniteStep)
    assert (fault.step, fault.batch) == (7, course[0])
    assert not math.isfinite(fault.loss + fault.grad_norm)
    for name, weight in weights(subject).items():
        assert torch.equal(weight, before[name])
    assert not subject.optimizer.state
    assert (subject.step, subject.data_position) == (6, DataPosition(0, 4))
    assert subject.progress.skipped_batches == ((0, 3),)
    report = next(steps)
    (expected,) = train_steps(unharmed, course[1:])
    assert replace(report, seconds=0.0) == replace(expected, seconds=0.0)
    assert (subject.step, subject.data_position) == (7, DataPosition(0, 5))
    for name, weight in weights(subject).items():
        assert torch.equal(weight, weights(unharmed)[name])


def test_the_learning_rate_is_that_of_the_schedule_times_a_factor():
    slowed = replace(INITIAL, learning_rate_factor=0.5)
    steps = train_steps(train_state(rate=0.25, progress=slowed), step_batches(batch()))
    assert next(steps).learning_rate == 0.125


def running_out(subject, monkeypatch, most_rows: int) -> list[int]:
    """Let memory run out for batches of more rows; return the rows of each attempt."""
    attempts = []
    hidden_states = subject.model.hidden_states

    def limited(source, *rest):
        attempts.append(len(source))
        if len(source) > most_rows:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return hidden_states(source, *rest)

    monkeypatch.setattr(subject.model, "hidden_states", limited)
    return attempts


FIVE = [Example(i, [7] * (i + 1), [9] * (6 - i)) for i in range(5)]


def test_where_memory_runs_out_the_step_is_redone_in_halves(monkeypatch):
    subject, roomy = (train_state(dropout=0.0, clip_norm=None) for _ in range(2))
    attempts = running_out(subject, monkeypatch, most_rows=2)
    parts = collate(FIVE[:1]), collate(FIVE[1:])
    (report,) = islice(train_steps(subject, step_batches(*parts)), 1)
    (expected,) = islice(train_steps(roomy, step_batches(collate(FIVE))), 1)
    assert attempts == [1, 4, 1, 2, 2]
    assert (report.num_oom_micro_batches, expected.num_oom_micro_batches) == (3, 0)
    assert report.num_tokens == expected.num_tokens
    assert report.nll == pytest.approx(expected.nll, rel=1e-5)
    assert report.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
    for parameter, other in zip(subject.model.parameters(), roomy.model.parameters(), strict=True):
        moments = (subject.optimizer.state[parameter], roomy.optimizer.state[other])
        torch.testing.assert_close(*(x["exp_avg"] for x in moments), rtol=1e-4, atol=1e-7)


def test_memory_that_ran_out_once_leaves_the_same_random_numbers(monkeypatch):
    """The second attempt is what a config with as many pieces would have done at once."""
    subject, planned = train_state(), train_state()
    running_out(subject, monkeypatch, most_rows=3)
    (report,) = islice(train_steps(subject, step_batches(collate(FIVE))), 1)
    halves = collate(FIVE[:3]), collate(FIVE[3:])
    (expected,) = islice(train_steps(planned, step_batches(*halves)), 1)
    assert report.loss == expected.loss
    for name, weight in weights(subject).items():
        assert torch.equal(weight, weights(planned)[name])


def test_a_pair_that_does_not_fit_ends_the_training(monkeypatch):
    subject = train_state(progress=replace(INITIAL, step=6))
    running_out(subject, monkeypatch, most_rows=0)
    with pytest.raises(TrainingError) as caught:
        next(train_steps(subject, step_batches(batch())))
    assert str(caught.value) == (
        "step 7: memory ran out on a single pair of sentences (3 and 4 tokens); "
        "lower data.filters.max_length, or train a smaller model"
    )


def test_other_errors_are_not_taken_for_a_lack_of_memory(monkeypatch):
    subject = train_state()

    def failing(*arguments):
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(subject.model, "hidden_states", failing)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        next(train_steps(subject, step_batches(batch())))


def test_a_loss_scale_changes_no_digit_of_a_step():
    reports, ends = [], []
    for factor in (1.0, 2.0**20):
        subject = train_state(progress=replace(INITIAL, loss_scale=factor))
        steps = train_steps(subject, step_batches(batch()))
        reports.append([replace(r, seconds=0.0, loss_scale=None) for r in islice(steps, 3)])
        ends.append(weights(subject))
    assert reports[0] == reports[1]
    for name in ends[0]:
        assert torch.equal(ends[0][name], ends[1][name])


def test_a_gradient_that_overflows_is_redone_with_a_lower_loss_scale():
    huge = 2.0**140  # More than float32 can hold.
    subject, plain = train_state(progress=replace(INITIAL, loss_scale=huge)), train_state()
    report = next(train_steps(subject, step_batches(batch())))
    expected = next(train_steps(plain, step_batches(batch())))
    assert 1.0 < report.loss_scale.factor < huge
    assert (report.step, report.loss, report.grad_norm) == (1, expected.loss, expected.grad_norm)
    for name, weight in weights(subject).items():
        assert torch.equal(weight, weights(plain)[name])


def test_a_loss_that_is_not_finite_is_not_the_fault_of_its_scale():
    bad = replace(batch(), num_target_tokens=0)
    scaled = train_state(progress=replace(INITIAL, loss_scale=2.0**16))
    fault = next(train_steps(scaled, step_batches(bad)))
    assert isinstance(fault, NonFiniteStep)


def test_float16_gives_the_gradient_of_float32_but_for_rounding():
    norms = {}
    for precision in (torch.float32, torch.float16):
        subject = replace(train_state(dropout=0.0), precision=precision)
        report = next(train_steps(subject, step_batches(batch())))
        norms[precision] = report.grad_norm
    assert norms[torch.float16] == pytest.approx(norms[torch.float32], rel=2e-3)
    assert norms[torch.float16] != norms[torch.float32]


def test_parts_are_watched_on_request_when_a_report_is_due():
    for is_watched in (False, True):
        subject = train_state(log_parameter_norms=is_watched, report_every=2)
        reports = list(islice(train_steps(subject, step_batches(batch())), 4))
        watched = [report.step for report in reports if report.parts]
        assert watched == ([2, 4] if is_watched else [])
        for report in reports[1::2] if is_watched else []:
            norms = [part.grad_norm for part in report.parts.values()]
            assert math.hypot(*norms) == pytest.approx(report.grad_norm, rel=1e-5)
