"""What TensorBoard itself reads from a run."""

import builtins
import json
import signal

import pytest
import torch
from stepping import on_step
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toy import write_toy

from tformer_cli.config.load import load_config
from tformer_cli.errors import Interrupted, UsageError
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.training.tensorboard import TensorBoard
from tformer_cli.training.trainer import train


def test_its_curves_are_those_of_the_metrics_also_after_a_break(tmp_path, monkeypatch):
    settings = ["training.tensorboard=true", "training.log_parameter_norms=true"]
    config = load_config(write_toy(tmp_path / "data"), settings)
    run = RunDirectory(tmp_path / "run")

    with monkeypatch.context() as patch:
        on_step(patch, 16, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted):
            train(config, run, device=torch.device("cpu"))
    train(config, run, device=torch.device("cpu"))

    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
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
    board = TensorBoard(run)
    report = {"grad_norm": 0.5, "update_ratio": None}
    board.show({"kind": "train", "step": 1, "parts": {"output": report}})
    board.close()
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
