"""The decoding benchmark: one model, the same translations, results by hand."""

import gzip
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import decode
import pytest
import torch
from decode import (
    SIZES,
    app,
    cells,
    compare,
    decoding_config,
    fastest_setting,
    spread,
    turn,
    worker_of,
)
from decode_baselines import BASELINES, Setting, Task, Translate, serve_translation
from harness import columns_table, family, family_memory, watched
from toy import CONFIG, sentence, translation, write_toy
from typer.testing import CliRunner

from tformer_cli.config.load import load_config
from tformer_cli.errors import TrainingError
from tformer_cli.export.ctranslate2 import CTranslate2Format
from tformer_cli.export.marian_settings import unsupported_by_marian
from tformer_cli.model.build import build_model
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.training.trainer import train

LINES = ["abc de", "", "g", "fa b c", "dd ee ff", "a b", "efg"]
Load = Callable[..., Translate]


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
def task(run: RunDirectory, exports: Path) -> Callable[..., Task]:
    def make(**changes) -> Task:
        defaults = {"beam": 1, "alone": False, "threads": 1, "max_length": 20}
        return Task(str(run.path), str(exports), **(defaults | changes))

    return make


@pytest.fixture
def baseline(task: Callable[..., Task]) -> Load:
    def load(name: str, setting: Setting | None = None, **changes) -> Translate:
        loaded, settings_of = BASELINES[name]
        whole = task(**changes)
        return loaded(whole, settings_of(whole)[0] if setting is None else setting)

    return load


@pytest.mark.parametrize(
    ("name", "beam"),
    [(name, beam) for name in decode.COMPARABLE for beam in (1, 5)],
)
def test_all_translate_alike(name, beam, baseline):
    expected = baseline("ours", beam=beam)(LINES)
    assert len(set(expected)) > len(LINES) / 2
    translations = baseline(name, beam=beam)(LINES)
    differing = [pair for pair in zip(expected, translations, strict=True) if len(set(pair)) > 1]
    # Rounded weights may decide otherwise where two tokens are nearly as good. CTranslate2's int8
    # is exact in whole numbers, so it decides alike on all processors.
    is_rounded = name in ("ours_bfloat16", "ctranslate2_int8")
    # transformers' beam search goes on until no better hypothesis can come, so it may find one.
    searches_on = name == "hf" and beam > 1
    assert len(differing) <= (2 if searches_on else 1 if is_rounded else 0)


@pytest.mark.parametrize("name", ["hf", "ctranslate2_float32"])
def test_neither_batches_nor_workers_change_translations(name, baseline):
    expected = baseline(name)(LINES)
    for setting in (Setting(2), Setting(1), Setting(2, workers=2)):
        assert baseline(name, setting, threads=setting.workers)(LINES) == expected
    alone = baseline(name, alone=True)
    assert [text for line in LINES for text in alone([line])] == expected


class InProcess:
    """A baseline without a process of its own, which would take seconds to start."""

    def __init__(self, name: str, task: Task) -> None:
        load, _ = BASELINES[name]
        self.load = lambda setting: load(task, Setting(*setting))
        self.process = SimpleNamespace(pid=os.getpid())

    def __enter__(self) -> "InProcess":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, *, setting: Setting, lines: list[str]) -> dict:
        translate = self.load(json.loads(json.dumps(setting)))
        return {"seconds": 0.5, "texts": translate(lines)}


def test_all_have_results(run, task, monkeypatch, capsys):
    names = ("ours", "ctranslate2_float32", "ctranslate2_backend")
    monkeypatch.setattr(decode, "worker_of", InProcess)
    config = load_config(run.config_file)
    pairs = [(line, line[::-1].upper()) for line in LINES if line]
    result = compare(task(alone=True), names, pairs, config, 2)
    for kind in ("speeds", "bleu", "peak_mib", "settings"):
        assert tuple(result[kind]) == names
    assert result["speeds"] == {name: [12.0, 12.0] for name in names}
    assert result["settings"] == {
        "ours": "own batches",
        "ctranslate2_float32": "batch 1",
        "ctranslate2_backend": "own batches",
    }
    assert 0 <= result["bleu"]["ours"] <= 100
    assert result["peak_mib"]["ours"] > 50
    assert capsys.readouterr().err.startswith("round 1/2: ours 12.0")


def test_fastest_setting_is_kept(task, monkeypatch):
    monkeypatch.setattr(decode, "worker_of", InProcess)
    speeds = {Setting(32): 3.0, Setting(64): 5.0, Setting(128): 4.0, Setting(256): 1.0}
    monkeypatch.setattr(decode, "turn", lambda worker, setting, lines: speeds[setting])
    assert fastest_setting("hf", task(), LINES) == Setting(64)


@pytest.mark.slow
def test_ctranslate2_translates_in_a_process_without_torch(task, baseline):
    name = "ctranslate2_float32"
    two = task(alone=True, threads=2)
    _, settings_of = BASELINES[name]
    assert settings_of(two) == [Setting(1, 1), Setting(1, 2)]
    with worker_of(name, two) as worker:
        assert turn(worker, Setting(1, 1), LINES) > 0
        with watched(worker.process.pid) as samples:
            texts = worker.ask(setting=Setting(1, 1), lines=LINES)["texts"]
    assert texts == baseline(name)(LINES)
    # torch alone has more.
    assert 5 * 2**20 < max(samples) < 150 * 2**20


