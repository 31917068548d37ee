"""`tformer export`: a folder for another program, of a run that has learned a little."""

import contextlib
import io
import json
import shutil
import sys

import pytest
import yaml
from storage.saving import remove_settings

from tformer_cli.config.load import load_config, save_decoding
from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.storage.run_directory import RunDirectory

pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")

FORMAT = ("--format", "ctranslate2")


@pytest.fixture
def run(toy_run, tmp_path):
    """A copy to change."""
    return shutil.copytree(toy_run, tmp_path / "run")


def test_export_says_that_all_is_alike_and_writes_the_folder(toy_run, tmp_path, tformer):
    folder = tmp_path / "toy-ct2"
    assert tformer("export", toy_run, folder, *FORMAT).stdout.splitlines() == [
        "greedy: 12 of 12 lines translated alike",
        "beam 2: 12 of 12 lines translated alike",
        f"{folder}: written for CTranslate2 (see {folder}/README.md)",
    ]
    assert sorted(file.name for file in folder.iterdir()) == [
        "README.md",
        "config.json",
        "config.yaml",
        "model.bin",
        "shared_vocabulary.json",
        "tformer.json",
        "tokenizer",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["toy-ct2"]


def test_model_card_has_the_scores_of_the_run_and_an_example_that_runs(
    run, tmp_path, tformer, monkeypatch
):
    save_decoding(run / "config.yaml", BeamConfig(beam_size=3, length_penalty=0.3, max_length=20))
    tformer("eval", run, "--bleu")
    folder = tmp_path / "toy-ct2"
    tformer("export", run, folder, *FORMAT, "--license", "mit")
    page = (folder / "README.md").read_text(encoding="utf-8")
    matter = yaml.safe_load(page.split("---\n")[1])
    assert matter["license"] == "mit"
    assert matter["model-index"][0]["name"] == "toy-ct2"
    score = json.loads((run / "eval" / "toy.json").read_text())["scores"][0]
    search = "beam 3, length penalty 0.3"
    signature = score["signature"].replace("|", "&#124;")
    row = f"| toy | BLEU | {score['score']:.2f} | 10 | {search} | <code>{signature}</code> |"
    assert row in page
    assert "- beam 3, length penalty 0.3: 12 of 12 lines translated alike" in page
    assert str(tmp_path) not in page

    monkeypatch.chdir(folder)
    example = page.split("```python\n")[1].split("```")[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(example, {})
    assert f"It prints:\n\n> {printed.getvalue()}" in page
    first = load_config(run / "config.yaml").data.valid.source.read_text().splitlines()[0]
    assert repr(first) in example
    ours = tformer("translate", run, stdin=f"{first}\n").stdout
    assert printed.getvalue() == ours


def test_rounded_numbers_come_with_the_bleu_of_both(toy_run, tmp_path, tformer):
    words = ("--quantization", "int8", "--json", "--check-lines", "7")
    found = json.loads(tformer("export", toy_run, tmp_path / "int8", *FORMAT, *words).stdout)
    assert (found["folder"], found["format"]) == (str(tmp_path / "int8"), "ctranslate2")
    assert [check["search"] for check in found["checks"]] == ["greedy", "beam 2"]
    for check in found["checks"]:
        assert check["num_lines"] == 7
        assert check["num_equal"] <= check["num_best_equal"] <= 7
        assert check["bleu"] == pytest.approx(check["our_bleu"], abs=40)
    printed = tformer("export", toy_run, tmp_path / "again", *FORMAT, "--quantization", "int8")
    assert " lines translated alike, BLEU " in printed.stdout
    assert ", of the run " in printed.stdout


def test_lines_to_check_by_can_come_from_another_file(toy_run, tmp_path, tformer):
    text = tmp_path / "text"
    text.write_text("abc\n\ngfe d\n")
    words = ("--quantization", "int8", "--check-file", text, "--json")
    found = json.loads(tformer("export", toy_run, tmp_path / "model", *FORMAT, *words).stdout)
    assert [(check["num_lines"], check["bleu"]) for check in found["checks"]] == [(2, None)] * 2


def test_newest_run_is_exported_where_none_is_named(run, tmp_path, tformer, monkeypatch):
    (tmp_path / "runs").mkdir()
    run.rename(tmp_path / "runs" / "toy")
    monkeypatch.chdir(tmp_path)
    assert tformer("export", "toy-ct2", *FORMAT).exit_code == 0
    assert (tmp_path / "toy-ct2" / "model.bin").is_file()


def refused(tformer, tmp_path, *words) -> str:
    before = sorted(tmp_path.rglob("*"))
    result = tformer("export", *words, *FORMAT)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert sorted(tmp_path.rglob("*")) == before
    return result.stderr


def test_near_ties_are_printed(toy_run, tmp_path, tformer, monkeypatch):
    """With a tolerance that nothing exceeds, rounded numbers make near-ties of what differs."""
    from tformer_cli.export import check
    from tformer_cli.export.ctranslate2 import CTranslate2Format

    monkeypatch.setattr(check, "SCORE_TOLERANCE", 1e9)
    monkeypatch.setattr(CTranslate2Format, "is_exact", True)
    lines = tformer("export", toy_run, tmp_path / "model", *FORMAT, "--quantization", "int8")
    *_, tie, last = lines.stdout.splitlines()
    assert "equally good, rounding apart: '" in tie
    assert "near-ties" in lines.stdout
    assert (
        last
        == f"{tmp_path / 'model'}: written for CTranslate2 (see {tmp_path / 'model'}/README.md)"
    )


def test_another_translation_is_one_line_and_leaves_nothing(
    toy_run, tmp_path, tformer, monkeypatch
):
    from tformer_cli.export.ctranslate2 import CTranslate2Format

    monkeypatch.setattr(CTranslate2Format, "is_exact", True)
    message = refused(tformer, tmp_path, toy_run, tmp_path / "model", "--quantization", "int8")
    assert "CTranslate2 has another translation, or another score for it ('" in message
    assert message.count("\n") == 1


def test_keys_that_are_not_exact_are_refused_all_at_once(run, tmp_path, tformer):
    remove_settings(RunDirectory(run))
    file = run / "config.yaml"
    text = file.read_text().replace("sliding_window: null", "sliding_window: 3")
    file.write_text(text)
    assert refused(tformer, tmp_path, run, tmp_path / "model") == (
        "model.sliding_window: has no exact counterpart in CTranslate2 "
        "(3 with positions of kind sinusoidal); "
        "train with rotary positions, or with model.sliding_window: null\n"
    )


def test_a_run_alone_lacks_the_folder_to_write(run, tmp_path, tformer):
    assert refused(tformer, tmp_path, run) == (
        f"DIR: is missing (the run {run}); add the folder to write\n"
    )


def test_two_runs_are_one_too_many(tmp_path, tformer):
    assert refused(tformer, tmp_path, "runs/a", "runs/b", "out") == (
        "RUN: must be one run folder before DIR (runs/a runs/b out)\n"
    )


def test_folder_that_is_there_is_left_alone(toy_run, tmp_path, tformer):
    (tmp_path / "mine").mkdir()
    assert refused(tformer, tmp_path, toy_run, tmp_path / "mine") == (
        f"{tmp_path / 'mine'}: already exists; remove it, or name another\n"
    )


def test_foreign_folder_is_no_run(tmp_path, tformer):
    (tmp_path / "foreign").mkdir()
    assert refused(tformer, tmp_path, tmp_path / "foreign", tmp_path / "out") == (
        f"{tmp_path / 'foreign'}: is not a run folder: it has no config.yaml; name a run folder\n"
    )


def test_damaged_checkpoint_is_not_exported(run, tmp_path, tformer):
    for weights in run.glob("checkpoints/*/model.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-1])
    assert "is damaged: model.safetensors" in refused(tformer, tmp_path, run, tmp_path / "out")


def test_damaged_evaluation_is_named(run, tmp_path, tformer):
    (run / "eval").mkdir(exist_ok=True)
    (run / "eval" / "toy.json").write_text("{}")
    message = refused(tformer, tmp_path, run, tmp_path / "out")
    assert message.startswith(f"{run / 'eval' / 'toy.json'}: is no evaluation (KeyError")


def test_text_to_check_by_must_be_there(toy_run, tmp_path, tformer):
    words = (toy_run, tmp_path / "out", "--check-file", tmp_path / "none")
    assert refused(tformer, tmp_path, *words).startswith(f"{tmp_path / 'none'}: ")


def test_missing_ctranslate2_is_one_line(toy_run, tmp_path, tformer, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert refused(tformer, tmp_path, toy_run, tmp_path / "out") == (
        "ctranslate2: is not installed; pip install 'tformer[ctranslate2]'\n"
    )


def test_validation_text_that_has_gone_can_be_replaced(toy_run, run, tmp_path, tformer):
    """So it is with an imported model, whose text nobody has."""
    source = load_config(toy_run / "config.yaml").data.valid.source
    file, gone = run / "config.yaml", tmp_path / "gone"
    file.write_text(file.read_text().replace(f"source: {source}", f"source: {gone}"))
    assert refused(tformer, tmp_path, run, tmp_path / "out") == (
        f"{gone}: does not exist, so the export cannot be checked; name a text by --check-file\n"
    )
    words = ("--check-file", source)
    assert tformer("export", run, tmp_path / "out", *FORMAT, *words).exit_code == 0


def test_an_impossible_format_is_refused_before_a_text_is_asked_for(run, tmp_path, tformer):
    words = ("export", run, tmp_path / "out", "--format", "marian")
    expected = tformer(*words)
    assert expected.exit_code == 2
    file = run / "config.yaml"
    source = load_config(file).data.valid.source
    file.write_text(file.read_text().replace(f"source: {source}", f"source: {tmp_path / 'gone'}"))
    assert tformer(*words).stderr == expected.stderr
