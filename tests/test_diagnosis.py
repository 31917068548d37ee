"""What a diagnosis says of packages and of machines."""

import importlib.metadata
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from tformer_cli import doctor
from tformer_cli.doctor import PACKAGES, Gpu, Machine, core_quota, machine_problems
from tformer_cli.extras import EXTRAS
from tformer_cli.process import ENVIRONMENT

ROOT = Path(__file__).parents[1]
MACHINE = Machine(
    system="Linux",
    processor="x",
    instructions="AVX2",
    num_cores=4,
    load=0.1,
    core_quota=None,
    num_threads=4,
    precision="float32",
    device="cpu",
    gpus=(),
    free_memory_bytes=8 << 30,
    free_disk_bytes=8 << 30,
    stores="runs/.store",
    keeps_freed_memory=True,
    environment=dict.fromkeys((*ENVIRONMENT, *doctor.THREAD_LIMITS)),
)


def names(requirements: list[str]) -> tuple[str, ...]:
    return tuple(re.match(r"[\w.-]+", text)[0] for text in requirements)


def test_packages_and_extras_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert names(project["dependencies"]) == PACKAGES
    extras = {
        name: requirements
        for name, requirements in project["optional-dependencies"].items()
        if name not in ("all", "docs", "dev")
    }
    assert extras.keys() == EXTRAS.keys()
    of_sacrebleu = importlib.metadata.requires("sacrebleu") or []
    for name, requirements in extras.items():
        if requirements == [f"sacrebleu[{name}]"]:
            requirements = [text for text in of_sacrebleu if f'extra == "{name}"' in text]
        wanted = [each for each in names(requirements) if each not in PACKAGES]
        assert wanted == [each for each in EXTRAS[name].packages if each not in PACKAGES]


def problems(machine: Machine) -> list[str]:
    return list(map(str, machine_problems(machine)))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"load": 2.0}, None),
        ({"core_quota": 4.0}, None),
        (
            {"core_quota": 2.5},
            "threads: are more than the cores of this container (4 on 2.5 cores); "
            "set OMP_NUM_THREADS=2",
        ),
        (
            {"load": 2.5},
            "processor: is busy with other programs (load 2.5 on 4 cores); "
            "stop them, or measure again",
        ),
        ({"free_memory_bytes": None}, None),
        (
            {"free_memory_bytes": 1 << 30},
            "memory: little is free (1.0 GiB); close other programs, or lower "
            "training.batch_tokens",
        ),
        (
            {"free_disk_bytes": 3 << 29},
            "disk: little is free here (1.5 GiB); train in another folder",
        ),
        ({"environment": {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "x"}}, None),
        (
            {"environment": {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": None}},
            "OMP_NUM_THREADS: leaves cores unused (2 of 4 cores); unset it",
        ),
    ],
)
def test_what_slows_or_ends_a_training_is_named(change, problem, monkeypatch):
    monkeypatch.setattr(doctor, "may_have_gpu", lambda: False)
    assert problems(replace(MACHINE, **change)) == ([] if problem is None else [problem])


@pytest.mark.parametrize(
    ("content", "quota"), [(None, None), ("max 100000\n", None), ("150000 100000\n", 1.5)]
)
def test_the_quota_of_a_container_is_that_of_its_control_group(tmp_path, content, quota):
    if content is not None:
        (tmp_path / "cpu.max").write_text(content)
    assert core_quota(tmp_path) == quota


def test_a_gpu_that_torch_does_not_find_is_named(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(doctor, "may_have_gpu", lambda: True)
    (problem,) = problems(MACHINE)
    assert problem.startswith("GPU: torch does not find the GPU of this machine (torch ")
    gpu = Gpu("NVIDIA H100", 80 << 30, 79 << 30, "bfloat16")
    assert problems(replace(MACHINE, gpus=(gpu,))) == []
    assert str(gpu) == "NVIDIA H100, 79.0 GiB of 80.0 GiB free, bfloat16"
