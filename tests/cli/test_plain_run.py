"""`tformer export --format safetensors`, and `tformer import` of what it writes."""

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import sacrebleu
import yaml
from safetensors.torch import load_file
from toy import write_languages

from tformer_cli.cli.printing import suggest_translation
from tformer_cli.config.load import load_config

FORMAT = ("--format", "safetensors")


@pytest.fixture
def plain(toy_run, tmp_path, tformer) -> Path:
    result = tformer("export", toy_run, tmp_path / "toy-plain", *FORMAT)
    assert result.exit_code == 0, result.stderr
    return tmp_path / "toy-plain"


@pytest.fixture
def again(plain, tmp_path, tformer) -> Path:
    result = tformer("import", plain, tmp_path / "again")
    assert result.exit_code == 0, result.stderr
    return tmp_path / "again"


def test_export_says_that_all_is_alike_and_writes_the_folder(toy_run, tmp_path, tformer):
    folder = tmp_path / "toy-plain"
    assert tformer("export", toy_run, folder, *FORMAT).stdout.splitlines() == [
        "greedy: 12 of 12 lines translated alike",
        "beam 2: 12 of 12 lines translated alike",
        f"{folder}: written for tformer (see {folder}/README.md)",
    ]
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.yaml",
        "model.safetensors",
        "tokenizer",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["toy-plain"]


def test_the_folder_tells_nothing_of_this_machine(toy_run, plain, tmp_path):
    for file in plain.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert str(tmp_path).encode() not in content
            assert str(toy_run.parent).encode() not in content


def test_the_card_is_of_tformer_and_its_example_runs(toy_run, plain, tformer, monkeypatch):
    page = (plain / "README.md").read_text(encoding="utf-8")
    matter = yaml.safe_load(page.split("---\n")[1])
    assert matter["library_name"] == "tformer"
    assert matter["tags"] == ["translation", "tformer"]
    assert "steps of training by tformer. tformer runs it." in page
    monkeypatch.chdir(plain)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(page.split("```python\n")[1].split("```")[0], {})
    first = load_config(toy_run / "config.yaml").data.valid.source.read_text().splitlines()[0]
    ours = tformer("translate", toy_run, stdin=f"{first}\n").stdout
    assert printed.getvalue() == ours
    assert f"It prints:\n\n> {ours}" in page


def test_half_precision_tells_the_bleu_of_both(toy_run, tmp_path, tformer):
    words = ("--quantization", "bfloat16", "--json")
    found = json.loads(tformer("export", toy_run, tmp_path / "half", *FORMAT, *words).stdout)
    assert tformer("import", tmp_path / "half", tmp_path / "again").exit_code == 0
    valid = load_config(toy_run / "config.yaml").data.valid
    references = valid.target.read_text(encoding="utf-8").splitlines()

    def bleu(run: Path, beam: int) -> float:
        words = ("translate", run, "--input", valid.source, "--beam", beam)
        lines = tformer(*words).stdout.splitlines()
        return sacrebleu.corpus_bleu(lines, [references]).score

    for beam, check in zip((1, 2), found["checks"], strict=True):
        assert check["num_lines"] == 12
        assert check["bleu"] == pytest.approx(bleu(tmp_path / "again", beam))
        assert check["our_bleu"] == pytest.approx(bleu(toy_run, beam))
    whole = tformer("export", toy_run, tmp_path / "whole", *FORMAT, "--json").stdout
    assert [check["bleu"] for check in json.loads(whole)["checks"]] == [None, None]
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "whole")]
    assert sizes[0] < 0.6 * sizes[1]


