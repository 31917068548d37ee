"""What a training reports, and what TensorBoard and Weights & Biases get of it."""

import builtins
import json
import math
import signal
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from stepping import on_step
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toy import write_toy

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.errors import Interrupted, UsageError
from tformer_cli.evaluation.evaluate import Likelihood
from tformer_cli.evaluation.metrics import Score
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.training.logging import TrainingLogger
from tformer_cli.training.sinks import TensorBoard, WeightsAndBiases
from tformer_cli.training.trainer import train
from tformer_cli.training.validation import Validation

REPORT = json.dumps({"kind": "train", "step": 3, "loss": 1.0})


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "[1]",
        "3",
        "null",
        '{"kind": "rollback", "step": 1}',
        '{"kind": "train", "step": "a"}',
        '{"kind": ["train"], "step": 1}',
        '{"step": 1}',
        "[" * 100_000,
        REPORT[:-3],
    ],
)
def test_lines_that_are_no_reports_are_left_out(tmp_path, line):
    run = RunDirectory(tmp_path)
    run.metrics_file.write_text(f"{line}\n{REPORT}\n", encoding="utf-8")
    before = TrainingProgress()
    TrainingLogger(run, TrainingConfig()).truncate(before)
    assert run.metrics_file.read_text(encoding="utf-8") == ""
    run.metrics_file.write_text(f"{REPORT}\n{line}\n{REPORT}\n", encoding="utf-8")
    TrainingLogger(run, TrainingConfig()).truncate(replace(before, step=3))
    assert run.metrics_file.read_text(encoding="utf-8") == f"{REPORT}\n" * 2


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_null(tmp_path, loss):
    run = RunDirectory(tmp_path)
    likelihood = Likelihood(loss, 0.0, 10)
    scores = (Score("BLEU", 2.0, "", 12),)
    directions = {
        "a-b": Validation(likelihood, scores),
        "b-a": Validation(Likelihood(1.0, 0.5, 10), scores),
    }
    validation = Validation(likelihood, scores, directions=directions)
    TrainingLogger(run, TrainingConfig()).log_validation(3, validation, [], best=False)

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    report = json.loads(run.metrics_file.read_text(encoding="utf-8"), parse_constant=refuse)
    assert report["loss"] is None
    assert report["directions"] == {
        "a-b": {"loss": None, "bleu": 2.0},
        "b-a": {"loss": 1.0, "bleu": 2.0},
    }


def test_what_a_text_holds_moves_no_cursor(tmp_path, capsys):
    run = RunDirectory(tmp_path)
    TrainingLogger(run, TrainingConfig()).log(
        "source \x1b[31mred\r\ntranslation \x9b2J \u202e ok é"
    )
    shown = "source \\x1b[31mred\\r\ntranslation \\x9b2J \\u202e ok é\n"
    assert capsys.readouterr().err.endswith(shown)
    assert run.log_file.read_text(encoding="utf-8").endswith(shown)


def test_samples_keep_the_text_as_it_is(tmp_path, capsys):
    run = RunDirectory(tmp_path)
    validation = Validation(Likelihood(1.0, 0.5, 10))
    texts = ("\x1b[31mred", "b", "c")
    TrainingLogger(run, TrainingConfig()).log_validation(3, validation, [texts], best=True)
    (sample,) = run.samples.iterdir()
    assert "\x1b[31mred" in sample.read_text(encoding="utf-8")
    assert "\x1b" not in capsys.readouterr().err


def train_with_a_break(config, run, monkeypatch):
    """Train until SIGTERM, then to the end; return the lines of metrics.jsonl."""
    with monkeypatch.context() as patch:
        on_step(patch, 16, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted):
            train(config, run, device=torch.device("cpu"))
    train(config, run, device=torch.device("cpu"))
    return [json.loads(line) for line in run.metrics_file.read_text().splitlines()]


