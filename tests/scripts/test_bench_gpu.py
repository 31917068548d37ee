"""The measurements for GPUs, on the CPU and in small; results by hand."""

import importlib
import json
import os
import subprocess
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import flops
import gpu
import gpu_checks
import gpu_decode
import gpu_throughput
import harness
import numpy as np
import pytest
import torch
from flops import training_flops
from gpu import PARTS, Part, headline, measure, speed_ratios, unlike_losses
from gpu_throughput import Training, data_sheet_flops, summary, synthetic_config
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from toy import write_toy
from train_baselines import DESIGN, Step, network

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.corpus.batch import Batch, Example, collate
from tformer_cli.model.build import build_model

ROOT = Path(__file__).parents[2]
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
    monkeypatch.setitem(gpu_throughput.NETWORKS, "tiny", network(12, 2, 3, 14))


# ----------------------------------------------------------------------------- results


@pytest.mark.parametrize("causal_share", [0.5, 1.0])
@pytest.mark.parametrize("layers", [(1, 2), (3, 1)])
def test_operations_are_those_that_torch_counts_without_what_causality_hides(
    layers, causal_share, tmp_path
):
    settings = [
        f"model.num_{x}_layers={n}" for x, n in zip(("encoder", "decoder"), layers, strict=True)
    ]
    config = load_config(write_toy(tmp_path), [*DESIGN, *settings, "model.dropout=0.0"])
    model, vocab_size, (s, t) = config.model, 31, (5, 7)
    network = build_model(model, source_size=vocab_size, target_size=vocab_size, seed=1)
    source, target = torch.randint(4, vocab_size, (1, s)), torch.randint(4, vocab_size, (1, t))
    real = torch.ones(1, s, dtype=torch.bool)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        network(source, real, target, torch.arange(t)).sum().backward()
    # Of each causal attention a share of the table: two products forward, four backward, 2 D each.
    hidden = (1 - causal_share) * model.num_decoder_layers * 6 * 2 * model.dim * t * t
    lengths = np.array([s]), np.array([t])
    flops = training_flops(model, vocab_size, *lengths, causal_share=causal_share)
    assert flops == pytest.approx(counter.get_total_flops() - hidden)


def test_operations_of_pairs_add_up():
    model = synthetic_config("tiny").model
    lengths = np.array([5, 9], dtype=np.uint16), np.array([7, 300], dtype=np.uint16)
    apart = [training_flops(model, 31, *(side[i : i + 1] for side in lengths)) for i in (0, 1)]
    assert training_flops(model, 31, *lengths) == pytest.approx(sum(apart))


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
    assert data_sheet_flops(name, torch.bfloat16) == expected
    assert data_sheet_flops(name, torch.float32) is None


def batch(*lengths: tuple[int, int]) -> Batch:
    """A batch of pairs of so many tokens, without EOS."""
    return collate(
        [
            Example(index, [20] * source, [20] * target)
            for index, (source, target) in enumerate(lengths)
        ]
    )


def test_summary_takes_speeds_and_shares_of_sums():
    steps = [
        # Each side has an EOS.
        Step([batch((4, 1), (2, 1))], 3.0, seconds=1.0, loading_seconds=0.25),
        Step([batch((4, 1)), batch((4, 2))], 2.0, seconds=2.0, loading_seconds=0.25),
        Step([batch((9, 9))], 1.5, seconds=0.5, loading_seconds=0.25),
    ]
    tokens, positions = (8 + 4) + (10 + 5) + (10 + 10), (2 * 5 + 2 * 2) + (10 + 5) + (10 + 10)
    results = summary(steps, flops=17e12, gemm=8e12, data_sheet=16e12)
    assert results == {
        "steps": 3,
        "target_tokens_per_second": pytest.approx((4 + 5 + 10) / 3.5),
        "target_tokens_per_step": 5,
        "step_seconds": 1.0,
        "slowest_step_seconds": 2.0,
        "model_tflops": pytest.approx(17 / 3.5),
        "mfu": pytest.approx(17 / 3.5 / 16),
        "mfu_of": "data sheet",
        "share_of_gemm": pytest.approx(17 / 3.5 / 8),
        "peak_tflops": 16.0,
        "gemm_tflops": 8.0,
        "padding_share": pytest.approx(1 - tokens / positions),
        "loader_share": pytest.approx(0.75 / 3.5),
        "last_loss": 1.5,
    }
    # A device without a data sheet is held to its own products.
    results = summary(steps, flops=17e12, gemm=8e12, data_sheet=None)
    assert results["mfu"] == results["share_of_gemm"]
    assert results["mfu_of"] == "measured GEMM, no data sheet known"


