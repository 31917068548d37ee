"""The process: environment variables, memory allocator, cores, children; without torch."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from tformer_cli.errors import DeviceError

# What torch and its libraries read when they are imported.
ENVIRONMENT = {
    # OpenMP threads wait for each other in a spin loop. Where another program wants the processor
    # too, a long spin costs four fifths of the speed; this one ends after some microseconds.
    "GOMP_SPINCOUNT": "30000",
    # oneDNN compiles half a megabyte of instructions for each shape of two matrices. torch and
    # oneDNN cache a thousand of them each by default; a step needs a few dozen.
    "LRU_CACHE_CAPACITY": "64",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    # Batches of many shapes fragment the memory of a GPU.
    # The second name is what torch called it before 2.9, and some releases since still read.
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}
# Parameters of mallopt(3), from malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
# Where Linux says what a container may use.
CGROUP = Path("/sys/fs/cgroup")


def tune_environment() -> None:
    """Set the variables of `ENVIRONMENT` that are not set, unless torch is imported already."""
    if "torch" not in sys.modules:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)


def tune_allocator() -> None:
    """Let glibc keep freed memory for the next tensors.

    By default it returns every large buffer to the system, and the next step pays for page faults
    again: a fifth of the training time of a small model.
    """
    _call_libc("mallopt", M_MMAP_MAX, 0)
    _call_libc("mallopt", M_TRIM_THRESHOLD, 2**31 - 1)


def trim_allocator() -> None:
    """Return the memory that `tune_allocator` lets glibc keep to the system."""
    _call_libc("malloc_trim", 0)


def can_tune_allocator() -> bool:
    """Return whether the C library is one that `tune_allocator` has an effect on."""
    return _libc_function("mallopt") is not None


def _call_libc(name: str, *arguments: int) -> None:
    function = _libc_function(name)
    if function is not None:
        function(*arguments)


def _libc_function(name: str) -> Any:
    """Return a function of the C library, or None where it has none of that name."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def num_cores() -> int:
    """Return how many cores this process and its children may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def num_processes() -> int:
    """Return how many processes torchrun has started; 1 without torchrun.

    Raises:
        DeviceError: `WORLD_SIZE` is no number.
    """
    # Schedulers set some of the variables without starting processes.
    if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        return 1
    return _number_in("WORLD_SIZE", "start the processes by torchrun, or unset RANK")


def _number_in(variable: str, remedy: str) -> int:
    number = os.environ[variable]
    if not number.isdecimal():
        what = "must be a number of processes"
        raise DeviceError(variable, what, got=number, remedy=remedy)
    return int(number)


def may_have_gpu() -> bool:
    """Return whether this machine has a GPU that torch may use, as far as the system tells."""
    devices = ("nvidia[0-9]*", "kfd", "dxg")  # NVIDIA's, AMD's, and a GPU of Windows under Linux
    is_mac = sys.platform == "darwin"
    return is_mac or any(True for name in devices for _ in Path("/dev").glob(name))


def num_threads() -> int:
    """Return how many threads this process may keep busy.

    That is one in a child process, and each process of torchrun gets its share of the cores.

    Raises:
        DeviceError: `LOCAL_WORLD_SIZE` is no number.
    """
    if multiprocessing.parent_process() is not None:
        return 1
    if "LOCAL_WORLD_SIZE" not in os.environ:
        return num_cores()
    sharers = _number_in("LOCAL_WORLD_SIZE", "start the processes by torchrun, or unset it")
    return max(1, num_cores() // max(1, sharers))


def begin_child() -> None:
    """Prepare a child process: ignore Ctrl-C, and end when the parent ends, however it does.

    SIGTERM ends it, whatever the parent does on one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None
    sentinel = parent.sentinel

    def end_with_parent() -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