@pytest.mark.parametrize("quantization", ["int8", "int8_float32"])
def test_eight_bits_are_refused(toy_run, tmp_path, tformer, quantization):
    words = (*FORMAT, "--quantization", quantization)
    result = tformer("export", toy_run, tmp_path / "x", *words)
    assert result.exit_code == 2
    assert result.stderr == (
        "--quantization: must be float16, bfloat16 or float32 with --format safetensors "
        f"({quantization})\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_does_not_translate_is_refused(masked_run, tmp_path, tformer):
    result = tformer("export", masked_run, tmp_path / "x", *FORMAT)
    assert result.exit_code == 2
    assert result.stderr == (
        f"{masked_run}: does not translate (model.kind masked_encoder); "
        "train an encoder_decoder that begins with it: training.init_from\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_import_says_what_it_has_made(plain, tmp_path, tformer):
    result = tformer("import", plain, tmp_path / "again", "--target-language", "de")
    weights = load_file(plain / "model.safetensors")
    num_parameters = sum(weight.numel() for weight in weights.values())
    size = len(weights["encoder.embeddings.tokens.weight"])
    assert result.stdout == (
        f"{tmp_path}/again: source -> de, {num_parameters:,} parameters, vocabulary {size}\n"
    )
    assert result.stderr == f"next: tformer translate {tmp_path}/again\n"


def test_a_suggested_translation_names_a_target_language_where_it_is_needed(tmp_path, capsys):
    config = load_config(write_languages(tmp_path))
    suggest_translation(config, tmp_path / "a run", "--json")
    assert capsys.readouterr().err == (
        f"next: tformer translate '{tmp_path}/a run' --to bb --json\n"
    )
    prefixes = {"bb": "<2bb> ", "aa": "<2aa> ", "cc": "<2cc> "}
    with_prefixes = replace(config, data=replace(config.data, prefixes=prefixes))
    suggest_translation(with_prefixes, tmp_path)
    assert capsys.readouterr().err == f"next: tformer translate {tmp_path}\n"


def test_an_imported_run_translates_and_evaluates_as_the_original(toy_run, again, tformer):
    texts = load_config(toy_run / "config.yaml").data.test["toy"]
    lines = texts.source.read_text()
    words = ("--workers", 1)
    found = [tformer("translate", run, *words, stdin=lines).stdout for run in (toy_run, again)]
    assert found[0] == found[1]
    sides = ("--source", texts.source, "--reference", texts.target, "--json")
    told = [json.loads(tformer("eval", run, *words, *sides).stdout) for run in (toy_run, again)]
    assert told[0]["test.src"]["scores"] == told[1]["test.src"]["scores"]


@pytest.mark.parametrize("options", [(), ("--best", "3")])
def test_an_exported_model_has_nothing_to_average(plain, tformer, options):
    result = tformer("average", plain, *options)
    assert (result.exit_code, result.stderr) == (
        2,
        f"{plain}: holds an exported model, which has no checkpoints; "
        "name the run that was exported\n",
    )


def test_an_imported_run_is_exported_to_the_same_folder(toy_run, plain, again, tmp_path, tformer):
    source = load_config(toy_run / "config.yaml").data.valid.source
    back = tmp_path / "back"
    result = tformer("export", again, back, *FORMAT, "--check-file", source)
    assert result.exit_code == 0, result.stderr
    for name in ("model.safetensors", "config.yaml", "tokenizer/shared.json"):
        assert (back / name).read_bytes() == (plain / name).read_bytes()


def test_an_imported_run_is_trained_on(toy_run, again, tmp_path, tformer):
    corpus = load_config(toy_run / "config.yaml").data.valid.source.parent
    on = tmp_path / "on"
    settings = {"data.root": corpus, "training.max_steps": 12}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    words += ["--set", "training.validate_every=12", "--device", "cpu"]
    result = tformer("train", again / "config.yaml", "--init-from", again, "--run", on, *words)
    assert result.exit_code == 0, result.stderr
    reports = [json.loads(line) for line in (on / "metrics.jsonl").read_text().splitlines()]
    before = [json.loads(line) for line in (toy_run / "metrics.jsonl").read_text().splitlines()]
    trained = [report["loss"] for report in reports if report["kind"] == "train"]
    anew = [report["loss"] for report in before if report["kind"] == "train"]
    assert trained[0] < anew[0] - 0.5