def test_gemm_rate_is_of_two_operations_a_cell_and_term(monkeypatch):
    times = iter(range(100))
    monkeypatch.setattr(flops.time, "perf_counter", lambda: float(next(times)))
    # Each round of products takes a second by this clock.
    rate = flops.gemm_flops(torch.device("cpu"), torch.float32, (4, 8, 16), products=10)
    assert rate == 2 * 4 * 8 * 16 * 10


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
    training, ours = (Training.begin("tiny", x, **arguments) for x in (baseline, "ours"))
    for step, reference in zip(islice(training.steps, 4), ours.steps, strict=False):
        (mine,), (expected,) = step.batches, reference.batches
        assert torch.equal(mine.source, expected.source)
        assert torch.equal(mine.target_out, expected.target_out)
        assert 0 < step.loading_seconds < step.seconds
        # Marian draws other dropout masks.
        is_exact = baseline not in ("marian", "marian-compiled")
        assert step.loss == pytest.approx(reference.loss, rel=1e-6 if is_exact else 0.1)
    # `ours` is one more that is compiled.
    assert compiled == [True] * (1 + (baseline not in ("eager", "marian")))
    for each in (training, ours):
        each.batches.close()


def test_throughput_has_all_results():
    results = gpu_throughput.throughput("tiny", seconds=0.0, gemm_size=16, **SMALL)
    assert json.loads(json.dumps(results)) == results
    assert results["steps"] == 1
    assert results["precision"] == "float32"
    speed = results["target_tokens_per_step"] / results["step_seconds"]
    assert results["target_tokens_per_second"] == pytest.approx(speed)
    assert results["initial_loss"] == pytest.approx(results["last_loss"], rel=0.1)
    assert results["graphs_compiled_while_measured"] == 0
    assert results["mfu"] == pytest.approx(results["model_tflops"] / results["gemm_tflops"])
    assert 0 < results["padding_share"] < 0.5
    assert 0 < results["loader_share"] < 1
    assert results["peak_memory_mib"] > 10


# -------------------------------------------------------------------------------- idle


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


# -------------------------------------------------------------------- ceilings, decoding


def test_ceilings_are_of_operations_and_bytes(monkeypatch):
    # Each call takes a second by this clock.
    monkeypatch.setattr(gpu_checks, "timed", lambda call, device, repeats: call() is None or 1.0)
    monkeypatch.setattr(flops, "timed", lambda call, device, repeats: call() is None or 1.0)
    shapes = [(8, 8, 8), (6, 4, 10)]
    results = gpu_checks.ceilings(device="cpu", shapes=shapes, num_copied=96)
    rates = {"8 x 8 x 8": 2 * 8**3 / 1e12, "6 x 4 x 10": 2 * 6 * 4 * 10 / 1e12}
    assert results == {
        "gemm_tflops": 2 * 8**3 / 1e12,
        "gemm_tflops_by_shape": rates,
        "copy_tb_per_second": 2 * 4 * 96 / 1e12,
        "launch_microseconds": 1e6,
    }


def test_float8_products_are_timed_where_there_are_any(monkeypatch):
    monkeypatch.setattr(gpu_checks, "timed", lambda call, device, repeats: call() is None or 1.0)
    sizes = {"device": "cpu", "shapes": [(16, 16, 16), (32, 16, 48)]}
    results = gpu_checks.fp8(**sizes)
    if "left_out" not in results:
        assert results["gemm_tflops_by_shape"]["32 x 16 x 48"] == 2 * 32 * 16 * 48 / 1e12
        assert results["gemm_tflops"] == 2 * 32 * 16 * 48 / 1e12

    def absent(*_: object, **__: object) -> None:
        raise RuntimeError("only with capability 8.9\nor above")

    monkeypatch.setattr(torch, "_scaled_mm", absent)
    expected = "no float8 products: only with capability 8.9"
    assert gpu_checks.fp8(**sizes) == {"left_out": expected}


WORKLOAD = {
    "device": "cpu",
    "precisions": ("float32",),
    "network": "tiny",
    "vocab_size": 61,
    "num_sentences": 16,
    "length": 5,
}


