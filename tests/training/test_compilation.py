"""What training compiles for a GPU, on the CPU: the same numbers, and one compilation for all."""

import math
import shutil
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from tformer_cli import device
from tformer_cli.config.schema.model import (
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    ModelConfig,
    RotaryPositions,
    T5Positions,
)
from tformer_cli.corpus.batch import Batch, collate
from tformer_cli.corpus.store import Example
from tformer_cli.device import can_compile
from tformer_cli.kernels import attention
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Network
from tformer_cli.training import loss, resume
from tformer_cli.training.recovery import first_not_finite

# torch warns of what it does itself.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

V = 31
SMALL = {"dim": 24, "num_heads": 3, "feedforward_dim": 36, "dropout": 0.0}
LAYERS = {"num_encoder_layers": 3, "num_decoder_layers": 2}
MODELS = {
    "post": EncoderDecoderConfig(**SMALL, **LAYERS, norm_position="post"),
    "modern": EncoderDecoderConfig(
        **SMALL,
        **LAYERS,
        positions=RotaryPositions(),
        num_kv_heads=1,
        activation="swiglu",
        norm="rms",
        bias=False,
        qk_norm=True,
    ),
    "t5": EncoderDecoderConfig(**SMALL, **LAYERS, positions=T5Positions()),
    "decoder only": DecoderOnlyConfig(**SMALL, num_layers=3, source_attention="bidirectional"),
}
# The second one compiles C++.
BACKENDS = [
    "aot_eager",
    pytest.param(
        "inductor",
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
        ],
    ),
]


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Attention by torch's kernel and loss without blocks; compiled code does not stay."""
    monkeypatch.setattr(attention, "_prefers_kernel", lambda *_: True)
    monkeypatch.setattr(loss, "CACHED_ROWS", 1 << 20)
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def batches() -> list[Batch]:
    """Of several sizes and lengths, padded."""
    random = torch.Generator().manual_seed(2)

    def sentence(longest: int) -> list[int]:
        (length,) = torch.randint(2, longest, (1,), generator=random).tolist()
        return torch.randint(6, V, (length,), generator=random).tolist()

    return [
        collate([Example(i, sentence(longest), sentence(longest)) for i in range(rows)])
        for rows, longest in ((5, 12), (9, 7), (3, 25))
    ]


def network(config: ModelConfig) -> Network:
    return build_model(config, source_size=V, target_size=V, seed=5).train()


def gradients(model: Network, batch: Batch) -> dict[str, Tensor]:
    """The smoothed loss of a batch, and its gradient by weight."""
    model.zero_grad()
    torch.manual_seed(3)
    states = model.hidden_states(
        batch.source, batch.source_mask, batch.target_in, batch.target_positions
    )
    sums = loss.smoothed_nll_sum(states, model.output, batch.targets, 0.1)
    sums.loss.backward()
    named = {name: weight.grad for name, weight in model.named_parameters()}
    return {"the loss": sums.loss.detach(), **named}


@pytest.mark.parametrize(
    ("name", "has_checkpoints", "backend"),
    [
        ("post", True, "aot_eager"),
        ("decoder only", False, "aot_eager"),
        pytest.param("modern", False, "aot_eager", marks=pytest.mark.slow),
        *(
            pytest.param(name, has_checkpoints, *backend.values, marks=backend.marks)
            for name in MODELS
            for has_checkpoints in (False, True)
            for backend in BACKENDS[1:]
        ),
    ],
)
def test_compiled_layers_have_the_same_loss_and_gradient(name, has_checkpoints, backend):
    model, compiled = network(MODELS[name]), network(MODELS[name])
    if has_checkpoints:
        compiled.enable_gradient_checkpointing()
    counter = CompileCounterWithBackend(backend)
    compiled.compile_layers(counter)
    for batch in batches():
        found, expected = gradients(compiled, batch), gradients(model, batch)
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-4, atol=2e-5, msg=key)
    # Layers of one kind share it, and so do all shapes. Torch begins again for numbers that it took
    # for variables.
    kinds = {type(layer) for stack in model.stacks() for layer in stack.layers}
    assert len(kinds) <= counter.frame_count <= 2 * len(kinds)
    assert not counters["graph_break"]


@pytest.mark.slow
def test_recomputed_layers_draw_the_dropout_again_that_they_drew():
    config = DecoderOnlyConfig(**{**SMALL, "dropout": 0.3}, num_layers=2)
    kept, recomputed = network(config), network(config)
    recomputed.enable_gradient_checkpointing()
    for model in (kept, recomputed):
        model.set_layer_drop(0.3)
        model.compile_layers("aot_eager")
    for batch in batches():
        found, expected = gradients(recomputed, batch), gradients(kept, batch)
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-6, msg=key)


