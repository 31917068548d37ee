import bz2
import gzip
import json
import lzma
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import sacrebleu
import yaml
from toy import CONFIG, write_toy

from tformer_cli.config.load import load_config
from tformer_cli.evaluation import evaluate as evaluate_module
from tformer_cli.text.tokenizer import load_tokenizers


def reported(run, step):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return next(line for line in lines if line["kind"] == "valid" and line["step"] == step)


def printed_by(command):
    """What sacrebleu itself says, with all digits."""
    words = [sys.executable, "-W", "ignore", "-m", *shlex.split(command), "-w", "8"]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def test_eval_prints_scores_signature_and_where_things_are(toy_run, tformer):
    result = tformer("eval", toy_run, "--bleu", "--chrf", "--ter")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("toy: 10 sentences, step ")
    assert [line.split(" = ")[0] for line in lines[1:4]] == ["BLEU", "chrF2", "TER"]
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in lines[1]
    assert lines[4].startswith("references: loss ")
    hypotheses = toy_run / "eval" / "toy.hyp.txt"
    assert lines[5] == f"translations: {hypotheses}"
    assert hypotheses.read_text().count("\n") == 10


def test_the_printed_commands_give_the_same_scores(toy_run, tformer):
    content = json.loads(tformer("eval", toy_run, "--bleu", "--chrf", "--ter", "--json").stdout)
    for score, command in zip(content["toy"]["scores"], content["toy"]["sacrebleu"], strict=True):
        printed = printed_by(command)
        assert printed["score"] == pytest.approx(score["score"], abs=1e-6)
        assert printed["signature"] == score["signature"]


NORMALIZING = (
    CONFIG.replace("{kind: char}", "{kind: char, lowercase: both, nfkc: both}")
    .replace("max_steps: 24", "max_steps: 12")
    .replace("save_every: 6", "save_every: 12")
    + "evaluation: {bleu: {lowercase: true, tokenize: char}}\n"
)


def test_references_are_scored_raw_whatever_the_tokenizer_makes_of_them(tformer, tmp_path):
    config = write_toy(tmp_path / "data", config=NORMALIZING)
    run, source = tmp_path / "run", tmp_path / "data" / "test.src"
    assert tformer("train", config, "--run", run).exit_code == 0
    found = tformer("translate", run, "--input", source).stdout.splitlines()
    # Upper case, a full-width letter and letters that training never showed.
    raw = [f"{line.upper()} \uff21 é ø {line}" for line in found]
    references = tmp_path / "references"
    references.write_text("".join(f"{line}\n" for line in raw), encoding="utf-8")
    files = ("--source", source, "--reference", references)
    (content,) = json.loads(tformer("eval", run, *files, "--json").stdout).values()
    (score,), (command,) = content["scores"], content["sacrebleu"]
    assert printed_by(command)["score"] == pytest.approx(score["score"], abs=1e-6)
    tokenizer = load_tokenizers(run / "tokenizer").target
    rewritten = [tokenizer.decode(tokenizer.encode(line)) for line in raw]
    assert not set(rewritten) & set(raw)
    other = sacrebleu.corpus_bleu(found, [rewritten], lowercase=True, tokenize="char").score
    assert abs(other - score["score"]) > 1


def test_the_printed_command_is_short_where_the_text_is_at_hand(toy_run, tformer, monkeypatch):
    config = load_config(toy_run / "config.yaml")
    reference = config.data.test["toy"].target
    monkeypatch.chdir(reference.parent)
    line = tformer("eval", toy_run).stdout.splitlines()[-1]
    assert line.startswith(f"reproduce with: sacrebleu {reference.name} -i {toy_run}")


def test_json_names_the_step_that_the_text_names(toy_run, tformer):
    for checkpoint in ("last", "144"):
        command = "eval", toy_run, "--checkpoint", checkpoint
        text = tformer(*command).stdout.splitlines()[0]
        content = json.loads(tformer(*command, "--json").stdout)["toy"]
        assert text == f"toy: 10 sentences, step {content['step']}"


