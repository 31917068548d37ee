"""The search for the largest batch, against memory that is known."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy import CONFIG, write_toy

from tformer_cli.config.load import load_config
from tformer_cli.errors import DeviceError, OutOfMemory, TrainingError, UsageError
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.training import find_batch_size as module
from tformer_cli.training.dry_run import first_steps, sampled_trainer
from tformer_cli.training.find_batch_size import (
    LargestBatch,
    find_batch_size,
    free_memory,
    largest,
    trial,
)
from tformer_cli.training.trainer import Trainer

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
GIB = 2**30
# Pairs of sentences of up to 12 tokens; about 2,000 tokens in all.
SHORT = CONFIG.replace("  test:", "  filters: {max_length: 11}\n  test:")


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "data", config=SHORT)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What was tried, where each token takes a MiB and 100 MiB are always taken."""
    budgets: list[int] = []

    def try_apart(run: RunDirectory, batch_tokens: int, limit: int) -> int | None:
        budgets.append(batch_tokens)
        peak = (100 + batch_tokens) << 20
        # The system notices when there is far too little.
        return None if peak > 2 * limit else peak

    monkeypatch.setattr(module, "_try_in_child", try_apart)
    return budgets


def found(
    toy: Path, memory_limit: float | None, device: torch.device = CPU, *overrides: str
) -> LargestBatch:
    run = RunDirectory(toy.parent / "run")
    return find_batch_size(
        load_config(toy, overrides), run, device=device, memory_limit=memory_limit
    )


