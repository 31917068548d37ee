"""`tformer translate --resume`: what is killed goes on, and ends with the same bytes."""

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from killing import killed
from tqdm import tqdm

from tformer_cli.model.encoder_decoder import EncoderDecoder
from tformer_cli.process import num_processes
from tformer_cli.search.engine import Hypothesis
from tformer_cli.translate import translator as translator_module

CHOOSER = random.Random(5)
LINES = [" ".join(CHOOSER.choices(["ab", "cde", "f", "g", ""], k=3)) for _ in range(14)]
FORMATS = {
    "text": (),
    "nbest": ("--nbest", 2),
    "json": ("--json", "--beam", 2),
    "sample": ("--nbest", 2, "--json", "--set", "decoding={kind: sample, max_length: 20}"),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "input.txt"
    file.write_text("".join(f"{line}\n" for line in LINES))
    return file


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "output" / "target.txt"


@pytest.fixture
def translate(toy_run, tformer, source, target, monkeypatch):
    """Translate the source into the target, in windows of a few lines."""
    monkeypatch.setattr(translator_module, "WINDOW_LINES", 3)

    def call(*words: object, run: Path = toy_run, output: Path = target):
        return tformer("translate", run, "-i", source, "-o", output, "--workers", 1, *words)

    return call


@pytest.mark.parametrize(
    "words",
    [("--nbest", 9), ("--ban", ""), ("--repair", "--nbest", 2), ("--mbr", "chrf", "--beam", 1)],
)
def test_wrong_options_are_refused_before_an_output_begins(words, translate, target):
    refused = translate("--resume", *words)
    assert refused.exit_code == 2
    assert refused.stderr.startswith(words[0])
    assert not target.parent.exists()


def interrupt(translate, target: Path, num_calls: int = 22) -> int:
    """Kill a translation after some windows; return the number of lines that are done."""
    assert killed(lambda: translate("--resume"), num_calls)
    num_lines = json.loads(target.with_name(f"{target.name}.partial.json").read_text())["num_lines"]
    assert 0 < num_lines < len(LINES)
    return num_lines


@pytest.mark.parametrize("layout", FORMATS)
def test_what_is_killed_again_and_again_ends_with_the_bytes_of_an_unbroken_run(
    translate, target, tmp_path, layout
):
    options, whole = FORMATS[layout], tmp_path / "whole.txt"
    assert translate(*options, output=whole).exit_code == 0
    chooser, num_kills = random.Random(layout), 0
    while killed(lambda: translate("--resume", *options), chooser.randrange(8, 30)):
        num_kills += 1
    assert num_kills > 0
    assert target.read_bytes() == whole.read_bytes()
    assert list(target.parent.iterdir()) == [target]


def test_lines_that_are_done_are_not_translated_again(translate, target, monkeypatch):
    num_done = interrupt(translate, target)
    translated: list[int] = []
    translate_windows = translator_module.Translator.translate_windows

    def noticed(*arguments, **options):
        for window in translate_windows(*arguments, **options):
            translated.append(window[0].number)
            yield window

    monkeypatch.setattr(translator_module.Translator, "translate_windows", noticed)
    assert translate("--resume").exit_code == 0
    assert translated == list(range(num_done + 1, len(LINES) + 1, 3))


def test_an_unbroken_run_leaves_nothing_beside_its_output(translate, target, tmp_path):
    whole = tmp_path / "whole.txt"
    translate(output=whole)
    assert translate("--resume").exit_code == 0
    assert target.read_bytes() == whole.read_bytes()
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--nbest", 2), "--nbest"),
        (("--json",), "--json"),
        (("--beam", 3), "decoding.beam_size"),
        (("--ban", "E", "--precision", "bfloat16"), "--ban, --precision"),
        (("--checkpoint", "step-000006"), "model"),
    ],
    ids=["nbest", "json", "beam", "ban", "checkpoint"],
)
def test_changed_settings_are_refused_by_name(translate, toy_run, target, words, named):
    interrupt(translate, target)
    if "--checkpoint" in words:
        names = sorted(folder.name for folder in (toy_run / "checkpoints").iterdir())
        best = (toy_run / "best").read_text().strip()
        words = ("--checkpoint", next(name for name in names if name != best))
    result = translate("--resume", *words)
    assert (result.exit_code, result.stderr) == (
        2,
        f"{target}.partial: was begun from something else (different {named}); "
        "remove it, or name another file\n",
    )
    # Without --resume it is in nobody's way.
    assert translate(*words).exit_code == 0


