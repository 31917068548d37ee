"""The two conditions in which contestants are measured; all of a comparison have the same one.

`default`: no variables but those of the user, and the C library's own allocator. `tuned`: the
variables of tformer's command line, and the allocator that `tune_allocator` asks for, set by
variables too, so that it is in force for whoever is measured, whatever they import.
"""

import ctypes
import os
import sys
from typing import Literal, get_args

from tformer_cli.process import ENVIRONMENT

Condition = Literal["default", "tuned"]
CONDITIONS: tuple[Condition, ...] = get_args(Condition)

# What glibc reads when a process begins; the same numbers as in `tune_allocator`.
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
SETTINGS = ENVIRONMENT | ALLOCATOR

# Far above the size from which glibc maps memory by default.
_PROBE_BYTES = 64 * 2**20


def environment(condition: Condition) -> dict[str, str]:
    """Return all variables that a process of a condition has; those of the user stay."""
    users = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    return users | (SETTINGS if condition == "tuned" else {})


def report() -> dict[str, str | bool | None]:
    """Return what this process runs under: the variables that matter, and what malloc does.

    `keeps_freed_memory` is an observation: whether a large buffer comes from the heap, which keeps
    it, rather than from a mapping, which is given back. None where the C library cannot say.
    """
    return {name: os.environ.get(name) for name in SETTINGS} | {
        "keeps_freed_memory": _keeps_freed_memory()
    }


class _Counts(ctypes.Structure):
    """`struct mallinfo2` of malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def _keeps_freed_memory() -> bool | None:
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallinfo2"):
        return None
    libc.mallinfo2.restype = _Counts
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    before = libc.mallinfo2().hblks
    buffer = libc.malloc(_PROBE_BYTES)
    mapped = libc.mallinfo2().hblks - before
    libc.free(buffer)
    return bool(mapped == 0)