@given(st.integers(1, 300), st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_largest_number_is_found_with_few_questions(smallest, room, more):
    most, true = smallest + more, smallest - 1 + room
    asked: list[int] = []

    def fits(number: int) -> bool:
        asked.append(number)
        return number <= true

    answer = largest(fits, smallest, most)
    assert all(smallest <= number <= most for number in asked)
    assert len(asked) == len(set(asked)) <= 30
    if true < smallest:
        assert answer is None
    else:
        assert answer in asked
        best = min(true, most)
        assert best - max(1, answer / 32) <= answer <= best


def test_the_largest_batch_fits_the_limit_and_little_is_left(toy, tried):
    answer = found(toy, 0.75)
    assert tried[:6] == [12, 24, 48, 96, 192, 384]
    assert 668 - 668 / 32 <= answer.batch_tokens <= 668
    assert answer.batch_tokens in tried
    assert answer.peak_memory_bytes == (100 + answer.batch_tokens) << 20
    assert (answer.memory_limit_bytes, answer.is_whole_text) == (768 << 20, False)


def test_no_batch_larger_than_the_text_is_tried(toy, tried):
    answer = found(toy, 64)
    config = load_config(toy)
    lines = config.data.train[0].source.read_text().splitlines()
    assert answer.batch_tokens == max(tried) == sum(len(line) + 1 for line in lines)
    assert answer.is_whole_text


@pytest.mark.parametrize(
    ("setting", "times"), [("data.train.0.weight=3", 3), ("training.bidirectional_steps=4", 2)]
)
def test_a_text_that_an_epoch_has_several_times_fills_as_large_a_batch(toy, tried, setting, times):
    answer = found(toy, 64, CPU, setting)
    lines = load_config(toy).data.train[0].source.read_text().splitlines()
    assert answer.batch_tokens == max(tried) == times * sum(len(line) + 1 for line in lines)
    assert answer.is_whole_text


def test_without_a_limit_a_share_of_the_free_memory_is_taken(toy, tried, monkeypatch):
    monkeypatch.setattr(module, "free_memory", lambda: 500 << 20)
    assert found(toy, None).memory_limit_bytes == 400 << 20


def test_a_system_that_does_not_know_its_memory_wants_a_limit(toy, tried, monkeypatch):
    monkeypatch.setattr(module, "free_memory", lambda: None)
    assert found(toy, 0.5).memory_limit_bytes == GIB / 2
    with pytest.raises(UsageError) as caught:
        found(toy, None)
    assert str(caught.value) == (
        "`memory_limit`: is needed here, as this system does not say how much memory is free; "
        "add `memory_limit=8`, for instance"
    )


def test_where_nothing_fits_the_remedies_are_named(toy, tried):
    with pytest.raises(TrainingError) as caught:
        found(toy, 0.1)
    assert tried == [12]
    assert str(caught.value) == (
        "training.batch_tokens: not even the smallest batch fits into 0.10 GiB (12 tokens); "
        "lower data.filters.max_length, train a smaller model, or set "
        "training.gradient_checkpointing: true"
    )


def test_a_device_whose_memory_cannot_be_measured_is_refused(toy):
    with pytest.raises(DeviceError) as caught:
        found(toy, 8, torch.device("mps"))
    assert str(caught.value) == (
        "`device`: cannot measure the memory of this device (mps); use cpu or cuda"
    )


def test_a_limit_beyond_the_gpu_is_refused(toy, monkeypatch):
    monkeypatch.setattr(module, "_cuda_memory", lambda device: 80 * GIB)
    with pytest.raises(UsageError) as caught:
        found(toy, 80.5, CUDA)
    assert str(caught.value) == (
        "`memory_limit`: must be at most the 80.00 GiB of the device (80.5)"
    )


def test_a_trial_returns_the_peak_or_that_memory_ran_out(toy, tmp_path, monkeypatch):
    def steps(limit: int) -> Callable[..., None]:
        def take(trainer: object, batch_tokens: int, count: int) -> None:
            if batch_tokens > limit:
                raise OutOfMemory("training.batch_tokens", "the largest batch does not fit")

        return take

    with sampled_trainer(load_config(toy), RunDirectory(tmp_path / "run"), device=CPU) as (
        trainer,
        _,
    ):
        monkeypatch.setattr(module, "worst_case_steps", steps(100))
        monkeypatch.setattr(module, "peak_memory", lambda device: 77)
        assert trial(trainer, 100) == 77
        assert trial(trainer, 101) is None


def test_a_gpu_is_tried_within_its_limit_and_freed_of_it(monkeypatch):
    gpu, limits = torch.device("cuda", 1), []
    weights = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=gpu)]))
    trainer = SimpleNamespace(state=SimpleNamespace(model=weights))
    monkeypatch.setattr(module, "_cuda_memory", lambda device: 80 * GIB)
    monkeypatch.setattr(module, "trial", lambda trainer, batch_tokens: batch_tokens + 7)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda *limit: limits.append(limit)
    )
    with module._trials(trainer, 20 * GIB) as try_batch:
        assert limits == [(0.25, gpu)]
        assert try_batch(100) == 107
    assert limits == [(0.25, gpu), (1.0, gpu)]


def test_the_answer_is_told_in_a_line_and_as_plain_data():
    answer = LargestBatch(
        batch_tokens=23_130,
        peak_memory_bytes=15 * GIB // 2,
        memory_limit_bytes=8 * GIB,
        is_whole_text=True,
    )
    assert str(answer) == (
        "largest batch: 23,130 tokens; it takes 7.50 GiB of 8.00 GiB, and holds the whole text"
    )
    assert answer.as_json() == {
        "batch_tokens": 23_130,
        "peak_memory_bytes": 15 * GIB // 2,
        "memory_limit_bytes": 8 * GIB,
        "is_whole_text": True,
        "set": "training.batch_tokens=23130",
    }