def test_a_changed_input_is_refused_by_name(translate, source, target):
    interrupt(translate, target)
    source.write_text(source.read_text() + "ab\n")
    result = translate("--resume")
    assert result.exit_code == 2
    assert "(different --input); " in result.stderr


def test_what_decides_nothing_may_change(translate, toy_run, target, tmp_path):
    whole = tmp_path / "whole.txt"
    translate(output=whole)
    interrupt(translate, target)
    copy = tmp_path / "copy"
    shutil.copytree(toy_run, copy)
    # The run's own search by another name, another folder, another number of processes.
    words = ("--beam", 2, "--workers", 2, "--device", "cpu", "--checkpoint", "best")
    assert translate("--resume", *words, run=copy).exit_code == 0
    assert target.read_bytes() == whole.read_bytes()


def test_a_damaged_beginning_is_refused(translate, target):
    interrupt(translate, target)
    os.truncate(f"{target}.partial", 1)
    result = translate("--resume")
    assert (result.exit_code, result.stderr) == (
        2,
        f"{target}.partial: is not what was written; remove it, or name another file\n",
    )


@pytest.mark.parametrize("words", [(), ("-i", "x"), ("-o", "y"), ("-i", "x", "-o", "/dev/stdout")])
def test_going_on_needs_both_files(toy_run, tformer, words):
    result = tformer("translate", toy_run, "--resume", *words)
    assert (result.exit_code, result.stderr) == (
        2,
        "--resume: needs --input and --output; name both files\n",
    )


@pytest.mark.parametrize("option", ["--input", "--prefixes", "--constraints", "--terminology"])
def test_a_pipe_cannot_be_gone_on_with(toy_run, tformer, source, tmp_path, option):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    words = ("translate", toy_run, "--resume", "-o", tmp_path / "output", "-i", source)
    result = tformer(*words, option, pipe)
    assert (result.exit_code, result.stderr) == (
        2,
        f"{option}: must be read more than once, and a pipe cannot be; write it to a file first\n",
    )


def test_a_pipe_is_translated_as_it_comes(toy_run, tformer, source, tmp_path):
    expected = tformer("translate", toy_run, "-i", source).stdout
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cp", source, pipe]):
        result = tformer("translate", toy_run, "-i", pipe)
    assert (result.stdout, result.stderr) == (expected, "")


def test_memory_does_not_grow_with_the_file(toy_run, tformer, tmp_path, monkeypatch):
    def translated(self, requests, *_, nbest=1, on_done, **__):
        on_done(len(requests))
        return [[Hypothesis((), 0.0, 0.0, True)] * nbest for _ in requests]

    monkeypatch.setattr("tformer_cli.search.native_engine.NativeEngine.translate", translated)
    monkeypatch.setattr(translator_module, "WINDOW_LINES", 100)
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    peaks = []
    for num_lines in (100, 400, 4000):
        file = tmp_path / f"{num_lines}.txt"
        file.write_text("ab\n" * num_lines)
        tracemalloc.start()
        words = ("-i", file, "-o", tmp_path / "output", "--resume", "--backend", "native")
        assert tformer("translate", toy_run, *words, "--workers", 1).exit_code == 0
        assert (tmp_path / "output").read_text() == "\n" * num_lines
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < peaks[1] + 2**18


def test_the_bar_begins_where_the_file_does_and_ends_with_its_lines(translate, target, monkeypatch):
    bars: list[tqdm] = []

    class Bar(tqdm):
        def __init__(self, **options: Any) -> None:
            super().__init__(**{**options, "disable": False, "file": io.StringIO()})
            bars.append(self)

    num_done = interrupt(translate, target)
    monkeypatch.setattr("tqdm.tqdm", Bar)
    assert translate("--resume").exit_code == 0
    (bar,) = bars
    assert (bar.initial, bar.total, bar.n) == (num_done, len(LINES), len(LINES))


