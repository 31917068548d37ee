"""What settings a process has that change its speed: variables, and its allocator."""

import ctypes
import os
import sys

from harness import SETTINGS, proc_bytes

# Far above the size from which glibc maps memory by default.
PROBE_BYTES = 64 * 2**20


def report() -> dict[str, str | bool | None]:
    """Return the settings in force in this process: variables, and whether malloc keeps memory."""
    variables = {name: os.environ.get(name) for name in SETTINGS}
    return variables | {"keeps_freed_memory": keeps_freed_memory()}


def keeps_freed_memory() -> bool | None:
    """Return whether a large buffer stays with the process; None where /proc does not tell."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    buffer = libc.malloc(PROBE_BYTES)
    held = proc_bytes()["VmSize"]
    libc.free(buffer)
    return held - proc_bytes()["VmSize"] < PROBE_BYTES
