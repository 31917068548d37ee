"""Devices: precision, memory, processor features and seeds."""

import contextlib
import functools
import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.torch_version import TorchVersion

from tformer_cli.errors import DeviceError, Problem, TformerError
from tformer_cli.process import num_cores, trim_allocator

PRECISIONS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}
# Before it, compiled attention fails on masks whose length is not a multiple of 8.
MIN_COMPILER = "2.11.0.dev0"
# Memory of a GPU for each batch of a size that suits a CPU core, weights included.
BATCH_BYTES = 5 << 28
# The allocators of the CPU, of Apple's GPU and of cuBLAS have no error class of their own, and
# oneDNN, which multiplies bfloat16 on a CPU, does not say what it lacked to create a product.
OUT_OF_MEMORY_PHRASES = (
    "not enough memory",
    "can't allocate memory",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "could not create a primitive",
)


def resolve_device(name: str) -> torch.device:
    """Return the device auto, cpu, cuda, cuda:N or mps, ready for use.

    `auto` is the first CUDA device, else Apple's GPU, else the CPU. For a CUDA device, attention by
    cuDNN is disabled in this process.
    """
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    best = "cuda" if has_cuda else "mps" if has_mps else "cpu"
    try:
        device = torch.device(best if name == "auto" else name)
    except RuntimeError:
        what = "no device has this name"
        remedy = "use auto, cpu, cuda or mps"
        raise DeviceError("`device`", what, got=name, remedy=remedy) from None
    is_available = (
        device.type == "cpu"
        or (device.type == "cuda" and (device.index or 0) < torch.cuda.device_count())
        or (device.type == "mps" and has_mps)
    )
    if not is_available:
        what = "this machine, or this build of torch, does not have it"
        raise DeviceError("`device`", what, got=name, remedy='use `device="auto"`')
    if device.type == "cuda":
        # torch prefers cuDNN on the newest GPUs, which plans its kernel anew for each batch shape:
        # tens of milliseconds, and memory that it keeps. The other kernels take all shapes.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device


def resolve_precision(name: str | None, device: torch.device) -> torch.dtype:
    """Return the dtype of matrix products: auto, float32, bfloat16, float16 or int8.

    `auto` is bfloat16 on a device that multiplies it natively, float16 on an older CUDA GPU, and
    float32 elsewhere, where narrow formats are slower. None, the default of inference, is float32
    on a CPU and `auto` elsewhere.
    """
    if name is None:
        name = "float32" if device.type == "cpu" else "auto"
    if name not in ("auto", *PRECISIONS):
        what = f"must be one of auto, {', '.join(PRECISIONS)}"
        raise DeviceError("`precision`", what, got=name, remedy="use auto")
    if name == "int8" and device.type != "cpu":
        what = "int8 is for translation on a CPU"
        remedy = 'use auto, or `device="cpu"`'
        raise DeviceError("`precision`", what, got=str(device), remedy=remedy)
    if name == "int8" and not has_vnni():
        what = "int8 is slower than float32 on a processor without VNNI"
        remedy = "use float32, or `tformer translate --backend ctranslate2 --quantization int8`"
        raise DeviceError("`precision`", what, got=hardware_name(device), remedy=remedy)
    is_cuda = device.type == "cuda"
    if name == "auto" and has_bfloat16(device):
        return torch.bfloat16
    if name == "auto":
        return torch.float16 if is_cuda else torch.float32
    if name == "bfloat16" and is_cuda and not has_bfloat16(device):
        what = "this GPU has no bfloat16"
        gpu = torch.cuda.get_device_name(device)
        raise DeviceError("precision", what, got=gpu, remedy="use precision auto")
    return PRECISIONS[name]


