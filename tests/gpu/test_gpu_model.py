"""The network on a GPU against the network on the CPU: logits, loss and gradients."""

from dataclasses import replace

import pytest
import torch
from accelerator import CPU, DEVICE, on_gpu
from torch import Tensor
from torch._dynamo.utils import counters

from tformer_cli.config.schema.model import (
    AlibiPositions,
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    LatentConfig,
    LearnedPositions,
    ModelConfig,
    RotaryPositions,
    SinusoidalPositions,
    T5Positions,
)
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.corpus.batch import Batch, collate
from tformer_cli.corpus.bucketing import DataPosition
from tformer_cli.corpus.store import Example
from tformer_cli.device import autocast, can_compile
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq
from tformer_cli.training.loss import smoothed_nll_sum
from tformer_cli.training.optim import build_optimizer
from tformer_cli.training.step import StepBatch, TrainState, train_steps

pytestmark = on_gpu

V = 211
BASE = EncoderDecoderConfig(
    dim=64,
    num_encoder_layers=2,
    num_decoder_layers=2,
    num_heads=4,
    feedforward_dim=112,
    dropout=0.0,
)
VARIANTS = {
    "pre": BASE,
    "post": replace(BASE, norm_position="post"),
    "rms": replace(BASE, norm="rms"),
    "gelu": replace(BASE, activation="gelu"),
    "learned": replace(BASE, positions=LearnedPositions(max_length=40)),
    "untied": replace(BASE, tie_embeddings="none"),
    "deep": replace(BASE, num_encoder_layers=5, num_decoder_layers=1),
    # Heads of 4: too narrow for some kernels of attention.
    "narrow": replace(BASE, dim=12, num_heads=3, feedforward_dim=17),
    "wide": replace(BASE, dim=128, num_heads=2, positions=SinusoidalPositions()),
    "modern": replace(
        BASE,
        positions=RotaryPositions(),
        num_kv_heads=2,
        activation="swiglu",
        norm="rms",
        bias=False,
        qk_norm=True,
    ),
    "latent": replace(
        BASE, positions=RotaryPositions(), latent=LatentConfig(kv_lora_rank=16, rope_head_dim=8)
    ),
    "alibi": replace(BASE, positions=AlibiPositions(), norm_position="deep"),
    "relative": replace(BASE, positions=T5Positions(), sliding_window=5, num_kv_heads=1),
    "one stream": DecoderOnlyConfig(
        dim=64, num_layers=3, num_heads=4, feedforward_dim=112, dropout=0.0
    ),
}


def batch(*, rows: int = 13, longest: int = 31) -> Batch:
    """Sentences of all lengths."""
    random = torch.Generator().manual_seed(2)

    def sentence(length: int) -> list[int]:
        return torch.randint(6, V, (length,), generator=random).tolist()

    lengths = torch.randint(1, longest, (rows, 2), generator=random).tolist()
    return collate([Example(i, sentence(s), sentence(t)) for i, (s, t) in enumerate(lengths)])


def network(config: ModelConfig, device: torch.device) -> Seq2Seq:
    return build_model(config, source_size=V, target_size=V, seed=5).to(device)


def logits(config: ModelConfig, device: torch.device) -> Tensor:
    inputs = batch().to(device)
    with torch.no_grad():
        found = network(config, device).eval()(
            inputs.source, inputs.source_mask, inputs.target_in, inputs.target_positions
        )
    return found.cpu()


def gradients(
    model: Seq2Seq, device: torch.device, precision: torch.dtype = torch.float32
) -> tuple[float, dict[str, Tensor]]:
    """The mean loss over the batch, and its gradient."""
    inputs = batch().to(device)
    torch.manual_seed(4)
    with autocast(device, precision):
        found = model.train().hidden_states(
            inputs.source, inputs.source_mask, inputs.target_in, inputs.target_positions
        )
        sums = smoothed_nll_sum(found, model.output, inputs.targets, 0.1)
    loss = sums.loss / inputs.num_target_tokens
    loss.backward()
    named = {name: weight.grad.cpu() for name, weight in model.named_parameters()}
    return loss.item(), named


def distance(one: Tensor, other: Tensor) -> float:
    """The norm of the difference over the norm of `other`."""
    return float((one.double() - other.double()).norm() / other.double().norm())


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_those_of_the_cpu(name):
    found, expected = (logits(VARIANTS[name], device) for device in (DEVICE, CPU))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", VARIANTS)
