"""`tformer translate --backend ctranslate2`: the same translations by another program."""

import itertools
import json
import shutil

import pytest
import torch

pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")

BACKEND = ("--backend", "ctranslate2")
# Different ones: of equal sentences, any may have its second best for the same score.
SENTENCES = [f"{a}{b} {b}e{a}{c}." for a, b, c in itertools.product("abcdef", "cfg", "bd")]
TEXT = "abc de\n\ng\n" + " ".join(SENTENCES) + "\nbad cafe\n"


@pytest.fixture
def run(toy_run, tmp_path):
    """A copy to change."""
    return shutil.copytree(toy_run, tmp_path / "run")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--beam", "1"),
        ("--beam", "4", "--length-penalty", "0.5", "--nbest", "2"),
        ("--json", "--max-source-length", "9"),
        ("--mbr", "chrf", "--beam", "4", "--nbest", "2"),
    ],
)
def test_backend_changes_no_translation(run, tformer, words):
    """Blank lines, long ones in pieces and alignments included; scores within rounding."""
    ours = tformer("translate", run, *words, stdin=TEXT)
    theirs = tformer("translate", run, *words, *BACKEND, stdin=TEXT)
    assert theirs.stderr == ours.stderr
    for own, other in zip(ours.stdout.splitlines(), theirs.stdout.splitlines(), strict=True):
        if "--json" in words:
            pair = [json.loads(line) for line in (own, other)]
            for line in pair:
                for translation in line["translations"]:
                    translation["score"] = round(translation["score"], 3)
                    translation["log_prob"] = round(translation["log_prob"], 2)
            assert pair[0] == pair[1]
        else:
            text, _, score = own.rpartition(" ||| ")
            other_text, _, other_score = other.rpartition(" ||| ")
            assert other_text == text
            if text:
                assert float(other_score) == pytest.approx(float(score), abs=2e-4)
            else:
                assert other_score == score


def test_export_is_made_once_for_a_checkpoint_and_a_number_format(run, tformer):
    for words in ((), (), ("--quantization", "int8")):
        assert tformer("translate", run, *BACKEND, *words, stdin="abc\n").exit_code == 0
    kept = sorted(folder.name for folder in (run / "exports").glob("ctranslate2-*"))
    assert [name.rpartition("-")[2] for name in kept] == ["float32", "int8"]
    first = run / "exports" / kept[0] / "model.bin"
    before = first.stat().st_mtime_ns
    tformer("translate", run, *BACKEND, stdin="abc\n")
    assert first.stat().st_mtime_ns == before
    tformer("translate", run, *BACKEND, "--checkpoint", "step-000144", stdin="abc\n")
    assert len(list((run / "exports").glob("ctranslate2-*"))) == 3


def test_damaged_export_is_one_line(run, tformer):
    tformer("translate", run, *BACKEND, stdin="abc\n")
    (folder,) = (run / "exports").glob("ctranslate2-*")
    (folder / "model.bin").write_bytes(b"")
    result = tformer("translate", run, *BACKEND, stdin="abc\n")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{folder}: cannot be loaded by CTranslate2 (")
    assert result.stderr.endswith("; remove it, and export again\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--ensemble", "RUN"),
            "--ensemble: has no effect on --backend ctranslate2; leave one of them out",
        ),
        (
            ("--precision", "int8"),
            "--precision: has no effect on --backend ctranslate2 (int8); use --quantization",
        ),
        (
            ("--workers", "2"),
            "--workers: has no effect on --backend ctranslate2, which uses threads (2); "
            "leave it out",
        ),
        (
            ("--ban", "A"),
            "--ban: has no exact counterpart in CTranslate2; use another --backend",
        ),
        (
            ("--beam", "5", "--mbr", "chrf", "--set", "decoding.patience=0.5"),
            "decoding.patience: leaves CTranslate2 fewer than the 5 requested translations of a "
            "line (0.5); raise it, or use another --backend",
        ),
        (
            ("--set", "decoding={kind: sample}"),
            "decoding.kind: has no exact counterpart in CTranslate2 (sample); "
            "use another --backend",
        ),
    ],
)
def test_what_the_backend_lacks_is_refused(run, tformer, words, message):
    words = [run if word == "RUN" else word for word in words]
    result = tformer("translate", run, *BACKEND, *words, stdin="abc\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"{message}\n"


@pytest.mark.parametrize("option", ["--prefixes", "--constraints", "--terminology"])
def test_demands_are_refused_before_a_line_has_any(run, tformer, tmp_path, option):
    (tmp_path / "text").write_text("abc\n")
    (tmp_path / "demands").write_text("\n")
    files = ("--input", tmp_path / "text", option, tmp_path / "demands")
    result = tformer("translate", run, *BACKEND, *files)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"{option}: has no exact counterpart in CTranslate2; use another --backend\n"
    )


def test_quantization_needs_the_backend(run, tformer):
    result = tformer("translate", run, "--quantization", "int8", stdin="abc\n")
    assert result.exit_code == 2
    assert result.stderr == ("--quantization: has no effect without --backend ctranslate2 (int8)\n")


def test_a_gpu_is_not_what_the_backend_runs_on(run, tformer, monkeypatch):
    # A machine with a GPU, which is `auto` there.
    there = {"cpu": "cpu", "auto": "meta", "cuda": "meta"}
    resolve_device = "tformer_cli.translate.translator.resolve_device"
    monkeypatch.setattr(resolve_device, lambda name: torch.device(there[name]))
    assert tformer("translate", run, *BACKEND, stdin="abc\n").exit_code == 0
    result = tformer("translate", run, *BACKEND, "--device", "cuda", stdin="abc\n")
    assert result.exit_code == 2
    assert result.stderr == (
        "--device: must be cpu with --backend ctranslate2 (meta); add --device cpu\n"
    )


def test_torchrun_is_not_for_the_backend(run, tformer, monkeypatch, tmp_path):
    (tmp_path / "text").write_text("abc\n")
    monkeypatch.setattr("tformer_cli.translate.options.num_processes", lambda: 2)
    result = tformer("translate", run, *BACKEND, "--input", tmp_path / "text")
    assert result.exit_code == 2
    assert result.stderr == (
        "--backend ctranslate2: is for one process with threads; drop torchrun\n"
    )
