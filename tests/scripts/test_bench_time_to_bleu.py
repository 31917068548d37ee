"""Time to BLEU: equal text for both, exact resuming, blind selection, results by hand."""

import json
import os
import re
import shutil
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import time_to_bleu
import torch
import training_runs
from safetensors.torch import load_file
from time_to_bleu import THRESHOLDS, curve_of, table
from toy import write_languages, write_toy
from training_runs import Marian, Ours, end_with_parent, train_in_process
from typer.testing import CliRunner

from tformer_cli import Translator, api
from tformer_cli.cli.eval import evaluate as tformer_eval
from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.text import PairsFile
from tformer_cli.corpus.reader import read_texts
from tformer_cli.errors import (
    CheckpointError,
    ConfigError,
    TformerError,
    TrainingError,
    UsageError,
)
from tformer_cli.evaluation.metrics import Score
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import TrainingProgress, load_progress

NAMES = ("ours", "hf")
SHORT = (
    "training.max_steps=4",
    "training.validate_every=2",
    "training.save_every=1",
    "training.schedule.warmup_steps=1",
    "training.validation_decoding.max_length=5",
    "training.selection_metric=loss",
    "decoding.max_length=5",
)


@pytest.fixture(scope="module")
def config_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy") / "data", pairs=60)


@pytest.fixture(scope="module")
def config(config_file: Path) -> Config:
    return load_config(config_file, SHORT)


def options(config_file: Path, folder: Path, *more: str) -> list[str]:
    settings = [word for setting in SHORT for word in ("--set", setting)]
    return [str(config_file), "--folder", str(folder), "--threads", "1", *settings, *more]


@pytest.fixture(scope="module")
def measured(config_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """The folder of both trainings, and the JSON of the command that filled it."""
    folder = tmp_path_factory.mktemp("measured")
    words = options(config_file, folder, "--seeds", "5", "--json")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time_to_bleu, "train_in_process", lambda run, **_: run.train())
        printed = CliRunner().invoke(time_to_bleu.app, words, catch_exceptions=False)
    return folder, json.loads(printed.stdout)


def reports(run: Path) -> list[dict]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_curve_has_the_best_checkpoints_of_the_validation_text(measured):
    folder, result = measured
    ours, marian = result["trainings"]
    best = [x for x in reports(folder / "ours-5") if x["kind"] == "valid" and x["is_best"]]
    assert [point["step"] for point in ours["points"]] == [report["step"] for report in best]
    assert [-point["valid_score"] for point in ours["points"]] == [x["loss"] for x in best]
    for name, curve in zip(NAMES, (ours, marian), strict=True):
        for point in curve["points"]:
            checkpoint = RunDirectory(folder / f"{name}-5").checkpoint(point["step"])
            assert point["minutes"] * 60 == pytest.approx(load_progress(checkpoint).seconds)
        assert curve["seed"] == 5
        assert curve["steps"] == 4
        assert curve["points"][-1]["minutes"] == curve["minutes"]
        assert curve["minutes_to"].keys() == {str(bleu) for bleu in THRESHOLDS}
        assert "|tok:13a|" in curve["signature"]


def test_both_learn_from_the_same_text(measured):
    folder, _ = measured
    ours, marian = (load_progress(folder / f"{name}-5/checkpoints/step-000004") for name in NAMES)
    assert ours.data_fingerprint == marian.data_fingerprint
    assert ours.num_tokens == marian.num_tokens


def test_every_validated_checkpoint_is_kept(measured):
    folder, _ = measured
    for name in NAMES:
        kept = {path.name for path in RunDirectory(folder / f"{name}-5").step_checkpoints()}
        assert kept >= {"step-000002", "step-000004"}


def test_second_call_trains_and_translates_nothing(measured, config_file, monkeypatch):
    folder, result = measured
    monkeypatch.delattr(training_runs, "Worker")
    for training in (Ours, Marian):
        monkeypatch.delattr(training, "translator")
        monkeypatch.setattr(training, "__abstractmethods__", frozenset())
    words = options(config_file, folder, "--seeds", "5", "--json")
    printed = CliRunner().invoke(time_to_bleu.app, words, catch_exceptions=False)
    assert json.loads(printed.stdout) == result


@pytest.mark.parametrize("words", [("--learning-rate", "1e-4"), ("--set", "model.dropout=0.2")])
def test_other_settings_are_not_measured_by_trainings_that_are_there(measured, config_file, words):
    folder, _ = measured
    given = options(config_file, folder, "--seeds", "5", "--baselines", "hf", *words)
    with pytest.raises(CheckpointError, match="hf-5: holds a training with other settings"):
        CliRunner().invoke(time_to_bleu.app, given, catch_exceptions=False)