def test_a_model_is_loaded_once_for_a_setting(task, monkeypatch):
    loaded = []

    def load(asked: Task, setting: Setting) -> Translate:
        loaded.append(setting)
        return lambda lines: [line.upper() for line in lines]

    monkeypatch.setitem(BASELINES, "ours", (load, lambda _: [Setting()]))
    answer = serve_translation("ours", asdict(task(alone=True)))
    for setting in ([32, 1], [32, 1], [64, 1]):
        assert answer({"setting": setting, "lines": ["a", "b"]})["texts"] == ["A", "B"]
    assert loaded == [Setting(32), Setting(64)]


def test_json_is_by_size_search_and_mode(run, monkeypatch, tmp_path):
    tasks = []

    def known(task: Task, *_: object) -> dict:
        tasks.append(task)
        return {"speeds": {"ours": [7.0]}}

    monkeypatch.setattr(decode, "compare", known)
    monkeypatch.setattr(decode, "train", lambda *_, **__: None)
    monkeypatch.setattr(decode, "RunDirectory", lambda _: run)
    words = ["--data", str(multi30k(tmp_path)), "--sizes", "tiny", "--threads", "3", "--json"]
    printed = CliRunner().invoke(app, words, catch_exceptions=False)
    titles = ("greedy file", "greedy one", "beam5 file", "beam5 one")
    result = {"speeds": {"ours": [7.0]}}
    assert json.loads(printed.stdout) == {"tiny": dict.fromkeys(titles, result)}
    assert [(task.beam, task.alone, task.threads) for task in tasks] == [
        (1, False, 3),
        (1, True, 3),
        (5, False, 3),
        (5, True, 3),
    ]


def test_table_reads_as_a_column_a_search_and_mode():
    cell = {
        "speeds": {
            # The machine is half as fast in the second round.
            "ours": [800.0, 400.0, 720.0],
            "hf": [400.0, 100.0, 240.0],
            "ctranslate2_float32": [200.0, 100.0, 180.0],
            "ctranslate2_backend": [190.0, 105.0, 180.0],
        },
        "bleu": {"ours": 30.0, "hf": 29.5},
        "peak_mib": {"ours": 301.2, "hf": 400.0},
        "settings": {"ours": "own batches", "hf": "batch 32"},
    }
    rows = [
        ("sentences/s: tformer", "720 (400-800)"),
        ("sentences/s: transformers' Marian", "240 (100-400)"),
        ("sentences/s: CTranslate2 float32", "180 (100-200)"),
        ("sentences/s: tformer by CTranslate2", "180 (100-190)"),
        ("times as fast tformer is as transformers' Marian", "3.0 (2.0-4.0)"),
        ("times as fast tformer is as CTranslate2 float32", "4.0 (4.0-4.0)"),
        ("times as fast tformer is as tformer by CTranslate2", "4.0 (3.8-4.2)"),
        ("times as fast as its engine: tformer by CTranslate2", "1.0 (0.95-1.1)"),
        ("BLEU: tformer", "30.00"),
        ("BLEU: transformers' Marian", "29.50"),
        ("peak MiB: tformer", "301"),
        ("peak MiB: transformers' Marian", "400"),
        ("fastest setting: tformer", "own batches"),
        ("fastest setting: transformers' Marian", "batch 32"),
    ]
    lines = [f"{'tiny':<51}{'greedy file':>17}{'greedy one':>17}"]
    lines += [f"{title:<51}{text:>17}{text:>17}" for title, text in rows]
    columns = dict.fromkeys(("greedy file", "greedy one"), cells(cell))
    assert columns_table("tiny", columns).split("\n") == lines


def test_generate_tries_as_many_processes_as_ours(task):
    two = task(threads=2)
    (_, own_settings), (_, their_settings) = (BASELINES[name] for name in ("ours", "hf"))
    theirs = their_settings(two)
    assert {setting.workers for setting in own_settings(two)} == {1, 2}
    assert theirs == [Setting(batch, x) for x in (1, 2) for batch in (32, 64, 128, 256)]


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


def test_base_has_the_shape_of_the_paper(tmp_path):
    config = decoding_config(multi30k(tmp_path), "base", 300, steps=1)
    with torch.device("meta"):
        base = build_model(config.model, source_size=37, target_size=37, seed=1)
    layer, wide = 4 * 512 * 512 + 4 * 512, 2 * 512 * 2048 + 2048 + 512
    norm = 2 * 512
    encoder, decoder = layer + wide + 2 * norm, 2 * layer + wide + 3 * norm
    assert base.num_parameters() == 37 * 512 + 6 * (encoder + decoder)


@pytest.mark.parametrize("size", SIZES)
def test_the_models_are_of_the_design_of_marian(size, tmp_path):
    config = decoding_config(multi30k(tmp_path), size, 300, steps=1)
    assert list(unsupported_by_marian(config)) == []


def multi30k(folder: Path) -> Path:
    """A corpus with the file names of Multi30k."""
    chooser = random.Random(1)
    for split in ("train", "val", "test_2016_flickr"):
        lines = [sentence(chooser) for _ in range(120 if split == "train" else 7)]
        for language, text in (("en", lines), ("de", map(translation, lines))):
            with gzip.open(folder / f"{split}.lc.norm.tok.{language}.gz", "wt") as file:
                file.writelines(f"{line}\n" for line in text)
    return folder


def test_baseline_that_fails_is_named(task, monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with worker_of("hf", task()) as worker, pytest.raises(TrainingError) as raised:
        turn(worker, Setting(), LINES)
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
        "ctranslate2_float32, ctranslate2_int8, ctranslate2_backend"
    )
