"""`tformer distill` and `tformer back-translate`: what they print is what a config takes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from toy import CONFIG

from tformer_cli import synthesize
from tformer_cli.config.load import load_config
from tformer_cli.config.schema.text import TrainingText


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "mono.txt"
    file.write_text("abc de\n\ng\n  \nbad cafe\n")
    return file


@pytest.fixture
def call(tformer, toy_run, text, tmp_path):
    def run(command: str, *words: object):
        return tformer(command, toy_run, "-i", text, "-o", tmp_path / "new" / "x", *words)

    return run


@pytest.mark.parametrize(
    ("command", "tags"), [("distill", ()), ("back-translate", ("[back-translated]",))]
)
def test_what_is_printed_is_what_a_config_takes(
    call, toy_run, text, tmp_path, monkeypatch, command, tags
):
    result = call(command)
    assert (result.exit_code, result.stderr) == (0, "")
    prefix = tmp_path / "new" / "x"
    *said, head = result.stdout.partition("- source")[0].splitlines()
    assert said == [
        f"{toy_run}: 3 pairs of 5 lines",
        f"{text}: 2 lines have no pair (2, 4)",
        f"{prefix}.jsonl: line, teacher, rank and score of each pair",
    ]
    assert head == "below data.train of a config:"
    item = "".join(f"    {line}\n" for line in result.stdout.partition(f"{head}\n")[2].splitlines())
    for split in ("valid", "test"):
        for side in ("src", "tgt"):
            (tmp_path / f"{split}.{side}").write_text("ab\n")
    config = CONFIG.replace(
        "  train: [{source: train.src, target: train.tgt}]\n", "  train:\n" + item
    )
    file = tmp_path / "toy.yaml"
    file.write_text(config)
    source, target = Path(f"{prefix}.source"), Path(f"{prefix}.target")
    assert load_config(file).data.train == (TrainingText(source=source, target=target, tags=tags),)
    real = target if tags else source
    assert real.read_text() == "abc de\ng\nbad cafe\n"


def test_json_has_all_that_is_printed_and_the_item_for_a_config(call, toy_run, tmp_path):
    result = call("back-translate", "--json", "--nbest", 2)
    prefix = tmp_path / "new" / "x"
    assert json.loads(result.stdout) == {
        "num_lines": 5,
        "num_pairs": 6,
        "by_teacher": {str(toy_run): 6},
        "omitted": [2, 4],
        "record": f"{prefix}.jsonl",
        "train": {
            "source": f"{prefix}.source",
            "target": f"{prefix}.target",
            "tags": ["[back-translated]"],
        },
    }


def test_options_are_those_of_the_library(call, toy_run, text, tmp_path):
    from tformer_cli import MBR, BeamConfig

    words = ("--mbr", "bleu", "--candidates", 3, "--beam", 4, "--drop-duplicates")
    assert call("distill", *words, "--set", "decoding.max_length=9").exit_code == 0
    synthesize(
        [toy_run],
        text,
        tmp_path / "other",
        real="source",
        mbr=MBR("bleu", 3),
        decoding=BeamConfig(beam_size=4, max_length=9),
        drop_duplicates=True,
    )
    for end in ("source", "target", "jsonl"):
        content = (tmp_path / "new" / f"x.{end}").read_bytes()
        assert content == (tmp_path / f"other.{end}").read_bytes()


def test_an_ensemble_writes_what_translate_writes(tformer, toy_run, text, tmp_path):
    other = shutil.copytree(toy_run, tmp_path / "other")
    names = {folder.name for folder in (other / "checkpoints").iterdir()}
    (other / "best").write_text(min(names - {(other / "best").read_text().strip()}))
    words = (toy_run, "--ensemble", other, "-i", text)
    result = tformer("distill", *words, "-o", tmp_path / "x")
    assert result.stdout.startswith(f"{toy_run} + {other}: 3 pairs of 5 lines\n")
    translated = tformer("translate", *words).stdout
    expected = [line for line in translated.splitlines(keepends=True) if line.strip()]
    assert (tmp_path / "x.target").read_text() == "".join(expected)


def test_many_lines_without_a_pair_are_counted_and_the_first_named(call, text):
    text.write_text("ab\n" + "\n" * 12)
    assert f"{text}: 12 lines have no pair (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...)" in (
        call("distill").stdout
    )
    text.write_text("\nab\n")
    assert f"{text}: 1 line has no pair (1)" in call("distill").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--candidates", 3), "--candidates: has no effect without --mbr (3); add --mbr chrf\n"),
        (("--nbest", 5), "--nbest: must be at most the beam size 2 (5); use --beam 5\n"),
        (("--mbr", "chrf", "--beam", 1), "--mbr: has no effect on greedy search; use --beam 8"),
    ],
)
def test_mistakes_are_named_by_option(call, words, message):
    result = call("distill", *words)
    assert result.exit_code == 2
    assert result.stderr.startswith(message)


def test_teachers_are_checked_before_any_is_loaded(tformer, toy_run, text, tmp_path):
    words = ("-i", text, "-o", tmp_path / "x")
    result = tformer("distill", toy_run, toy_run, *words)
    assert (result.exit_code, result.stderr) == (
        2,
        f"TEACHER: names a model twice ({toy_run}); name each once\n",
    )
    result = tformer("distill", toy_run, tmp_path / "b", "--ensemble", toy_run, *words)
    assert result.stderr == (
        "--ensemble: needs a single teacher, whose other models it names (2 teachers); "
        "name one teacher, and the others by --ensemble\n"
    )
    result = tformer("distill", toy_run, "--ensemble", text, *words)
    assert result.stderr == f"{text}: is a file, not a run folder; name a run folder\n"
    result = tformer("distill", toy_run, text, *words)
    assert result.stderr == f"{text}: is a file, not a run folder; name a run folder\n"


@pytest.mark.slow
def test_two_processes_write_what_one_does(toy_run, text, tmp_path, tformer):
    text.write_text("".join(f"{line}\n" for line in ["abc de", "", "g", "bad cafe", "fed"] * 7))
    words = ["distill", toy_run, "-i", text, "--json"]
    one = tformer(*words, "-o", tmp_path / "x", "--backend", "native")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    done = subprocess.run(
        [sys.executable, *torchrun, "tformer_cli", *map(str, words), "-o", str(tmp_path / "y")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for key in ("num_pairs", "by_teacher"):
        assert json.loads(done.stdout)[key] == json.loads(one.stdout)[key]
    for end in ("source", "target", "jsonl"):
        assert (tmp_path / f"x.{end}").read_bytes() == (tmp_path / f"y.{end}").read_bytes()