def test_the_table_names_what_was_scored_and_where(measured, config_file):
    folder, result = measured
    words = options(config_file, folder, "--seeds", "5", "--baselines", "hf")
    printed = CliRunner().invoke(time_to_bleu.app, words, catch_exceptions=False)
    lines = printed.stdout.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["min", "Marian"]
    assert lines[2] == f"BLEU on toy, {result['trainings'][1]['signature']}"
    assert lines[3].startswith(f"1 threads, torch {torch.__version__}, ")


@pytest.fixture
def trained(toy_run: Path, tmp_path: Path) -> Ours:
    """A training with a BLEU worth the name."""
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(toy_run, run.path)
    # Of sentences so short only the letters have 4-grams.
    text = run.config_file.read_text(encoding="utf-8")
    assert text.count("tokenize: auto") == 1
    run.config_file.write_text(text.replace("tokenize: auto", "tokenize: char"), encoding="utf-8")
    return Ours(load_config(run.config_file), run)


def test_score_is_that_of_tformer_eval(trained, capsys):
    best = trained.run.pointed("best")
    score = trained.score(best, "toy")
    tformer_eval(trained.run.path, as_json=True, device="cpu")
    (expected,) = json.loads(capsys.readouterr().out)["toy"]["scores"]
    assert score.score == expected["score"] > 0
    assert score.signature == expected["signature"]
    found, theirs = (trained.run.eval / name for name in (f"{best.name}.toy.txt", "toy.hyp.txt"))
    assert found.read_bytes() == theirs.read_bytes()


def test_score_is_computed_anew_only_for_another_search(trained, monkeypatch):
    first, *_ = trained.run.step_checkpoints()
    score = trained.score(first, "toy")
    asked = []

    def loaded(self: Ours, checkpoint: Path) -> SimpleNamespace:
        asked.append(checkpoint.name)
        own = SimpleNamespace(
            translate=lambda lines, decoding: [line.upper()[::-1] for line in lines]
        )
        own.into = lambda target, source: own
        return own

    monkeypatch.setattr(Ours, "translator", loaded)
    assert trained.score(first, "toy") == score
    assert asked == []
    search = replace(trained.config.decoding, beam_size=3)
    other = Ours(replace(trained.config, decoding=search), trained.run)
    assert other.score(first, "toy") != score
    assert asked == [first.name]
    bleu = replace(trained.config.evaluation.bleu, lowercase=True)
    config = replace(other.config, evaluation=replace(trained.config.evaluation, bleu=bleu))
    assert "case:lc" in Ours(config, trained.run).score(first, "toy").signature
    assert asked == [first.name] * 2


def test_another_text_of_a_name_is_scored_anew(trained, tmp_path):
    checkpoint, text = trained.run.pointed("best"), trained.config.data.test["toy"]
    score = trained.score(checkpoint, "toy")
    lines = text.target.read_text().splitlines()
    (tmp_path / "other").write_text("".join(f"{line}\n" for line in reversed(lines)))
    other = replace(text, target=tmp_path / "other")
    config = replace(trained.config, data=replace(trained.config.data, test={"toy": other}))
    assert Ours(config, trained.run).score(checkpoint, "toy") != score


def test_a_file_of_pairs_has_the_score_of_its_two_sides(trained, tmp_path):
    checkpoint, text = trained.run.pointed("best"), trained.config.data.test["toy"]
    sides = (file.read_text().splitlines() for file in text.files.values())
    file = tmp_path / "toy.tsv"
    file.write_text("".join(f"x\t{one}\t{other}\n" for one, other in zip(*sides, strict=True)))
    score = trained.score(checkpoint, "toy")

    def scored(source: str, target: str) -> Score:
        pairs = PairsFile(pairs=file, source_field=source, target_field=target)
        data = replace(trained.config.data, test={"toy": pairs})
        return Ours(replace(trained.config, data=data), trained.run).score(checkpoint, "toy")

    assert scored("2", "3") == score
    assert scored("3", "2") != score


