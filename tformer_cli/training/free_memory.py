"""How much RAM a process may still take."""

import re
from pathlib import Path

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


def free_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """Return the free RAM in bytes, or None where the system does not say.

    Args:
        proc: what the kernel says of the machine (proc_meminfo(5)).
        cgroup: what it says of a container, whose limit may be lower.
    """
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", _text(proc / "meminfo"), re.MULTILINE)
    except OSError:
        return None
    if found is None:
        return None
    available = int(found[1]) * 2**10
    try:
        limit, used = _text(cgroup / "memory.max"), _text(cgroup / "memory.current")
    except OSError:
        return available
    return available if limit == "max" else min(available, max(0, int(limit) - int(used)))


def _text(file: Path) -> str:
    return file.read_text(encoding="ascii").strip()