def test_json_on_stdout_and_in_the_run_folder_agree(toy_run, tformer):
    content = json.loads(tformer("eval", toy_run, "--json").stdout)["toy"]
    kept = json.loads((toy_run / "eval" / "toy.json").read_text())
    assert {key: content[key] for key in kept} == kept
    assert [score["name"] for score in kept["scores"]] == ["BLEU"]


@pytest.mark.parametrize("checkpoint", ["best", "last"])
def test_training_and_eval_give_the_same_numbers(toy_run, tformer, checkpoint):
    step = int((toy_run / checkpoint).read_text().removeprefix("step-"))
    content = json.loads(
        tformer(
            "eval", toy_run, "--split", "valid", "--beam", 1, "--checkpoint", checkpoint, "--json"
        ).stdout
    )["valid"]
    training = reported(toy_run, step)
    assert content["scores"][0]["score"] == training["bleu"]
    assert content["scores"][0]["signature"] == training["signature"]
    for key in ("loss", "perplexity", "accuracy"):
        assert content[key] == training[key]


def test_another_text_is_scored_by_source_and_reference(toy_run, tformer):
    data = toy_run.parent / "data"
    files = ("--source", data / "valid.src", "--reference", data / "valid.tgt")
    own = json.loads(tformer("eval", toy_run, "--split", "valid", "--json").stdout)["valid"]
    other = json.loads(tformer("eval", toy_run, *files, "--json").stdout)["valid.src"]
    assert other["scores"] == own["scores"]
    assert other["loss"] == own["loss"]


@pytest.mark.parametrize("words", [(), ("--split", "test")])
def test_a_config_without_a_test_set_is_said_to_have_none(toy_run, tformer, tmp_path, words):
    run = shutil.copytree(toy_run, tmp_path / "run")
    text = yaml.safe_load((run / "config.yaml").read_text())
    text["data"]["test"] = {}
    (run / "config.yaml").write_text(yaml.safe_dump(text))
    result = tformer("eval", run, *words)
    assert result.exit_code == 2
    assert result.stderr.startswith("--split: the config has no test set")
    assert result.stderr.endswith("; choose from: valid\n")


@pytest.mark.parametrize(("ending", "module"), [(".gz", gzip), (".xz", lzma), (".bz2", bz2)])
def test_a_command_is_printed_if_sacrebleu_reads_the_references(
    toy_run, tformer, tmp_path, ending, module
):
    data = toy_run.parent / "data"
    reference = tmp_path / f"references{ending}"
    reference.write_bytes(module.compress((data / "valid.tgt").read_bytes()))
    files = ("--source", data / "valid.src", "--reference", reference)
    (content,) = json.loads(tformer("eval", toy_run, *files, "--json").stdout).values()
    printed = [printed_by(command)["score"] for command in content["sacrebleu"]]
    scores = [score["score"] for score in content["scores"]]
    assert printed == (pytest.approx(scores, abs=1e-6) if ending == ".gz" else [])
    assert "" not in tformer("eval", toy_run, *files).stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--split", "tset"),
            "--split: the config has no such split (tset); choose from: valid, toy",
        ),
        (("--split", ""), "--split: the config has no such split (); choose from: valid, toy"),
        (("--source", "x"), "--reference: --source and --reference go together; add --reference"),
        (
            ("--source", "x", "--reference", "y", "--split", "toy"),
            "--split: contradicts --source (toy); leave one of them out",
        ),
        (
            ("--device", "tpu9000"),
            "--device: no device has this name (tpu9000); use auto, cpu, cuda or mps",
        ),
        (
            ("--precision", "float8"),
            "--precision: must be one of auto, float32, bfloat16, float16, int8 (float8); use auto",
        ),
    ],
)
def test_contradictions_are_one_clear_line(toy_run, tformer, arguments, message):
    result = tformer("eval", toy_run, *arguments)
    assert (result.exit_code, result.stderr) == (2, f"{message}\n")