def test_a_model_of_several_directions_is_scored_in_that_of_the_text(tmp_path):
    config = load_config(write_languages(tmp_path), SHORT)
    ours = Ours(config, RunDirectory(tmp_path / "ours-1"))
    ours.train()
    name, text = next(iter(config.data.test.items()))
    source, target = config.data.direction_of(text)
    checkpoint = ours.run.pointed("best")
    score = ours.score(checkpoint, name)
    translator = Translator.load(ours.run.path, to=target, source_language=source)
    lines = [line for line, _ in read_texts([text])]
    written = (ours.run.eval / f"{checkpoint.name}.{name}.txt").read_text().splitlines()
    assert written == translator.translate(lines, decoding=config.decoding)
    assert score.num_sentences == len(lines)
    with pytest.raises(UsageError, match=r"data\.valid: must be a text, not a list"):
        Marian(config, RunDirectory(tmp_path / "hf-1")).check()
    assert not (tmp_path / "hf-1").exists()


def test_search_is_tuned_once_as_tformer_tune_does(trained, monkeypatch):
    checkpoint = trained.run.pointed("best")
    own = trained.score(checkpoint, "toy")
    expected = api.tune(trained.run.path, metric="bleu").best.decoding
    assert trained.tuned_search(checkpoint) == expected

    search = replace(expected, beam_size=2, length_penalty=0.3)
    written = trained.run.eval / f"{checkpoint.name}.tuning.json"
    known = json.loads(written.read_text())
    known["best"]["decoding"] |= {"beam_size": 2, "length_penalty": 0.3}
    written.write_text(json.dumps(known))
    assert trained.tuned_search(checkpoint) == search
    other = Ours(replace(trained.config, decoding=search), trained.run)
    assert other.tuned_search(checkpoint) != search

    by_search = trained.score(checkpoint, "toy", search)
    assert by_search.score != own.score
    files = [trained.run.eval / f"{checkpoint.name}.toy{name}.txt" for name in ("", ".tuned")]
    assert files[0].read_text() != files[1].read_text()
    monkeypatch.delattr(Ours, "translator")
    monkeypatch.setattr(Ours, "__abstractmethods__", frozenset())
    assert trained.score(checkpoint, "toy") == own
    assert trained.score(checkpoint, "toy", search) == by_search


def test_tuned_end_stands_beside_the_end_by_the_search_of_the_config(measured, config_file):
    folder, result = measured
    words = options(config_file, folder, "--seeds", "5", "--tune", "--json")
    printed = CliRunner().invoke(time_to_bleu.app, words, catch_exceptions=False)
    curves = json.loads(printed.stdout)["trainings"]
    for name, one, other in zip(NAMES, curves, result["trainings"], strict=True):
        run = RunDirectory(folder / f"{name}-5")
        (found,) = run.eval.glob("*.tuned.json")
        content = json.loads(found.read_text())
        tuned = one.pop("tuned")
        assert tuned == {
            "decoding": content["decoding"],
            "test_bleu": content["score"]["score"],
        }
        assert one == other


def content(run: RunDirectory, step: int) -> tuple[TrainingProgress, dict[str, torch.Tensor]]:
    folder = run.checkpoint(step)
    tensors = load_file(folder / "model.safetensors") | load_file(folder / "optimizer.safetensors")
    return replace(load_progress(folder), seconds=0.0), tensors


def test_marian_goes_on_exactly_where_a_signal_stopped_it(measured, config, tmp_path, monkeypatch):
    """The signal comes during the first validation, and after the third step."""
    unbroken = RunDirectory(measured[0] / "hf-5")
    marian = Marian(replace(config, seed=5), RunDirectory(tmp_path / "hf-5"))
    judge = Marian.validation_score

    def interrupted(*arguments: object) -> float:
        signal.raise_signal(signal.SIGTERM)
        return judge(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Marian, "validation_score", interrupted)
        marian.train()
    assert marian.progress().step == 2
    assert not marian.is_over()
    marian.train()
    assert marian.is_over()
    for step in (2, 4):
        (mine, weights), (expected, others) = content(marian.run, step), content(unbroken, step)
        assert mine == expected
        assert all(torch.equal(weights[name], others[name]) for name in others)


def test_marian_stops_when_it_gets_no_better(config, tmp_path, monkeypatch):
    scores = iter([0.5, 0.75, 0.75, 0.25])
    monkeypatch.setattr(Marian, "validation_score", lambda *_: next(scores))
    training = replace(config.training, validate_every=1, max_steps=9, patience=2, keep_best=9)
    marian = Marian(replace(config, training=training), RunDirectory(tmp_path / "hf-3"))
    marian.train()
    chosen = [(path.name, state.score) for path, state in marian.best_checkpoints()]
    assert chosen == [("step-000001", 0.5), ("step-000002", 0.75), ("step-000003", 0.75)]
    assert marian.progress().step == 4
    assert marian.is_over()


