"""Exports that a run keeps, and what runs them."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.export.ctranslate2_engine import MAX_SINGLE_THREADS, TRIALS
from tformer_cli.search.engine import Request
from tformer_cli.storage.lock import exclusive_lock
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import ModelFiles, find_model
from tformer_cli.text.vocabulary import with_eos
from tformer_cli.translate import backend as room
from tformer_cli.translate.backend import engine_of_run

pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")


@pytest.fixture
def files(toy_run, tmp_path) -> ModelFiles:
    """The model of a run without exports."""
    ignored = shutil.ignore_patterns("exports")
    run = RunDirectory(shutil.copytree(toy_run, tmp_path / "run", ignore=ignored))
    return find_model(run)


def test_an_export_that_another_process_has_just_written_is_taken(files, monkeypatch):
    @contextlib.contextmanager
    def alone_after_another(lock: Path, waiting: str) -> Iterator[None]:
        monkeypatch.setattr(room, "exclusive_lock", exclusive_lock)
        engine_of_run(files, "float32")
        with exclusive_lock(lock, waiting):
            yield

    monkeypatch.setattr(room, "exclusive_lock", alone_after_another)
    assert engine_of_run(files, "float32").translator.compute_type == "float32"
    assert len(list(files.run.exports.glob("*-float32"))) == 1


def test_an_export_of_another_version_is_left_alone(files, monkeypatch):
    """Int8 weights up to 127, as they once were, saturate without VNNI."""
    monkeypatch.setattr(room, "FORMAT_VERSION", 1)
    engine_of_run(files, "int8")
    (old,) = files.run.exports.glob("ctranslate2-*")
    (old / "model.bin").write_bytes(b"")
    monkeypatch.undo()
    assert engine_of_run(files, "int8").translator.compute_type == "int8_float32"
    assert len(list(files.run.exports.glob("ctranslate2-*"))) == 2


@pytest.mark.parametrize("cores", [1, 3, 64])
@pytest.mark.parametrize("seconds", [{1: 1.0, 3: 2.0, 4: 2.0}, {1: 2.0, 3: 1.0, 4: 1.0}])
def test_a_sentence_alone_has_as_many_threads_as_are_fastest(files, monkeypatch, cores, seconds):
    name = "tformer_cli.export.ctranslate2_engine"
    monkeypatch.setattr(f"{name}.num_threads", lambda: cores)
    engine = engine_of_run(files, "float32")
    loaded = []
    load = engine._load
    monkeypatch.setattr(
        engine, "_load", lambda **threads: loaded.append(threads) or load(**threads)
    )
    chosen = []
    add = engine.trials.add
    monkeypatch.setattr(
        engine.trials,
        "add",
        lambda threads, _: chosen.append(threads) or add(threads, seconds[threads]),
    )
    encode = files.tokenizers.source.encode
    one, two = ([Request(with_eos(encode(line)))] for line in ("abc de", "fed"))
    search = GreedyConfig(max_length=9)
    alone = [engine.translate(one, search)[0][0].token_ids for _ in range(2 * TRIALS + 2)]
    assert len(set(alone)) == 1
    several = min(cores, MAX_SINGLE_THREADS)
    assert chosen[: 2 * TRIALS] == [1, several] * TRIALS
    assert set(chosen[2 * TRIALS :]) == {min((1, several), key=seconds.get)}
    expected = [{"inter_threads": 1, "intra_threads": several}] if several > 1 else []
    assert loaded == expected
    both = engine.translate([*one, *two], search)
    assert [best.token_ids for (best,) in both] == [
        engine.translate(each, search)[0][0].token_ids for each in (one, two)
    ]
    assert loaded == expected