def test_only_training_runs_compiled_layers():
    model = network(MODELS["post"])

    def never(graph: object, inputs: object) -> Callable[..., object]:
        raise AssertionError("compiled")

    model.compile_layers(never)
    batch = batches()[0]
    inputs = batch.source, batch.source_mask, batch.target_in, batch.target_positions
    model.eval().hidden_states(*inputs)
    with pytest.raises(Exception, match="compiled"):
        model.train().hidden_states(*inputs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_compiled_loss_is_the_same(smoothing, dtype, backend):
    counter = CompileCounterWithBackend(backend)
    kernel = loss.compiled_kernel(loss._sums_and_gradient, counter)
    torch.manual_seed(1)
    for rows, factor in ((7, 1.0), (12, 1 / 12), (30, 2.0**10 / 30)):
        logits, targets = torch.randn(rows, 101).to(dtype), torch.randint(101, (rows,))
        exact = logits.double().requires_grad_()
        expected = torch.nn.functional.cross_entropy(
            exact, targets, label_smoothing=smoothing, reduction="sum"
        )
        (expected * factor).backward()
        nll = torch.nn.functional.cross_entropy(exact, targets, reduction="sum").item()
        num_correct = int((exact.argmax(dim=-1) == targets).sum())
        sums, gradient = kernel(logits, targets, smoothing, factor)
        # Products and sums in bfloat16 are rounded to 8 bits.
        error = 1e-5 if dtype == torch.float32 else 2**-7
        assert sums.tolist() == pytest.approx([expected.item(), nll, num_correct], rel=error)
        assert gradient.dtype == dtype
        torch.testing.assert_close(
            gradient.double() / factor, exact.grad / factor, rtol=0, atol=error
        )
    assert counter.frame_count <= 2  # the second for factors that change


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_compiled_loss_of_two_passes_is_the_same(backend):
    counter = CompileCounterWithBackend(backend)
    kernel = loss.compiled_kernel(loss._paired_sums_and_gradient, counter)
    torch.manual_seed(1)
    for rows, factor in ((7, 1.0), (12, 1 / 12), (30, 2.0**10 / 30)):
        logits, targets = torch.randn(2 * rows, 101), torch.randint(101, (rows,))
        arguments = targets, 0.1, factor, loss.Objective((0.5, 0.5), (1.25, 0.75))
        expected = loss._paired_sums_and_gradient(logits.clone(), *arguments)
        for found, value in zip(kernel(logits, *arguments), expected, strict=True):
            torch.testing.assert_close(found, value, rtol=1e-5, atol=1e-5 * factor)
    assert counter.frame_count <= 2  # the second for factors that change


@pytest.mark.slow
def test_what_is_not_finite_is_found_in_compiled_layers():
    model = network(MODELS["post"])
    model.compile_layers("aot_eager")
    batch = batches()[0]
    gradients(model, batch)
    with torch.no_grad():
        model.stacks()[1].layers[1].feedforward.down.weight.fill_(math.nan)
    name = first_not_finite(model, lambda: gradients(model, batch))
    assert name == "decoder.layers.1.feedforward.down"


def test_a_run_that_resumes_otherwise_compiled_says_so(monkeypatch):
    cpu, environments = torch.device("cpu"), []
    for is_compiled in (False, True):
        monkeypatch.setattr(resume, "can_compile", lambda device, value=is_compiled: value)
        environments.append(resume.environment_of(cpu, torch.float32, 1))
    assert resume.environment_changes(*environments) == [
        "kernels was eager and is compiled now, so the numbers may differ"
    ]


def test_a_cpu_compiles_nothing():
    assert not can_compile(torch.device("cpu"))


@pytest.mark.parametrize(
    ("version", "setting", "is_broken", "expected"),
    [
        ("2.11.0+cu130", None, False, True),
        ("2.10.1", None, False, False),
        ("2.13.0", "1", False, False),
        ("2.13.0", None, True, False),
    ],
)
def test_a_gpu_compiles_where_a_first_kernel_works(
    version, setting, is_broken, expected, monkeypatch
):
    def compile_it(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def call(numbers: Tensor) -> Tensor:
            if is_broken:
                raise RuntimeError("Python.h: No such file or directory")
            return function(numbers)

        return call

    monkeypatch.setattr(device.torch, "__version__", version)
    monkeypatch.setattr(device.torch, "compile", compile_it)
    monkeypatch.setattr(device.torch, "ones", lambda size, device: torch.zeros(size))
    if setting is None:
        monkeypatch.delenv("TORCH_COMPILE_DISABLE", raising=False)
    else:
        monkeypatch.setenv("TORCH_COMPILE_DISABLE", setting)
    assert can_compile.__wrapped__(torch.device("cuda")) == expected
