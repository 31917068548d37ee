"""Parts of gpu.py: the machine, what it reaches at best, its tests, NCCL, and a training."""

import platform
import tempfile
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from flops import CPU, gemm_flops, timed
from gpu_throughput import synthetic_model
from harness import ROOT
from torch import distributed

from tformer_cli.device import hardware_name, peak_memory, resolve_device
from tformer_cli.distributed import World

DEMO = str(ROOT / "configs" / "demo.yaml")
TESTS = str(ROOT / "tests" / "gpu")
PYTEST_OPTIONS = (
    *("--quiet", "-m", "gpu", "--continue-on-collection-errors"),
    # conftest.py needs packages that may be missing where the GPU is.
    "--noconftest",
    "-pno:cacheprovider",
    # Other versions of Python and torch warn of other things.
    "--override-ini=filterwarnings=default",
)


def machine() -> dict[str, object]:
    """Return the names and versions of this machine; `gpu` is None without a CUDA device."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    result: dict[str, object] = {**versions, "cpu": hardware_name(CPU), "gpu": None}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        result |= {
            "gpu": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_mib": properties.total_memory / 2**20,
            "cuda": torch.version.cuda,
        }
    return result


Shapes = Sequence[tuple[int, int, int]]
# (height, inner, width) of a square product, and of those of a training.
SHAPES = ((8192, 8192, 8192), *((32_768, 1024, width) for width in (1024, 4096, 37_008)))


def ceilings(
    *, device: str = "cuda", shapes: Shapes = SHAPES, num_copied: int = 2**27, repeats: int = 20
) -> dict[str, object]:
    """Time products in bfloat16, a copy of so many float32 numbers, and a tiny operation."""
    on = resolve_device(device)
    rates = [gemm_flops(on, torch.bfloat16, shape, products=2) / 1e12 for shape in shapes]
    source = torch.zeros(num_copied, device=on)
    copy = torch.empty_like(source)
    copied = 2 * source.nbytes / timed(lambda: copy.copy_(source), on, repeats)
    number = torch.zeros(1, device=on)
    return {
        **by_shape(shapes, rates),
        "copy_tb_per_second": copied / 1e12,
        "launch_microseconds": timed(lambda: number.add_(1), on, 50 * repeats) * 1e6,
    }


def fp8(*, device: str = "cuda", shapes: Shapes = SHAPES, repeats: int = 20) -> dict[str, object]:
    """Time the products of `ceilings` in float8 (e4m3), summed in float32, with one scale each."""
    on = resolve_device(device)
    scale = torch.ones((), device=on)
    options = {"scale_a": scale, "scale_b": scale, "out_dtype": torch.bfloat16}

    def rate(height: int, inner: int, width: int) -> float:
        # The right factor is transposed: the hardware wants both along the sum.
        left, right = (
            torch.randn(rows, inner, device=on).to(torch.float8_e4m3fn) for rows in (height, width)
        )
        seconds = timed(lambda: torch._scaled_mm(left, right.t(), **options), on, repeats)
        return 2 * height * inner * width / seconds / 1e12

    try:
        return by_shape(shapes, [rate(*shape) for shape in shapes])
    except (AttributeError, RuntimeError) as error:
        return {"left_out": f"no float8 products: {str(error).splitlines()[0]}"}


def by_shape(shapes: Shapes, rates: Sequence[float]) -> dict[str, object]:
    """Return the TFLOP/s of products, and the best."""
    names = [" x ".join(map(str, shape)) for shape in shapes]
    named = dict(zip(names, rates, strict=True))
    return {"gemm_tflops": max(rates), "gemm_tflops_by_shape": named}


def run_tests(*words: str) -> dict[str, object]:
    """Run the tests for GPUs; return counts, and by test what failed or what it has recorded.

    There is an `error` unless some tests passed and none failed.
    """
    import pytest

    notes: dict[str, dict[str, str]] = {"passed": {}, "failed": {}, "error": {}, "skipped": {}}

    class Reports:
        def pytest_terminal_summary(self, terminalreporter: Any) -> None:
            for kind, by_test in notes.items():
                for report in terminalreporter.stats.get(kind, []):
                    by_test[report.nodeid] = str(report.longrepr or report.user_properties or "")

    pytest.main([*(words or (TESTS,)), *PYTEST_OPTIONS], plugins=[Reports()])
    passed, failed, errors, skipped = map(len, notes.values())
    results = {"passed": passed, "failed": failed + errors, "skipped": skipped, "notes": notes}
    if failed or errors or not passed:
        results["error"] = f"{failed + errors} tests failed, {passed} passed"
    return results


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
    weights = synthetic_model(network, vocab_size).to(on).state_dict().values()
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = f"file://{folder}/rendezvous"
        distributed.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
        world = World(gpu_group=distributed.new_group(backend=backend))
        for name in ("all_reduce_", "reduce_to_owners_", "broadcast_from_owners_"):
            tensors = [weight.clone() for weight in weights]
            exchange = partial(getattr(world, name), tensors)
            # The first call opens the communicator.
            results[f"{name.rstrip('_')}_ms"] = 1e3 * timed(exchange, on, repeats)
            if not all(map(torch.equal, tensors, weights)):
                raise RuntimeError(f"{name} of one process changes its tensors")
        distributed.destroy_process_group()
    return results


def demo(
    config_file: str = DEMO, *, device: str = "cuda", settings: Sequence[str] = ()
) -> dict[str, object]:
    """Train a config from its vocabulary on, and translate and score its test sets.

    Precision of the training is the config's, that of the translations the default of a GPU.
    """
    # The other parts do without the packages of these, which may be missing where the GPU is.
    from tformer_cli import evaluate, train
    from tformer_cli.storage.run_directory import RunDirectory
    from tformer_cli.storage.state import load_progress

    with tempfile.TemporaryDirectory() as folder:
        run = train(config_file, f"{folder}/run", settings=settings, device=device)
        progress = load_progress(RunDirectory(run).pointed("last"))
        memory_mib = peak_memory(resolve_device(device)) / 2**20
        scores = {name: each.as_json() for name, each in evaluate(run, device=device).items()}
    return {
        "steps": progress.step,
        "step_seconds": progress.seconds / progress.step,
        "target_tokens_per_second": progress.num_tokens / progress.seconds,
        "peak_memory_mib": memory_mib,
        "valid_score": progress.best_score,
        "test": scores,
    }
