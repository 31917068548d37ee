"""Floating-point operations that a training needs, and those that a device reaches."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.model.inspection.flops import count_flops

CPU = torch.device("cpu")


def training_flops(
    model: EncoderDecoderConfig,
    vocab_size: int,
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    *,
    causal_share: float = 1.0,
) -> float:
    """Return the operations that training on pairs of these lengths needs, without padding.

    Lengths include EOS. `causal_share` of a causal attention table counts.
    """
    whole = count_flops(model, vocab_size)
    needed = replace(whole, target_to_target=whole.target_to_target * causal_share)
    # Stores keep lengths in small integers, whose products would overflow.
    source, target = source_lengths.astype(np.float64), target_lengths.astype(np.float64)
    return float(np.sum(needed.training(source, target)))


def gemm_flops(
    device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int], *, products: int = 1
) -> float:
    """Return the operations per second of products of two random matrices.

    `shape` is (height, inner, width). So many `products` are timed together, ten times, and the
    fastest count.
    """
    height, inner, width = shape
    left, right, product = (
        torch.randn(rows, columns, device=device).to(dtype)
        for rows, columns in ((height, inner), (inner, width), (height, width))
    )
    times = [timed(lambda: torch.mm(left, right, out=product), device, products) for _ in range(10)]
    return 2 * height * inner * width / min(times)


def timed(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the mean seconds of a call, after one in which kernels are chosen."""
    call()
    synchronize(device)
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    synchronize(device)
    return (time.perf_counter() - started) / repeats


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