@pytest.fixture
def heeded_interrupts() -> Iterator[None]:
    """Let processes heed Ctrl-C, which a shell has those ignore that it begins with `&`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("heeded_interrupts")
@pytest.mark.parametrize(
    ("send", "number"), [(os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM)]
)
def test_a_trial_ends_with_the_search_and_leaves_speaking_to_it(toy, send, number):
    command = [sys.executable, "-m", "tformer_cli", "train", str(toy), "--find-batch"]
    options = ["--memory-limit", "64", "--run", str(toy.parent / "run")]
    with subprocess.Popen(
        [*command, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            while "tokens take" not in process.stderr.readline():
                assert process.poll() is None
            time.sleep(0.5)  # the next trial has begun by then
            send(process.pid, number)
            # The trial holds the same pipe, which ends when both have.
            _, rest = process.communicate(timeout=60)
        finally:
            # A group whose processes have all ended is no more.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 128 + number
    assert "Traceback" not in rest


def test_a_loss_that_is_no_number_is_no_lack_of_memory(toy):
    with pytest.raises(TrainingError) as caught:
        found(
            toy,
            64,
            CPU,
            "training.optimizer.learning_rate=1e38",
            "training.schedule={kind: constant, warmup_steps: 0}",
        )
    assert str(caught.value).startswith("step 2: loss or gradient is no number at the very begin")


@pytest.mark.slow
def test_a_process_tells_its_peak_or_that_its_limit_did_not_suffice(toy, tmp_path):
    toy.write_text(SHORT.replace("feedforward_dim: 64", "feedforward_dim: 8192"))
    with sampled_trainer(load_config(toy), RunDirectory(tmp_path / "run"), device=CPU) as (
        trainer,
        _,
    ):
        small, large = (
            module._try_in_child(trainer.run_directory, batch_tokens, 64 * GIB)
            for batch_tokens in (12, 4800)
        )
        # What the feed-forward blocks of two layers keep for the backward pass, at the least.
        assert large - small > 2 * 4800 * 8192 * 4
        assert module._try_in_child(trainer.run_directory, 4800, (small + large) // 2) is None
        assert module._try_in_child(trainer.run_directory, 12, GIB // 20) is None


MEMINFO = "MemTotal:       24684096 kB\nMemFree:          100000 kB\nMemAvailable:     200000 kB\n"


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("memory_", "memory.")).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({"memory_max": "max\n", "memory_current": "5000\n"}, 200000 * 1024),
        ({"memory_max": "90000\n", "memory_current": "5000\n"}, 85000),
        ({"memory_max": "5000\n", "memory_current": "90000\n"}, 0),
        ({"memory_max": "999999999999\n", "memory_current": "5000\n"}, 200000 * 1024),
        # Cached files are no use that a program would miss.
        (
            {
                "memory_max": "90000\n",
                "memory_current": "80000\n",
                "memory_stat": "anon 9000\ninactive_file 70000\nactive_file 1000\n",
            },
            80000,
        ),
    ],
)
def test_free_memory_is_that_of_the_machine_or_of_the_container(tmp_path, container, expected):
    write(tmp_path, **{"meminfo": MEMINFO, "memory_stat": "anon 9000\n", **container})
    assert free_memory(tmp_path, tmp_path) == expected


def test_free_memory_without_a_container_is_that_of_the_machine(tmp_path):
    write(tmp_path, meminfo=MEMINFO)
    assert free_memory(tmp_path, tmp_path) == 200000 * 1024


def test_a_system_that_says_nothing_is_not_guessed_at(tmp_path):
    assert free_memory(tmp_path, tmp_path) is None
    write(tmp_path, meminfo="MemTotal: 24684096 kB\n")
    assert free_memory(tmp_path, tmp_path) is None


def test_another_process_finds_the_same_training(toy, tmp_path, monkeypatch):
    losses: list[list[float]] = []

    def tried(trainer: Trainer, batch_tokens: int) -> None:
        losses.append([report.loss for report in first_steps(trainer, trainer.data, 2)])

    monkeypatch.setattr(module, "trial", tried)
    monkeypatch.setattr(resource, "setrlimit", lambda *limits: None)
    with sampled_trainer(load_config(toy), RunDirectory(tmp_path / "run"), device=CPU) as (
        trainer,
        _,
    ):
        tried(trainer, 12)
        module._trial_of_run(trainer.run_directory.path, 12, GIB, 1)
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2