def test_memory_that_runs_out_is_one_line_and_changes_nothing(translate, target, monkeypatch):
    translate()
    expected, step = target.read_text(), EncoderDecoder.decode_step
    monkeypatch.setattr(translator_module, "WINDOW_LINES", 8)

    def short(self, ids, cache):
        if len(ids) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return step(self, ids, cache)

    monkeypatch.setattr(EncoderDecoder, "decode_step", short)
    result = translate("--device", "cpu", "--backend", "native")
    assert (result.exit_code, result.stderr) == (
        0,
        "cpu: memory ran out (8 sentences at a time); going on with fewer\n",
    )
    assert target.read_text() == expected


# ------------------------------------------------------------- several processes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--input: is required under torchrun: stdin cannot be shared; name a file\n"),
        (
            ("-i", "x", "--workers", 3),
            "--workers: must be 1 under torchrun, which starts the processes (3); leave it out\n",
        ),
    ],
)
def test_what_processes_cannot_share_is_refused(toy_run, tformer, monkeypatch, words, message):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert num_processes() == 1  # A scheduler says so, and has started no company.
    monkeypatch.setenv("RANK", "0")
    assert num_processes() == 2
    result = tformer("translate", toy_run, *words)
    assert (result.exit_code, result.stderr) == (2, message)


IN_SMALL_WINDOWS = """
import sys
from tformer_cli.cli.app import main
from tformer_cli.translate import translator
from tformer_cli.storage.partial_file import PartialFile

add = PartialFile.add

def telling(self, text, num_lines):
    add(self, text, num_lines)
    print(self.num_lines, file=sys.stderr, flush=True)

translator.WINDOW_LINES = 3
PartialFile.add = telling
main()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "in_small_windows.py"
    file.write_text(IN_SMALL_WINDOWS)
    return file


def by_two_processes(
    script: Path, run: Path, source: Path, target: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    files = ["translate", str(run), "-i", str(source), "-o", str(target), "--resume"]
    return subprocess.run(
        [sys.executable, *torchrun, *files, *words], capture_output=True, text=True, timeout=600
    )


@pytest.mark.slow
def test_what_the_first_process_refuses_is_said_once(translate, toy_run, source, target, script):
    interrupt(translate, target)
    done = by_two_processes(script, toy_run, source, target, "--max-source-length", "256")
    assert done.returncode != 0
    assert done.stderr.count("(different --max-source-length); remove it") == 1
    assert "[rank1]: Traceback" not in done.stderr


@pytest.mark.slow
def test_processes_share_the_lines_and_go_on_with_what_one_has_begun(
    translate, toy_run, source, target, tmp_path, script
):
    whole = tmp_path / "whole.txt"
    translate(output=whole)
    num_done = interrupt(translate, target)
    done = by_two_processes(script, toy_run, source, target)
    assert done.returncode == 0, done.stderr
    assert target.read_text() == whole.read_text()
    told = [int(line) for line in done.stderr.splitlines() if line.isdecimal()]
    assert told == [*range(num_done + 6, len(LINES), 6), len(LINES)]


@pytest.mark.slow
def test_a_command_that_is_killed_at_any_moment_goes_on(
    translate, toy_run, source, target, tmp_path, script
):
    source.write_text("".join(f"{line}\n" for line in LINES * 20))
    whole = tmp_path / "whole.txt"
    translate("--json", output=whole)
    chooser, words = random.Random(2), ["-i", str(source), "-o", str(target), "--resume", "--json"]
    command = [sys.executable, str(script), "translate", str(toy_run), *words, "--workers", "1"]
    for _ in range(5):
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for _ in range(chooser.randrange(1, 15)):
                assert process.stderr.readline().strip().isdecimal()
            process.send_signal(signal.SIGKILL)
    assert subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0
    assert target.read_bytes() == whole.read_bytes()
