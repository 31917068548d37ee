"""Whole runs with a regularizer for small data: they resume to the same bits, and report."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy import write_toy

from tformer_cli.config.load import load_config
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.training.trainer import train

REGULARIZERS = {
    "simcut": "training.consistency={kind: simcut}",
    "r_drop": "training.consistency={kind: r_drop}",
    "layer_drop": "training.layer_drop=0.4",
    "average": "training.average_checkpoints=3",
    "source_noise": "training.source_noise={drop: 0.2, replace: 0.1}",
    "subwords": "tokenizer={kind: subword, vocab_size: 300}; "
    "training.subword_sampling={kind: bpe_dropout, dropout: 0.3}",
    "unigrams": "tokenizer={kind: subword, algorithm: unigram, vocab_size: 300}; "
    "training.subword_sampling={kind: unigram}",
    "moving_average": "training.ema_decay=0.9",
    # Those that go together; the run is resumed within the steps in both directions.
    "many": "training.consistency={kind: r_drop}; training.bidirectional_steps=20; "
    "training.ema_decay=0.9; training.layer_drop=0.2; training.gradient_accumulation_steps=2; "
    "training.source_noise={drop: 0.2, replace: 0.1}; "
    "tokenizer={kind: subword, vocab_size: 300}; training.subword_sampling={kind: bpe_dropout}",
}


def trained(config_file: Path, folder: Path, *settings: str) -> RunDirectory:
    """Train with settings, of which a string may hold several with semicolons between."""
    run = RunDirectory(folder)
    changes = [change for setting in settings for change in setting.split("; ")]
    train(load_config(config_file, changes), run, device=torch.device("cpu"))
    return run


@pytest.mark.parametrize("setting", REGULARIZERS.values(), ids=REGULARIZERS)
def test_a_resumed_run_ends_with_the_bits_of_an_unbroken_one(setting, tmp_path):
    toy = write_toy(tmp_path / "data")
    run = trained(toy, tmp_path / "run", setting)
    shutil.copytree(run.path, tmp_path / "resumed")
    resumed = RunDirectory(tmp_path / "resumed")
    resumed.point("last", resumed.checkpoint(18))
    trained(toy, resumed.path, setting)
    one, other = (x.checkpoint(24) for x in (run, resumed))
    names = sorted(file.name for file in one.glob("*.safetensors"))
    assert names == sorted(file.name for file in other.glob("*.safetensors"))
    for name in names:
        tensors, others = load_file(one / name), load_file(other / name)
        assert all(torch.equal(tensors[key], others[key]) for key in tensors | others)


def test_the_divergence_of_two_passes_is_reported(tmp_path):
    toy = write_toy(tmp_path / "data")
    short = "training.max_steps=10", "training.validate_every=10"
    numbers = {}
    for name in ("plain", "simcut"):
        settings = [REGULARIZERS[name]] if name in REGULARIZERS else []
        run = trained(toy, tmp_path / name, *short, *settings)
        lines = map(json.loads, run.metrics_file.read_text().splitlines())
        numbers[name] = [line.get("divergence") for line in lines if line["kind"] == "train"]
    assert set(numbers["plain"]) == {None}
    assert all(divergence > 0 for divergence in numbers["simcut"])
