"""Floating-point operations: those of a training, and those that a device reaches."""

import re
import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.device import hardware_name
from tformer_cli.model.inspection.flops import count_flops

CPU = torch.device("cpu")
# Dense bfloat16 operations per second by the data sheets, of SXM modules where there are any.
DATA_SHEETS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L4": 121e12}
# Cards of the same names that are slower than the modules.
SLOWER_FORMS = {"PCIe", "NVL"}


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
    device: torch.device,
    dtype: torch.dtype,
    *,
    size: int,
    seconds: float,
    products: int = 1,
) -> float:
    """Return the operations per second of the fastest product of two large random matrices.

    So many `products` are timed together, between two synchronizations, for some `seconds` in all.
    """
    left, right, product = (torch.randn(size, size, device=device).to(dtype) for _ in range(3))

    def timed() -> float:
        synchronize(device)
        started = time.perf_counter()
        for _ in range(products):
            torch.mm(left, right, out=product)
        synchronize(device)
        return (time.perf_counter() - started) / products

    timed()  # Kernels are loaded and chosen here.
    begun, best = time.perf_counter(), timed()
    while time.perf_counter() - begun < seconds:
        best = min(best, timed())
    return 2 * size**3 / best


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Operations per second of a device: by its data sheet if known, and measured."""

    data_sheet: float | None
    gemm: float

    @classmethod
    def of(cls, device: torch.device, precision: torch.dtype, *, gemm_size: int) -> "Ceiling":
        """Measure a device; data sheets hold for bfloat16 alone."""
        known = data_sheet_flops(hardware_name(device)) if precision == torch.bfloat16 else None
        gemm = gemm_flops(device, precision, size=gemm_size, seconds=1.0, products=10)
        return cls(known, gemm)

    def shares(self, flops: float) -> dict[str, float | str]:
        """Return the shares of the ceiling that some operations per second are."""
        return {
            "mfu": flops / (self.data_sheet or self.gemm),
            "mfu_of": "data sheet" if self.data_sheet else "measured GEMM, no data sheet known",
            "share_of_gemm": flops / self.gemm,
            "peak_tflops": (self.data_sheet or self.gemm) / 1e12,
            "gemm_tflops": self.gemm / 1e12,
        }


def data_sheet_flops(device_name: str) -> float | None:
    """Return the dense bfloat16 operations per second of a device, or None if unknown."""
    words = set(re.split(r"[\s-]+", device_name))
    if words & SLOWER_FORMS:
        return None
    return next((flops for name, flops in DATA_SHEETS.items() if name in words), None)
