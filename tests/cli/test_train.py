import errno
import json
import math
import os
import re
import shutil
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from toy import CONFIG, write_toy

from tformer_cli.training import average, find_batch_size, saving
from tformer_cli.training import trainer as training
from tformer_cli.training.validation import Validation, validate


def test_train_names_every_mistake_of_a_config_and_writes_nothing(tformer, tmp_path):
    config = CONFIG.replace("num_heads: 2", "num_heads: 5").replace("save_every", "safe_every")
    file = write_toy(tmp_path / "data", config=config)
    result = tformer("train", file, "--run", tmp_path / "run")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"{file}:12: model.num_heads: must divide dim 32 (5)",
        f"{file}:22: training.safe_every: no such key; did you mean save_every?",
    ]
    assert not (tmp_path / "run").exists()


def test_train_says_when_no_pair_is_left(tformer, tmp_path):
    file = write_toy(tmp_path / "data")
    (tmp_path / "data" / "train.tgt").write_text("\n" * 300)
    result = tformer("train", file, "--run", tmp_path / "run")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == (
        "data.train: nothing is left after the filters "
        "(300 pairs: 0 kept; dropped 300 empty); loosen data.filters"
    )


def test_train_says_when_there_are_no_lines(tformer, tmp_path):
    file = write_toy(tmp_path / "data", pairs=0)
    result = tformer("train", file, "--run", tmp_path / "run")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == (
        "data.train: no lines with text to learn a vocabulary from; name files with text"
    )


def test_train_refuses_files_of_unequal_length_with_both_counts(tformer, tmp_path):
    file = write_toy(tmp_path / "data", pairs=30)
    target = tmp_path / "data" / "train.tgt"
    target.write_text("".join(target.read_text().splitlines(keepends=True)[:20]))
    result = tformer("train", file, "--run", tmp_path / "run")
    assert (result.exit_code, result.stderr) == (
        2,
        f"{tmp_path}/data/train.src:21: has no counterpart in {target} (30 and 20 lines); "
        "line n of one file must translate line n of the other\n",
    )
    assert not (tmp_path / "run" / "tokenizer").exists()


def test_train_refuses_a_vocabulary_larger_than_the_text_allows(tformer, tmp_path):
    tokenizer = "{kind: subword, vocab_size: 9000, byte_fallback: false}"
    config = CONFIG.replace("tokenizer: {kind: char}", f"tokenizer: {tokenizer}")
    file = write_toy(tmp_path / "data", config=config)
    result = tformer("train", file, "--run", tmp_path / "run")
    assert result.exit_code == 2
    assert re.fullmatch(
        r"tokenizer\.vocab_size: is larger than the \d+ that the text allows \(9000\); "
        r"make it smaller, or give more text\n",
        result.stderr,
    )
    assert not (tmp_path / "run" / "tokenizer").exists()


def test_train_corrects_a_tokenizer_of_bleu_that_is_misspelt(tformer, tmp_path):
    file = write_toy(tmp_path / "data", config=f"{CONFIG}evaluation: {{bleu: {{tokenize: 13b}}}}\n")
    result = tformer("train", file, "--run", tmp_path / "run")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{file}:26: evaluation.bleu.tokenize: must be one of ")
    assert result.stderr.endswith(" (13b); did you mean 13a?\n")


def test_train_says_where_a_file_stands_for_the_run_folder(tformer, tmp_path):
    file = write_toy(tmp_path / "data")
    (tmp_path / "run").write_text("")
    for run, got in (
        (tmp_path / "run", "File exists"),
        (tmp_path / "run" / "x", "Not a directory"),
    ):
        result = tformer("train", file, "--run", run)
        assert (result.exit_code, result.stderr) == (
            2,
            f"{run}: cannot be written ({got}); "
            "there is a file where a folder must be: name another path\n",
        )


