"""Parts of gpu.py: what a device reaches at best, and what parts of a step take alone."""

import time
from collections.abc import Callable
from functools import partial

import torch
from flops import synchronize
from gpu_throughput import NETWORKS
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tformer_cli.config.schema.training import AdamConfig, MuonConfig
from tformer_cli.device import resolve_device, resolve_precision
from tformer_cli.model.build import build_model
from tformer_cli.training.loss import smoothed_nll_sum
from tformer_cli.training.optim import build_optimizer

SMOOTHING = 0.1


def ceilings(
    *,
    device: str = "cuda",
    precision: str = "bfloat16",
    square: int = 8192,
    rows: int = 32_768,
    dim: int = 1024,
    vocab_size: int = 37_000,
    repeats: int = 20,
) -> dict[str, object]:
    """Time products in the shapes of a training, a copy of a large tensor, and a tiny operation."""
    on = resolve_device(device)
    dtype = resolve_precision(precision, on)
    rates = {}
    for height, inner, width in product_shapes(square, rows, dim, vocab_size):
        left, right = (
            torch.randn(shape, device=on).to(dtype) for shape in ((height, inner), (inner, width))
        )
        product = torch.empty(height, width, device=on, dtype=dtype)
        seconds = timed(lambda: torch.mm(left, right, out=product), on, repeats)  # noqa: B023
        rates[f"{height} x {inner} x {width}"] = 2 * height * inner * width / seconds / 1e12
    source = torch.zeros(rows * dim * 4, device=on)
    copy = torch.empty_like(source)
    copied = 2 * source.nbytes / timed(lambda: copy.copy_(source), on, repeats)
    number = torch.zeros(1, device=on)
    return {
        "gemm_tflops": max(rates.values()),
        "gemm_tflops_by_shape": rates,
        "copy_tb_per_second": copied / 1e12,
        "launch_microseconds": timed(lambda: number.add_(1), on, 50 * repeats) * 1e6,
    }


def fp8(
    *,
    device: str = "cuda",
    square: int = 8192,
    rows: int = 32_768,
    dim: int = 1024,
    vocab_size: int = 37_008,  # a multiple of 16
    repeats: int = 20,
) -> dict[str, object]:
    """Time the products of `ceilings` in float8 (e4m3), summed in float32, with one scale each."""
    on = resolve_device(device)
    scale = torch.ones((), device=on)

    def multiplied(left: Tensor, right: Tensor) -> Tensor:
        dtype = torch.bfloat16
        # The right factor is transposed: the hardware wants both along the sum.
        return torch._scaled_mm(left, right.t(), scale_a=scale, scale_b=scale, out_dtype=dtype)

    def random(height: int, width: int) -> Tensor:
        return torch.randn(height, width, device=on).to(torch.float8_e4m3fn)

    try:
        multiplied(random(16, 16), random(16, 16))
    except (AttributeError, RuntimeError) as error:
        return {"left_out": f"no float8 products: {str(error).splitlines()[0]}"}
    rates = {}
    for height, inner, width in product_shapes(square, rows, dim, vocab_size):
        product = partial(multiplied, random(height, inner), random(width, inner))
        seconds = timed(product, on, repeats)
        rates[f"{height} x {inner} x {width}"] = 2 * height * inner * width / seconds / 1e12
    return {"gemm_tflops": max(rates.values()), "gemm_tflops_by_shape": rates}


def product_shapes(square: int, rows: int, dim: int, vocab_size: int) -> list[tuple[int, int, int]]:
    """Return (height, inner, width) of a square product, and of those of a training."""
    return [(square, square, square), *((rows, dim, x) for x in (dim, 4 * dim, vocab_size))]


def parts_of_a_step(
    network: str = "big",
    *,
    device: str = "cuda",
    precision: str = "bfloat16",
    vocab_size: int = 37_000,
    rows: int = 32_768,
    repeats: int = 10,
) -> dict[str, float]:
    """Return the milliseconds of the optimizer alone, by Adam and Muon, and of the loss alone."""
    on = resolve_device(device)
    dtype = resolve_precision(precision, on)
    config = NETWORKS[network]
    model = build_model(config, source_size=vocab_size, target_size=vocab_size, seed=1).to(on)
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    results = {}
    for optimizer_config in (AdamConfig(), MuonConfig()):
        optimizer = build_optimizer(optimizer_config, model)
        results[f"{optimizer_config.kind}_ms"] = 1e3 * timed(optimizer.step, on, repeats)
        del optimizer
    output = nn.Linear(config.dim, vocab_size, bias=False, device=on, dtype=dtype)
    hidden_states = torch.randn(rows, config.dim, device=on, dtype=dtype, requires_grad=True)
    targets = torch.randint(vocab_size, (rows,), device=on)

    def ours() -> None:
        smoothed_nll_sum(hidden_states, output, targets, SMOOTHING).loss.backward()

    def theirs() -> None:
        logits = output(hidden_states)
        cross_entropy(logits, targets, label_smoothing=SMOOTHING, reduction="sum").backward()

    def eager() -> None:
        with torch.compiler.set_stance("force_eager"):
            ours()

    for name, call in {"loss": ours, "eager_loss": eager, "cross_entropy": theirs}.items():
        results[f"{name}_ms"] = 1e3 * timed(call, on, repeats)
    return results


def timed(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the seconds of a call on average, after two calls in which kernels are chosen."""
    for _ in range(2):
        call()
    synchronize(device)
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    synchronize(device)
    return (time.perf_counter() - started) / repeats
