"""The measurements for GPUs, on the CPU and in small; results by hand."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import flops
import gpu
import gpu_ceilings
import gpu_checks
import gpu_decode
import gpu_throughput
import harness
import numpy as np
import pytest
import torch
from flops import Ceiling, data_sheet_flops, training_flops
from gpu import PARTS, Part, headline, measure, speed_ratios, unlike_losses
from gpu_throughput import Step, summary
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from toy import write_toy
from train_baselines import Ours

from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.model.build import build_model

ROOT = Path(__file__).parents[2]
TINY = EncoderDecoderConfig(
    dim=12,
    num_encoder_layers=1,
    num_decoder_layers=2,
    num_heads=3,
    feedforward_dim=14,
    norm_position="post",
    attention_dropout=0.0,
    feedforward_dropout=0.0,
)
SMALL = {
    "device": "cpu",
    "precision": "float32",
    "vocab_size": 31,
    "batch_tokens": 600,
    "num_pairs": 80,
    "warm_up": 1,
}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu_throughput.NETWORKS, "tiny", TINY)


# ----------------------------------------------------------------------------- results


@pytest.mark.parametrize(
    "model", [TINY, replace(TINY, num_encoder_layers=3, num_decoder_layers=1, dim=24)]
)
def test_operations_are_those_that_torch_counts_but_for_what_causality_hides(model):
    vocab_size, (s, t) = 31, (5, 7)
    network = build_model(
        replace(model, dropout=0.0), source_size=vocab_size, target_size=vocab_size, seed=1
    )
    source, target = torch.randint(4, vocab_size, (1, s)), torch.randint(4, vocab_size, (1, t))
    real = torch.ones(1, s, dtype=torch.bool)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        network(source, real, target, torch.arange(t)).sum().backward()
    # Of each causal attention half the table: two products forward, four backward, 2 D each.
    hidden = model.num_decoder_layers * 6 * 2 * model.dim * t * t / 2
    flops = training_flops(model, vocab_size, np.array([s]), np.array([t]), causal_share=0.5)
    assert flops == pytest.approx(counter.get_total_flops() - hidden)


def test_operations_of_pairs_add_up():
    lengths = np.array([5, 9], dtype=np.uint16), np.array([7, 300], dtype=np.uint16)
    apart = [training_flops(TINY, 31, *(side[i : i + 1] for side in lengths)) for i in (0, 1)]
    assert training_flops(TINY, 31, *lengths) == pytest.approx(sum(apart))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", None),
        ("NVIDIA GH200 480GB", None),
    ],
)
def test_peaks_of_the_data_sheets_go_by_the_name(name, expected):
    assert data_sheet_flops(name) == expected


def step(seconds: float, target_tokens: int, **changes: float) -> Step:
    defaults = {
        "loading_seconds": 0.25,
        "tokens": 2 * target_tokens,
        "positions": 1000,
        "flops": 4e12,
        "loss": 2.0,
    }
    return Step(seconds=seconds, target_tokens=target_tokens, **(defaults | changes))


def test_summary_takes_speeds_and_shares_of_sums():
    steps = [
        step(1.0, 400, loss=3.0),
        step(2.0, 400, flops=12e12),
        step(0.5, 300, flops=1e12, loss=1.5),
    ]
    assert summary(steps, Ceiling(data_sheet=16e12, gemm=8e12)) == {
        "steps": 3,
        "target_tokens_per_second": pytest.approx(1100 / 3.5),
        "median_target_tokens_per_second": 400.0,
        "target_tokens_per_step": 400,
        "step_seconds": 1.0,
        "slowest_step_seconds": 2.0,
        "model_tflops": pytest.approx(17 / 3.5),
        "mfu": pytest.approx(17 / 3.5 / 16),
        "mfu_of": "data sheet",
        "share_of_gemm": pytest.approx(17 / 3.5 / 8),
        "peak_tflops": 16.0,
        "gemm_tflops": 8.0,
        "padding_share": pytest.approx(1 - 2200 / 3000),
        "loader_share": pytest.approx(0.75 / 3.5),
        "first_loss": 3.0,
        "last_loss": 1.5,
    }


def test_a_device_without_a_data_sheet_is_held_to_its_own_products():
    results = Ceiling(data_sheet=None, gemm=8e12).shares(4e12)
    assert results["mfu"] == results["share_of_gemm"] == 0.5
    assert results["mfu_of"] == "measured GEMM, no data sheet known"


def test_gemm_rate_is_of_two_operations_a_cell_and_term(monkeypatch):
    times = iter(range(100))
    monkeypatch.setattr(flops.time, "perf_counter", lambda: float(next(times)))
    # Each round of products takes a second by this clock.
    rate = flops.gemm_flops(torch.device("cpu"), torch.float32, size=8, seconds=1.0, products=10)
    assert rate == 2 * 8**3 * 10


# -------------------------------------------------------------------------- throughput


def test_lengths_are_those_of_sentences():
    store = gpu_throughput.synthetic_store(20_000, 97)
    source, target = store.source_lengths, store.target_lengths
    assert np.mean(source) == pytest.approx(25, rel=0.02)
    assert np.mean(target) == pytest.approx(25 * np.exp(0.02), rel=0.02)
    # Half as long as the mean and twice as long are rare but not absent.
    assert 0.05 < np.mean(source < 12.5) < 0.25
    assert 0.02 < np.mean(source > 50) < 0.10
    assert np.corrcoef(source, target)[0, 1] > 0.8
    assert source.min() >= 1
    assert 100 < source.max() <= gpu_throughput.MAX_LENGTH
    counts = np.bincount(store.source_ids, minlength=97)
    assert counts[:16].sum() == 0
    # The k-th word is k times as rare as the first.
    assert counts[16] / counts[25] == pytest.approx(10, rel=0.1)


def test_the_same_store_comes_again():
    stores = [gpu_throughput.synthetic_store(50, 97) for _ in range(2)]
    assert stores[0].fingerprint() == stores[1].fingerprint()


@pytest.mark.parametrize("baseline", gpu_throughput.BASELINES)
def test_baselines_learn_the_same_batches(baseline, monkeypatch):
    compiled = []

    def compile_call(call: Callable[..., Tensor], *, dynamic: bool, **_) -> Callable[..., Tensor]:
        compiled.append(dynamic)
        return call

    monkeypatch.setattr(torch, "compile", compile_call)
    monkeypatch.setattr(gpu_throughput, "can_compile", lambda device: True)
    arguments = {key: SMALL[key] for key in SMALL if key != "warm_up"}
    task, feed, losses = gpu_throughput.begin("tiny", baseline, **arguments)
    steps = list(islice(gpu_throughput.measured(losses, feed, task), 4))
    _, expected, reference = gpu_throughput.begin("tiny", "ours", **arguments)
    for step, loss in zip(steps, reference, strict=False):
        batch = expected.batch
        assert step.target_tokens == batch.num_target_tokens
        assert step.tokens == batch.num_target_tokens + int(batch.source_mask.sum())
        assert step.positions == batch.source.numel() + batch.target_in.numel()
        assert 0 < step.loading_seconds < step.seconds
        lengths = (mask.sum(dim=1).numpy() for mask in (batch.source_mask, batch.target_mask))
        assert step.flops == training_flops(TINY, 31, *lengths, causal_share=0.5)
        # Marian draws other dropout masks.
        is_exact = baseline not in ("marian", "marian-compiled")
        assert step.loss == pytest.approx(loss, rel=1e-6 if is_exact else 0.1)
    # `reference` is one more that is compiled.
    assert compiled == [True] * (1 + (baseline not in ("eager", "marian")))


def test_a_step_that_does_not_fit_is_no_measurement(monkeypatch):
    arguments = {key: SMALL[key] for key in SMALL if key != "warm_up"}
    task, feed, _ = gpu_throughput.begin("tiny", "ours", **arguments)
    ours = Ours(task)
    model = ours.train_state.model
    hidden_states, attempts = model.hidden_states, []

    def limited(source: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        attempts.append(len(source))
        if len(attempts) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return hidden_states(source, *rest)

    monkeypatch.setattr(model, "hidden_states", limited)
    with pytest.raises(RuntimeError, match=r"no plain step: .*num_oom_micro_batches=2"):
        next(ours.losses(feed))


def test_throughput_has_all_results():
    results = gpu_throughput.throughput("tiny", seconds=0.0, gemm_size=16, **SMALL)
    assert json.loads(json.dumps(results)) == results
    assert results["steps"] == 1
    assert results["precision"] == "float32"
    speed = results["target_tokens_per_step"] / results["step_seconds"]
    assert results["target_tokens_per_second"] == pytest.approx(speed)
    assert results["initial_loss"] == pytest.approx(results["first_loss"], rel=0.1)
    assert results["graphs_compiled_while_measured"] == 0
    assert results["mfu"] == pytest.approx(results["model_tflops"] / results["gemm_tflops"])
    assert 0 < results["padding_share"] < 0.5
    assert 0 < results["loader_share"] < 1
    assert results["peak_memory_mib"] > 10


# -------------------------------------------------------------------------------- idle


def test_busy_is_what_work_covers():
    busy = [(8.0, 9.0), (2.0, 4.0), (3.0, 5.0), (-1.0, 0.5), (3.5, 3.6), (11.0, 14.0)]
    assert gpu_throughput.covered(busy) == 1.0 + 3.0 + 1.5 + 3.0
    assert gpu_throughput.covered([]) == 0.0


def event(name: str, category: str, start: float, duration: float) -> dict[str, object]:
    return {"name": name, "cat": category, "ts": start, "dur": duration, "ph": "X"}


def test_a_trace_without_work_of_the_device_says_nothing():
    work = gpu_throughput.DEVICE_WORK["cuda"]
    with pytest.raises(ValueError, match="has recorded no work of the device"):
        gpu_throughput.device_work([event("add", "cpu_op", 110, 5)], work, 1.0, 1)


def test_shares_of_a_trace():
    events = [
        {"name": "process_name", "ph": "M"},
        event("step", "user_annotation", 100, 50),
        event("gemm", "kernel", 125, 30),
        event("copy", "gpu_memcpy", 120, 5),
        event("gemm", "kernel", 160, 15),
        event("add", "cpu_op", 100, 99),
    ]
    results = gpu_throughput.device_work(events, gpu_throughput.DEVICE_WORK["cuda"], 100e-6, 2)
    assert results == {
        "idle_share": pytest.approx(0.5),
        "launches_per_step": 1.5,
        "top": {"gemm": pytest.approx(0.9), "copy": pytest.approx(0.1)},
    }


def test_idle_time_of_our_loop():
    results = gpu_throughput.idle("tiny", steps=2, **SMALL)
    assert json.loads(json.dumps(results)) == results
    assert results["steps"] == 2
    assert 0 <= results["idle_share"] < 1
    assert 0 < results["loader_share"] < 1
    assert results["launches_per_step"] > 100
    assert sum(results["top"].values()) <= 1


# ----------------------------------------------------------------- ceilings and parts


def test_ceilings_are_of_operations_and_bytes(monkeypatch):
    # Each call takes a second by this clock.
    monkeypatch.setattr(gpu_ceilings, "timed", lambda call, device, repeats: call() is None or 1.0)
    results = gpu_ceilings.ceilings(
        device="cpu", precision="float32", square=8, rows=6, dim=4, vocab_size=10
    )
    assert results["gemm_tflops_by_shape"] == {
        "8 x 8 x 8": 2 * 8**3 / 1e12,
        "6 x 4 x 4": 2 * 6 * 4 * 4 / 1e12,
        "6 x 4 x 16": 2 * 6 * 4 * 16 / 1e12,
        "6 x 4 x 10": 2 * 6 * 4 * 10 / 1e12,
    }
    assert results["gemm_tflops"] == 2 * 8**3 / 1e12
    assert results["copy_tb_per_second"] == 2 * 4 * 6 * 4 * 4 / 1e12
    assert results["launch_microseconds"] == 1e6


def test_parts_of_a_step_are_timed():
    results = gpu_ceilings.parts_of_a_step(
        "tiny", device="cpu", precision="float32", vocab_size=31, rows=9, repeats=1
    )
    names = {"adam_ms", "muon_ms", "loss_ms", "eager_loss_ms", "cross_entropy_ms"}
    assert results.keys() == names
    assert min(results.values()) > 0


def test_float8_products_are_timed_where_there_are_any(monkeypatch):
    monkeypatch.setattr(gpu_ceilings, "timed", lambda call, device, repeats: call() is None or 1.0)
    sizes = {"device": "cpu", "square": 16, "rows": 32, "dim": 16, "vocab_size": 48}
    results = gpu_ceilings.fp8(**sizes)
    if "left_out" not in results:
        assert results["gemm_tflops_by_shape"]["32 x 16 x 48"] == 2 * 32 * 16 * 48 / 1e12
        assert results["gemm_tflops"] == 2 * 32 * 16 * 64 / 1e12

    def absent(*_: object, **__: object) -> None:
        raise RuntimeError("only with capability 8.9\nor above")

    monkeypatch.setattr(torch, "_scaled_mm", absent)
    expected = "no float8 products: only with capability 8.9"
    assert gpu_ceilings.fp8(**sizes) == {"left_out": expected}


WORKLOAD = {"device": "cpu", "vocab_size": 61, "num_sentences": 16, "length": 5}


def test_decoding_is_timed_in_each_precision():
    results = gpu_decode.decode("tiny", precisions=("float32",), **WORKLOAD)
    assert json.loads(json.dumps(results)) == results
    assert results["speeds"].keys() == {"greedy, float32", "beam 5, float32"}
    assert results["sentences_per_second"] == results["speeds"]["greedy, float32"] > 0


@pytest.mark.parametrize("name", ["decode_marian", "decode_ctranslate2"])
def test_others_decode_the_same_sentences_into_the_same_tokens(name, monkeypatch):
    pytest.importorskip("transformers" if name == "decode_marian" else "ctranslate2")
    translations = []

    def speeds(self: gpu_decode.Workload, translate: gpu_decode.Translate) -> dict[str, float]:
        def recorded(sentences: list[list[int]], search: DecodingConfig) -> list[list[int]]:
            rows = translate(sentences, search)
            # CTranslate2 has words, w16 for id 16.
            translations.append([[int(str(x).removeprefix("w")) for x in row[:4]] for row in rows])
            return rows

        return measured(self, recorded)

    measured = gpu_decode.Workload.speeds
    monkeypatch.setattr(gpu_decode.Workload, "speeds", speeds)
    gpu_decode.decode("tiny", precisions=("float32",), **WORKLOAD)
    results = getattr(gpu_decode, name)("tiny", precision="float32", batch=8, **WORKLOAD)
    assert json.loads(json.dumps(results)) == results
    assert results["speeds"].keys() == {"greedy", "beam 5"}
    assert results["sentences_per_second"] == results["speeds"]["greedy"] > 0
    # Each search twice, some sentences and all: greedy first.
    ours, theirs = translations[:4], translations[4:]
    assert [len(rows) for rows in theirs] == [2, 16, 2, 16]
    assert theirs[:2] == ours[:2]


def test_ctranslate2_without_a_gpu_or_its_libraries_is_left_out(monkeypatch):
    ctranslate2 = pytest.importorskip("ctranslate2")
    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: 0)
    results = gpu_decode.decode_ctranslate2("tiny")
    assert results == {"left_out": f"CTranslate2 {ctranslate2.__version__} sees no GPU"}

    def speeds(*_: object) -> None:
        raise RuntimeError("Library libcublas.so.12 is not found or cannot be loaded")

    monkeypatch.setattr(gpu_decode.Workload, "speeds", speeds)
    results = gpu_decode.decode_ctranslate2("tiny", precision="float32", **WORKLOAD)
    assert results["left_out"].endswith(
        ": Library libcublas.so.12 is not found or cannot be loaded"
    )


# ------------------------------------------------------------------------- collectives


def test_collectives_of_one_process_go_through_its_group(monkeypatch):
    asked = []

    def recorded(name: str, collective: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object, **options: object) -> None:
            asked.append(name)
            collective(*arguments, **options)

        return call

    names = ("all_reduce", "reduce", "broadcast")
    for name in names:
        collective = recorded(name, getattr(torch.distributed, name))
        monkeypatch.setattr(torch.distributed, name, collective)
    sizes = {"device": "cpu", "vocab_size": 31, "repeats": 2}
    results = gpu_checks.collectives("tiny", backend="gloo", **sizes)
    keys = {"all_reduce_ms", "reduce_to_owners_ms", "broadcast_from_owners_ms"}
    assert results.keys() == keys
    assert min(results.values()) > 0
    # A bucket, once before the clock starts and twice after.
    assert asked == [name for name in names for _ in range(3)]
    assert not torch.distributed.is_initialized()
    left_out = gpu_checks.collectives("tiny", backend="no_such", **sizes)
    assert left_out == {"left_out": f"torch {torch.__version__} has no no_such"}


# --------------------------------------------------------------------------- attention


def test_attention_is_timed_by_each_kernel_that_can_do_it():
    results = gpu_checks.attention(
        device="cpu",
        precision="float32",
        rows=2,
        num_heads=3,
        head_dim=4,
        lengths=(5, 32),
        repeats=2,
    )
    assert results.keys() == {
        f"{length} {view}" for length in (5, 32) for view in ("causal", "padding")
    }
    for kernels in results.values():
        assert kernels.keys() == {"chosen", "flash", "efficient", "cudnn", "math"}
        # These two are for GPUs.
        assert kernels["efficient"] is kernels["cudnn"] is None
        for name in ("chosen", "math"):
            assert kernels[name]["first_ms"] > 0
            assert kernels[name]["ms"] > 0


def test_an_error_that_is_not_of_the_kernel_is_raised():
    inputs = [torch.randn(1, 1, 2, width) for width in (4, 6, 4)]
    with pytest.raises(RuntimeError):
        gpu_checks.by_kernel(
            gpu_checks.KERNELS["math"], inputs, gpu_checks.AttentionMask(), torch.device("cpu"), 1
        )


# --------------------------------------------------------------------- demo and tests


def test_demo_trains_translates_and_scores(tmp_path):
    results = gpu_checks.demo(
        str(write_toy(tmp_path)),
        device="cpu",
        overrides=["training.max_steps=6", "training.validate_every=6"],
    )
    assert json.loads(json.dumps(results)) == results
    assert results["steps"] == 6
    assert results["target_tokens_per_second"] > 0
    assert results["test"].keys() == {"toy"}
    assert results["test"]["toy"]["num_sentences"] == 10
    (score,) = results["test"]["toy"]["scores"]
    assert 0 <= score["score"] <= 100
    assert score["signature"].startswith("nrefs:1|")


TESTS = """\
import pytest


