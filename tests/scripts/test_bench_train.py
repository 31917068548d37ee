"""The training benchmark: one network, the same tokens, results by hand."""

import contextlib
import gzip
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import harness
import pytest
import torch
import train_baselines
from flops import CPU
from harness import columns_table, play_rounds, two_digits
from toy import sentence, translation, write_toy
from train import GEMM, app, benchmark_config, cells
from train_baselines import (
    BASELINES,
    DESIGN,
    Step,
    marian_state,
    steps_of,
    take_steps,
    training_workers,
)
from typer.testing import CliRunner

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.corpus.reader import read_texts
from tformer_cli.errors import ConfigError, TrainingError
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers
from tformer_cli.training.logging import TrainingLogger
from tformer_cli.training.step import StepBatch, TrainState
from tformer_cli.training.trainer import Trainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with the file names of Multi30k."""
    folder = tmp_path_factory.mktemp("multi30k")
    chooser = random.Random(1)
    for split, count in (("train", 120), ("val", 12), ("test_2016_flickr", 12)):
        lines = [sentence(chooser) for _ in range(count)]
        for language, text in (("en", lines), ("de", map(translation, lines))):
            with gzip.open(folder / f"{split}.lc.norm.tok.{language}.gz", "wt") as file:
                file.writelines(f"{line}\n" for line in text)
    return folder


@pytest.fixture(scope="module")
def config_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy") / "data", pairs=60)


class Training:
    """The trainer of a toy, and a new state of each baseline."""

    def __init__(self, config_file: Path, folder: Path, *settings: str) -> None:
        self.config: Config = load_config(config_file, [*DESIGN, "model.dropout=0.0", *settings])
        texts = self.config.data.train
        self.tokenizers: Tokenizers = build_tokenizers(
            self.config.tokenizer, lambda: read_texts(texts), self.config.seed
        )
        logger = TrainingLogger(None, self.config.training)
        self.trainer = Trainer.setup(
            self.config, RunDirectory(folder), self.tokenizers, device=CPU, logger=logger
        )

    def state(self, name: str) -> TrainState:
        ours = self.trainer.state
        return ours if name == "ours" else marian_state(ours, self.config, self.tokenizers)

    def batches(self, count: int) -> list[StepBatch]:
        with contextlib.closing(self.trainer.data.batches(self.trainer.state)) as batches:
            return list(itertools.islice(batches, count))


@pytest.mark.slow
def test_json_has_the_results_of_each_size(folder, monkeypatch):
    monkeypatch.setattr(train_baselines, "WARM_UP_STEPS", 1)
    options = (
        "--sizes tiny --seconds 0.1 --rounds 1 --threads 1 --precision float32 --vocab-size 300"
    )
    words = ["--data", str(folder), *options.split(), "--json"]
    printed = CliRunner().invoke(app, words, catch_exceptions=False)
    results = json.loads(printed.stdout)
    assert results.keys() == {"tiny"}
    tiny = results["tiny"]
    assert tiny["speeds"].keys() == {"ours", "hf", GEMM}
    assert all(speed > 0 for (speed,) in tiny["speeds"].values())
    assert tiny["peak_mib"].keys() == {"ours", "hf"}
    assert all(100 < mib < 10_000 for mib in tiny["peak_mib"].values())
    assert printed.stderr.startswith("tiny\nround 1/1: ours ")


def test_both_count_the_characters_of_their_sentences_and_the_ends(config_file, tmp_path):
    training = Training(config_file, tmp_path / "run")
    batches = training.batches(3)
    lines = [target for _, target in read_texts(training.config.data.train)]
    expected = [
        sum(len(lines[index]) + 1 for part in batch.micro_batches for index in part.indices)
        for batch in batches
    ]
    for name in BASELINES:
        steps = steps_of(name, training.state(name), batches)
        assert [step.num_target_tokens for step in steps] == expected


def test_ours_and_marian_learn_the_same(config_file, tmp_path):
    """The same weights, the same updates: equal losses step after step."""
    training = Training(config_file, tmp_path / "run")
    batches = 4 * training.batches(1)
    # Marian first: the weights of ours are where both begin.
    states = {name: training.state(name) for name in ("hf", "ours")}
    theirs, mine = (
        [step.loss for step in steps_of(name, state, batches)] for name, state in states.items()
    )
    assert mine == pytest.approx(theirs, rel=1e-4)
    assert mine[-1] < mine[0]


@pytest.mark.parametrize("name", BASELINES)
def test_lower_precision_changes_the_loss_by_rounding(name, config_file, tmp_path):
    losses = []
    for precision in ("float32", "bfloat16"):
        training = Training(config_file, tmp_path / "run", f"training.precision={precision}")
        step = next(steps_of(name, training.state(name), training.batches(1)))
        losses.append(step.loss)
    loss, rounded_loss = losses
    assert loss == pytest.approx(rounded_loss, rel=0.02)
    assert loss != rounded_loss


def test_a_step_that_does_not_fit_is_no_measurement(config_file, tmp_path, monkeypatch):
    training = Training(config_file, tmp_path / "run")
    state = training.state("ours")
    hidden_states, attempts = state.model.hidden_states, []

    def limited(source: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        attempts.append(len(source))
        if len(attempts) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return hidden_states(source, *rest)

    monkeypatch.setattr(state.model, "hidden_states", limited)
    with pytest.raises(RuntimeError, match=r"no plain step: .*num_oom_micro_batches=2"):
        next(steps_of("ours", state, training.batches(1)))


def test_a_turn_takes_steps_until_its_seconds_have_passed(monkeypatch):
    batches = [SimpleNamespace(micro_batches=[number]) for number in range(3)]
    # By this clock a batch takes a second, its step two, and what comes between steps one.
    clock = itertools.accumulate(itertools.cycle([1.0, 2.0, 1.0]), initial=0.0)
    monkeypatch.setattr(train_baselines.time, "perf_counter", lambda: next(clock))

    def losses(state: TrainState, fed: Iterator[StepBatch]) -> Iterator[float]:
        return (0.5 for _ in fed)

    monkeypatch.setitem(BASELINES, "ours", losses)
    steps = steps_of("ours", None, batches)
    assert take_steps(steps, seconds=4.0) == [
        Step(batch.micro_batches, loss=0.5, seconds=3.0, loading_seconds=1.0)
        for batch in batches[:2]
    ]
    assert next(steps).batches == batches[2].micro_batches


def test_table_reads_as_a_column_a_size():
    size = {
        # The machine is half as fast in the second round.
        "speeds": {
            "ours": [400.0, 200.0, 360.0],
            "hf": [200.0, 100.0, 240.0],
            "ours bfloat16": [450.0, 210.0, 480.0],
            "hf bfloat16": [150.0, 50.0, 120.0],
            GEMM: [0.004, 0.002, 0.004],
        },
        "peak_mib": {"ours": 1024.0, "hf": 1536.0},
        "flops_per_token": 2000.0,
    }
    rows = [
        ("target tokens/s: tformer", "360 (200-400)"),
        ("  at its best", "450 (210-480)"),
        ("  transformers' Marian", "200 (100-240)"),
        ("  Marian at its best", "200 (100-240)"),
        ("tformer / Marian", "2.0 (1.5-2.0)"),
        ("  each at its best", "2.1 (2.0-2.2)"),
        ("share of GEMM peak", "20%"),
        ("peak MiB: tformer", "1,024"),
        ("peak MiB: transformers' Marian", "1,536"),
    ]
    lines = [f"{'':<30}{'tiny':>16}{'small':>16}"]
    lines += [f"{title:<30}{cell:>16}{cell:>16}" for title, cell in rows]
    table = columns_table("", dict.fromkeys(("tiny", "small"), cells(size)))
    assert table.split("\n") == lines


def test_no_turn_begins_before_all_have_started(tmp_path, monkeypatch):
    events = []

    class Recorded:
        def __init__(self, call: str, *, name: str, **arguments: object) -> None:
            self.name = name
            events.append(("started", name))

        def __enter__(self):
            return self

        def __exit__(self, *_: object) -> None:
            events.append(("ended", self.name))

        def ask(self, *, seconds: float) -> None:
            events.append(("took a step", self.name))

    monkeypatch.setattr(train_baselines, "Worker", Recorded)
    entries = {name: (name, RunDirectory(tmp_path)) for name in ("ours", "hf")}
    with training_workers(entries, threads=1) as workers:
        assert list(workers) == ["ours", "hf"]
        steps = [("took a step", "ours"), ("took a step", "hf")]
        assert events == [("started", "ours"), ("started", "hf"), *steps]


def test_baseline_that_fails_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    entries = {"hf bfloat16": ("hf", RunDirectory(tmp_path))}
    with pytest.raises(TrainingError) as raised, training_workers(entries, threads=1):
        pass
    assert str(raised.value) == "hf: has failed (exit code 1); see its output above"


def test_folder_without_the_corpus_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"train\.lc\.norm\.tok\.en\.gz"):
        benchmark_config(tmp_path, 300)


def test_unknown_size_is_named(folder):
    result = CliRunner().invoke(app, ["--data", str(folder), "--sizes", "tiny,large"])
    assert str(result.exception) == "--sizes: no such size (large); choose from: tiny, small"


# ------------------------------------------------------------------------------- the harness


@pytest.mark.parametrize(
    ("number", "text"),
    [(5234.4, "5,200"), (0.8449, "0.84"), (9.96, "10"), (0.0996, "0.10"), (1.04, "1.0"), (0, "0")],
)
def test_numbers_have_two_digits(number, text):
    assert two_digits(number) == text


def test_every_second_round_goes_backwards(capsys):
    order: list[str] = []

    def turn(name: str) -> float:
        order.append(name)
        return len(order)

    speeds = play_rounds("abc", 3, turn, "steps")
    assert order == list("abccbaabc")
    assert speeds == {"a": [1, 6, 7], "b": [2, 5, 8], "c": [3, 4, 9]}
    assert capsys.readouterr().err.splitlines()[1] == "round 2/3: c 4.0, b 5.0, a 6.0 steps"


def test_a_process_returns_its_result_or_says_what_failed(capfd):
    assert harness.run_in_process("builtins.dict", a=[1, "x"]) == {"a": [1, "x"]}
    # What a function prints is no result.
    assert harness.run_in_process("builtins.print", end="progress") is None
    with pytest.raises(TrainingError) as raised:
        harness.run_in_process("math.sqrt", x=4)
    assert str(raised.value).startswith("math.sqrt: has failed (TypeError: math.sqrt() takes")
    printed = capfd.readouterr()
    assert "Traceback" in printed.err
    assert "progress" in printed.err
    assert printed.out == ""


def test_a_process_has_the_environment_and_the_allocator_of_tformer(monkeypatch):
    """A variable of the user changes nothing: all baselines are measured alike."""
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    report = harness.run_in_process("allocation.report")
    assert report.pop("keeps_freed_memory") in (True, None)
    assert report == harness.SETTINGS


def reports(code: str) -> list[dict]:
    """The settings of a process before and after it runs some code."""
    code = f"import json; before = report()\n{code}\nprint(json.dumps([before, report()]))"
    done = subprocess.run(
        [sys.executable, "-c", f"from allocation import report\n{code}"],
        env={name: value for name, value in os.environ.items() if name not in harness.SETTINGS}
        | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_the_allocator_of_the_variables_is_that_of_tune_allocator():
    code = "from tformer_cli.process import tune_allocator; tune_allocator()"
    keep = [report["keeps_freed_memory"] for report in reports(code)]
    assert keep in ([False, True], [None, None])


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["train_baselines", "transformers.models.marian.modeling_marian", "ctranslate2"]
)
def test_no_baseline_gives_itself_settings_when_it_is_imported(module):
    before, after = reports(f"import {module}")
    assert after == before


def test_a_command_that_fails_is_named_with_its_last_message():
    code = "import sys; sys.exit('first\\nit is broken')"
    with pytest.raises(TrainingError, match=r"-c .*: has failed \(it is broken\)"):
        harness.Command(sys.executable, "-c", code)
