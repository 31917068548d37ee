"""The decoding benchmark: one model, the same translations, results by hand."""

import gzip
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import decode
import pytest
import torch
from decode import (
    SIZES,
    DecodeWorker,
    Samples,
    app,
    compare,
    decoding_config,
    speeds_by_setting,
    summary,
    table,
    trained,
)
from decode_baselines import BASELINES, Baseline, Setting, Task, answer
from harness import family, family_memory, spread, watched
from toy import CONFIG, sentence, translation, write_toy
from typer.testing import CliRunner

from tformer_cli.config.load import load_config
from tformer_cli.errors import TrainingError
from tformer_cli.export.ctranslate2 import CTranslate2Format
from tformer_cli.model.build import build_model
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import load_progress
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.training.trainer import train

LINES = ["abc de", "", "g", "fa b c", "dd ee ff", "a b", "efg"]
Make = Callable[..., Baseline]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of Marian's design that has learned to end its translations."""
    folder = tmp_path_factory.mktemp("toy")
    config = load_config(
        write_toy(folder / "data", config=CONFIG),
        [
            "model.norm_position=post",
            "training.max_steps=150",
            "training.validate_every=150",
            "training.save_every=150",
        ],
    )
    run = RunDirectory(folder / "run")
    train(config, run, device=torch.device("cpu"))
    return run


@pytest.fixture(scope="module")
def exports(run: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    known = load_trained_model(run)
    for quantization in ("float32", "int8"):
        CTranslate2Format(quantization).save(known, folder / quantization)
    return folder


@pytest.fixture
def baseline(run: RunDirectory, exports: Path) -> Make:
    def make(name: str, setting: Setting | None = None, **task) -> Baseline:
        defaults = {"beam": 1, "alone": False, "threads": 1, "max_length": 20}
        whole = Task(str(run.path), str(exports), **(defaults | task))
        made = BASELINES[name](whole)
        made.use(made.settings(whole)[0] if setting is None else setting)
        return made

    return make


@pytest.mark.parametrize(
    ("name", "beam"),
    [(name, beam) for name in decode.COMPARABLE for beam in (1, 5)],
)
def test_all_translate_alike(name, beam, baseline):
    expected = baseline("ours", beam=beam).translate(LINES)
    assert len(set(expected)) == len(LINES)
    translations = baseline(name, beam=beam).translate(LINES)
    differing = [pair for pair in zip(expected, translations, strict=True) if len(set(pair)) > 1]
    # Rounded weights may decide otherwise where two tokens are nearly as good. CTranslate2's int8
    # is exact in whole numbers, so it decides alike on all processors.
    is_rounded = name in ("ours_bfloat16", "ctranslate2_int8")
    assert len(differing) <= (1 if is_rounded else 0)


@pytest.mark.parametrize("name", ["hf", "textbook", "ctranslate2_float32"])
def test_neither_batches_nor_workers_change_translations(name, baseline):
    expected = baseline(name).translate(LINES)
    for setting in (Setting(2), Setting(1)):
        assert baseline(name, setting).translate(LINES) == expected
    alone = baseline(name, alone=True)
    assert [text for line in LINES for text in alone.translate([line])] == expected


class InProcess(DecodeWorker):
    """A baseline without a process of its own, which would take seconds to start."""

    def __init__(self, name: str, task: Task) -> None:
        self.baseline = BASELINES[name](task)
        self.process = SimpleNamespace(pid=os.getpid())

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, **request) -> dict:
        return answer(self.baseline, json.loads(json.dumps(request)))


def test_all_have_results_and_ours_has_ratios(run, monkeypatch, capsys):
    names = ("ours", "textbook", "ctranslate2_float32", "ctranslate2_backend")
    monkeypatch.setattr(decode, "DecodeWorker", InProcess)
    monkeypatch.setattr(decode, "MODES", {"one": True})
    samples = Samples(file=8, one=6, textbook=2)
    results = compare(run, names, ["greedy"], samples, condition="tuned", threads=1, rounds=1)
    assert results.keys() == {"greedy"}
    assert results["greedy"].keys() == {"one"}
    cell = results["greedy"]["one"]
    for figure in ("bleu", "memory_mib"):
        assert tuple(cell[figure]) == names
    assert cell["settings"] == {
        "ours": "own batches",
        "textbook": "batch 1",
        "ctranslate2_float32": "batch 1",
        "ctranslate2_backend": "own batches",
    }
    assert cell["ratios"] == {name: pytest.approx(cell["ours"] / cell[name]) for name in names[1:]}
    assert cell["backend_ratios"] == {
        "ctranslate2_backend": pytest.approx(
            cell["ctranslate2_backend"] / cell["ctranslate2_float32"]
        )
    }
    assert 0 <= cell["bleu"]["ours"] <= 100
    assert cell["memory_mib"]["ours"] > 50
    assert capsys.readouterr().err.startswith("run greedy one tuned\nround 1/1: ours ")