def test_translations_never_take_the_place_of_their_references(toy_run, tformer, tmp_path):
    source = tmp_path / "talk"
    source.write_text("a b c\n", encoding="utf-8")
    before = toy_run / "eval" / "talk.hyp.txt"
    before.parent.mkdir(exist_ok=True)
    before.write_text("c b a\n", encoding="utf-8")
    result = tformer("eval", toy_run, "--source", source, "--reference", before)
    assert result.exit_code == 2
    assert result.stderr == (
        f"the translations: is also --reference ({before}); name another file\n"
    )
    assert before.read_text(encoding="utf-8") == "c b a\n"


def test_pipes_are_refused(toy_run, tformer, tmp_path):
    pipe, text = tmp_path / "pipe", toy_run.parent / "data" / "valid.src"
    os.mkfifo(pipe)
    for option, files in (
        ("--source", ("--source", pipe, "--reference", text)),
        ("--reference", ("--source", text, "--reference", pipe)),
    ):
        result = tformer("eval", toy_run, *files)
        assert (result.exit_code, result.stderr) == (
            2,
            f"{option}: must be read more than once, and a pipe cannot be; "
            "write it to a file first\n",
        )


def test_torchrun_is_refused(toy_run, tformer, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = tformer("eval", toy_run)
    assert (result.exit_code, result.stderr) == (
        2,
        "tformer eval: is for one process (2 processes); drop torchrun\n",
    )


def test_a_metric_that_is_misspelt_is_corrected(toy_run, tformer, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    result = tformer("eval", toy_run, "--bluu")
    assert result.exit_code == 2
    # The words around the two are the parser's own.
    assert re.search(r"No such option: --bluu .*--bleu\b", result.stderr)


def test_unequal_files_are_refused_with_both_counts(toy_run, tformer, tmp_path):
    source, reference = tmp_path / "s", tmp_path / "r"
    source.write_text("a\nb\nc\n")
    reference.write_text("A\n")
    result = tformer("eval", toy_run, "--source", source, "--reference", reference)
    assert result.exit_code == 2
    assert result.stderr == (
        f"{source}:2: has no counterpart in {reference} (3 and 1 lines); "
        "line n of one file must translate line n of the other\n"
    )


def warning_of_overlap(counts: str) -> str:
    return (
        f"s: is partly in data.train, so its scores are too high ({counts}); "
        "remove them from the training text\n"
    )


def test_text_that_training_has_seen_is_named(tformer, toy_run, tmp_path, monkeypatch):
    data = toy_run.parent / "data"
    sources, targets = ((data / f"train.{side}").read_text().split("\n") for side in ("src", "tgt"))
    new = "abcdabcdabcd"
    assert new not in sources
    source, reference = tmp_path / "s", tmp_path / "r"
    source.write_text(f"{sources[7].upper()}\n{new}\n{new}\n")
    reference.write_text(f" {targets[7]}\n{new}\n{targets[8]}\n")
    words = ("eval", toy_run, "--source", source, "--reference", reference, "--beam", 1)
    warning = warning_of_overlap("1 of 3 pairs, 1 source, 2 targets")
    last = f"next: tformer translate {toy_run}\n"
    assert tformer(*words).stderr == warning + last
    # Only the beginning of a large text is read.
    monkeypatch.setattr(evaluate_module, "MAX_COMPARED", 7)
    assert tformer(*words).stderr == last


def test_text_whose_phrases_training_has_seen_is_named(tformer, toy_run, tmp_path, monkeypatch):
    run, source, reference = tmp_path / "run", tmp_path / "s", tmp_path / "r"
    shutil.copytree(toy_run, run)
    for file in (source, reference):
        file.write_text("abcd abcd abcd\n")
    config = yaml.safe_load((run / "config.yaml").read_text())
    (text,) = config["data"]["train"]
    phrases = {"source": str(source), "target": str(reference), "extract": "phrases"}
    config["data"]["train"] = [phrases, text]
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    words = ("eval", run, "--source", source, "--reference", reference, "--beam", 1)
    warning = warning_of_overlap("1 of 1 pair, 1 source, 1 target")
    last = f"next: tformer translate {run}\n"
    assert tformer(*words).stderr == warning + last
    # Texts whose lines are trained on come first.
    with open(text["source"]) as lines:
        monkeypatch.setattr(evaluate_module, "MAX_COMPARED", sum(1 for _ in lines))
    assert tformer(*words).stderr == last


@pytest.mark.parametrize("content", [None, b"\xff\n"])
def test_training_text_that_is_gone_or_damaged_keeps_no_score_back(
    tformer, toy_run, tmp_path, content
):
    run, target = tmp_path / "run", tmp_path / "train.tgt"
    shutil.copytree(toy_run, run)
    config = (run / "config.yaml").read_text()
    old = toy_run.parent / "data" / "train.tgt"
    assert str(old) in config
    (run / "config.yaml").write_text(config.replace(str(old), str(target)))
    if content is not None:
        target.write_bytes(content)
    result = tformer("eval", run, "--beam", 1)
    assert (result.exit_code, result.stderr) == (0, f"next: tformer translate {run}\n")


def test_a_long_line_is_named(toy_run, tformer, tmp_path):
    source, reference = tmp_path / "s", tmp_path / "r"
    source.write_text(f"abcdabcd\n{'ab cd, ' * 60}\n")
    reference.write_text("DCBADCBA\nDCBADCB\n")
    files = ("--source", source, "--reference", reference)
    result = tformer("eval", toy_run, *files, "--beam", 1)
    assert (
        result.stderr == f"{source}:2: is longer than 256 tokens (420); translated in 2 pieces\n"
        f"next: tformer translate {toy_run}\n"
    )


def test_tokenized_references_are_named(toy_run, tformer, tmp_path):
    source, target = tmp_path / "a.src", tmp_path / "a.tgt"
    source.write_text("abc\nabd\n", encoding="utf-8")
    target.write_text("CBA .\nDBA .\n", encoding="utf-8")
    command = "eval", toy_run, "--source", source, "--reference", target, "--beam", 1
    said = "evaluation.bleu.tokenize: tokenizes tokenized text"
    assert said in tformer(*command).stderr
    assert said not in tformer(*command, "--chrf").stderr


def test_references_that_are_cut_into_subwords_are_named(toy_run, tformer, tmp_path):
    source, target = tmp_path / "a.src", tmp_path / "a.tgt"
    source.write_text("abc\nabd\n", encoding="utf-8")
    target.write_text("CB@@ A\nDB@@ A\n", encoding="utf-8")
    command = "eval", toy_run, "--source", source, "--reference", target, "--beam", 1
    said = f"{target}: is cut into subwords, which BLEU counts as words (CB@@); join them to words"
    assert said in tformer(*command).stderr
    assert said not in tformer(*command, "--chrf").stderr


def test_an_ensemble_is_judged_as_one(toy_run, tformer, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(toy_run, other)
    names = {folder.name for folder in (other / "checkpoints").iterdir()}
    (other / "best").write_text(min(names - {(other / "best").read_text().strip()}) + "\n")

    def losses(*words):
        content = json.loads(tformer("eval", *words, "--split", "valid", "--json").stdout)["valid"]
        return content["num_models"], content["loss"]

    one, two, both = losses(toy_run), losses(other), losses(toy_run, "--ensemble", other)
    assert (one[0], two[0], both[0]) == (1, 1, 2)
    # The logarithm of a mean is above the mean of the logarithms.
    assert both[1] < (one[1] + two[1]) / 2
    copy = shutil.copytree(toy_run, tmp_path / "copy")
    assert losses(toy_run, "--ensemble", copy) == (2, pytest.approx(one[1], rel=1e-5))
    head = tformer("eval", toy_run, "--ensemble", other, "--split", "valid").stdout.splitlines()[0]
    assert head.endswith(", ensemble of 2")


def test_a_consensus_is_written_beside_its_score(toy_run, tformer):
    words = ("eval", toy_run, "--beam", 4, "--mbr", "chrf", "--json")
    assert json.loads(tformer(*words).stdout)["toy"]["mbr"] == {
        "utility": "chrf",
        "num_candidates": None,
    }
    assert json.loads(tformer("eval", toy_run, "--json").stdout)["toy"]["mbr"] is None
