"""Processes that work for this one, and end with it."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.connection import wait

# Variables that torch and its libraries read when they are imported.
ENVIRONMENT = {
    # Threads of torch wait for each other in a loop of 30,000 turns, some microseconds. A longer
    # one costs four fifths of the speed when another program uses the processor, too.
    "GOMP_SPINCOUNT": "30000",
    # oneDNN compiles half a megabyte of code for each pair of matrix shapes. torch and oneDNN cache
    # a thousand of them by default; a training step needs a few dozen.
    "LRU_CACHE_CAPACITY": "64",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    # Batches of many shapes fragment the memory of a GPU. The second name is that of torch before
    # 2.9, and of some releases since.
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}


def tune_environment() -> None:
    """Set the variables of `ENVIRONMENT` that are not set, unless torch is imported already."""
    if "torch" not in sys.modules:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)


def num_cores() -> int:
    """Return how many cores this process and its children may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def num_threads() -> int:
    """Return how many threads this process keeps busy by itself: one a core that is its own.

    Processes of `multiprocessing` share the cores, and so do those that torchrun has started.
    """
    if multiprocessing.parent_process() is not None:
        return 1
    return max(1, num_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def begin_child() -> None:
    """Leave Ctrl-C to the process that began this one, and end when it does, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    sentinel = parent.sentinel

    def end_with_parent() -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def tune_allocator() -> None:
    """Let the C library keep the memory that tensors give back, for the next ones.

    By default glibc returns every large buffer to the system when it is freed, and the next step
    pays for fresh pages again: a fifth of the time of a small model's training step.
    """
    libc = c_library()
    if libc is None or not hasattr(libc, "mallopt"):
        return
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of malloc.h
    libc.mallopt(mmap_max, 0)
    libc.mallopt(trim_threshold, ctypes.c_int(2**31 - 1))


def c_library() -> ctypes.CDLL | None:
    """Return the C library that this process runs on, on Linux."""
    return ctypes.CDLL(None) if sys.platform == "linux" else None
