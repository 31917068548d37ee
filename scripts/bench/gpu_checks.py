"""Parts of gpu.py that need few packages: the machine, its tests, and its attention kernels."""

import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tformer_cli.device import hardware_name, resolve_device, resolve_precision
from tformer_cli.model.blocks.attention import kernel_attend
from tformer_cli.model.blocks.attention_mask import AttentionMask, padding_mask

TESTS = Path(__file__).resolve().parents[2] / "tests" / "gpu"
# These need torch, numpy and pytest; the others need all that a training does.
FRUGAL = ("test_gpu_model.py", "test_gpu_decoding.py", "test_gpu_memory.py")
PYTEST_OPTIONS = (
    *("--quiet", "-m", "gpu"),
    # conftest.py needs packages that may be missing where the GPU is.
    "--noconftest",
    "-pno:cacheprovider",
    # Other versions of Python and torch warn of other things.
    "--override-ini=filterwarnings=default",
)
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
# Messages of torch where a kernel does not support the inputs, on a GPU and on a CPU.
UNSUPPORTED = ("No available kernel", "No viable backend", "cuDNN Frontend error")


def machine() -> dict[str, object]:
    """Return the names and versions of this machine; `gpu` is None without a CUDA device."""
    result: dict[str, object] = {
        "torch": torch.__version__,
        "cpu": hardware_name(torch.device("cpu")),
        "gpu": None,
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        result |= {
            "gpu": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_mib": properties.total_memory / 2**20,
            "cuda": torch.version.cuda,
        }
    return result


def run_tests(kind: Literal["frugal", "other"]) -> dict[str, object]:
    """Run the frugal tests of tests/gpu, or the others; return the outcome."""
    import pytest

    files = [
        str(file)
        for file in sorted(TESTS.glob("test_*.py"))
        if (file.name in FRUGAL) == (kind == "frugal")
    ]
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "tests.xml"
        code = pytest.main([*files, f"--junitxml={file}", *PYTEST_OPTIONS])
        if not file.exists():
            return {"error": f"pytest has not begun: exit code {int(code)}"}
        return tests_outcome(ElementTree.parse(file).getroot())


def tests_outcome(report: ElementTree.Element) -> dict[str, object]:
    """Return counts, messages and recorded properties of a report in JUnit's format.

    There is an `error` unless some tests passed and none failed.
    """
    counts: Counter[str] = Counter()
    messages: dict[str, dict[str, str]] = {"failed": {}, "skipped": {}}
    properties: dict[str, dict[str, str]] = {}
    for case in report.iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        kind, message = _verdict(case)
        counts[kind] += 1
        if kind != "passed":
            messages[kind][name] = message
        for item in case.iter("property"):
            properties.setdefault(name, {})[item.get("name", "")] = item.get("value", "")
    results: dict[str, object] = {
        **{kind: counts[kind] for kind in ("passed", "failed", "skipped")},
        "failures": messages["failed"],
        "skips": messages["skipped"],
        "properties": properties,
    }
    if counts["failed"] or not counts["passed"]:
        results["error"] = f"{counts['failed']} tests failed, {counts['passed']} passed"
    return results


def _verdict(case: ElementTree.Element) -> tuple[str, str]:
    for kind, tag in (("failed", "failure"), ("failed", "error"), ("skipped", "skipped")):
        element = case.find(tag)
        if element is not None:
            return kind, (element.get("message") or "").strip()
    return "passed", ""


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
    """Time attention forward and backward by each kernel of torch, and by the one it chooses.

    Args:
        device: where.
        precision: of queries, keys and values.
        rows: sentences of 32 tokens; as many tokens in all of other lengths.
        num_heads: H.
        head_dim: Dh.
        lengths: tokens of a sentence.
        repeats: timed calls.

    Returns:
        By length, mask and kernel: milliseconds of the first call and of the others on average;
        None where the kernel does not support it.
    """
    on = resolve_device(device)
    dtype = resolve_precision(precision, on)
    results: dict[str, object] = {}
    for length in lengths:
        batch = max(1, rows * 32 // length)
        # In the layout of projections: heads side by side in a row.
        shape = (batch, length, num_heads, head_dim)
        inputs = [torch.randn(shape, device=on, dtype=dtype).transpose(1, 2) for _ in range(3)]
        for tensor in inputs:
            tensor.requires_grad_()
        # Every other sentence is a third shorter.
        ends = torch.full((batch, 1), length, device=on)
        ends[::2] = max(1, 2 * length // 3)
        real = torch.arange(length, device=on) < ends
        for name, mask in {
            "causal": AttentionMask(is_causal=True),
            "padding": AttentionMask(mask=padding_mask(real)),
        }.items():
            results[f"{length} {name}"] = {
                "chosen": timed(inputs, mask, on, repeats),
                **{
                    kernel: by_kernel(backend, inputs, mask, on, repeats)
                    for kernel, backend in KERNELS.items()
                },
            }
    return results


def by_kernel(
    backend: SDPBackend,
    inputs: list[torch.Tensor],
    mask: AttentionMask,
    device: torch.device,
    repeats: int,
) -> dict[str, float] | None:
    """Return the times of one kernel, or None where it does not support the inputs."""
    with warnings.catch_warnings(), sdpa_kernel(backend):
        # torch explains at length why it does not.
        warnings.simplefilter("ignore")
        try:
            return timed(inputs, mask, device, repeats)
        except RuntimeError as error:
            if not any(words in str(error) for words in UNSUPPORTED):
                raise
            return None


def timed(
    inputs: list[torch.Tensor], mask: AttentionMask, device: torch.device, repeats: int
) -> dict[str, float]:
    """Return the milliseconds of the first call, and of the next ones on average."""

    def call() -> None:
        attended = kernel_attend(*inputs, mask, 0.0)
        torch.autograd.grad(attended, inputs, attended.detach())

    first, average = _milliseconds(call, device, 1), _milliseconds(call, device, repeats)
    return {"first_ms": first, "ms": average}


def _milliseconds(call: Callable[[], None], device: torch.device, repeats: int) -> float:
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    synchronize()
    return (time.perf_counter() - started) / repeats * 1e3