def test_marian_is_judged_by_the_mean_of_its_checkpoints(config, tmp_path, monkeypatch):
    training = replace(config.training, average_checkpoints=2, keep_checkpoints=4)
    marian = Marian(replace(config, training=training), RunDirectory(tmp_path / "hf-3"))
    judged = []
    judge = Marian.validation_score

    def kept(self: Marian, model: torch.nn.Module) -> float:
        judged.append({name: each.detach().clone() for name, each in model.named_parameters()})
        return judge(self, model)

    monkeypatch.setattr(Marian, "validation_score", kept)
    marian.train()
    third, last = (
        load_file(marian.run.checkpoint(step) / "trained.safetensors") for step in (3, 4)
    )
    saved = load_file(marian.run.checkpoint(4) / "model.safetensors")
    for name, tensor in last.items():
        torch.testing.assert_close(saved[name], (third[name] + tensor) / 2)
        assert torch.equal(judged[-1][name], saved[name])
    assert any(not torch.equal(saved[name], last[name]) for name in last)


@pytest.mark.parametrize(
    "setting",
    [
        "training.consistency={kind: r_drop}",
        "training.layer_drop=0.5",
        "training.ema_decay=0.5",
        "training.freeze=[encoder]",
    ],
)
def test_what_marian_has_not_is_refused_before_anything_is_trained(setting, config_file, tmp_path):
    config = load_config(config_file, [*SHORT, "model.dropout=0.1", setting])
    trainings = list(time_to_bleu.build_runs(config, tmp_path, NAMES, [3]))
    with pytest.raises(UsageError, match=f"{setting.partition('=')[0]}: has no effect on Marian"):
        time_to_bleu.measure(trainings, "toy", threads=1)
    assert not (tmp_path / "ours-3").exists()


@pytest.mark.parametrize(("step", "score"), [(4, None), (3, 1.0), (4, 1.0)])
def test_training_is_over_when_its_last_step_is_judged(step, score, config, monkeypatch):
    """A signal may come between the two."""
    progress = replace(TrainingProgress(), step=step, score=score)
    monkeypatch.setattr(Ours, "progress", lambda _: progress)
    assert Ours(config, RunDirectory(Path("nowhere"))).is_over() == ((step, score) == (4, 1.0))


def test_model_that_marian_has_no_parts_for_is_refused_before_anything_is_trained(
    config_file, tmp_path
):
    learned = ("model.positions={kind: learned, max_length: 300}", "data.filters.max_length=200")
    config = load_config(config_file, [*SHORT, *learned, "decoding.max_length=5"])
    trainings = list(time_to_bleu.build_runs(config, tmp_path, NAMES, [3]))
    with pytest.raises(ConfigError, match=r"model\.positions: must be sinusoidal in a Marian"):
        time_to_bleu.measure(trainings, "toy", threads=1)
    assert not (tmp_path / "ours-3").exists()


def test_trainings_of_a_seed_stand_together(config):
    trainings = list(
        time_to_bleu.build_runs(
            config,
            Path("dir"),
            NAMES,
            [7, 2],
            learning_rate=0.25,
        )
    )
    assert [training.run.path.as_posix() for training in trainings] == [
        "dir/ours-7",
        "dir/hf-7",
        "dir/ours-2",
        "dir/hf-2",
    ]
    assert [training.config.seed for training in trainings] == [7, 7, 2, 2]
    optimizers = [training.config.training.optimizer for training in trainings]
    assert [optimizer.learning_rate for optimizer in optimizers] == [5e-3, 0.25] * 2


def test_processor_time_is_that_of_all_processes_of_a_training(config, tmp_path):
    ours = Ours(config, RunDirectory(tmp_path / "ours-3"))
    assert ours.cpu_seconds == 0
    for seconds in (1.5, 2.0):
        ours.add_cpu_seconds(seconds)
    assert Ours(config, ours.run).cpu_seconds == 3.5


def test_a_process_saves_and_ends_with_the_one_that_started_it(monkeypatch):
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *arguments: sent.append(arguments))
    reading, writing = os.pipe()
    with os.fdopen(reading) as end:
        monkeypatch.setattr(sys, "stdin", end)
        thread = threading.Thread(target=end_with_parent)
        thread.start()
        thread.join(0.05)
        assert sent == []
        os.close(writing)
        thread.join()
    assert sent == [(os.getpid(), signal.SIGTERM)]