@pytest.mark.parametrize("name", gpu_decode.BASELINES)
def test_all_decode_the_same_sentences_into_the_same_tokens(name, monkeypatch):
    packages = {"marian": "transformers", "ctranslate2": "ctranslate2"}
    pytest.importorskip(packages.get(name, "torch"))
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
    monkeypatch.setattr(gpu_decode, "BATCH", 8)
    gpu_decode.decode("ours", **WORKLOAD)
    results = gpu_decode.decode(name, **WORKLOAD)
    assert json.loads(json.dumps(results)) == results
    assert results["speeds"].keys() == {"greedy, float32", "beam 5, float32"}
    assert results["sentences_per_second"] == results["speeds"]["greedy, float32"] > 0
    # Each search twice, some sentences and all: greedy first.
    ours, theirs = translations[:4], translations[4:]
    assert [len(rows) for rows in theirs] == [2, 16, 2, 16]
    assert theirs[:2] == ours[:2]


def test_ctranslate2_without_libraries_of_cuda_is_left_out(monkeypatch):
    pytest.importorskip("ctranslate2")

    def speeds(*_: object) -> None:
        raise RuntimeError("Library libcublas.so.12 is not found or cannot be loaded")

    monkeypatch.setattr(gpu_decode.Workload, "speeds", speeds)
    results = gpu_decode.decode("ctranslate2", **WORKLOAD)
    assert results == {
        "left_out": "ctranslate2: Library libcublas.so.12 is not found or cannot be loaded"
    }


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


# --------------------------------------------------------------------- demo and tests


def test_demo_trains_translates_and_scores(tmp_path):
    results = gpu_checks.demo(
        str(write_toy(tmp_path)),
        device="cpu",
        settings=["training.max_steps=6", "training.validate_every=6"],
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


def test_outcomes_are_those_of_the_tests(tmp_path, monkeypatch):
    (tmp_path / "test_a.py").write_text(TESTS)
    (tmp_path / "test_b.py").write_text("import no_such_package")
    monkeypatch.setattr(
        gpu_checks,
        "PYTEST_OPTIONS",
        ("--quiet", "-pno:cacheprovider", "--continue-on-collection-errors"),
    )
    results = gpu_checks.run_tests("--rootdir", str(tmp_path), str(tmp_path))
    assert json.loads(json.dumps(results)) == results
    assert [results[kind] for kind in ("passed", "failed", "skipped")] == [1, 3, 1]
    assert results["error"] == "3 tests failed, 1 passed"
    notes = results["notes"]
    assert "assert 1 == 2" in notes["failed"]["test_a.py::test_two"]
    assert "fixture 'no_such_fixture' not found" in notes["error"]["test_a.py::test_three"]
    assert "No module named 'no_such_package'" in notes["error"]["test_b.py"]
    assert "CUDA only" in notes["skipped"]["test_a.py::test_four"]
    assert notes["passed"] == {"test_a.py::test_one": "[('near_ties', 2)]"}


def test_all_tests_for_gpus_are_run_and_none_at_all_is_an_error(monkeypatch):
    runs = []
    monkeypatch.setattr(pytest, "main", lambda words, plugins: runs.append(words))
    assert gpu_checks.run_tests()["error"] == "0 tests failed, 0 passed"
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
    assert results == {"passed": 5}


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


def test_headline_has_the_numbers_of_a_part():
    results = {"target_tokens_per_second": 412345.6, "mfu": 0.4711, "mfu_of": "data sheet"}
    assert headline(results) == "target_tokens_per_second 4.123e+05, mfu 0.4711"


def test_every_part_calls_a_function_with_arguments_it_has():
    for part in PARTS.values():
        module, _, function = part.call.rpartition(".")
        annotations = getattr(importlib.import_module(module), function).__annotations__
        assert part.arguments.keys() <= annotations.keys()
        assert part.arguments.get("network", "big") in gpu_throughput.NETWORKS
        baselines = gpu_throughput.BASELINES.keys() | gpu_decode.BASELINES.keys()
        assert part.arguments.get("baseline", "ours") in baselines
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
    assert gpu.main(["--only", "three", "--only", "one", "--output", str(file)]) == 0
    assert list(json.loads(file.read_text())["parts"]) == ["one", "three"]
    with pytest.raises(SystemExit) as raised:
        gpu.main(["--only", "four", "--output", str(file)])
    assert raised.value.code == 2
    assert "invalid choice: 'four'" in capfd.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_is_told_so_in_one_line():
    done = subprocess.run([ROOT / "scripts" / "gpu"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"scripts/gpu: no CUDA device (torch {torch.__version__}); "
        "run it on a machine with a GPU and a torch that sees it\n"
    )