def test_train_without_permission_for_the_run_folder_says_so(tformer, tmp_path, monkeypatch):
    def refuse(path: Path, *arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    file = write_toy(tmp_path / "data")
    monkeypatch.setattr(Path, "mkdir", refuse)
    result = tformer("train", file, "--run", tmp_path / "run")
    assert (result.exit_code, result.stderr) == (
        2,
        f"{tmp_path}/run: cannot be written (Permission denied); "
        "change its permissions, or name another path\n",
    )


def test_a_run_folder_that_vanishes_ends_the_training_and_stays_away(
    tformer, tmp_path, monkeypatch
):
    file, run = write_toy(tmp_path / "data"), tmp_path / "run"

    def vanishing(*arguments: object, **options: object):
        for report in train_steps(*arguments, **options):
            if report.step == 8:
                shutil.rmtree(run)
            yield report

    train_steps = training.train_steps
    monkeypatch.setattr(training, "train_steps", vanishing)
    result = tformer("train", file, "--run", run)
    assert (result.exit_code, result.stderr) == (
        2,
        f"{run}/metrics.jsonl: cannot be written (No such file or directory); "
        "its folder is gone or refuses files: restore it, or name another path\n",
    )
    assert not run.exists()


def test_a_full_disk_ends_the_training_and_leaves_what_was_saved(tformer, tmp_path, monkeypatch):
    file, run = write_toy(tmp_path / "data"), tmp_path / "run"

    def filling(folder: Path, model: nn.Module, *rest: object, **options: object) -> None:
        if folder.name == "step-000018":
            monkeypatch.setattr(os, "fsync", refuse)
        save_checkpoint(folder, model, *rest, **options)

    def refuse(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    save_checkpoint = saving.save_checkpoint
    with monkeypatch.context() as patch:
        patch.setattr(saving, "save_checkpoint", filling)
        result = tformer("train", file, "--run", run)
    assert (result.exit_code, result.stderr) == (
        2,
        f"{run}/checkpoints/step-000018: cannot be written (No space left on device); "
        "free space and run the same command again; what was saved before is intact\n",
    )
    assert (run / "last").read_text() == "step-000012\n"
    monkeypatch.undo()
    again = tformer("train", file, "--run", run)
    assert f"{run}: resuming after step 12\n" in again.stderr
    assert again.exit_code == 0


def test_a_second_ctrl_c_leaves_at_once_with_one_line(tformer, tmp_path, monkeypatch):
    file, run = write_toy(tmp_path / "data"), tmp_path / "run"

    def pressed_twice(*arguments: object, **options: object):
        for report in train_steps(*arguments, **options):
            if report.step == 8:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            yield report

    train_steps = training.train_steps
    monkeypatch.setattr(training, "train_steps", pressed_twice)
    result = tformer("train", file, "--run", run)
    assert (result.exit_code, result.stderr) == (
        130,
        f"{run}: interrupted again; left at once, without saving; "
        "re-run the command to resume from the last checkpoint\n",
    )
    assert (run / "last").read_text() == "step-000006\n"


def test_another_training_begins_with_the_weights_of_a_run(tformer, tmp_path, monkeypatch):
    file = write_toy(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    short, first = ("--set", "training.max_steps=12"), "first: no \N{ROCKET}"
    assert tformer("train", file, "--run", first, *short).exit_code == 0
    result = tformer("train", file, "--run", "more", "--init-from", first, *short)
    assert result.exit_code == 0
    checkpoint = tmp_path / first / "checkpoints" / "step-000012"
    assert f"initializing from the weights of {checkpoint}\n" in result.stderr
    again = tformer("train", file, "--run", "more", "--init-from", first, *short)
    assert "more: finished at step 12" in again.stderr


def test_run_folder_is_named_after_the_config(tformer, tmp_path, monkeypatch):
    file = write_toy(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    assert tformer("train", file, "--set", "training.max_steps=12").exit_code == 0
    assert (tmp_path / "runs" / "toy" / "best").is_file()
    again = tformer("train", "runs/toy/config.yaml")
    assert "runs/toy: finished at step 12" in again.stderr


def test_train_names_missing_files_before_anything_else(tformer, tmp_path):
    file = write_toy(tmp_path / "data")
    for name in ("valid.src", "test.tgt"):
        (tmp_path / "data" / name).unlink()
    result = tformer("train", file, "--run", tmp_path / "run")
    assert result.exit_code == 2
    data, remedy = tmp_path / "data", "correct the path, or set data.root"
    lines = file.read_text(encoding="utf-8").split("\n")
    valid, test = (
        next(number for number, line in enumerate(lines, 1) if name in line)
        for name in ("valid.src", "test.tgt")
    )
    assert result.stderr.splitlines() == [
        f"{file}:{valid}: data.valid.source: no such file ({data / 'valid.src'}); {remedy}",
        f"{file}:{test}: data.test.toy.target: no such file ({data / 'test.tgt'}); {remedy}",
    ]
    assert not (tmp_path / "run").exists()


def test_a_missing_mecab_is_said_before_a_vocabulary_is_built(tformer, tmp_path, monkeypatch):
    def missing(*_, **__):
        raise RuntimeError("MeCab")

    monkeypatch.setattr("tformer_cli.evaluation.metrics.BLEU", missing)
    words = (write_toy(tmp_path / "data"), "--run", tmp_path / "run")
    for more in ((), ("--dry-run",)):
        result = tformer("train", *words, "--set", "data.target_language=ja", *more)
        assert result.exit_code == 2
        assert result.stderr == (
            "evaluation.bleu.tokenize: needs MeCab and its dictionary, which are not installed "
            "(ja-mecab); pip install 'tformer[ja]'\n"
        )
        assert not (tmp_path / "run").exists()


def test_a_fresh_start_that_fails_leaves_the_old_run_alone(tformer, tmp_path):
    file = write_toy(tmp_path / "data")
    run = tmp_path / "run"
    tformer("train", file, "--run", run, "--set", "training.max_steps=12")
    before = sorted(path.name for path in run.rglob("*"))
    (tmp_path / "data" / "valid.tgt").write_text("one line\n")
    assert tformer("train", file, "--run", run, "--fresh").exit_code == 2
    assert sorted(path.name for path in run.rglob("*")) == before


def test_the_log_of_a_run_folder_whose_name_is_not_utf8_can_be_read(tformer, tmp_path):
    file, run = write_toy(tmp_path / "data"), tmp_path / os.fsdecode(b"run-\xff")
    assert tformer("train", file, "--run", run, "--set", "training.max_steps=12").exit_code == 0
    assert r"run-\udcff: finished; " in (run / "train.log").read_text()


LEARNED = CONFIG.replace(
    "  dropout: 0.1", "  positions: {kind: learned, max_length: 20}\n  dropout: 0.1"
).replace("  test:", "  filters: {max_length: 19}\n  test:")


def test_sentences_beyond_learned_positions_are_named(tformer, tmp_path):
    config = LEARNED.replace("max_steps: 24", "max_steps: 12")
    file = write_toy(tmp_path / "data", config=config)
    run = tmp_path / "run"
    assert tformer("train", file, "--run", run).exit_code == 0
    remedy = "split it, or train with model.positions: {kind: sinusoidal}"
    limit = "is longer than the 20 positions that the model has learned (21 tokens)"
    words = ("translate", run, "--backend", "native")
    result = tformer(*words, stdin=f"ab\n{'a' * 20}\n")
    assert (result.exit_code, result.stderr) == (
        0,
        "line 2: is longer than 19 tokens (20); translated in 2 pieces\n",
    )
    valid = tmp_path / "data" / "valid.tgt"
    lines = valid.read_text().splitlines()
    valid.write_text("\n".join([*lines[:-1], "A" * 20]) + "\n")
    result = tformer("train", file, "--run", tmp_path / "other")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        2,
        f"{valid}:{len(lines)}: {limit}; {remedy}",
    )


def test_searches_beyond_learned_positions_are_refused(tformer, tmp_path):
    file = write_toy(tmp_path / "data", config=LEARNED.replace("greedy, max_length: 20", "greedy"))
    result = tformer("config", "check", file)
    assert result.stderr == (
        f"{file}:23: training.validation_decoding.max_length: "
        "must be at most the 20 that model.positions.max_length leaves (256)\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--dry-run", "--find-batch"),
            "--find-batch: contradicts --dry-run; leave one of them out",
        ),
        (("--dry-run", "--fresh"), "--fresh: has no effect with --dry-run; leave it out"),
        (("--dry-run", "--live"), "--live: has no effect with --dry-run; leave it out"),
        (("--find-batch", "--fresh"), "--fresh: has no effect with --find-batch; leave it out"),
        (
            ("--dry-run", "--memory-limit", "8"),
            "--memory-limit: has no effect without --find-batch (8); add --find-batch",
        ),
        (
            ("--memory-limit", "2.5"),
            "--memory-limit: has no effect without --find-batch (2.5); add --find-batch",
        ),
        (
            ("--find-batch", "--memory-limit", "inf"),
            "--memory-limit: must be a number of GiB (inf); write 8",
        ),
        (("--json",), "--json: has no effect without --dry-run or --find-batch; leave it out"),
    ],
)
def test_options_that_nothing_would_come_of_are_refused(tformer, tmp_path, options, message):
    result = tformer("train", tmp_path / "no.yaml", *options)
    assert (result.exit_code, result.stderr) == (2, f"{message}\n")


