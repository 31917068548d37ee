"""Marian beside a run: the same batches, exact resuming, a search without reserved ids."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import baseline_marian
import marian
import marian_training
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from toy import write_toy
from transformers import MarianMTModel
from typer.testing import CliRunner

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig
from tformer_cli.config.schema.training import AdamConfig, MuonConfig
from tformer_cli.corpus.batch import batches_in_order
from tformer_cli.corpus.store_builder import evaluation_store, training_store
from tformer_cli.errors import CheckpointError, TrainingError, UsageError
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import TrainingProgress, load_progress
from tformer_cli.text.tokenizer import Tokenizers, load_tokenizers
from tformer_cli.text.vocabulary import EOS_ID
from tformer_cli.training.loss import smoothed_nll_sum
from tformer_cli.training.trainer import train

CPU = torch.device("cpu")
STEPS = 3


def trained(folder: Path, *overrides: str) -> RunDirectory:
    """A run of the toy corpus that is barely begun."""
    short = [
        "training.validate_every=1",
        "training.schedule.warmup_steps=1",
        "training.validation_decoding.max_length=5",
    ]
    config = load_config(write_toy(folder / "data", pairs=60), [*short, *overrides])
    run = RunDirectory(folder / "run")
    train(config, run, device=CPU)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return trained(tmp_path_factory.mktemp("toy"), f"training.max_steps={STEPS}")


@pytest.fixture(scope="module")
def config(run: RunDirectory) -> Config:
    return load_config(run.config_file)


@pytest.fixture(scope="module")
def tokenizers(run: RunDirectory) -> Tokenizers:
    return load_tokenizers(run.tokenizer)


def built(config: Config, tokenizers: Tokenizers) -> MarianMTModel:
    return baseline_marian.build_marian(config, tokenizers, num_positions=60)


def initial(run: RunDirectory) -> TrainingProgress:
    return replace(
        load_progress(run.pointed("last")), step=0, data_position=(0, 0), num_tokens=0, seconds=0.0
    )


def learn(run: RunDirectory, config: Config, folder: Path, steps: int) -> TrainingProgress:
    tokenizers = load_tokenizers(run.tokenizer)
    return marian_training.train_marian(
        built(config, tokenizers),
        config,
        training_store(config.data, tokenizers)[0],
        RunDirectory(folder),
        initial=initial(run),
        steps=steps,
        device=CPU,
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = RunDirectory(folder).pointed(marian_training.POINTER)
    return load_file(checkpoint / "model.safetensors") | load_file(
        checkpoint / "optimizer.safetensors"
    )


def test_json_tells_both_sides_of_the_same_training(run, tmp_path):
    words = ["--json", "--device", "cpu", "--folder", str(tmp_path), "--beam", "3"]
    printed = CliRunner().invoke(marian.app, [str(run.path), *words], catch_exceptions=False)
    result = json.loads(printed.stdout)
    ours, marians = result.pop("tformer"), result.pop("marian")
    state = load_progress(run.pointed("last"))
    for side in (ours, marians):
        assert side["steps"] == state.step == STEPS
        assert side["target_tokens"] == state.num_tokens
        assert side["minutes"] * 60 * side["target_tokens_per_second"] == pytest.approx(
            state.num_tokens
        )
        assert side["bleu"].keys() == {"greedy", "beam"}
        assert side["learning_rate"] == 5e-3
    assert marians.pop("init_std") == 0.02
    assert ours.keys() == marians.keys()
    # Validated at its last step, by the code of the run itself.
    reports = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert ours["valid_loss"] == pytest.approx(reports[-1]["loss"], abs=1e-6)
    # Two norms that Marian has not.
    assert ours["parameters"] - marians["parameters"] == 2 * 2 * 32
    assert result["split"] == "toy"
    assert result["checkpoint"] == "last"
    assert result["attention"] == "sdpa"
    assert result["searches"]["beam"]["beam_size"] == 3
    assert "|tok:13a|" in result["signature"]
    assert printed.stderr.startswith(f"marian step {STEPS}/{STEPS}  loss ")


def test_going_on_equals_an_unbroken_training(run, config, tmp_path):
    learn(run, config, tmp_path / "broken", 1)
    broken = learn(run, config, tmp_path / "broken", 2)
    unbroken = learn(run, config, tmp_path / "unbroken", 2)
    assert replace(broken, seconds=0.0) == replace(unbroken, seconds=0.0)
    one, other = weights(tmp_path / "broken"), weights(tmp_path / "unbroken")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "search", [GreedyConfig(max_length=9), BeamConfig(beam_size=3, max_length=9)]
)
def test_search_never_writes_reserved_ids(search, config, tokenizers):
    model = built(config, tokenizers)
    suppressed = list(tokenizers.target.suppressed_ids)
    # Without suppression nothing else would be written.
    model.final_logits_bias[:, suppressed] = 50.0
    sentences = [[*tokenizers.source.encode(line), EOS_ID] for line in ("abc de", "g", "a b c")]
    translations = baseline_marian.generate(model.eval(), sentences, search, suppressed, CPU)
    assert len(translations) == 3
    for translation in translations:
        assert 1 <= len(translation) <= 9
        assert not {*suppressed, EOS_ID} & set(translation)


def test_loss_equals_ours_on_the_same_logits(config, tokenizers):
    model = built(config, tokenizers).eval()
    store = evaluation_store(config.data.valid, tokenizers)
    batch = next(batches_in_order(store, batch_tokens=200))
    logits = model(
        input_ids=batch.source,
        attention_mask=batch.source_mask.long(),
        decoder_input_ids=batch.target_in,
    ).logits
    assert not batch.target_mask.all()
    states = logits[batch.target_mask]
    as_it_is = nn.Linear(states.shape[1], states.shape[1], bias=False)
    nn.init.eye_(as_it_is.weight)
    expected = smoothed_nll_sum(states, as_it_is, batch.target_out[batch.target_mask], 0.1)
    torch.testing.assert_close(baseline_marian.loss_sum(model, batch, 0.1), expected.loss)
    torch.testing.assert_close(baseline_marian.loss_sum(model, batch, 0.0), expected.nll)


@pytest.mark.parametrize(("tie", "tables"), [("all", 1), ("output", 2), ("none", 3)])
def test_marian_ties_what_the_run_ties(tie, tables, config, tokenizers):
    model = built(replace(config, model=replace(config.model, tie_embeddings=tie)), tokenizers)
    alone = built(config, tokenizers)
    added = baseline_marian.count_parameters(model) - baseline_marian.count_parameters(alone)
    assert added == (tables - 1) * tokenizers.source.size * config.model.dim


def test_first_weights_have_the_deviation_asked_for(config, tokenizers):
    for deviation in (0.02, 0.2):
        model = baseline_marian.build_marian(
            config, tokenizers, num_positions=60, init_std=deviation
        )
        weight = model.model.encoder.layers[0].fc1.weight
        assert weight.std().item() == pytest.approx(deviation, rel=0.1)


def test_table_reads_as_two_columns():
    side = {
        "parameters": 1234567,
        "optimizer": "adamw",
        "learning_rate": 2.5e-3,
        "steps": 3300,
        "target_tokens": 5600000,
        "minutes": 29.96,
        "target_tokens_per_second": 3115.2,
        "valid_loss": 1.85949,
        "bleu": {"greedy": 34.474, "beam": 36.0},
    }
    result = {
        "tformer": side,
        "marian": side | {"bleu": {"greedy": 1.0, "beam": 2.0}, "init_std": 0.02},
        "searches": {"greedy": {}, "beam": {"beam_size": 5}},
        "split": "flickr",
        "signature": "nrefs:1",
        "checkpoint": "best",
    }
    assert marian.table(result).split("\n") == [
        "                             tformer      Marian",
        "parameters                 1,234,567   1,234,567",
        "optimizer                      adamw       adamw",
        "learning rate                 0.0025      0.0025",
        "steps                          3,300       3,300",
        "target tokens              5,600,000   5,600,000",
        "minutes                         30.0        30.0",
        "target tokens per second       3,115       3,115",
        "valid loss                    1.8595      1.8595",
        "BLEU greedy                    34.47        1.00",
        "BLEU beam 5                    36.00        2.00",
        "flickr, nrefs:1",
        "tformer: its best checkpoint; Marian: its last weights, init_std 0.02; "
        "both saw the same batches in the same order",
    ]


def test_folder_of_another_training_is_refused(run, config, tmp_path):
    learn(run, config, tmp_path, 1)
    optimizer = replace(config.training.optimizer, learning_rate=1e-3)
    gentler = replace(config, training=replace(config.training, optimizer=optimizer))
    with pytest.raises(CheckpointError) as raised:
        learn(run, gentler, tmp_path, 2)
    assert str(raised.value) == (
        f"{tmp_path}: holds a Marian that was trained otherwise (another training); "
        "remove it, or name another --folder"
    )


def test_fewer_steps_than_taken_are_refused(run, config, tmp_path):
    learn(run, config, tmp_path, 2)
    with pytest.raises(UsageError) as raised:
        learn(run, config, tmp_path, 1)
    assert str(raised.value) == (
        f"--steps: {tmp_path} has taken 2 steps already (1); name another --folder"
    )


def test_marian_has_the_optimizer_of_the_run_or_its_own(config):
    def optimizer(kind, rate):
        return marian_training.with_optimizer(config, kind, rate).training.optimizer

    assert optimizer(None, None) == config.training.optimizer
    assert optimizer("adamw", 0.25) == replace(config.training.optimizer, learning_rate=0.25)
    assert optimizer("muon", None) == MuonConfig(learning_rate=5e-3)
    assert optimizer("adam", 0.25) == AdamConfig(learning_rate=0.25)


def test_muon_moves_the_layers_of_marian_and_not_its_embeddings(run, config, tokenizers, tmp_path):
    by_muon = marian_training.with_optimizer(config, "muon", None)
    learn(run, by_muon, tmp_path, 2)
    saved = load_file(RunDirectory(tmp_path).checkpoint(2) / "optimizer.safetensors")
    turned = {name.removesuffix("/momentum") for name in saved if name.endswith("/momentum")}
    layers = {
        name
        for name, weight in built(config, tokenizers).named_parameters()
        if ".layers." in name and weight.dim() == 2
    }
    assert turned == layers


def test_divergence_is_told(run, config, tmp_path, monkeypatch):
    monkeypatch.setattr(
        marian_training, "loss_sum", lambda model, *_: next(model.parameters()).sum() * torch.inf
    )
    with pytest.raises(TrainingError) as raised:
        learn(run, config, tmp_path, 1)
    assert str(raised.value).startswith("step 1 of Marian: the training diverged (loss ")
    assert str(raised.value).endswith(f"; remove {tmp_path}, and give a lower --learning-rate")
    assert RunDirectory(tmp_path).pointed(marian_training.POINTER) is None


def test_unknown_split_is_named(run):
    with pytest.raises(UsageError) as raised:
        marian.compare(run, split="news", device=CPU)
    assert str(raised.value) == (
        "--split: the config has no such split (news); choose from: valid, toy"
    )


def test_model_that_marian_has_no_parts_for_is_refused(tmp_path):
    learned = "model.positions={kind: learned, max_length: 300}"
    run = trained(tmp_path, "training.max_steps=1", learned, "data.filters.max_length=200")
    with pytest.raises(UsageError) as raised:
        marian.compare(run, device=CPU)
    assert str(raised.value) == (
        "model: Marian has no parts for this config and gets 22,368 parameters "
        "(41,696 of ours); compare with a run of sinusoidal positions and plain blocks"
    )


def test_changed_training_text_is_refused(tmp_path):
    run = trained(tmp_path, "training.max_steps=1")
    tokens = load_progress(run.pointed("last")).num_tokens
    for side in ("src", "tgt"):
        file = tmp_path / "data" / f"train.{side}"
        file.write_text("a\n" * 60)
    with pytest.raises(CheckpointError) as raised:
        marian.compare(run, device=CPU)
    assert str(raised.value) == (
        f"{run.path}: was trained on other text than its files hold now, with 120 target tokens in "
        f"as many steps ({tokens} target tokens); restore the text, or train the run again"
    )


def test_missing_transformers_is_one_line(config, tokenizers, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError) as raised:
        built(config, tokenizers)
    assert str(raised.value) == "transformers: is not installed; pip install transformers"
