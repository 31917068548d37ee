"""Memory of a GPU that runs out."""

from itertools import islice

import pytest
import torch
from accelerator import DEVICE, on_cuda, on_gpu

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.training import AdamConfig, TrainingConfig
from tformer_cli.corpus.batch import Batch, collate
from tformer_cli.corpus.bucketing import DataPosition
from tformer_cli.corpus.store import Example
from tformer_cli.model.build import build_model
from tformer_cli.training.optim import build_optimizer
from tformer_cli.training.step import StepBatch, TrainState, train_steps

pytestmark = [*on_gpu, on_cuda]

V = 8192
# Half of what a step takes beyond the weights: too little for the whole, enough for a part of it.
SHARE = 0.5


def train_state() -> TrainState:
    config = EncoderDecoderConfig(
        dim=64,
        num_encoder_layers=1,
        num_decoder_layers=1,
        num_heads=4,
        feedforward_dim=128,
        dropout=0.0,
    )
    model = build_model(config, source_size=V, target_size=V, seed=2).to(DEVICE)
    return TrainState(
        model=model,
        # A large epsilon, so that rounding does not decide the sign of a step.
        optimizer=build_optimizer(AdamConfig(epsilon=1e-3), model),
        scheduler=lambda step: 1e-3,
        config=TrainingConfig(),
        device=DEVICE,
        precision=torch.float32,
        seed=1,
    )


def batch() -> Batch:
    """Logits of a GiB, of which a quarter is there at a time."""
    words = [16 + i % (V - 16) for i in range(31)]
    return collate([Example(i, words, words) for i in range(1024)])


def steps(subject: TrainState, count: int):
    groups = [
        StepBatch([batch()], DataPosition(0, i), DataPosition(0, i + 1)) for i in range(count)
    ]
    return list(islice(train_steps(subject, groups), count))


def test_a_step_that_does_not_fit_is_halved_and_the_training_goes_on():
    roomy = train_state()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(DEVICE)
    before = torch.cuda.memory_reserved(DEVICE)
    expected = steps(roomy, 3)
    peak = torch.cuda.max_memory_reserved(DEVICE)
    weights = [weight.detach().cpu() for weight in roomy.model.parameters()]
    del roomy
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(DEVICE).total_memory
    subject = train_state()
    torch.cuda.set_per_process_memory_fraction((before + SHARE * (peak - before)) / total)
    try:
        reports = steps(subject, 3)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
    assert [report.num_oom_micro_batches for report in expected] == [0, 0, 0]
    assert all(report.num_oom_micro_batches >= 2 for report in reports)
    for report, whole in zip(reports, expected, strict=True):
        assert report.num_tokens == whole.num_tokens
        assert report.nll == pytest.approx(whole.nll, rel=1e-4)
        assert report.grad_norm == pytest.approx(whole.grad_norm, rel=1e-3)
    for weight, whole in zip(subject.model.parameters(), weights, strict=True):
        torch.testing.assert_close(weight.detach().cpu(), whole, rtol=1e-3, atol=1e-5)