def test_its_curves_are_those_of_the_metrics_also_after_a_break(tmp_path, monkeypatch):
    settings = ["training.tensorboard=true", "training.log_parameter_norms=true"]
    config = load_config(write_toy(tmp_path / "data"), settings)
    run = RunDirectory(tmp_path / "run")
    lines = train_with_a_break(config, run, monkeypatch)
    board = EventAccumulator(str(run.tensorboard))
    board.Reload()
    for kind, name in (("train", "loss"), ("train", "learning_rate"), ("valid", "bleu")):
        shown = [(point.step, point.value) for point in board.Scalars(f"{kind}/{name}")]
        wanted = [(line["step"], line[name]) for line in lines if line["kind"] == kind]
        assert [step for step, _ in shown] == [step for step, _ in wanted]
        assert [x for _, x in shown] == pytest.approx([x for _, x in wanted], rel=1e-6)
    parts = [line["parts"]["encoder.norm"] for line in lines if "parts" in line]
    shown = [point.value for point in board.Scalars("update_ratio/encoder.norm")]
    assert shown == pytest.approx([part["update_ratio"] for part in parts], rel=1e-6)
    assert len(shown) == 4


def test_a_ratio_that_a_part_does_not_have_is_no_point(tmp_path):
    run = RunDirectory(tmp_path)
    sink = TensorBoard(run)
    report = {"grad_norm": 0.5, "update_ratio": None}
    sink.add({"kind": "train", "step": 1, "parts": {"output": report}})
    sink.close()
    shown = EventAccumulator(str(run.tensorboard))
    shown.Reload()
    assert shown.Tags()["scalars"] == ["grad_norm/output"]


def test_without_it_there_is_a_word_about_it(tmp_path, monkeypatch):
    imported = builtins.__import__

    def without(name: str, *arguments: object):
        if name.startswith("torch.utils.tensorboard"):
            raise ImportError(name)
        return imported(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError) as caught:
        TensorBoard(RunDirectory(tmp_path))
    assert str(caught.value) == (
        "training.tensorboard: needs TensorBoard, which is not installed; "
        "pip install 'tformer[tensorboard]', or set it to false"
    )


class FakeWandb(SimpleNamespace):
    """Keeps what runs get; as the package does, a run drops a step that is behind its last one."""

    class Error(Exception):
        pass

    def __init__(self):
        super().__init__(__version__="0.18.0", Settings=dict, runs=[])

    def init(self, **options):
        run = SimpleNamespace(options=options, points=[], is_finished=False)

        def log(points, step):
            assert not run.points or step >= run.points[-1][0]
            run.points.append((step, points))

        run.log, run.finish = log, lambda: setattr(run, "is_finished", True)
        self.runs.append(run)
        return run


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_weights_and_biases_get_the_curves_also_after_a_break(wandb, tmp_path, monkeypatch):
    config = load_config(write_toy(tmp_path / "data"), ["training.wandb=true"])
    run = RunDirectory(tmp_path / "run")
    lines = train_with_a_break(config, run, monkeypatch)
    first, second = wandb.runs
    assert first.points == second.points[: len(first.points)]
    assert [step for step, _ in second.points] == [line["step"] for line in lines]
    for (_, points), line in zip(second.points, lines, strict=True):
        assert points[f"{line['kind']}/loss"] == line["loss"]
        assert all(isinstance(value, float) for value in points.values())
    for started in wandb.runs:
        assert started.is_finished
        assert started.options["group"] == "run"
        assert started.options["dir"] == str(run.path)
        assert started.options["config"]["training"]["max_steps"] == 24
        assert started.options["settings"] == {"console": "off"}


def test_what_weights_and_biases_refuse_is_one_line(wandb, tmp_path, monkeypatch):
    def init(**options):
        raise FakeWandb.Error("no API key")

    monkeypatch.setattr(wandb, "init", init)
    run = RunDirectory(tmp_path)
    run.config_file.write_text("seed: 1\n")
    with pytest.raises(UsageError) as caught:
        WeightsAndBiases(run)
    assert str(caught.value) == (
        "training.wandb: cannot be used by Weights & Biases (no API key); "
        "call `wandb login`, or set the variable WANDB_MODE to offline"
    )


def test_without_the_package_nothing_is_trained(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = load_config(write_toy(tmp_path / "data"), ["training.wandb=true"])
    with pytest.raises(UsageError) as caught:
        train(config, RunDirectory(tmp_path / "run"), device=torch.device("cpu"))
    assert str(caught.value) == "wandb: is not installed; pip install 'tformer[wandb]'"
    assert not (tmp_path / "run").exists()