def test_one(record_property):
    record_property("near_ties", 2)


def test_two():
    assert 1 == 2


def test_three(no_such_fixture):
    pass


def test_four():
    pytest.skip("CUDA only")
"""


def test_outcomes_are_those_of_the_tests(tmp_path):
    (tmp_path / "test_a.py").write_text(TESTS)
    (tmp_path / "test_b.py").write_text("import no_such_package")
    outcomes = gpu_checks.Outcomes()
    words = ["--quiet", "-pno:cacheprovider", "--continue-on-collection-errors", "--rootdir"]
    pytest.main([*words, str(tmp_path), str(tmp_path)], plugins=[outcomes])
    results = outcomes.results()
    assert json.loads(json.dumps(results)) == results
    assert [results[kind] for kind in ("passed", "failed", "skipped")] == [1, 3, 1]
    assert results["error"] == "3 tests failed, 1 passed"
    failures = results["failures"]
    assert "assert 1 == 2" in failures["test_a.py::test_two"]
    assert "fixture 'no_such_fixture' not found" in failures["test_a.py::test_three"]
    assert "No module named 'no_such_package'" in failures["test_b.py"]
    assert results["skips"] == {"test_a.py::test_four": "Skipped: CUDA only"}
    assert results["properties"] == {"test_a.py::test_one": {"near_ties": 2}}


def test_no_test_at_all_is_an_error():
    assert gpu_checks.Outcomes().results()["error"] == "0 tests failed, 0 passed"


def test_all_tests_for_gpus_are_run(monkeypatch):
    runs = []
    monkeypatch.setattr(pytest, "main", lambda words, plugins: runs.append(words))
    gpu_checks.run_tests()
    (words,) = runs
    assert words[0] == str(ROOT / "tests" / "gpu")
    assert "-m" in words


# ------------------------------------------------------------------------------- parts


def test_a_part_that_fails_is_recorded(capfd):
    results = measure(Part("math.sqrt", 1, {"x": 4}), 60)
    assert results["error"].startswith("math.sqrt: has failed (TypeError: math.sqrt() takes no")
    assert "Traceback" in capfd.readouterr().err
    results = measure(Part("os._exit", 1, {"status": 3}), 60)
    assert results["error"] == "os._exit: has failed (exit code 3); see its output above"
    results = measure(Part("builtins.dict", 1, {"passed": 5}), 60)
    assert results["passed"] == 5
    assert 0 < results["part_seconds"] < 60


def test_a_part_that_does_not_fit_is_left_out():
    results = measure(Part("builtins.dict", 11), 10)
    assert results == {"left_out": "takes about 11 s, and 10 s are left"}
    assert headline(results) == "left out: takes about 11 s, and 10 s are left"


def test_a_part_without_its_package_is_left_out():
    results = measure(Part("builtins.dict", 1, package="no_such_package"), 10)
    assert results == {"left_out": "no_such_package is not installed"}


@pytest.mark.parametrize(("left", "expected", "limit"), [(60, 0.1, 0.4), (0.3, 0.2, 0.3)])
def test_a_part_that_takes_too_long_is_ended(left, expected, limit, tmp_path, monkeypatch):
    (tmp_path / "slow.py").write_text("import time\n\ndef sleep():\n    time.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    results = measure(Part("slow.sleep", expected), left)
    assert results == {"error": f"slow.sleep: not done after {limit} s"}


SPEEDS = {"big": 900.0, "big-marian": 600.0, "big-eager": 800.0, "base-marian": 400.0}


def test_ratios_are_of_what_was_run():
    results = {
        name: {"target_tokens_per_second": speed, "padding_share": 0.1}
        for name, speed in SPEEDS.items()
    }
    results |= {"demo": {"target_tokens_per_second": 1.0}, "big-checkpointed": {"error": "no"}}
    assert speed_ratios(results) == {"big / big-marian": 1.5, "big / big-eager": 1.125}


def test_trainings_that_begin_unlike_ours_are_named():
    losses = {"big": 10.6, "big-eager": 10.7, "big-marian": 10.9, "base-eager": 1.0, "demo": None}
    results = {name: {"initial_loss": loss} for name, loss in losses.items() if loss} | {"x": None}
    assert unlike_losses(results) == ["big-marian begins with loss 10.9000, big with 10.6000"]


def test_headline_names_the_main_results():
    results = {
        "target_tokens_per_second": 412345.6,
        "mfu": 0.4711,
        "share_of_gemm": 0.6,
        "padding_share": 0.061,
        "loader_share": 0.02,
        "peak_memory_mib": 30123.4,
    }
    assert headline(results) == (
        "412,346 target tokens/s, MFU 47.1%, 60.0% of the GEMM peak, 6.1% padding, "
        "loader 2.0% of the time, peak 30,123 MiB"
    )


def test_every_part_calls_a_function_with_arguments_it_has():
    for part in PARTS.values():
        module, _, function = part.call.rpartition(".")
        annotations = getattr(importlib.import_module(module), function).__annotations__
        assert part.arguments.keys() <= annotations.keys()
        assert part.arguments.get("network", "big") in gpu_throughput.NETWORKS
        assert part.arguments.get("baseline", "ours") in gpu_throughput.BASELINES
    assert sum(part.seconds for part in PARTS.values()) <= 600


@pytest.fixture
def machine(monkeypatch):
    """Let the machine have a GPU."""
    run_in_process = harness.run_in_process

    def run(call: str, **arguments: object) -> object:
        if call == "gpu_checks.machine":
            return {"gpu": "NVIDIA X", "torch": "2.99"}
        return run_in_process(call, **arguments)

    monkeypatch.setattr(gpu, "run_in_process", run)


@pytest.mark.parametrize(("call", "code"), [("builtins.dict", 0), ("math.sqrt", 1)])
def test_exit_code_says_whether_a_part_failed(call, code, machine, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(gpu, "PARTS", {"one": Part(call, 1, {"idle_share": 0.25})})
    file = tmp_path / "new" / "gpu.json"
    assert gpu.main(["--output", str(file)]) == code
    content = json.loads(file.read_text())
    assert content["machine"]["gpu"] == "NVIDIA X"
    assert ("error" in content["parts"]["one"]) == bool(code)
    printed = capfd.readouterr().err
    assert printed.startswith("NVIDIA X, torch 2.99\n[   0 s] one begins\n")
    assert printed.endswith(f"0.0 minutes; all results: {file}\n")


def test_only_some_parts_run(machine, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(gpu, "PARTS", dict.fromkeys(("one", "two", "three"), Part("os.getpid", 9)))
    monkeypatch.setattr(gpu, "measure", lambda part, left: {})
    file = tmp_path / "gpu.json"
    assert gpu.main(["--only", "three,one", "--output", str(file)]) == 0
    assert list(json.loads(file.read_text())["parts"]) == ["one", "three"]
    assert gpu.main(["--only", "four,one", "--output", str(file)]) == 2
    assert capfd.readouterr().err.endswith(
        "--only: no such part (four); choose from: one, two, three\n"
    )


def test_a_machine_without_torch_is_told_so(monkeypatch, capsys):
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    assert gpu.main([]) == 2
    assert capsys.readouterr().err == (
        f"scripts/gpu: torch is not installed ({sys.executable}); install it\n"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_is_told_so_in_one_line():
    done = subprocess.run([ROOT / "scripts" / "gpu"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"scripts/gpu: no CUDA device (torch {torch.__version__}); "
        "run it on a machine with a GPU and a torch that sees it\n"
    )
