"""What an installation lacks, what the machine offers a training, and how fast it trains."""

import contextlib
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tformer_cli import __version__
from tformer_cli.config.load import load_config
from tformer_cli.config.starter import shipped_config
from tformer_cli.errors import Problem
from tformer_cli.extras import EXTRAS
from tformer_cli.process import CGROUP, ENVIRONMENT, can_tune_allocator, may_have_gpu, num_cores
from tformer_cli.storage.run_directory import RUNS, RunDirectory

if TYPE_CHECKING:
    from tformer_cli.training.throughput import Throughput


PACKAGES = (
    *("torch", "torchtext", "sentencepiece", "sacrebleu", "typer", "pyyaml", "tqdm"),
    *("safetensors", "numpy", "filelock"),
)
# Configs whose training is measured.
CONFIGS = ("demo.yaml", "multi30k-tiny.yaml")
SECONDS_PER_CONFIG = 7.0
# Below it, a training may end early.
MIN_FREE_BYTES = 2 << 30
THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A CUDA device."""

    name: str
    memory_bytes: int
    free_memory_bytes: int
    precision: str

    def __str__(self) -> str:
        memory = f"{_gib(self.free_memory_bytes)} of {_gib(self.memory_bytes)} free"
        return f"{self.name}, {memory}, {self.precision}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What a training finds here. `precision` is what `auto` means on the CPU, or on a GPU."""

    system: str
    processor: str
    instructions: str  # of torch's own kernels, such as AVX2
    num_cores: int  # that this process may run on
    load: float  # mean number of busy processes in the last minute
    core_quota: float | None  # cores that a container may use at a time; None without a limit
    num_threads: int  # of torch
    precision: str
    device: str  # that `auto` means
    gpus: tuple[Gpu, ...]
    free_memory_bytes: int | None  # None where the system does not tell
    free_disk_bytes: int  # in the current folder
    stores: str  # folder that caches encoded training text
    keeps_freed_memory: bool  # while a model trains
    environment: dict[str, str | None]  # None for a variable that is not set

    @property
    def free_memory(self) -> str:
        return "unknown" if self.free_memory_bytes is None else _gib(self.free_memory_bytes)

    @property
    def free_disk(self) -> str:
        return _gib(self.free_disk_bytes)

    @property
    def allocator(self) -> str:
        return "kept by glibc for the next step" if self.keeps_freed_memory else "returned"


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What `diagnose` has found. `machine` is None, and `speed` empty, without torch."""

    versions: dict[str, str | None]  # None for a package that is missing
    extras: dict[str, dict[str, str | None]]  # version of each other package, by extra
    machine: Machine | None
    speed: "dict[str, Throughput]"  # of training, by config
    problems: tuple[Problem, ...]

    def as_json(self) -> dict[str, object]:
        """Return everything as plain data, with the seconds of a whole training."""
        return {
            "versions": self.versions,
            "extras": self.extras,
            "machine": None if self.machine is None else asdict(self.machine),
            "speed": {
                name: asdict(each) | {"seconds": each.seconds} for name, each in self.speed.items()
            },
            "problems": list(map(str, self.problems)),
        }


def diagnose(
    *, log: Callable[[str], object], on_step: Callable[[], object] = lambda: None
) -> Diagnosis:
    """Look for missing packages, measure the machine, and train two example configs for seconds.

    Nothing is written. torch is imported here, since it may be what is broken.

    Args:
        log: called with a line that says how long the measurement takes.
        on_step: called after each training step.
    """
    problems = list(_package_problems())
    machine, speed = None, {}
    try:
        machine = _machine()
    except (ImportError, OSError) as error:
        what = "cannot be imported"
        remedy = "install it again: pip install --force-reinstall torch"
        problems.append(Problem("torch", what, got=str(error).partition("\n")[0], remedy=remedy))
    if machine is not None:
        problems += machine_problems(machine)
        log(f"measuring the speed for {SECONDS_PER_CONFIG * len(CONFIGS):.0f} seconds")
        speed = _measured_speed(on_step)
    return Diagnosis(
        versions={
            "tformer": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES},
        },
        extras={
            name: {each: _version(each) for each in extra.packages if each not in PACKAGES}
            for name, extra in EXTRAS.items()
        },
        machine=machine,
        speed=speed,
        problems=tuple(problems),
    )


def _version(package: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package_problems() -> Iterator[Problem]:
    """Yield what is not installed, and what it is for."""
    for name in PACKAGES:
        if _version(name) is None:
            what = "is not installed, and tformer needs it"
            yield Problem(name, what, remedy=f"pip install {name}")
    for name, extra in EXTRAS.items():
        missing = [
            each for each in extra.packages if each not in PACKAGES and _version(each) is None
        ]
        if missing:
            yield Problem(
                f"tformer[{name}]",
                "is not installed",
                got=", ".join(missing),
                remedy=f"pip install 'tformer[{name}]' for {extra.purpose}",
            )


def _machine() -> Machine:
    """Return what torch and the system say of this machine.

    Raises:
        ImportError, OSError: torch cannot be imported.
    """
    import torch

    from tformer_cli.device import hardware_name, resolve_device, resolve_precision
    from tformer_cli.training.find_batch_size import free_memory

    cpu, device = torch.device("cpu"), resolve_device("auto")
    gpus = []
    for index in range(torch.cuda.device_count()):
        gpu = torch.device("cuda", index)
        free, total = torch.cuda.mem_get_info(gpu)
        precision = str(resolve_precision("auto", gpu)).removeprefix("torch.")
        gpus.append(Gpu(torch.cuda.get_device_name(gpu), total, free, precision))
    return Machine(
        system=platform.platform(),
        processor=hardware_name(cpu),
        instructions=torch.backends.cpu.get_cpu_capability(),
        num_cores=num_cores(),
        load=os.getloadavg()[0],
        core_quota=core_quota(),
        num_threads=torch.get_num_threads(),
        precision=str(resolve_precision("auto", device)).removeprefix("torch."),
        device=str(device),
        gpus=tuple(gpus),
        free_memory_bytes=free_memory(),
        free_disk_bytes=shutil.disk_usage(Path()).free,
        stores=str(RunDirectory(RUNS / "any").stores.resolve()),
        keeps_freed_memory=can_tune_allocator(),
        environment={name: os.environ.get(name) for name in (*ENVIRONMENT, *THREAD_LIMITS)},
    )


def core_quota(cgroup: Path = CGROUP) -> float | None:
    """Return how many cores the control group of this process may use at a time (cgroups(7))."""
    # Without a limit the file is absent, or has `max` for a number.
    with contextlib.suppress(OSError, ValueError):
        quota, period = map(int, (cgroup / "cpu.max").read_text(encoding="ascii").split())
        return quota / period
    return None


def machine_problems(machine: Machine) -> Iterator[Problem]:
    """Yield what makes trainings slow, or end early."""
    if sys.platform == "linux" and may_have_gpu() and not machine.gpus:
        got = f"torch {_version('torch')}"
        remedy = "install the torch build for it, and its driver"
        yield Problem("GPU", "torch does not find the GPU of this machine", got, remedy)
    for name in THREAD_LIMITS:
        limit = machine.environment[name] or ""
        if limit.isdecimal() and int(limit) < machine.num_cores:
            got = f"{limit} of {machine.num_cores} cores"
            yield Problem(name, "leaves cores unused", got, "unset it")
    if machine.core_quota is not None and machine.core_quota < machine.num_threads:
        got = f"{machine.num_threads} on {machine.core_quota:g} cores"
        remedy = f"set OMP_NUM_THREADS={max(1, int(machine.core_quota))}"
        yield Problem("threads", "are more than the cores of this container", got, remedy)
    if machine.load > machine.num_cores / 2:
        got = f"load {machine.load:.1f} on {machine.num_cores} cores"
        yield Problem(
            "processor", "is busy with other programs", got, "stop them, or measure again"
        )
    if machine.free_memory_bytes is not None and machine.free_memory_bytes < MIN_FREE_BYTES:
        remedy = "close other programs, or lower training.batch_tokens"
        yield Problem("memory", "little is free", machine.free_memory, remedy)
    if machine.free_disk_bytes < MIN_FREE_BYTES:
        yield Problem("disk", "little is free here", machine.free_disk, "train in another folder")


def _measured_speed(on_step: Callable[[], object]) -> "dict[str, Throughput]":
    """Measure the training of some example configs."""
    from tformer_cli.device import resolve_device
    from tformer_cli.training.throughput import measure_throughput

    return {
        f"configs/{name}": measure_throughput(
            load_config(shipped_config(name)),
            device=resolve_device("auto"),
            seconds=SECONDS_PER_CONFIG,
            on_step=on_step,
        )
        for name in CONFIGS
    }


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:,.1f} GiB"
