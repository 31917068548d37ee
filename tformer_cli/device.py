"""Where and how precisely to compute, and where randomness comes from."""

import contextlib
import hashlib
import platform
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from tformer_cli.errors import DeviceError
from tformer_cli.process import c_library, num_cores

# The allocators of the CPU, of Apple's GPU and of cuBLAS have no error class of their own, and
# oneDNN, which multiplies bfloat16 on a CPU, does not say what it lacked to create a product.
SHORTAGES = (
    "not enough memory",
    "can't allocate memory",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "could not create a primitive",
)


def resolve_device(name: str) -> torch.device:
    """Return the device called `name`, ready for work: auto, cpu, cuda, cuda:N or mps.

    `auto` is the first CUDA device, else Apple's GPU, else the CPU. For a CUDA device, cuDNN's
    attention is switched off in this process.

    Raises:
        DeviceError: this machine or this build of torch does not have it.
    """
    try:
        device = torch.device(_best_device() if name == "auto" else name)
    except RuntimeError:
        raise DeviceError(
            "`device`", "no device has this name", got=name, remedy="use auto, cpu, cuda or mps"
        ) from None
    is_there = (
        device.type == "cpu"
        or (device.type == "cuda" and (device.index or 0) < torch.cuda.device_count())
        or (device.type == "mps" and torch.backends.mps.is_available())
    )
    if not is_there:
        raise DeviceError(
            "`device`",
            "this machine, or this build of torch, does not have it",
            got=name,
            remedy='use `device="auto"`',
        )
    if device.type == "cuda":
        # torch asks cuDNN first on the newest GPUs, which plans its kernel anew for each shape of a
        # batch: tens of milliseconds, in memory that it keeps. The others take all shapes.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device


def _best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def seed_device(device: torch.device, seed: int) -> None:
    """Seed what is drawn on a device."""
    # torch.manual_seed also notes the stack for each kind of GPU that this process has not used,
    # which takes milliseconds: too long for each step of a training on the CPU.
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


PRECISIONS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}


def resolve_precision(name: str, device: torch.device) -> torch.dtype:
    """Return the number format of matrix products called `name`.

    `auto` is bfloat16 on a CUDA GPU or a processor that multiplies it, float16 on an older such
    GPU, and float32 elsewhere: other processors are slower in narrow formats.

    Raises:
        DeviceError: there is no such format, or this device does not have it.
    """
    if name not in ("auto", *PRECISIONS):
        raise DeviceError(
            "`precision`", f"must be auto, {', '.join(PRECISIONS)}", got=name, remedy="use auto"
        )
    if name == "int8" and device.type != "cpu":
        raise DeviceError(
            "`precision`",
            "int8 is for translation on a CPU",
            got=str(device),
            remedy='use auto, or `device="cpu"`',
        )
    if name == "int8" and not has_vnni():
        raise DeviceError(
            "`precision`",
            "int8 is slower than float32 on a processor without VNNI",
            got=hardware_name(device),
            remedy="use float32, or `tformer translate --backend ctranslate2 --quantization int8`",
        )
    has_bfloat16 = device.type != "cuda" or _gpu_has_bfloat16(device)
    if name == "auto":
        if device.type == "cuda":
            return torch.bfloat16 if has_bfloat16 else torch.float16
        narrow = device.type == "cpu" and has_bfloat16_matmul()
        return torch.bfloat16 if narrow else torch.float32
    if name == "bfloat16" and not has_bfloat16:
        raise DeviceError(
            "precision",
            "this GPU has no bfloat16",
            got=torch.cuda.get_device_name(device),
            remedy="use precision auto",
        )
    return PRECISIONS[name]


def _gpu_has_bfloat16(device: torch.device) -> bool:
    # torch answers for the device that is current.
    with torch.cuda.device(device):
        has_bfloat16: bool = torch.cuda.is_bf16_supported(including_emulation=False)
    return has_bfloat16


def autocast(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager[object]:
    """Return a context in which matrix products are computed in `dtype`.

    Eight bits are a matter of the weights, and this knows nothing of them.
    """
    if dtype in (torch.float32, torch.int8):
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype)


def default_num_workers(device: torch.device) -> int:
    """Return how many processes translate best: one a core on a CPU, where they share weights."""
    if device.type != "cpu" or sys.platform != "linux":
        return 1
    return num_cores()


def batch_size_factor(device: torch.device) -> int:
    """Return how many times as much a device translates at once as a core of a CPU.

    A GPU wants as much as its memory holds; where that is less, halves are taken.
    """
    return 1 if device.type == "cpu" else 8


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that is a function of `parts` and of nothing else."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def hardware_name(device: torch.device) -> str:
    """Return what a device calls itself, such as `Intel(R) Xeon(R) CPU @ 2.50GHz`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _processor("model name") or platform.processor() or platform.machine()


def has_bfloat16_matmul() -> bool:
    """Return whether the processor has instructions for it, which make products twice as fast.

    oneDNN, which uses them, may be kept from it (ONEDNN_MAX_CPU_ISA).
    """
    has_instructions = not {"avx512_bf16", "amx_bf16"}.isdisjoint(_processor("flags").split())
    return has_instructions and onednn_supports_bfloat16()


def has_vnni() -> bool:
    """Return whether torch has instructions for products of int8 here; others take a plain loop."""
    # Where oneDNN is kept from AVX-512, it takes no weights in bfloat16 either.
    return torch.cpu._is_vnni_supported() and onednn_supports_bfloat16()


def onednn_supports_bfloat16() -> bool:
    """Return whether oneDNN takes weights in bfloat16: never where it has AVX2 alone."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    is_supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return is_supported


def prefers_onednn() -> bool:
    """Return whether oneDNN multiplies float32 faster on this processor than MKL, which torch asks.

    MKL leaves the widest registers of processors other than Intel's alone.
    """
    return _processor("vendor_id") not in ("", "GenuineIntel")


def _processor(field: str) -> str:
    """Return what Linux says about the first processor; nothing elsewhere."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n"):
            name, _, value = line.partition(":")
            if name.strip() == field:
                return value.strip()
    return ""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that a smaller batch might have gone through."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in SHORTAGES)


@contextlib.contextmanager
def memory_errors(device: torch.device) -> Iterator[None]:
    """Say so where a device has no memory left for a model.

    Raises:
        DeviceError: it has none.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise DeviceError(
            str(device),
            "memory has no room for the model",
            got=str(error).partition("\n")[0] or None,
            remedy="end what else fills it, or use another `device`",
        ) from error


def empty_cache(device: torch.device) -> None:
    """Return memory that is cached, so that pieces of another size find room.

    It goes to the device, or on a CPU, from what `tune_allocator` has kept, to the system.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    libc = c_library()
    if device.type == "cpu" and libc is not None and hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def peak_memory(device: torch.device) -> int:
    """Return the most memory that was taken so far, in bytes: of a CUDA device, or else of RAM."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    if sys.platform == "linux":
        # That of `getrusage` begins with what the process that began this one had taken.
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.partition("VmHWM:")[2].split()[0]) * 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 2**10
