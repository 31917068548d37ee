"""The variants that are compared: one change each, as many weights; their table by hand."""

import dataclasses
import json
import math

import ablation
import parts
import pytest
import training_runs
from ablation import (
    BASE,
    CHANGES,
    HEAD,
    KINDS,
    NUM_TOKENS,
    SEARCH,
    num_parameters,
    relative_speeds,
    table,
    variant,
)
from cli import CPU, ROOT
from parts import ATTENTIONS, attention_cost, norm_ratio
from toy import write_toy
from train_baselines import Ours, Task
from typer.testing import CliRunner

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.config.schema.fields import check
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.translate.translator import Translator


@pytest.mark.parametrize("name", CHANGES)
def test_a_variant_has_as_many_weights_as_the_base(name):
    config = variant(name)
    assert list(check(config)) == []
    assert num_parameters(config) == pytest.approx(num_parameters(BASE), rel=1e-3)


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "one-stream"])
def test_a_variant_differs_from_the_base_by_its_change_and_its_width(name):
    keys = {
        key
        for key in BASE.__dataclass_fields__
        if getattr(variant(name), key) != getattr(BASE, key)
    } - {"feedforward_dim"}
    layers = {"num_encoder_layers", "num_decoder_layers"}
    expected = {"base": 0, "latent": 2, "deep-shallow": 2}.get(name, 1)
    assert len(keys) == expected
    assert name != "deep-shallow" or keys == layers


def test_the_docs_have_a_row_of_each_variant():
    lines = (ROOT / "docs" / "explanation" / "family.md").read_text(encoding="utf-8").splitlines()
    rows = lines[lines.index(HEAD.splitlines()[1]) + 1 :][: len(CHANGES)]
    counts = {name: f"{num_parameters(variant(name)):,}" for name in CHANGES}
    assert {row.split(" | ")[0].strip("| "): row.split(" | ")[1] for row in rows} == counts


def test_a_bad_turn_of_the_first_member_changes_no_ratio():
    assert relative_speeds([[10, 10, 1], [20, 20, 20], [5, 5, 5]]) == [1, 2, 0.5]


