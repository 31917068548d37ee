import json
import re
import shlex
import shutil

import pytest

from tformer_cli.config.load import load_config, save_decoding
from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.evaluation.tables import RELIABILITY_HEAD

TUNE = ("--metric", "chrf", "--beam", 2, "--beam", 3, "--device", "cpu", "--backend", "native")


@pytest.fixture
def untuned(toy_run, tmp_path):
    """A run whose own search is worse than others."""
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    save_decoding(run / "config.yaml", BeamConfig(beam_size=3, length_penalty=0.0, max_length=20))
    return run


def test_tune_prints_each_search_with_its_score_and_marks_the_best(untuned, tformer):
    lines = tformer("tune", untuned, *TUNE).stdout.splitlines()
    content = json.loads(tformer("tune", untuned, *TUNE, "--json").stdout)
    keys = ("beam_size", "no_repeat_ngram_size", "length_penalty")
    trials = sorted(content["trials"], key=lambda one: [one["decoding"][key] for key in keys])
    best = content["best"]
    expected = ["beam length penalty no repeated chrF2"]
    for one in trials:
        search, score = one["decoding"], one["score"]["score"]
        mark = " best" if one == best else " the run's own" if one == content["trials"][0] else ""
        size = search["no_repeat_ngram_size"]
        limit = f" {size}-grams" if size else ""
        row = f"{search['beam_size']} {search['length_penalty']:g}{limit} {score:.2f}"
        expected.append(row + mark)
    assert [" ".join(line.split()) for line in lines[: len(expected)]] == expected
    data, signature = load_config(untuned / "config.yaml").data, best["score"]["signature"]
    gain = best["score"]["score"] - content["trials"][0]["score"]["score"]
    noise = "more than noise" if content["p_value"] < 0.05 else "within noise"
    assert lines[len(expected) :] == [
        f"12 sentences of {data.valid.source}  ({signature})",
        f"best: {gain:+.2f} chrF2, {noise} (p = {content['p_value']:.3f}, paired bootstrap)",
        "decoding:",
        "  kind: beam",
        f"  beam_size: {best['decoding']['beam_size']}",
        f"  length_penalty: {best['decoding']['length_penalty']}",
        f"  no_repeat_ngram_size: {best['decoding']['no_repeat_ngram_size']}",
        "  max_length: 20",
    ]
    assert content["is_significant"] == (content["p_value"] < 0.05)
    assert not content["is_written"]


def test_the_suggested_command_evaluates_the_best_search(untuned, tformer):
    before = (untuned / "config.yaml").read_bytes()
    result = tformer("tune", untuned, *TUNE)
    _, _, command = result.stderr.splitlines()[-1].partition("next: tformer ")
    words = (*shlex.split(command), "--split", "valid", "--chrf", "--device", "cpu", "--json")
    assert (untuned / "config.yaml").read_bytes() == before
    (score,) = json.loads(tformer(*words).stdout)["valid"]["scores"]
    (best,) = [line for line in result.stdout.splitlines() if line.endswith("  best")]
    assert f"{score['score']:.2f}" == best.split()[-2]


def test_an_export_is_suggested_to_translate_with_the_best_search(untuned, tmp_path, tformer):
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    export = tmp_path / "export"
    tformer("export", untuned, export, "--format", "ctranslate2")
    for file in load_config(untuned / "config.yaml").data.valid.files.values():
        shutil.copy(file, export)
    result = tformer("tune", export, "--metric", "chrf", "--beam", 3, "--device", "cpu")
    assert result.exit_code == 0, result.stderr
    _, _, command = result.stderr.splitlines()[-1].partition("next: tformer ")
    name, *words = shlex.split(command)
    assert (name, words[0]) == ("translate", str(export))
    assert "--length-penalty" in words
    assert tformer(name, *words, "--device", "cpu", stdin="a b\n").exit_code == 0


def test_a_search_that_is_written_is_that_of_the_run_from_then_on(untuned, tformer):
    result = tformer("tune", untuned, *TUNE, "--write")
    assert result.stdout.splitlines()[-1] == f"{untuned}/config.yaml: written"
    assert result.stderr.splitlines()[-1] == f"next: tformer eval {untuned}"
    written = load_config(untuned / "config.yaml").decoding
    again = tformer("tune", untuned, *TUNE, "--write")
    assert again.stdout.splitlines()[-1] == "the run's own search is the best"
    (own,) = [line for line in again.stdout.splitlines() if "the run's own" in line][:1]
    assert own.split()[:2] == [str(written.beam_size), f"{written.length_penalty:g}"]
    # Its training resumes with it.
    resumed = tformer("train", untuned)
    assert (resumed.exit_code, "finished at step 150" in resumed.stderr) == (0, True)
    assert load_config(untuned / "config.yaml").decoding == written


def test_a_masked_encoder_has_no_search_to_tune(masked_run, tformer):
    result = tformer("tune", masked_run)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"{masked_run}: does not translate (model.kind masked_encoder)")


def test_tune_refuses_torchrun(toy_run, tformer, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = tformer("tune", toy_run)
    assert (result.exit_code, result.stderr) == (
        2,
        "tformer tune: is for one process (2 processes); drop torchrun\n",
    )


def test_calibrate_lets_translate_give_confidences(toy_run, tformer, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    line = json.loads(tformer("translate", run, "ab cd", "--json").stdout)
    assert line["translations"][0]["confidence"] is None
    result = tformer("calibrate", run)
    head, valid, toy, written = result.stdout.splitlines()
    assert re.split(r" {2,}", head.strip()) == list(RELIABILITY_HEAD[1:])
    assert (valid.split()[:2], toy.split()[:2]) == (["valid", "12"], ["toy", "10"])
    assert written == f"{run}/confidence.json: written"
    assert result.stderr.endswith(f"next: tformer translate {run} --json\n")
    saved = json.loads((run / "confidence.json").read_text())
    printed = json.loads(tformer("calibrate", run, "--json").stdout)
    assert printed == saved["reliability"]
    assert set(printed["toy"]) == {
        *("num_sentences", "quality", "confidence", "ece", "raw_ece", "bins")
    }
    assert sum(each["num_sentences"] for each in printed["toy"]["bins"]) == 10
    line = json.loads(tformer("translate", run, "ab cd", "--json").stdout)
    assert 0 < line["translations"][0]["confidence"] < 1
    other = tformer("translate", run, "ab cd", "--json", "--beam", 3)
    assert json.loads(other.stdout)["translations"][0]["confidence"] is None


def test_a_run_that_does_not_translate_is_not_calibrated(masked_run, tformer):
    result = tformer("calibrate", masked_run)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{masked_run}: does not translate")