@pytest.mark.slow
def test_training_apart_is_the_same_training(measured, config, tmp_path):
    marian = Marian(replace(config, seed=5), RunDirectory(tmp_path / "hf-5"))
    train_in_process(marian, threads=1)
    (mine, weights), (expected, others) = (
        content(RunDirectory(folder / "hf-5"), 4) for folder in (tmp_path, measured[0])
    )
    assert mine == expected
    assert all(torch.equal(weights[name], others[name]) for name in others)
    assert marian.cpu_seconds > 0


def test_training_that_fails_is_named(config, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    ours = Ours(config, RunDirectory(tmp_path / "ours-3"))
    with pytest.raises(TrainingError) as raised:
        train_in_process(ours, threads=1)
    assert str(raised.value) == "ours: has failed (exit code 1); see its output above"
    assert load_config(tmp_path / "ours-3.yaml") == config


def point(minutes: float, test_bleu: float) -> dict[str, float]:
    return {"minutes": minutes, "test_bleu": test_bleu}


def curve(**changes: object) -> dict[str, object]:
    settings = {
        "title": "tformer",
        "seed": 1,
        "points": [point(10.0, 29.9), point(70.0, 38.0)],
        "minutes_to": {30: 20.0, 35: 20.0, 38: 70.0, 40: None, 41: None},
        "minutes": 90.0,
        "cpu_minutes": 199.9,
    }
    return settings | changes


def test_minutes_are_those_of_the_first_checkpoint_with_the_score(trained, monkeypatch):
    # The third is better on the validation text, and worse on the test set.
    bleus = iter([29.9, 36.0, 34.5, 38.0])
    best = [
        (trained.run.checkpoint(step), TrainingProgress(step=step, score=1.0, seconds=60.0 * step))
        for step in (10, 20, 30, 70)
    ]
    monkeypatch.setattr(Ours, "best_checkpoints", lambda _: best)
    monkeypatch.setattr(Ours, "score", lambda *_: Score("bleu", next(bleus), "nrefs:1", 10))
    reached = curve_of(trained, "toy")["minutes_to"]
    assert reached == {30: 20.0, 35: 20.0, 38: 70.0, 40: None, 41: None}


def test_table_reads_as_a_row_a_training():
    never = dict.fromkeys(THRESHOLDS)
    other = curve(
        title="Marian",
        seed=12,
        points=[point(10.0, 29.9)],
        minutes_to=never,
        minutes=10.04,
        cpu_minutes=9.9,
    )
    assert table([curve(), other]).split("\n") == [
        "min to BLEU   seed   >= 30   >= 35   >= 38   >= 40   >= 41   at the end   minutes     CPU",
        "tformer          1    20.0    20.0    70.0       -       -        38.00      90.0   199.9",
        "Marian          12       -       -       -       -       -        29.90      10.0     9.9",
    ]
    tuned = [each | {"tuned": {"test_bleu": 38.456}} for each in (curve(), other)]
    rows = [re.split(r" {3,}", line) for line in table(tuned).splitlines()]
    assert [row[-3] for row in rows] == ["tuned", "38.46", "38.46"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--baselines", "ours,textbook"],
            "--baselines: no such baseline (textbook); choose from: ours, hf, m2m100",
        ),
        (
            ["--baselines", "ours", "--learning-rate", "1e-3"],
            "--learning-rate: has no effect without a baseline of transformers (0.001); "
            "leave it out",
        ),
        (["--learning-rate", "0"], "--learning-rate: must be a number above 0 (0)"),
        (["--learning-rate", "-1e-3"], "--learning-rate: must be a number above 0 (-0.001)"),
        (["--learning-rate", "inf"], "--learning-rate: must be a number above 0 (inf)"),
        (["--learning-rate", "nan"], "--learning-rate: must be a number above 0 (nan)"),
        (["--seeds", "1,-2"], "--seeds: must be whole numbers with commas between (1,-2)"),
    ],
)
def test_mistake_of_the_command_line_is_named(words, message, config_file, tmp_path):
    result = CliRunner().invoke(time_to_bleu.app, options(config_file, tmp_path / "out", *words))
    assert isinstance(result.exception, TformerError)
    assert str(result.exception) == message
    assert not (tmp_path / "out").exists()


def test_config_without_a_test_set_is_refused(config_file, tmp_path):
    words = options(config_file, tmp_path, "--set", "data.test={}")
    result = CliRunner().invoke(time_to_bleu.app, words)
    assert str(result.exception) == (f"{config_file}: has no test set; name one under data.test")