def test_each_translates_a_sample_of_the_file():
    pairs = [(str(number), "") for number in range(16)]
    samples = Samples(file=8, one=4, textbook=2)
    assert samples.of(pairs, "ours", alone=False) == pairs[::2]
    assert samples.of(pairs, "hf", alone=True) == pairs[::4]
    assert samples.of(pairs, "textbook", alone=True) == pairs[::8]
    assert Samples(file=None, one=4, textbook=2).of(pairs, "ours", alone=False) == pairs


def test_fastest_setting_is_kept(run, exports, monkeypatch):
    monkeypatch.setattr(decode, "DecodeWorker", InProcess)
    monkeypatch.setattr(
        decode, "speeds_by_setting", lambda *_: {Setting(64): 3.0, Setting(128): 5.0}
    )
    cell = decode.compare_one(
        Task(str(run.path), str(exports), 1, alone=False, threads=1, max_length=20),
        dict.fromkeys(("ours", "textbook", "hf"), (("abc", "CBA"), ("d", "D"))),
        load_config(run.config_file),
        rounds=1,
    )
    assert cell["settings"]["hf"] == "batch 128"


def test_settings_are_tried_in_a_process_without_torch(run, exports, baseline):
    name = "ctranslate2_float32"
    task = Task(str(run.path), str(exports), 1, alone=True, threads=2, max_length=20)
    speeds = speeds_by_setting(name, task, LINES)
    assert list(speeds) == BASELINES[name].settings(task) == [Setting(1, 1), Setting(1, 2)]
    assert min(speeds.values()) > 0
    with DecodeWorker(name, task) as worker:
        worker.use(Setting(1), LINES)
        texts, memory = worker.watched_turn(LINES)
    assert texts == baseline(name).translate(LINES)
    # torch alone has more.
    assert 5 * 2**20 < memory < 150 * 2**20


def test_json_is_by_size_search_and_mode(run, monkeypatch, tmp_path):
    cells = []

    def known(task, *_):
        cells.append(task)
        return {"ours": 7.0}

    monkeypatch.setattr(decode, "compare_one", known)
    monkeypatch.setattr(decode, "trained", lambda size, config: run)
    words = ["--data", str(multi30k(tmp_path)), "--sizes", "tiny", "--threads", "3", "--json"]
    printed = CliRunner().invoke(app, [*words, "--conditions", "default"], catch_exceptions=False)
    modes = {"file": {"ours": 7.0}, "one": {"ours": 7.0}}
    assert json.loads(printed.stdout) == {"tiny default": {"greedy": modes, "beam5": modes}}
    assert [(cell.beam, cell.alone, cell.threads) for cell in cells] == [
        (1, False, 3),
        (1, True, 3),
        (5, False, 3),
        (5, True, 3),
    ]
    assert {cell.condition for cell in cells} == {"default"}


def test_summary_takes_medians_of_speeds_and_of_the_rounds_own_ratios():
    # The machine is half as fast in the second round.
    speeds = {
        "ours": [800.0, 400.0, 720.0],
        "hf": [400.0, 100.0, 240.0],
        "textbook": [10.0, 4.0, 8.0],
    }
    assert summary(speeds) == {
        "ours": 720.0,
        "hf": 240.0,
        "textbook": 8.0,
        "ratios": {"hf": 3.0, "textbook": 90.0},
        "backend_ratios": {},
        "rounds": {
            "speeds": speeds,
            "ratios": {"hf": [2.0, 4.0, 3.0], "textbook": [80.0, 100.0, 90.0]},
            "backend_ratios": {},
        },
    }


def test_summary_compares_a_backend_with_its_engine_by_itself():
    speeds = {
        "ours": [100.0, 100.0, 100.0],
        "ctranslate2_float32": [200.0, 100.0, 180.0],
        "ctranslate2_backend": [190.0, 105.0, 180.0],
    }
    assert summary(speeds)["backend_ratios"] == {"ctranslate2_backend": 1.0}


def test_table_reads_as_a_column_a_search_and_mode():
    cell = {
        "rounds": {
            "speeds": {"ours": [1234.56, 1180.0, 1300.0], "textbook": [8.0]},
            "ratios": {"textbook": [154.32, 150.0]},
            "backend_ratios": {"ctranslate2_backend": [0.984]},
        },
        "bleu": {"ours": 30.0, "textbook": 29.5},
        "memory_mib": {"ours": 301.2, "textbook": 400.0},
        "settings": {"ours": "own batches", "textbook": "batch 32"},
    }
    results = {"greedy": {"file": cell, "one": cell}}
    rows = [
        ("sentences/s: tformer", "1,200 (1,200-1,300)"),
        ("sentences/s: textbook", "8.0 (8.0-8.0)"),
        ("times as fast tformer is as textbook", "150 (150-150)"),
        ("times as fast as its engine: tformer by CTranslate2", "0.98 (0.98-0.98)"),
        ("BLEU: tformer", "30.00"),
        ("BLEU: textbook", "29.50"),
        ("peak MiB: tformer", "301"),
        ("peak MiB: textbook", "400"),
        ("fastest setting: tformer", "own batches"),
        ("fastest setting: textbook", "batch 32"),
    ]
    lines = [f"{'tiny':<51}{'greedy file':>22}{'greedy one':>22}"]
    lines += [f"{title:<51}{cell:>22}{cell:>22}" for title, cell in rows]
    assert table("tiny", results).split("\n") == lines


