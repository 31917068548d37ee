"""Optimizers against torch and formulas, schedules, averages and norms of parts."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from train_states import batch, train_state

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.training import (
    AdamConfig,
    AdamWConfig,
    ConstantSchedule,
    CosineSchedule,
    InverseSquareRootSchedule,
    LinearSchedule,
    MuonConfig,
    StepSchedule,
)
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq
from tformer_cli.training.optim import (
    NEWTON_SCHULZ_COEFFICIENTS,
    NEWTON_SCHULZ_STEPS,
    MovingAverage,
    Muon,
    build_optimizer,
    build_schedule,
    orthogonalize,
    part_of,
    set_learning_rate,
    watch_parts,
)
from tformer_cli.training.step import accumulate_gradients


def model(tie: str = "all") -> Seq2Seq:
    config = EncoderDecoderConfig(
        dim=12,
        num_heads=3,
        feedforward_dim=16,
        num_encoder_layers=1,
        num_decoder_layers=1,
        tie_embeddings=tie,
    )
    return build_model(config, source_size=20, target_size=20, seed=1)


def test_only_matrices_of_linear_layers_are_decayed():
    network = model()
    optimizer = build_optimizer(AdamWConfig(weight_decay=0.25), network)
    decays = {
        id(parameter): group["weight_decay"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for name, parameter in network.named_parameters():
        is_matrix = name.endswith(".weight") and "norm" not in name and "embeddings" not in name
        assert decays.pop(id(parameter)) == (0.25 if is_matrix else 0.0), name
    assert not decays


def test_an_untied_output_is_decayed_as_a_matrix():
    network = model(tie="none")
    optimizer = build_optimizer(AdamWConfig(weight_decay=0.25), network)
    decayed = {id(p) for g in optimizer.param_groups if g["weight_decay"] for p in g["params"]}
    assert id(network.output.weight) in decayed


def test_first_adam_step_moves_each_weight_by_the_learning_rate():
    network = model()
    optimizer = build_optimizer(AdamConfig(epsilon=1e-12), network)
    set_learning_rate(optimizer, 0.125)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    for parameter in network.parameters():
        parameter.grad = torch.where(torch.rand_like(parameter) < 0.5, 1.0, -1.0) * 0.7
    optimizer.step()
    for parameter, old in zip(network.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), old - 0.125 * parameter.grad.sign())


@pytest.mark.parametrize("tie", ["all", "none"])
def test_muon_moves_the_matrices_of_layers_and_adamw_the_rest(tie):
    network, other = model(tie), model(tie)
    muon = build_optimizer(MuonConfig(weight_decay=0.25), network)
    adamw = build_optimizer(AdamWConfig(weight_decay=0.25), other)
    for (name, weight), copy in zip(network.named_parameters(), other.parameters(), strict=True):
        weight.grad = torch.randn_like(weight)
        copy.grad = weight.grad.clone()
        has_momentum = ".layers." in name and weight.dim() == 2
        groups = [g for g in muon.param_groups if any(p is weight for p in g["params"])]
        assert [("momentum" in group) for group in groups] == [has_momentum], name
    for _ in range(2):
        gradients = [copy.grad for copy in other.parameters()]
        for weight, gradient in zip(network.parameters(), gradients, strict=True):
            weight.grad = gradient.clone()
        muon.step()
        adamw.step()
    for (name, weight), copy in zip(network.named_parameters(), other.parameters(), strict=True):
        is_turned = ".layers." in name and weight.dim() == 2
        assert torch.equal(weight, copy) != is_turned, name


SHAPES = [(6, 6), (4, 9), (9, 4)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_polynomial_acts_on_singular_values_alone(shape):
    torch.manual_seed(1)
    matrices = torch.randn(3, *shape, dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    values = values / values.norm(dim=1, keepdim=True)
    for _ in range(NEWTON_SCHULZ_STEPS):
        first, third, fifth = NEWTON_SCHULZ_COEFFICIENTS
        values = first * values + third * values**3 + fifth * values**5
    torch.testing.assert_close(orthogonalize(matrices), left @ torch.diag_embed(values) @ right)
    assert values.min() > 0.5
    assert values.max() < 1.5


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_are_those_of_the_formulas_by_singular_values(shape):
    """Momentum by Nesterov, singular values by the polynomial, the size of Adam, decay apart."""
    torch.manual_seed(1)
    rate, momentum, decay = 0.05, 0.9, 0.1
    weight = torch.nn.Parameter(torch.randn(shape, dtype=torch.float64))
    group = {"params": [weight], "momentum": momentum, "weight_decay": decay}
    optimizer = Muon([group], lr=rate)
    expected, average = weight.detach().clone(), torch.zeros(shape, dtype=torch.float64)
    for _ in range(3):
        gradient = torch.randn(shape, dtype=torch.float64)
        average = momentum * average + (1 - momentum) * gradient
        ahead = momentum * average + (1 - momentum) * gradient
        left, values, right = torch.linalg.svd(ahead, full_matrices=False)
        values = values / values.norm()
        for _ in range(NEWTON_SCHULZ_STEPS):
            first, third, fifth = NEWTON_SCHULZ_COEFFICIENTS
            values = first * values + third * values**3 + fifth * values**5
        update = 0.2 * max(shape) ** 0.5 * (left @ values.diag() @ right)
        expected = expected * (1 - rate * decay) - rate * update
        weight.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(weight.detach(), expected)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
@pytest.mark.parametrize("shape", SHAPES)
def test_steps_are_those_of_torchs_own(shape):
    torch.manual_seed(1)
    weights = [torch.nn.Parameter(torch.randn(shape)) for _ in range(2)]
    copies = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
    settings = {"lr": 0.05, "weight_decay": 0.1}
    ours = Muon([{"params": weights, "momentum": 0.9, "weight_decay": 0.1}], lr=0.05, fused=True)
    theirs = torch.optim.Muon(copies, momentum=0.9, adjust_lr_fn="match_rms_adamw", **settings)
    for _ in range(3):
        for weight, copy in zip(weights, copies, strict=True):
            weight.grad = torch.randn(shape)
            copy.grad = weight.grad.clone()
        ours.step()
        theirs.step()
        assert all(weight.grad is None for weight in weights)
    for weight, copy in zip(weights, copies, strict=True):
        # Theirs computes in bfloat16.
        torch.testing.assert_close(weight, copy, rtol=0.02, atol=0.005)


def test_an_update_is_as_large_as_one_of_adam():
    torch.manual_seed(1)
    weight = torch.nn.Parameter(torch.zeros(64, 256))
    optimizer = Muon([{"params": [weight], "momentum": 0.0}], lr=1.0, weight_decay=0.0)
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    size = weight.norm().item() / math.sqrt(weight.numel())
    assert 0.15 < size < 0.25


TABLES = [
    (ConstantSchedule(warmup_steps=2), [4.0, 8.0, 8.0, 8.0, 8.0, 8.0]),
    (LinearSchedule(warmup_steps=2, final_ratio=0.0), [4.0, 8.0, 6.0, 4.0, 2.0, 0.0]),
    (LinearSchedule(warmup_steps=2, final_ratio=0.5), [4.0, 8.0, 7.0, 6.0, 5.0, 4.0]),
    (
        StepSchedule(warmup_steps=1, step_size=2, factor=0.5),
        [8.0, 8.0, 4.0, 4.0, 2.0, 2.0],
    ),
    (
        InverseSquareRootSchedule(warmup_steps=4),
        [2.0, 4.0, 6.0, 8.0, 8 * math.sqrt(4 / 5), 8 * math.sqrt(4 / 6)],
    ),
    (
        CosineSchedule(warmup_steps=2, final_ratio=0.0),
        [4.0, 8.0, 8 * (1 + math.cos(math.pi / 4)) / 2, 4.0, 8 * (1 - math.sqrt(0.5)) / 2, 0.0],
    ),
]


@pytest.mark.parametrize(("config", "rates"), TABLES, ids=lambda value: getattr(value, "kind", ""))
def test_schedule_equals_the_table_written_out(config, rates):
    schedule = build_schedule(config, peak=8.0, max_steps=6)
    assert [schedule(step) for step in range(1, 7)] == pytest.approx(rates, abs=1e-12)


schedules = st.one_of(
    st.builds(ConstantSchedule, warmup_steps=st.integers(0, 50)),
    st.builds(LinearSchedule, warmup_steps=st.integers(0, 50), final_ratio=st.floats(0, 1)),
    st.builds(CosineSchedule, warmup_steps=st.integers(0, 50), final_ratio=st.floats(0, 1)),
    st.builds(InverseSquareRootSchedule, warmup_steps=st.integers(1, 50)),
    st.builds(
        StepSchedule,
        warmup_steps=st.integers(0, 50),
        # Of steps one by one, without warm-up, the first is below the peak already.
        step_size=st.integers(2, 20),
        factor=st.floats(0.1, 0.9),
    ),
)


@given(schedules)
def test_schedule_rises_to_the_peak_and_never_again(config):
    schedule = build_schedule(config, peak=1.0, max_steps=100)
    rates = [schedule(step) for step in range(1, 101)]
    top = max(config.warmup_steps, 1)
    assert rates[top - 1] == pytest.approx(1.0, abs=0.02)
    assert all(a <= b + 1e-12 for a, b in pairwise(rates[:top]))
    assert all(a >= b - 1e-12 for a, b in pairwise(rates[top - 1 :]))
    assert min(rates) >= 0


@given(schedules)
def test_schedule_has_no_jump_at_the_end_of_the_warm_up(config):
    schedule = build_schedule(config, peak=1.0, max_steps=100_000)
    if config.warmup_steps:
        assert schedule(config.warmup_steps) == pytest.approx(1.0)


@pytest.fixture
def network():
    config = EncoderDecoderConfig(dim=8, num_heads=2, feedforward_dim=8, num_encoder_layers=1)
    return build_model(config, source_size=20, target_size=20, seed=1)


def test_the_average_is_the_weighted_sum_of_all_weights_so_far(network):
    ema = MovingAverage(network, decay=0.5)
    weight = network.encoder.layers[0].feedforward.up.weight
    history = [weight.detach().double().clone()]
    for step in range(1, 6):
        with torch.no_grad():
            weight += torch.randn_like(weight)
        history.append(weight.detach().double().clone())
        ema.update(network, step)
    expected = history[0]
    for step, value in enumerate(history[1:], start=1):
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    actual = ema.model.encoder.layers[0].feedforward.up.weight
    torch.testing.assert_close(actual.double(), expected, rtol=1e-6, atol=1e-6)


def test_a_model_that_stands_still_is_its_own_average(network):
    ema = MovingAverage(network, decay=0.9)
    ema.update(network, 1)
    for mean, weight in zip(ema.model.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(mean, weight)


def test_shared_weights_stay_shared(network):
    ema = MovingAverage(network, decay=0.9).model
    assert [name for name, _ in ema.named_parameters()] == [
        name for name, _ in network.named_parameters()
    ]
    assert not {p.data_ptr() for p in ema.parameters()} & {
        p.data_ptr() for p in network.parameters()
    }


def test_parts_are_layers_and_what_stands_around_them():
    subject = train_state().model
    assert {part_of(name) for name, _ in subject.named_parameters()} == {
        "encoder.embeddings",
        "encoder.layers.0",
        "encoder.norm",
        "decoder.layers.0",
        "decoder.norm",
    }
    assert part_of("output.weight") == "output"
    assert part_of("decoder.layers.11.cross_attention.key.bias") == "decoder.layers.11"


def grad_norms(model: nn.Module) -> torch.Tensor:
    return torch.stack([weight.grad.norm() for weight in model.parameters()])


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten().double() for tensor in tensors])


def test_norms_and_ratios_are_those_of_all_numbers_of_a_part():
    subject = train_state()
    accumulate_gradients(subject, [batch()], num_tokens=6)
    part_reports = watch_parts(subject.model, grad_norms(subject.model))
    before = {name: weight.detach().clone() for name, weight in subject.model.named_parameters()}
    weights: dict[str, nn.Parameter] = dict(subject.model.named_parameters())
    gradients = {name: weight.grad.clone() for name, weight in weights.items()}
    subject.optimizer.step()
    reports = part_reports()
    assert reports.keys() == {part_of(name) for name in weights}
    for part, report in reports.items():
        names = [name for name in weights if part_of(name) == part]
        norm = flat([gradients[name] for name in names]).norm().item()
        was = flat([before[name] for name in names])
        moved = flat([weights[name].detach() for name in names]) - was
        assert report.grad_norm == pytest.approx(norm, rel=1e-5)
        assert report.update_ratio == pytest.approx((moved.norm() / was.norm()).item(), rel=1e-4)


def test_a_part_that_was_zero_has_no_ratio():
    """As the bias of an output before the first step, whose matrix is that of the embeddings."""
    part = nn.Linear(1, 3)
    with torch.no_grad():
        part.weight.zero_()
        part.bias.zero_()
    for weight in part.parameters():
        weight.grad = torch.ones_like(weight)
    part_reports = watch_parts(part, grad_norms(part))
    torch.optim.SGD(part.parameters(), lr=0.1).step()
    assert [report.update_ratio for report in part_reports().values()] == [None]
