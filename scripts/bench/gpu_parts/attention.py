"""How long attention takes by each kernel that torch has, and by the one that it chooses."""

import time
import warnings
from collections.abc import Callable

import torch
from gpu_parts.figures import wait_for
from torch.nn.attention import SDPBackend, sdpa_kernel

from tformer_cli.device import resolve_device, resolve_precision
from tformer_cli.model.blocks.attention import kernel_attend
from tformer_cli.model.blocks.attention_mask import AttentionMask, padding_mask

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
# How torch says that a kernel cannot do it, on a GPU and on a CPU.
NO_KERNEL = ("No available kernel", "No viable backend", "cuDNN Frontend error")


def attention(
    *,
    device: str = "cuda",
    precision: str = "bfloat16",
    rows: int = 1024,
    num_heads: int = 16,
    head_dim: int = 64,
    lengths: tuple[int, ...] = (31, 32, 129),
    repeats: int = 20,
) -> dict[str, object]:
    """Time one attention forward and backward, as decoder and encoder have it.

    Args:
        device: where.
        precision: of queries, keys and values.
        rows: sentences of 32 tokens; of longer ones there are fewer, of as many tokens in all.
        num_heads: as the name says.
        head_dim: width of a head.
        lengths: tokens of a sentence.
        repeats: that are timed.

    Returns:
        By length, view and kernel: milliseconds of the first call and of one of the others; None
        where the kernel cannot do it.
    """
    place = resolve_device(device)
    dtype = resolve_precision(precision, place)
    found: dict[str, object] = {}
    for length in lengths:
        batch = max(1, rows * 32 // length)
        # As projections leave them: heads side by side in a row.
        shape = (batch, length, num_heads, head_dim)
        inputs = [torch.randn(shape, device=place, dtype=dtype).transpose(1, 2) for _ in range(3)]
        for tensor in inputs:
            tensor.requires_grad_()
        # Every other sentence is a third shorter.
        ends = torch.full((batch, 1), length, device=place)
        ends[::2] = max(1, 2 * length // 3)
        real = torch.arange(length, device=place) < ends
        for name, view in {
            "causal": AttentionMask(is_causal=True),
            "padding": AttentionMask(mask=padding_mask(real)),
        }.items():
            found[f"{length} {name}"] = {
                "chosen": timed(inputs, view, place, repeats),
                **{
                    kernel: forced(backend, inputs, view, place, repeats)
                    for kernel, backend in KERNELS.items()
                },
            }
    return found


def forced(
    backend: SDPBackend,
    inputs: list[torch.Tensor],
    view: AttentionMask,
    device: torch.device,
    repeats: int,
) -> dict[str, float] | None:
    """Return the times of one kernel, or None where it cannot do it."""
    with warnings.catch_warnings(), sdpa_kernel(backend):
        # torch says at length why it cannot.
        warnings.simplefilter("ignore")
        try:
            return timed(inputs, view, device, repeats)
        except RuntimeError as error:
            if not any(words in str(error) for words in NO_KERNEL):
                raise
            return None


def timed(
    inputs: list[torch.Tensor], view: AttentionMask, device: torch.device, repeats: int
) -> dict[str, float]:
    """Return the milliseconds of the first call and of one of the next."""

    def call() -> None:
        attended = kernel_attend(*inputs, view, 0.0)
        torch.autograd.grad(attended, inputs, attended.detach())

    return {
        "first_ms": milliseconds(call, device, 1),
        "ms": milliseconds(call, device, repeats),
    }


def milliseconds(call: Callable[[], None], device: torch.device, repeats: int) -> float:
    """Return how long a call takes on a device, on average."""
    wait_for(device)
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    wait_for(device)
    return (time.perf_counter() - started) / repeats * 1e3
