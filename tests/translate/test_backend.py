"""Exports that a run keeps, and what runs them."""

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.errors import TformerError
from tformer_cli.export.ctranslate2_engine import MAX_SINGLE_THREADS, TRIALS
from tformer_cli.export.run import export_run
from tformer_cli.search.engine import Request
from tformer_cli.storage.lock import exclusive_lock
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import ModelFiles, find_model, load_trained_network
from tformer_cli.text.tokenizer import with_eos
from tformer_cli.translate import backend as room
from tformer_cli.translate.backend import FallbackEngine, engine_of_run, once
from tformer_cli.translate.translator import Translator

pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")


@pytest.fixture
def files(toy_run, tmp_path) -> ModelFiles:
    """The model of a run without exports."""
    ignored = shutil.ignore_patterns("exports")
    run = RunDirectory(shutil.copytree(toy_run, tmp_path / "run", ignore=ignored))
    return find_model(run)


LINES = ["abc de", "", "g", "bad cafe. abc de fgg. g", "gfe dcb abc"]


@pytest.fixture
def export(files, tmp_path) -> Path:
    """A folder that `tformer export` has written."""
    export_run(files.run, tmp_path / "export", "ctranslate2", check_lines=3)
    return tmp_path / "export"


@pytest.mark.parametrize("max_source_sentences", [None, 1])
def test_an_exported_folder_translates_as_its_run_does(files, export, max_source_sentences):
    limits = {"max_source_sentences": max_source_sentences}
    run = Translator.load(files.run.path, backend="native", **limits)
    ours = run.nbest(LINES, 2)
    theirs = Translator.load(export, device="cpu", **limits).nbest(LINES, 2)
    for own, other in zip(ours, theirs, strict=True):
        assert [one.text for one in own] == [one.text for one in other]
        assert [one.log_prob for one in own] == pytest.approx([x.log_prob for x in other], abs=1e-3)


def test_what_is_loaded_later_is_of_the_same_checkpoint(files):
    run = files.run
    other = next(each for each in run.step_checkpoints() if each != files.directory)

    def log_probs(translator):
        lines = ["abc de", "g", "gfe dcb abc"]
        found = translator.nbest(lines, 1, required=[["A"]] * len(lines))
        return [best.log_prob for (best,) in found]

    expected = log_probs(Translator.load(run.path, device="cpu"))
    translator = Translator.load(run.path, device="cpu")
    assert isinstance(translator.engine, FallbackEngine)
    run.point("best", other)
    assert log_probs(Translator.load(run.path, device="cpu")) != expected
    assert log_probs(translator) == expected


def test_a_prefix_of_an_empty_line_needs_no_other_engine(toy_run, monkeypatch):
    translator = Translator.load(toy_run, device="cpu")
    expected = translator.translate(["abc de", " "])
    monkeypatch.setattr(translator.engine, "native", lambda: pytest.fail("it was built"))
    assert translator.translate(["abc de", " "], prefixes=["", "A"]) == expected


def test_threads_that_need_it_at_once_build_it_once():
    barrier, built = threading.Barrier(8), []

    def build() -> object:
        built.append(object())
        time.sleep(0.01)  # the others come meanwhile
        return built[-1]

    get = once(build)

    def called(_: int) -> object:
        barrier.wait()
        return get()

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(called, range(8)))
    assert built == [results[0]]
    assert all(each is built[0] for each in results)


def test_an_exported_folder_keeps_what_determines_its_translations(files, export):
    found = find_model(RunDirectory(export))
    assert found.quantization == "float32"
    assert found.max_source_sentences == files.max_source_sentences
    assert found.config.model == files.config.model
    assert found.config.decoding == files.config.decoding
    assert found.tokenizers.fingerprint == files.tokenizers.fingerprint
    before = found.fingerprint
    weights = export / "model.bin"
    weights.write_bytes(weights.read_bytes() + b"x")
    assert find_model(RunDirectory(export)).fingerprint != before


def test_a_rounded_export_computes_with_its_own_numbers(files, tmp_path):
    folder = tmp_path / "int8"
    export_run(files.run, folder, "ctranslate2", quantization="int8", check_lines=3)
    engine = Translator.load(folder).engine
    assert engine.translator.compute_type.startswith("int8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": "native"}, "`backend`: has no effect on an export for CTranslate2 (native)"),
        (
            {"quantization": "int8"},
            "`quantization`: has no effect on an export for CTranslate2 (int8)",
        ),
        ({"ensemble": ["a"]}, "`ensemble`: has no effect on an export for CTranslate2; name runs"),
        ({"device": "cuda"}, '`device`: must be cpu with `backend="ctranslate2"` (cuda)'),
        ({"checkpoint": "7"}, "{}: has no such checkpoint (7)"),
    ],
)
def test_an_export_is_as_it_is(export, arguments, message):
    with pytest.raises(TformerError) as raised:
        Translator.load(export, **arguments)
    assert str(raised.value).startswith(message.format(export))


def test_an_export_has_no_alignments(export):
    with pytest.raises(TformerError, match=r"`aligned`: needs a translator that has an aligner"):
        Translator.load(export).translate(["ab"], aligned=True)


def test_an_export_gives_no_weights_to_other_programs(export):
    with pytest.raises(TformerError) as raised:
        load_trained_network(RunDirectory(export))
    assert str(raised.value) == (
        f"{export}: is an export, and only CTranslate2 reads its weights; "
        "name the run that was exported, or one that `tformer import` makes of the folder"
    )


@pytest.mark.parametrize(
    ("notes", "what"),
    [
        ("{", "is not what tformer export has written"),
        ("[]", "is not what tformer export has written"),
        ("{}", "has an unknown quantization"),
        ('{"quantization": "int9"}', "has an unknown quantization (int9)"),
    ],
)
def test_notes_that_no_export_writes_are_refused(export, notes, what):
    (export / "tformer.json").write_text(notes)
    with pytest.raises(TformerError) as raised:
        Translator.load(export)
    assert str(raised.value).startswith(f"{export / 'tformer.json'}: {what}")


def test_an_export_that_lost_its_notes_is_no_run_without_a_checkpoint(export):
    (export / "tformer.json").unlink()
    with pytest.raises(TformerError) as raised:
        Translator.load(export)
    message = str(raised.value)
    assert message.startswith(f"{export / 'tformer.json'}: is not what tformer export has written")
    assert message.endswith("; export the model again")


def test_an_export_beside_a_changed_config_is_refused(export):
    config = export / "config.yaml"
    config.write_text(config.read_text().replace("num_heads: 2", "num_heads: 4"))
    with pytest.raises(TformerError, match=r"model.num_heads is not 2, as in training \(4\)"):
        Translator.load(export)


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
    monkeypatch.setattr(room, "EXPORT_VERSION", 1)
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
