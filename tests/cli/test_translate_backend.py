"""`tformer translate --backend ctranslate2`: the same translations by another program."""

import itertools
import json
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")

BACKEND = ("--backend", "ctranslate2")
NATIVE = ("--backend", "native")
# Different ones: of equal sentences, any may have its second best for the same score.
SENTENCES = [f"{a}{b} {b}e{a}{c}." for a, b, c in itertools.product("abcdef", "cfg", "bd")]
TEXT = "abc de\n\ng\n" + " ".join(SENTENCES) + "\nbad cafe\n"


@pytest.fixture
def run(toy_run, tmp_path):
    """A copy to change, without exports."""
    ignored = shutil.ignore_patterns("exports")
    return shutil.copytree(toy_run, tmp_path / "run", ignore=ignored)


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
    ours = tformer("translate", run, *words, *NATIVE, stdin=TEXT)
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


# ------------------------------------------------------------- auto


def exported(run):
    return sorted(path.name for path in (run / "exports").glob("checked-*"))


def test_auto_exports_once_says_so_and_translates_alike(run, tformer):
    expected = tformer("translate", run, *NATIVE, stdin=TEXT)
    first = tformer("translate", run, stdin=TEXT)
    line = f"{run}: exporting for CTranslate2, once\n"
    assert first.stderr == line + expected.stderr
    (name,) = exported(run)
    assert (run / "exports" / name / "README.md").exists()
    again = tformer("translate", run, stdin=TEXT)
    assert again.stderr == expected.stderr
    assert first.stdout == again.stdout == expected.stdout


def test_a_wrong_language_is_refused_before_anything_is_exported(run, tformer):
    result = tformer("translate", run, "ab", "--to", "xx")
    assert result.stderr == ("--to: is no target language of the model (xx); choose from: target\n")
    assert not (run / "exports").exists()


def test_auto_starts_without_torch(toy_run):
    code = (
        "import sys\n"
        "from tformer_cli.cli.app import main\n"
        f"sys.argv = ['tformer', 'translate', {str(toy_run)!r}, 'abc de']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end\n"
        "assert 'ctranslate2' in sys.modules\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\n")


@pytest.mark.parametrize(
    "words",
    [
        ("--set", "decoding={kind: sample, top_k: 3}", "--nbest", "2"),
        ("--ban", "A"),
        ("--beam", "4", "--set", "decoding.no_repeat_ngram_size=2"),
        ("--beam", "5", "--mbr", "chrf", "--set", "decoding.patience=0.5"),
        ("--json", "--set", "decoding.coverage_penalty=0.2", "--beam", "3"),
    ],
)
def test_auto_leaves_to_our_own_engine_what_the_other_lacks(toy_run, tformer, words):
    ours = tformer("translate", toy_run, *words, *NATIVE, stdin=TEXT)
    auto = tformer("translate", toy_run, *words, stdin=TEXT)
    assert (auto.stdout, auto.stderr) == (ours.stdout, ours.stderr)
    assert ours.exit_code == 0


@pytest.mark.parametrize(
    "words", [("--precision", "bfloat16"), ("--workers", "2"), ("--ensemble", "RUN")]
)
def test_auto_is_our_own_engine_where_an_option_is_its(run, tformer, words, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    words = [copy if word == "RUN" else word for word in words]
    result = tformer("translate", run, *words, stdin="abc\n")
    assert (result.exit_code, result.stderr) == (0, "")
    assert not exported(run)


def test_auto_without_a_text_to_check_by_is_our_own_engine(run, tformer):
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("valid.", "absent."))
    result = tformer("translate", run, stdin="abc\n")
    assert (result.exit_code, result.stderr) == (0, "")
    assert not exported(run)


def test_auto_goes_on_without_an_export_that_is_refused_or_damaged(run, tformer):
    expected = tformer("translate", run, *NATIVE, stdin=TEXT)
    (run / "eval").mkdir(exist_ok=True)
    spoilt = run / "eval" / "step-000150.x.json"
    spoilt.write_text("{}")
    found = [tformer("translate", run, stdin=TEXT) for _ in range(2)]
    (refusal,) = (run / "exports").glob("checked-*.txt")
    reason = refusal.read_text()
    assert reason.startswith(f"{spoilt}: ")
    line = (
        f"{refusal}: says why there is no export for CTranslate2 ({reason.strip()}); "
        f"remove it to try again; translating without CTranslate2\n"
    )
    assert found[0].stderr == f"{run}: exporting for CTranslate2, once\n{line}{expected.stderr}"
    assert found[1].stderr == line + expected.stderr
    assert found[0].stdout == found[1].stdout == expected.stdout
    refusal.unlink()
    spoilt.unlink()
    tformer("translate", run, stdin="abc\n")
    (folder,) = (run / "exports").glob("checked-*")
    (folder / "model.bin").write_bytes(b"")
    result = tformer("translate", run, stdin=TEXT)
    assert result.stderr.startswith(f"{folder}: cannot be loaded by CTranslate2 (")
    assert result.stdout == expected.stdout


