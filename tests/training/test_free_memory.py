from pathlib import Path

import pytest

from tformer_cli.training.free_memory import free_memory

MEMINFO = "MemTotal:       24684096 kB\nMemFree:          100000 kB\nMemAvailable:     200000 kB\n"


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("memory_", "memory.")).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({}, 200000 * 1024),
        ({"memory_max": "max\n", "memory_current": "5000\n"}, 200000 * 1024),
        ({"memory_max": "90000\n", "memory_current": "5000\n"}, 85000),
        ({"memory_max": "5000\n", "memory_current": "90000\n"}, 0),
        ({"memory_max": "999999999999\n", "memory_current": "5000\n"}, 200000 * 1024),
    ],
)
def test_free_memory_is_that_of_the_machine_or_of_the_container(tmp_path, container, expected):
    write(tmp_path, meminfo=MEMINFO, **container)
    assert free_memory(tmp_path, tmp_path) == expected


def test_a_system_that_says_nothing_is_not_guessed_at(tmp_path):
    assert free_memory(tmp_path, tmp_path) is None
    write(tmp_path, meminfo="MemTotal: 24684096 kB\n")
    assert free_memory(tmp_path, tmp_path) is None