def test_loss_and_gradients_are_those_of_the_cpu(name):
    (loss, found), (expected_loss, expected) = (
        gradients(network(VARIANTS[name], device), device) for device in (DEVICE, CPU)
    )
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    whole = torch.cat([gradient.flatten() for gradient in expected.values()]).norm()
    for weight, gradient in expected.items():
        # A key's bias moves no attention weight, so its gradient is rounding alone.
        error = (found[weight] - gradient).norm()
        assert error <= 1e-4 * gradient.norm() + 1e-6 * whole, weight


@pytest.mark.parametrize("name", VARIANTS)
def test_bfloat16_is_close_to_float32(name):
    (loss, found), (expected_loss, expected) = (
        gradients(network(VARIANTS[name], DEVICE), DEVICE, precision)
        for precision in (torch.bfloat16, torch.float32)
    )
    assert loss == pytest.approx(expected_loss, rel=5e-3)
    one, other = (torch.cat([x.flatten() for x in part.values()]) for part in (found, expected))
    assert distance(one, other) < 0.05


@pytest.mark.parametrize(
    ("name", "precision"), [("post", torch.float32), ("modern", torch.bfloat16)], ids=str
)
def test_compiled_training_has_the_loss_and_gradients_of_eager_training(name, precision):
    """Layers and loss compiled, as a training has them."""
    if not can_compile(DEVICE):
        pytest.skip("torch cannot compile for this device")
    eager, compiled = network(VARIANTS[name], DEVICE), network(VARIANTS[name], DEVICE)
    with torch.compiler.set_stance("force_eager"):
        expected_loss, expected = gradients(eager, DEVICE, precision)
    torch._dynamo.reset()
    counters.clear()
    compiled.compile_layers()
    loss, found = gradients(compiled, DEVICE, precision)
    # A layer of each kind and the loss; torch would go on without one that it cannot compile.
    kinds = {type(layer) for stack in compiled.stacks() for layer in stack.layers}
    assert counters["stats"]["unique_graphs"] >= len(kinds) + 1
    assert not counters["graph_break"]
    # Eager bfloat16 rounds where a compiled kernel stays in float32.
    is_exact = precision == torch.float32
    assert loss == pytest.approx(expected_loss, rel=1e-5 if is_exact else 5e-3)
    one, other = (torch.cat([x.flatten() for x in part.values()]) for part in (found, expected))
    assert distance(one, other) < (1e-4 if is_exact else 0.05)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
def test_layers_that_are_recomputed_have_the_same_gradient(precision):
    """With dropout, which has to be the same the second time."""
    config = replace(BASE, dropout=0.3)
    kept, recomputed = network(config, DEVICE), network(config, DEVICE)
    recomputed.enable_gradient_checkpointing()
    (loss, expected), (same_loss, found) = (
        gradients(model, DEVICE, precision) for model in (kept, recomputed)
    )
    assert same_loss == loss
    for weight, gradient in expected.items():
        torch.testing.assert_close(found[weight], gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_bfloat16_logits_have_a_loss_as_exact_as_their_own_digits(smoothing):
    """Against float64: a total probability in bfloat16 would be off by up to 3%."""
    torch.manual_seed(3)
    rough = (2 * torch.randn(37, 9001)).bfloat16()
    targets = torch.randint(9001, (37,))
    rough[:20].scatter_(1, targets[:20, None], 13.0)
    exact = rough.double().requires_grad_()
    expected = torch.nn.functional.cross_entropy(
        exact, targets, label_smoothing=smoothing, reduction="sum"
    )
    expected.backward()
    subject = rough.to(DEVICE).requires_grad_()
    as_it_is = torch.nn.Linear(9001, 9001, bias=False, device=DEVICE, dtype=torch.bfloat16)
    torch.nn.init.eye_(as_it_is.weight)
    sums = smoothed_nll_sum(subject, as_it_is, targets.to(DEVICE), smoothing)
    sums.loss.backward()
    assert sums.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    error = (subject.grad.cpu().double() - exact.grad).abs().max()
    # A probability below one has digits of 2 ** -9 in bfloat16; two roundings come together.
    assert float(error) < 2**-7


def test_steps_are_those_of_the_cpu():
    def losses(device: torch.device) -> list[float]:
        model, training = network(BASE, device), TrainingConfig()
        train_state = TrainState(
            model=model,
            optimizer=build_optimizer(training.optimizer, model),
            scheduler=lambda step: 1e-3,
            config=training,
            device=device,
            precision=torch.float32,
            seed=1,
        )
        course = 5 * [StepBatch([batch()], DataPosition(0, 0), DataPosition(0, 1))]
        return [taken.loss for taken in train_steps(train_state, course)]

    found, expected = losses(DEVICE), losses(CPU)
    assert found == pytest.approx(expected, rel=1e-4)
    assert found[-1] < found[0]