def test_auto_goes_on_without_an_export_that_lost_tokens(run, tformer):
    expected = tformer("translate", run, stdin=TEXT)
    (folder,) = (run / "exports").glob("checked-*/")
    file = folder / "shared_vocabulary.json"
    file.write_text(json.dumps(json.loads(file.read_text())[:-8]))
    result = tformer("translate", run, stdin=TEXT)
    assert result.stdout == expected.stdout
    assert "must have a row for each of the" in result.stderr
    assert "again; translating without CTranslate2\n" in result.stderr


def test_damaged_export_is_one_line(run, tformer):
    tformer("translate", run, *BACKEND, stdin="abc\n")
    (folder,) = (run / "exports").glob("ctranslate2-*")
    (folder / "model.bin").write_bytes(b"")
    result = tformer("translate", run, *BACKEND, stdin="abc\n")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{folder}: cannot be loaded by CTranslate2 (")
    assert result.stderr.endswith("; remove it, and convert or export the model again\n")


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
            "--ban: has no exact counterpart in CTranslate2; use the run with --backend native",
        ),
        (
            ("--beam", "5", "--mbr", "chrf", "--set", "decoding.patience=0.5"),
            "decoding.patience: leaves CTranslate2 fewer than the 5 requested translations of a "
            "line (0.5); raise it, or use the run with --backend native",
        ),
        (
            ("--set", "decoding={kind: sample}"),
            "decoding.kind: has no exact counterpart in CTranslate2 (sample); "
            "use the run with --backend native, or set it to beam",
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
        f"{option}: has no exact counterpart in CTranslate2; use --backend native\n"
    )


def test_quantization_chooses_the_backend(run, tformer):
    words = ("translate", run, "--quantization", "int8")
    assert tformer(*words, stdin=TEXT).stdout == tformer(*words, *BACKEND, stdin=TEXT).stdout
    result = tformer(*words, "--backend", "native", stdin="abc\n")
    assert result.exit_code == 2
    assert result.stderr == "--quantization: has no effect on --backend native (int8)\n"
    result = tformer(*words, "--workers", "2", stdin="abc\n")
    assert result.exit_code == 2
    assert result.stderr == (
        "--workers: has no effect on --quantization, which uses threads (2); leave it out\n"
    )


def test_a_gpu_is_not_what_the_backend_runs_on(run, tformer, monkeypatch):
    """On a machine with a GPU, which is `auto` there."""
    monkeypatch.setattr("tformer_cli.translate.backend.may_have_gpu", lambda: True)
    assert tformer("translate", run, *BACKEND, stdin="abc\n").exit_code == 0
    result = tformer("translate", run, *BACKEND, "--device", "cuda", stdin="abc\n")
    assert result.exit_code == 2
    assert result.stderr == (
        "--device: must be cpu with --backend ctranslate2 (cuda); add --device cpu\n"
    )


def test_torchrun_is_not_for_the_backend(run, tformer, monkeypatch, tmp_path):
    (tmp_path / "text").write_text("abc\n")
    monkeypatch.setattr("tformer_cli.translate.backend.num_processes", lambda: 2)
    result = tformer("translate", run, *BACKEND, "--input", tmp_path / "text")
    assert result.exit_code == 2
    assert result.stderr == (
        "--backend ctranslate2: is for one process with threads; drop torchrun\n"
    )


def test_json_of_an_export_has_no_alignments(toy_run, tmp_path, tformer):
    export = tmp_path / "export"
    tformer("export", toy_run, export, "--format", "ctranslate2")
    own = json.loads(tformer("translate", toy_run, "ab cd", "--json").stdout)
    found = json.loads(tformer("translate", export, "ab cd", "--json").stdout)
    assert own["source_tokens"]
    assert own["translations"][0]["alignments"]
    assert (found["source_tokens"], found["translations"][0]["alignments"]) == (None, None)
    assert found["translations"][0]["text"] == own["translations"][0]["text"]
    refused = tformer("translate", export, "ab cd", "--alignments", tmp_path / "pairs.txt")
    assert refused.stderr.endswith(
        "--alignments: needs a translator that has an aligner; leave it out\n"
    )
