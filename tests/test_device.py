import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tformer_cli import device
from tformer_cli.device import (
    batch_size_factor,
    derive_seed,
    hardware_name,
    is_out_of_memory,
    prefers_onednn,
    resolve_device,
    resolve_precision,
    seed_device,
)
from tformer_cli.errors import DeviceError

CPU = torch.device("cpu")


def test_auto_device_is_one_that_works():
    best = resolve_device("auto")
    assert torch.ones(3, device=best).sum().item() == 3


@pytest.mark.parametrize(("name", "is_switched_off"), [("cpu", False), ("cuda", True)])
def test_no_kernel_is_planned_for_each_shape_on_cuda(name, is_switched_off, monkeypatch):
    switched = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", switched.append)
    assert resolve_device(name) == torch.device(name)
    assert switched == [False] * is_switched_off


@pytest.mark.parametrize("name", ["tpu9000", ""])
def test_a_name_that_is_no_device_is_refused(name):
    with pytest.raises(DeviceError) as caught:
        resolve_device(name)
    assert str(caught.value) == (
        f"`device`: no device has this name ({name}); use auto, cpu, cuda or mps"
    )


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(DeviceError) as caught:
        resolve_device("cuda:1")
    assert str(caught.value) == (
        "`device`: this machine, or this build of torch, does not have it (cuda:1); "
        'use `device="auto"`'
    )


@pytest.mark.parametrize(
    ("flags", "best"),
    [
        ("fpu avx512f avx512_bf16 gfni", torch.bfloat16),
        ("fpu avx512f amx_bf16", torch.bfloat16),
        ("fpu avx512f avx512_vnni", torch.float32),
        (None, torch.float32),
    ],
)
def test_precision_on_a_cpu_is_bfloat16_where_it_is_multiplied(flags, best, monkeypatch):
    def read(file: Path, **_: object) -> str:
        if flags is None:
            raise FileNotFoundError(file)
        return f"processor\t: 0\nmodel name\t: Some: CPU\nflags\t\t: {flags}\n\n"

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(device, "onednn_supports_bfloat16", lambda: True)
    assert resolve_precision("auto", CPU) == best
    monkeypatch.setattr(device, "onednn_supports_bfloat16", lambda: False)
    assert resolve_precision("auto", CPU) == torch.float32
    assert resolve_precision("float32", CPU) == torch.float32
    assert resolve_precision("bfloat16", CPU) == torch.bfloat16
    if flags is not None:
        assert hardware_name(CPU) == "Some: CPU"


@pytest.mark.parametrize(
    ("vendor", "is_preferred"),
    [("vendor_id\t: AuthenticAMD\n", True), ("vendor_id\t: GenuineIntel\n", False), ("", False)],
)
def test_onednn_is_preferred_on_processors_that_mkl_is_not_made_for(
    vendor, is_preferred, monkeypatch
):
    monkeypatch.setattr(Path, "read_text", lambda file, **_: f"processor\t: 0\n{vendor}\n")
    assert prefers_onednn() == is_preferred


@pytest.mark.parametrize(
    ("name", "kind", "has_bfloat16", "expected"),
    [
        (None, "cpu", True, torch.float32),
        (None, "cpu", False, torch.float32),
        (None, "cuda", True, torch.bfloat16),
        (None, "cuda", False, torch.float16),
        (None, "mps", False, torch.float32),
        ("auto", "cpu", True, torch.bfloat16),
        ("auto", "cuda", True, torch.bfloat16),
        ("auto", "mps", False, torch.float32),
        ("float32", "cuda", True, torch.float32),
        ("float16", "cuda", True, torch.float16),
        ("bfloat16", "mps", False, torch.bfloat16),
    ],
)
def test_precision_goes_by_the_name_and_the_device(name, kind, has_bfloat16, expected, monkeypatch):
    """Inference, which names none, has float32 on a CPU alone."""
    monkeypatch.setattr(device, "has_bfloat16", lambda device: has_bfloat16)
    assert resolve_precision(name, torch.device(kind)) == expected


