"""The loop on random batches."""

import math
from itertools import islice, repeat

import pytest
import torch

from tformer_cli.config.schema import AdamConfig, EncoderDecoderConfig, TrainingConfig
from tformer_cli.corpus.batch import Batch, Example, collate
from tformer_cli.corpus.bucketing import Position
from tformer_cli.errors import TrainingError
from tformer_cli.model.seq2seq import build_model
from tformer_cli.training.loop import Learner, train_steps
from tformer_cli.training.optim import build_optimizer

V = 29


def learner(rate: float = 0.01, **settings) -> Learner:
    config = EncoderDecoderConfig(
        dim=12, num_heads=3, feedforward_dim=16, num_encoder_layers=1, num_decoder_layers=1
    )
    model = build_model(config, source_size=V, target_size=V, seed=2)
    return Learner(
        model=model,
        optimizer=build_optimizer(AdamConfig(), model),
        schedule=lambda step: rate,
        config=TrainingConfig(**settings),
        device=torch.device("cpu"),
        precision=torch.float32,
        seed=1,
    )


def batch() -> Batch:
    return collate([Example(0, [7, 8], [9, 10, 11]), Example(1, [12], [13])])


def groups(*micro_batches: Batch):
    return repeat((list(micro_batches), Position(0, 1)))


def test_reported_loss_is_the_mean_over_target_tokens():
    subject = learner(label_smoothing=0.0)
    subject.model.eval()
    one = batch()
    with torch.no_grad():
        logits = subject.model(one.source, one.source_mask, one.target_in, one.target_mask)
    targets = one.target_out[one.target_mask]
    expected = torch.nn.functional.cross_entropy(logits, targets)
    for module in subject.model.modules():
        if hasattr(module, "share"):
            module.share = 0.0
        if hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
    (report,) = islice(train_steps(subject, groups(one), 1), 1)
    assert report.loss == pytest.approx(expected.item(), rel=1e-5)
    assert report.nll == pytest.approx(expected.item(), rel=1e-5)
    assert report.num_tokens == 6


def test_the_loss_falls_on_a_batch_that_comes_again():
    reports = list(islice(train_steps(learner(), groups(batch()), 1), 60))
    assert [report.step for report in reports] == list(range(1, 61))
    assert reports[-1].nll < reports[0].nll / 2
    assert reports[-1].accuracy == 1.0


def test_clipping_limits_the_step_and_reports_the_norm_before_it():
    norms = {}
    for clip_norm in (None, 1e-3):
        subject = learner(clip_norm=clip_norm)
        (report,) = islice(train_steps(subject, groups(batch()), 1), 1)
        norms[clip_norm] = report.grad_norm
        moments = [state["exp_avg"] for state in subject.optimizer.state.values()]
        norm = torch.stack([moment.norm() for moment in moments]).norm().item() / (1 - 0.9)
        expected = report.grad_norm if clip_norm is None else clip_norm
        assert norm == pytest.approx(expected, rel=1e-3)
    assert norms[None] == pytest.approx(norms[1e-3])


def test_dropout_is_a_function_of_the_step():
    def losses(first_step: int, count: int) -> list[float]:
        # A learning rate of zero, so that only dropout tells the steps apart.
        steps = train_steps(learner(rate=0.0), groups(batch()), first_step)
        return [report.loss for report in islice(steps, count)]

    assert losses(1, 5)[3:] == losses(4, 2)
    assert len(set(losses(1, 5))) == 5


def test_a_loss_that_is_not_finite_stops_before_the_weights_move():
    subject = learner()
    subject.model.output.weight.data[5] = math.nan
    before = subject.model.encoder.layers[0].self_attention.query.weight.clone()
    with pytest.raises(TrainingError) as caught:
        next(train_steps(subject, groups(batch()), 7))
    assert str(caught.value) == (
        "step 7: the training diverged; got loss nan, gradient norm nan; "
        "lower training.optimizer.learning_rate or lengthen the warm-up"
    )
    assert torch.equal(subject.model.encoder.layers[0].self_attention.query.weight, before)