def test_a_link_to_itself_is_no_run_to_begin_with(tformer, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(link)
    result = tformer("train", write_toy(tmp_path / "data"), "--init-from", link)
    assert result.stderr.endswith(f"{link}: no such run folder; name the folder of a run\n")


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if "torch" not in path.name)


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """The folder that temporary folders are made in."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_dry_run_says_what_the_training_will_take_and_leaves_nothing(
    tformer, tmp_path, temporary, monkeypatch
):
    file = write_toy(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    before = files(tmp_path)
    result = tformer("train", file, "--dry-run", "--device", "cpu")
    assert result.exit_code == 0
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == [
        "model",
        "training text",
        "largest batch",
        "peak memory",
        "speed",
        "time",
        "disk",
    ]
    assert "training text: 300 pairs: 300 kept\n" in result.stdout
    assert " for 24 steps (" in result.stdout
    assert files(tmp_path) == before


def test_a_dry_run_for_programs_is_one_object(tformer, tmp_path, temporary):
    file = write_toy(tmp_path / "data")
    settings = ("--set", "training.max_steps=1000", "--device", "cpu")
    plain = json.loads(tformer("train", file, "--dry-run", "--json", *settings).stdout)
    assert (plain["num_pairs"], plain["sample"]["kept"]) == (300, 300)
    assert plain["seconds"] == pytest.approx(1000 * plain["seconds_per_step"])
    # Validated every 12 steps and saved every 6: three newest, the best, one that an interruption
    # saved, and one that is written.
    assert plain["num_checkpoints"] == 6
    assert plain["peak_memory_bytes"] > plain["checkpoint_bytes"]


def test_a_dry_run_finds_what_would_stop_the_training(tformer, tmp_path, temporary):
    file = write_toy(tmp_path / "data")
    (tmp_path / "data" / "test.tgt").write_text("one line\n")
    result = tformer("train", file, "--dry-run", "--device", "cpu")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith(
        f"{tmp_path}/data/test.src:2: has no counterpart in {tmp_path}/data/test.tgt ("
    )
    assert files(temporary) == []


def test_a_dry_run_leaves_a_run_as_it_is(tformer, tmp_path, temporary):
    file, run = write_toy(tmp_path / "data"), tmp_path / "run"
    tformer("train", file, "--run", run, "--set", "training.max_steps=12")
    before = {path: path.stat().st_mtime_ns for path in files(run)}
    # What a training would refuse to go on with does not matter to a dry run.
    changed = ("--set", "model.dim=16", "--device", "cpu")
    assert tformer("train", file, "--run", run, "--dry-run", *changed).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in files(run)} == before


def test_the_largest_batch_is_printed_with_its_setting(tformer, tmp_path, temporary, monkeypatch):
    file = write_toy(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    before = files(tmp_path)
    # A token takes a MiB: 512 of them fit.
    monkeypatch.setattr(find_batch_size, "_try_in_child", lambda run, tokens, limit: tokens << 20)
    words = ("train", file, "--find-batch", "--memory-limit", "0.5", "--device", "cpu")
    result = tformer(*words)
    assert result.exit_code == 0
    found = json.loads(tformer(*words, "--json").stdout)
    assert 512 * 31 / 32 <= found["batch_tokens"] <= 512
    assert result.stdout.splitlines()[-1] == f"use it: --set {found['set']}"
    assert found["set"] == f"training.batch_tokens={found['batch_tokens']}"
    assert files(tmp_path) == before


def test_a_run_folder_is_resumed_by_its_name(tformer, tmp_path):
    file = write_toy(tmp_path / "data")
    run = tmp_path / "run"
    result = tformer("train", file, "--run", run)
    assert result.stderr.splitlines()[-1] == f"next: tformer eval {run}"
    # As if it had been interrupted there.
    shutil.rmtree(run / "checkpoints" / "step-000024")
    (run / "last").write_text("step-000018\n")
    result = tformer("train", run)
    assert result.exit_code == 0
    assert f"{run}: resuming after step 18" in result.stderr
    assert (run / "last").read_text() == "step-000024\n"


def test_a_folder_that_is_no_run_is_no_config_either(tformer, tmp_path):
    (tmp_path / "configs").mkdir()
    result = tformer("train", tmp_path / "configs")
    assert (result.exit_code, result.stderr) == (
        2,
        f"{tmp_path / 'configs'}: is a folder and not a run; "
        "name a YAML file, or a run to resume\n",
    )


def test_a_folder_with_other_files_is_not_trained_into(tformer, tmp_path):
    file = write_toy(tmp_path / "data")
    before = sorted(tmp_path.rglob("*"))
    result = tformer("train", file, "--run", tmp_path / "data")
    assert (result.exit_code, result.stderr) == (
        2,
        f"{tmp_path / 'data'}: is not empty and not a run folder (test.src in it); "
        "name another folder with --run\n",
    )
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture
def run(toy_run, tmp_path):
    """A copy to change."""
    return shutil.copytree(toy_run, tmp_path / "run")


def test_average_says_what_it_is_the_mean_of_and_how_good_it_is(run, tformer):
    lines = tformer("average", run, "--last", "2").stdout.splitlines()
    checkpoint = run / "checkpoints" / "average-last-2"
    assert lines[0] == f"{checkpoint}: the mean of step-000150, step-000144"
    assert lines[1].startswith("valid: loss ")
    assert "BLEU = " in lines[1]
    assert lines[2].startswith(("better than the best", "not better than the best"))


@pytest.mark.parametrize("command", [("average", "--last", "2"), ("tune", "--beam", "1")])
def test_without_a_test_set_the_next_command_translates(run, tformer, command):
    config = (run / "config.yaml").read_text()
    assert "\n  test:\n" in config
    (run / "config.yaml").write_text(re.sub(r"\n  test:(\n    .*)+", "\n  test: {}", config))
    name, *options = command
    result = tformer(name, run, *options)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.splitlines()[-1].startswith(f"next: tformer translate {run}")


def test_its_score_is_what_eval_says_of_it(run, tformer):
    found = json.loads(tformer("average", run, "--last", "2", "--json").stdout)
    assert found["members"] == ["step-000150", "step-000144"]
    result = tformer(
        "eval", run, "--split", "valid", "--beam", "1", "--checkpoint", "average-last-2", "--json"
    )
    evaluation = json.loads(result.stdout)["valid"]
    assert evaluation["scores"] == found["scores"]
    assert evaluation["scores"][0]["score"] == found["score"]
    assert evaluation["loss"] == pytest.approx(found["loss"], rel=1e-6)


def test_json_says_of_an_average_what_the_text_says(run, tformer):
    config = (run / "config.yaml").read_text()
    for max_steps, has_ended in ((150, True), (1000, False)):
        changed = re.sub(r"max_steps: \d+", f"max_steps: {max_steps}", config)
        (run / "config.yaml").write_text(changed)
        text = tformer("average", run, "--last", "2").stdout.splitlines()
        found = json.loads(tformer("average", run, "--last", "2", "--json").stdout)
        assert text[1].startswith(f"valid: loss {found['loss']:.4f}, BLEU = ")
        assert f"BLEU = {found['scores'][0]['score']:.2f}" in text[1]
        assert found["run_has_ended"] == has_ended
        assert ("the run is not finished" in text[2]) != has_ended


def test_the_score_of_a_model_that_has_diverged_is_null(run, tformer, monkeypatch):
    losses = [math.nan, 2.5]  # of the average, and of best by the new metric

    def overflowing(*arguments: Any, **options: Any) -> Validation:
        validation = validate(*arguments, **options)
        return replace(validation, likelihood=replace(validation.likelihood, loss=losses.pop(0)))

    config = (run / "config.yaml").read_text()
    assert "selection_metric: bleu\n" in config
    (run / "config.yaml").write_text(config.replace("metric: bleu\n", "metric: loss\n"))
    monkeypatch.setattr(average, "validate", overflowing)
    found = json.loads(
        tformer("average", run, "--last", "2", "--json").stdout, parse_constant=pytest.fail
    )
    assert (found["score"], found["best_score"], found["loss"]) == (None, -2.5, None)


def test_torchrun_is_refused(run, tformer, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = tformer("average", run)
    assert (result.exit_code, result.stderr) == (
        2,
        "tformer average: is for one process (2 processes); drop torchrun\n",
    )


def test_last_and_best_contradict_each_other(run, tformer):
    result = tformer("average", run, "--last", "2", "--best", "2")
    assert result.exit_code == 2
    assert result.stderr == "--best: contradicts --last; leave one of them out\n"


def test_as_many_as_there_are_are_averaged_up_to_five_and_no_old_one_that_was_best(run, tformer):
    steps = [run / "checkpoints" / f"step-{step:06d}" for step in (150, 144, 138)]
    assert all(checkpoint.is_dir() for checkpoint in steps)
    shutil.copytree(steps[0], run / "checkpoints" / "step-000030")
    result = tformer("average", run)
    assert result.exit_code == 0, result.stderr
    names = ", ".join(checkpoint.name for checkpoint in steps)
    average = f"{run}/checkpoints/average-last-3"
    assert result.stdout.startswith(f"{average}: the mean of {names}\n")
    assert result.stderr.startswith(f"next: tformer eval {run}")