def has_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies bfloat16 natively."""
    if device.type == "cuda":
        # torch answers for the current device.
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and has_bfloat16_matmul()


@functools.cache
def can_compile(device: torch.device) -> bool:
    """Return whether torch compiles kernels for a device: a CUDA GPU, where a first one succeeds.

    It takes Triton, a C compiler and Python's headers; TORCH_COMPILE_DISABLE=1 forbids it.
    """
    is_forbidden = os.environ.get("TORCH_COMPILE_DISABLE") == "1"
    if device.type != "cuda" or is_forbidden or TorchVersion(torch.__version__) < MIN_COMPILER:
        return False
    try:
        torch.compile(torch.square)(torch.ones(2, device=device))
    except Exception:  # of any kind: by Triton, by a compiler, or by what loads its output
        return False
    return True


def autocast(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager[object]:
    """Return a context that computes matrix products in `dtype`; none for float32 and int8."""
    # Int8 is in the weights: see `Int8Linear` in inference/linear.py.
    if dtype in (torch.float32, torch.int8):
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype)


def default_num_workers(device: torch.device) -> int:
    """Return the default number of worker processes: one a core on a CPU, else one."""
    if device.type != "cpu" or sys.platform != "linux":
        return 1
    return num_cores()


def batch_size_factor(device: torch.device) -> int:
    """Return the factor of inference batch sizes, relative to a CPU core.

    A GPU is fastest with as much as fits into memory; larger batches are halved.
    """
    if device.type == "cuda":
        return max(1, torch.cuda.get_device_properties(device).total_memory // BATCH_BYTES)
    return 1 if device.type == "cpu" else 8


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the random generator of a device."""
    # torch.manual_seed also formats a stack trace for each kind of GPU that this process has not
    # used, which takes milliseconds: too long for each training step on the CPU.
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed, a hash of `parts`."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def hardware_name(device: torch.device) -> str:
    """Return the product name of a device, such as `Intel(R) Xeon(R) CPU @ 2.50GHz`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def has_bfloat16_matmul() -> bool:
    """Return whether the CPU has instructions for bfloat16 products, which double their speed.

    ONEDNN_MAX_CPU_ISA may forbid them.
    """
    has_instructions = not {"avx512_bf16", "amx_bf16"}.isdisjoint(_cpuinfo("flags").split())
    return has_instructions and onednn_supports_bfloat16()


def has_vnni() -> bool:
    """Return whether torch has instructions for int8 products on this CPU."""
    # Where oneDNN may not use AVX-512, it takes no weights in bfloat16 either. Its int8 products
    # then saturate in 16 bits, since torch chooses it by the processor alone.
    return torch.cpu._is_vnni_supported() and onednn_supports_bfloat16()


def onednn_supports_bfloat16() -> bool:
    """Return whether oneDNN takes weights in bfloat16, which needs more than AVX2."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    is_supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return is_supported


def prefers_onednn() -> bool:
    """Return whether oneDNN multiplies float32 faster here than MKL, torch's default.

    MKL does not use the widest registers of processors that are not Intel's.
    """
    return _cpuinfo("vendor_id") not in ("", "GenuineIntel")


def _cpuinfo(field: str) -> str:
    """Return a field of the first processor in /proc/cpuinfo; empty if there is none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n"):
            name, _, value = line.partition(":")
            if name.strip() == field:
                return value.strip()
    return ""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that a smaller batch might fit."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        phrase in str(error) for phrase in OUT_OF_MEMORY_PHRASES
    )


class suppress_out_of_memory:
    """Suppress running out of memory, as `contextlib.suppress` does with errors.

    After the block, the traceback no longer keeps tensors alive.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        return error is not None and is_out_of_memory(error)


@contextlib.contextmanager
def out_of_memory_as(error: type[TformerError], problem: Problem) -> Iterator[None]:
    """Raise an error of a problem where memory runs out."""
    try:
        yield
    except (RuntimeError, MemoryError) as cause:
        if not is_out_of_memory(cause):
            raise
        got = str(cause).partition("\n")[0] or None
        raise error(problem.where, problem.what, got=got, remedy=problem.remedy) from cause


def empty_cache(device: torch.device) -> None:
    """Return cached memory to the device, or to the system, so that other sizes fit."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    elif device.type == "cpu":
        trim_allocator()


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: of a CUDA device, else the RSS of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    if sys.platform == "linux":
        # That of `getrusage` starts from the peak of the parent process.
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.partition("VmHWM:")[2].split()[0]) * 2**10
    import resource  # absent on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 2**10
