"""Parts of gpu.py: the machine, its tests, its attention kernels, NCCL, and a training."""

import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flops import synchronize
from gpu_throughput import NETWORKS
from torch import distributed
from torch.nn.attention import SDPBackend, sdpa_kernel

from tformer_cli.device import hardware_name, peak_memory, resolve_device, resolve_precision
from tformer_cli.distributed import World
from tformer_cli.kernels.attention import AttentionMask, kernel_attend
from tformer_cli.model.blocks.attention import padding_mask
from tformer_cli.model.build import build_model

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "configs" / "demo.yaml"
PYTEST_OPTIONS = (
    *("--quiet", "-m", "gpu", "--continue-on-collection-errors"),
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


class Outcomes:
    """A plugin of pytest that collects what came out of the tests, by name."""

    def __init__(self) -> None:
        self.num_passed = 0
        self.failures: dict[str, str] = {}
        self.skips: dict[str, str] = {}
        self.properties: dict[str, dict[str, str]] = {}

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failures[report.nodeid] = str(report.longrepr)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failures[report.nodeid] = str(report.longrepr)
        elif report.skipped:
            self.skips[report.nodeid] = report.longrepr[2]
        elif report.when == "call":
            self.num_passed += 1
            if report.user_properties:
                self.properties[report.nodeid] = dict(report.user_properties)

    def results(self) -> dict[str, object]:
        """Return counts, messages and recorded properties.

        There is an `error` unless some tests passed and none failed.
        """
        results: dict[str, object] = {
            "passed": self.num_passed,
            "failed": len(self.failures),
            "skipped": len(self.skips),
            "failures": self.failures,
            "skips": self.skips,
            "properties": self.properties,
        }
        if self.failures or not self.num_passed:
            results["error"] = f"{len(self.failures)} tests failed, {self.num_passed} passed"
        return results


def run_tests() -> dict[str, object]:
    """Run the tests for GPUs; return the outcomes."""
    import pytest

    outcomes = Outcomes()
    pytest.main([str(ROOT / "tests" / "gpu"), *PYTEST_OPTIONS], plugins=[outcomes])
    return outcomes.results()


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

    There are `rows` sentences of 32 tokens, and as many tokens in all of other lengths. Returned
    are, by length, mask and kernel, milliseconds of the first call and of the others on average;
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
    synchronize(device)
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    synchronize(device)
    return (time.perf_counter() - started) / repeats * 1e3


def collectives(
    network: str = "big",
    *,
    device: str = "cuda",
    backend: str = "nccl",
    vocab_size: int = 37_000,
    repeats: int = 10,
) -> dict[str, object]:
    """Exchange tensors like the weights of a network, in a process group of this process alone.

    Nothing goes anywhere: it shows that the group works, and what its copies take, in milliseconds.
    """
    if not (distributed.is_available() and distributed.is_backend_available(backend)):
        return {"left_out": f"torch {torch.__version__} has no {backend}"}
    on = resolve_device(device)
    sizes = {"source_size": vocab_size, "target_size": vocab_size}
    weights = build_model(NETWORKS[network], **sizes, seed=1).to(on).state_dict().values()
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = f"file://{folder}/rendezvous"
        distributed.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
        world = World(gpu_group=distributed.new_group(backend=backend))
        for name in ("all_reduce_", "reduce_to_owners_", "broadcast_from_owners_"):
            tensors = [weight.clone() for weight in weights]
            exchange = partial(getattr(world, name), tensors)
            exchange()  # The first one opens the communicator.
            results[f"{name.rstrip('_')}_ms"] = _milliseconds(exchange, on, repeats)
            if not all(map(torch.equal, tensors, weights)):
                raise RuntimeError(f"{name} of one process changes its tensors")
        distributed.destroy_process_group()
    return results


def demo(
    config_file: str = str(DEMO), *, device: str = "cuda", overrides: Sequence[str] = ()
) -> dict[str, object]:
    """Train a config from its vocabulary on, and translate and score its test sets.

    Precision of the training is the config's, that of the translations the default of a GPU.
    """
    # The other parts do without these packages, which may be missing where the GPU is.
    from tformer_cli.config.load import load_config
    from tformer_cli.evaluation.evaluate import Evaluator
    from tformer_cli.evaluation.metrics import build_metric
    from tformer_cli.storage.run_directory import RunDirectory
    from tformer_cli.training.trainer import train

    config, on = load_config(Path(config_file), overrides), resolve_device(device)
    metric = build_metric("bleu", config.evaluation, config.data.target_language)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder) / "run")
        progress = train(config, run, device=on)
        trained_at = time.perf_counter()
        training_memory_mib = peak_memory(on) / 2**20
        evaluator = Evaluator.load(run.path, device=device)
        scores = {
            name: evaluator.evaluate(text, [metric]).as_json()
            for name, text in config.data.test.items()
        }
    return {
        "steps": progress.step,
        "seconds": trained_at - begun,
        "step_seconds": progress.seconds / progress.step,
        "target_tokens_per_second": progress.num_tokens / progress.seconds,
        "peak_memory_mib": training_memory_mib,
        "valid_score": progress.best_score,
        "test": scores,
        "test_seconds": time.perf_counter() - trained_at,
    }
