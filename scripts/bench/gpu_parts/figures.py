"""What a GPU can do at most, what a training asks of it, and what a few steps come to."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import torch

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.corpus.batch import Batch
from tformer_cli.device import hardware_name
from tformer_cli.model.inspection.flops import count_flops

# Dense bfloat16 operations a second by the makers' data sheets, of SXM modules where there are any.
DATA_SHEETS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L4": 121e12}
# Cards of the same names that are slower than the modules.
SLOWER_FORMS = {"PCIe", "NVL"}
# Products timed between two waits for the device.
GEMM_ROUND = 10


@dataclass(frozen=True, slots=True)
class Step:
    """One optimiser step as it was measured.

    Attributes:
        seconds: from the end of the step before to its own end, making its batch included.
        loading_seconds: share of them in which the batch was made.
        target_tokens: that carry a loss: `</s>` does, `<s>` and padding do not.
        tokens: of both sides, padding left out.
        positions: the same with padding.
        flops: floating-point operations that the model needs for it.
        loss: smoothed cross-entropy a target token before the step, in nats.
    """

    seconds: float
    loading_seconds: float
    target_tokens: int
    tokens: int
    positions: int
    flops: float
    loss: float


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most operations a second that a device may reach.

    Attributes:
        data_sheet: as its maker says, or None where we do not know.
        gemm: in a product of large matrices, measured.
    """

    data_sheet: float | None
    gemm: float

    @classmethod
    def of(cls, device: torch.device, precision: torch.dtype, *, gemm_size: int) -> "Ceiling":
        """Measure a device; data sheets are for bfloat16 alone."""
        known = data_sheet_flops(hardware_name(device)) if precision == torch.bfloat16 else None
        return cls(known, gemm_flops(device, precision, size=gemm_size))

    def figures(self, flops: float) -> dict[str, float | str]:
        """Return which shares of the ceiling some operations a second are."""
        return {
            "mfu": flops / (self.data_sheet or self.gemm),
            "mfu_of": "data sheet" if self.data_sheet else "measured GEMM, no data sheet known",
            "share_of_gemm": flops / self.gemm,
            "peak_tflops": (self.data_sheet or self.gemm) / 1e12,
            "gemm_tflops": self.gemm / 1e12,
        }


def data_sheet_flops(device_name: str) -> float | None:
    """Return the dense bfloat16 peak of a device in operations a second, or None if unknown."""
    words = set(re.split(r"[\s-]+", device_name))
    if words & SLOWER_FORMS:
        return None
    return next((flops for name, flops in DATA_SHEETS.items() if name in words), None)


def gemm_flops(
    device: torch.device, dtype: torch.dtype, *, size: int, seconds: float = 1.0
) -> float:
    """Return the most operations a second that a product of two large random matrices reaches."""
    one, other, product = (torch.randn(size, size, device=device).to(dtype) for _ in range(3))

    def timed() -> float:
        wait_for(device)
        started = time.perf_counter()
        for _ in range(GEMM_ROUND):
            torch.mm(one, other, out=product)
        wait_for(device)
        return (time.perf_counter() - started) / GEMM_ROUND

    timed()  # Kernels are loaded and chosen here.
    begun, best = time.perf_counter(), timed()
    while time.perf_counter() - begun < seconds:
        best = min(best, timed())
    return 2 * size**3 / best


def training_flops(
    model: EncoderDecoderConfig,
    vocab_size: int,
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
) -> float:
    """Return the floating-point operations that a step of training needs for some pairs.

    Of causal attention half the table counts. Padding and what is computed twice do not count.

    Args:
        model: its sizes.
        vocab_size: of the target.
        source_lengths: (n,) tokens of each source, `</s>` included.
        target_lengths: (n,) likewise.
    """
    whole = count_flops(model, vocab_size)
    needed = replace(whole, target_to_target=whole.target_to_target / 2)
    source, target = source_lengths.astype(np.float64), target_lengths.astype(np.float64)
    return float(np.sum(needed.training(source, target)))


def work_of(batch: Batch) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the source and target lengths of a batch, and its positions on both sides."""
    source, target = (mask.sum(dim=1).numpy() for mask in (batch.source_mask, batch.target_mask))
    return source, target, batch.source_mask.numel() + batch.target_mask.numel()


def summary(steps: Sequence[Step], ceiling: Ceiling) -> dict[str, float | str]:
    """Return what some steps come to: medians of their speeds, shares of their sums."""
    seconds = sum(step.seconds for step in steps)
    flops = median(step.flops / step.seconds for step in steps)
    return {
        "steps": len(steps),
        "target_tokens_per_second": median(step.target_tokens / step.seconds for step in steps),
        "target_tokens_per_step": median(step.target_tokens for step in steps),
        "step_seconds": median(step.seconds for step in steps),
        "slowest_step_seconds": max(step.seconds for step in steps),
        "model_tflops": flops / 1e12,
        **ceiling.figures(flops),
        "padding_share": 1 - sum(s.tokens for s in steps) / sum(s.positions for s in steps),
        "loader_share": sum(step.loading_seconds for step in steps) / seconds,
        "first_loss": steps[0].loss,
        "last_loss": steps[-1].loss,
    }


def wait_for(device: torch.device) -> None:
    """Wait until a device has done all that it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