def test_generate_tries_as_many_processes_as_ours(run, exports):
    task = Task(str(run.path), str(exports), 1, alone=False, threads=2)
    ours, theirs = (BASELINES[name].settings(task) for name in ("ours", "hf"))
    assert (
        {setting.workers for setting in theirs} == {setting.workers for setting in ours} == {1, 2}
    )
    batches = {setting.batch for setting in theirs}
    assert {(setting.batch, setting.workers) for setting in theirs} == {
        (batch, workers) for batch in batches for workers in (1, 2)
    }
    assert batches == {32, 64, 128, 256}


def test_processes_of_generate_end_with_their_setting(baseline):
    marian = baseline("hf", Setting(2, workers=2), threads=2)
    assert marian.pool is not None
    assert marian.translate(LINES) == baseline("hf").translate(LINES)
    children = list(marian.pool._pool)
    marian.use(Setting(2))
    assert marian.pool is None
    assert not any(child.is_alive() for child in children)


def test_settings_say_batch_and_workers():
    names = [str(setting) for setting in (Setting(), Setting(64), Setting(16, 2))]
    assert names == ["own batches", "batch 64", "batch 16 x 2"]


def test_memory_is_that_of_a_process_and_its_children():
    code = "held = b'x' * 2**25; print(flush=True); input()"
    with (
        watched(os.getpid()) as samples,
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child,
    ):
        child.stdout.readline()
        members = family(os.getpid())
        held, in_all = (family_memory(pid) for pid in (child.pid, os.getpid()))
        child.communicate(b"\n")
    assert child.pid in members
    assert 2**25 < held < 2**26
    assert in_all > held
    assert max(samples) > held
    assert child.pid not in family(os.getpid())


def test_spread_takes_items_at_equal_distances():
    assert spread(range(10), 4) == [0, 2, 5, 7]
    assert spread(range(3), 8) == [0, 1, 2]


def test_base_has_the_shape_of_the_paper():
    with torch.device("meta"):
        base = build_model(SIZES["base"], source_size=37, target_size=37, seed=1)
    layer, wide = 4 * 512 * 512 + 4 * 512, 2 * 512 * 2048 + 2048 + 512
    norm = 2 * 512
    encoder, decoder = layer + wide + 2 * norm, 2 * layer + wide + 3 * norm
    assert base.num_parameters() == 37 * 512 + 6 * (encoder + decoder)


def multi30k(folder: Path) -> Path:
    """A corpus with the file names of Multi30k."""
    chooser = random.Random(1)
    for split in ("train", "val", "test_2016_flickr"):
        lines = [sentence(chooser) for _ in range(120 if split == "train" else 7)]
        for language, text in (("en", lines), ("de", map(translation, lines))):
            with gzip.open(folder / f"{split}.lc.norm.tok.{language}.gz", "wt") as file:
                file.writelines(f"{line}\n" for line in text)
    return folder


def test_models_are_trained_once(tmp_path):
    config = decoding_config(multi30k(tmp_path), "tiny", 300, steps=1)
    config = replace(config, model=replace(config.model, num_encoder_layers=1, dim=12))
    run = trained("tiny", config, tmp_path / "models")
    first = load_progress(run.pointed("last"))
    assert (run.path.name, first.step) == ("tiny-1", 1)
    assert load_progress(trained("tiny", config, tmp_path / "models").pointed("last")) == first


def test_baseline_that_fails_is_named(monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with (
        DecodeWorker("hf", Task("run", "exports", 1, alone=False, threads=1)) as worker,
        pytest.raises(TrainingError) as raised,
    ):
        worker.use(Setting(), LINES)
    assert str(raised.value) == "hf: has failed (exit code 1); see its output above"


def test_unknown_size_is_named():
    result = CliRunner().invoke(app, ["--sizes", "tiny,large"])
    assert str(result.exception) == (
        "--sizes: no such size (large); choose from: tiny, small, base"
    )


def test_unknown_baseline_is_named():
    result = CliRunner().invoke(app, ["--others", "hf,fairseq"])
    assert str(result.exception) == (
        "--others: no such baseline (fairseq); choose from: ours_bfloat16, ours_int8, hf, "
        "textbook, ctranslate2_float32, ctranslate2_int8, ctranslate2_backend"
    )