def test_the_table_has_means_spreads_and_multiples_of_the_first():
    def row(name: str, losses: list[float], training: list[float], decoding: list[float]) -> dict:
        means = {"valid_losses": losses, "test_bleus": [10 * loss for loss in losses]}
        sizes = {"name": name, "parameters": 1234567, "cache_bytes": 96}
        return sizes | means | {"training": training, "decoding": decoding}

    base = row("base", [2.0, 3.0], [100, 200, 50], [10, 20, 5])
    other = row("other", [1.0, 3.0], [50, 100, 10], [20, 40, 10])
    assert table([base, other]).splitlines()[2:] == [
        "| base | 1,234,567 | 2.500 ± 0.707 | 25.00 ± 7.07 | 1.00 | 1.00 | 96 |",
        "| other | 1,234,567 | 2.000 ± 1.414 | 20.00 ± 14.14 | 0.50 | 2.00 | 96 |",
    ]
    alone = row("alone", [2.0], [3.0], [4.0])
    cells = "| alone | 1,234,567 | 2.000 | 20.00 | 1.00 | 1.00 | 96 |"
    assert table([alone]).splitlines()[2] == cells


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Let the benchmark have a toy corpus, train in this process, and take no time."""
    text = load_config(write_toy(tmp_path / "data", pairs=60), ["decoding.max_length=5"])
    monkeypatch.setattr(ablation, "load_config", lambda *_: text)
    monkeypatch.setattr(ablation, "train_in_process", lambda run, **_: run.train())
    monkeypatch.setattr(ablation, "SubwordConfig", lambda **_: text.tokenizer)
    short = dataclasses.replace(
        ablation.training(2), validation_decoding=GreedyConfig(max_length=5)
    )
    monkeypatch.setattr(ablation, "training", lambda steps: short)
    return tmp_path


@pytest.mark.slow
def test_the_command_trains_each_variant_once(small, monkeypatch):
    words = ["--folder", str(small / "runs"), "--members", "latent", "--seeds", "2"]
    words += ["--rounds", "1", "--threads", "1"]
    monkeypatch.setattr(
        ablation, "speeds", lambda runs, **_: {f"{x} {y}": [1.0] for x in runs for y in KINDS}
    )
    first = CliRunner().invoke(ablation.app, [*words, "--json"], catch_exceptions=False)
    rows = json.loads(first.stdout)
    assert [row["name"] for row in rows] == ["base", "latent"]
    assert [len(row["test_bleus"]) for row in rows] == [2, 2]
    assert all(loss > 0 for row in rows for loss in row["valid_losses"])
    # Keys and values of two heads, over four layers of 32; or a latent and a rotated key.
    assert [row["cache_bytes"] for row in rows] == [4 * 4 * 2 * 2 * 32, 4 * 4 * (48 + 16)]
    monkeypatch.delattr(ablation, "train_in_process")
    monkeypatch.delattr(training_runs.Ours, "translate")
    monkeypatch.setattr(training_runs.Ours, "__abstractmethods__", frozenset())
    second = CliRunner().invoke(ablation.app, [*words, "--json"], catch_exceptions=False)
    assert second.stdout == first.stdout


def test_all_write_as_many_tokens_where_they_are_timed(toy_run):
    trained = load_trained_model(RunDirectory(toy_run))
    translator = Translator.from_model(trained.model, trained.tokenizers, trained.config, CPU)
    translations = translator.nbest(["ab cd", "a", "g fg"], 1, decoding=SEARCH)
    # The end of a sentence counts as one, where it is written.
    assert {len(best.tokens) for (best,) in translations} <= {NUM_TOKENS - 1, NUM_TOKENS}


@pytest.mark.slow
def test_a_trained_variant_is_timed_in_processes_of_its_own(toy_run):
    runs = {"toy": RunDirectory(toy_run)}
    speeds = ablation.speeds(runs, rounds=1, lines=3, seconds=0.1, threads=1)
    assert speeds.keys() == {"toy training", "toy decoding"}
    assert all(speed > 0 for (speed,) in speeds.values())


def test_an_unknown_member_is_refused(tmp_path):
    printed = CliRunner().invoke(ablation.app, ["--folder", str(tmp_path), "--members", "magic"])
    assert str(printed.exception).startswith("--members: no such member (magic); choose from: ")


def test_a_norm_and_both_attentions_are_timed():
    assert norm_ratio(8, rows=4, rounds=2) > 0
    for kind in ATTENTIONS:
        cost = attention_cost(kind, 16, 1)
        assert cost["time"] > 0
        assert cost["memory"] >= 0


@pytest.fixture
def task(tmp_path):
    return Task.of(load_config(write_toy(tmp_path / "data", pairs=60)))


def test_the_cache_is_timed_by_length(task, monkeypatch):
    monkeypatch.setattr(parts, "CACHE_LENGTHS", (2, 3))
    ratios = parts.cache_ratios(task, rounds=1)
    assert ratios.keys() == {2, 3}
    assert min(ratios.values()) > 0


def test_each_optimizer_trains_from_the_same_weights(task, monkeypatch):
    # No step of a learning rate of zero changes a weight.
    monkeypatch.setattr(parts, "SGD_RATES", (0.0, 0.3))
    losses = parts.valid_losses(task, steps=2)
    assert losses.keys() == {"adamw", "adamw without warm-up", "sgd 0", "sgd 0.3"}
    assert losses["sgd 0"] == pytest.approx(Ours(task).valid_loss())
    assert losses["sgd 0.3"] != losses["sgd 0"]
    assert losses["adamw"] < losses["sgd 0"]


def test_ratios_of_perplexity_are_those_of_the_losses(monkeypatch):
    losses = {"adamw": 2.0, "adamw without warm-up": 2.5, "sgd 0.1": 4.0, "sgd 1": 3.0}
    monkeypatch.setattr(parts, "SGD_RATES", (0.1, 1.0))
    monkeypatch.setattr(parts, "valid_losses", lambda task, steps: losses)
    sgd, cold = parts.perplexity_ratios(None, steps=2).values()
    assert (sgd, cold) == pytest.approx((math.e, math.e**0.5))