def test_bfloat16_on_a_gpu_that_lacks_it_is_refused(monkeypatch):
    asked = []

    @contextlib.contextmanager
    def only(device: torch.device) -> Iterator[None]:
        asked.append(device)
        yield
        asked.pop()

    second = torch.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "device", only)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: asked != [second])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "an old card")
    assert resolve_precision("auto", torch.device("cuda:0")) == torch.bfloat16
    assert resolve_precision("auto", second) == torch.float16
    with pytest.raises(DeviceError) as caught:
        resolve_precision("bfloat16", second)
    assert str(caught.value) == (
        "precision: this GPU has no bfloat16 (an old card); use precision auto"
    )


@pytest.mark.parametrize(("gib", "factor"), [(0.5, 1), (10, 8), (24, 19), (79.5, 63), (80, 64)])
def test_batches_on_a_gpu_grow_with_its_memory(gib, factor, monkeypatch):
    card = SimpleNamespace(total_memory=int(gib * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    assert batch_size_factor(torch.device("cuda")) == factor
    assert batch_size_factor(CPU) == 1


def test_eight_bits_are_for_processors_that_gain_by_them(monkeypatch):
    monkeypatch.setattr(device, "has_vnni", lambda: True)
    assert resolve_precision("int8", CPU) == torch.int8
    monkeypatch.setattr(device, "has_vnni", lambda: False)
    with pytest.raises(DeviceError) as raised:
        resolve_precision("int8", CPU)
    assert str(raised.value) == (
        "`precision`: int8 is slower than float32 on a processor without VNNI ("
        f"{hardware_name(CPU)}); use float32, or `tformer translate "
        "--backend ctranslate2 --quantization int8`"
    )


AS_LIMITED = """
import torch
from tformer_cli.device import has_bfloat16_matmul, has_vnni
from tformer_cli.inference.linear import pack_where_faster
assert not has_vnni()
assert not has_bfloat16_matmul()
rows, linear = torch.randn(2, 512), torch.nn.Linear(512, 512)
with torch.no_grad():
    narrow = pack_where_faster(linear.bfloat16())(rows.bfloat16())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN knows AVX2 there alone")
def test_where_onednn_is_limited_to_avx2_nothing_is_asked_of_it_that_it_lacks():
    limited = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    subprocess.run([sys.executable, "-c", AS_LIMITED], env=limited, check=True)


def test_eight_bits_are_for_a_cpu():
    with pytest.raises(DeviceError) as raised:
        resolve_precision("int8", torch.device("cuda"))
    assert str(raised.value) == (
        '`precision`: int8 is for translation on a CPU (cuda); use auto, or `device="cpu"`'
    )


def test_the_draws_of_a_device_are_those_that_torch_makes_of_the_seed():
    seed_device(torch.device("cpu"), 5)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3))


def test_derived_seeds_depend_on_every_part():
    seeds = {
        derive_seed(1, "a", 2),
        derive_seed(1, "a", 3),
        derive_seed(2, "a", 2),
        derive_seed(1, "b", 2),
    }
    assert len(seeds) == 4
    assert derive_seed(1, "a", 2) == derive_seed(1, "a", 2)
    torch.manual_seed(max(seeds))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to ..."), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to ..."), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: ...)"), True),
        (RuntimeError("could not create a primitive"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (OSError("out of memory"), False),
    ],
)
def test_errors_of_memory_are_told_from_others(error, expected):
    assert is_out_of_memory(error) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says how much memory a process has")
def test_freed_memory_is_kept_until_it_is_given_back():
    script = """
import torch
from pathlib import Path
from tformer_cli.device import empty_cache
from tformer_cli.process import tune_allocator
def held():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) / 2**10
tune_allocator()
before = held()
tensors = [torch.ones(2**18) for _ in range(128)]
last = tensors.pop()
tensors.clear()
kept = held() - before
empty_cache(torch.device("cpu"))
print(kept, held() - before)
"""
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    kept, left = map(float, result.stdout.split())
    assert kept > 120
    assert left < 20
