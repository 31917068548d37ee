"""`tformer translate` by hand: a sentence on the command line, and lines typed at a terminal."""

import os
import pty
import select
import shutil
import time

import pytest
from forked import forked_tformer

# Enough for any machine; a test that hangs ends then.
SECONDS = 300


@pytest.fixture
def runs(toy_run, tmp_path, monkeypatch):
    """A folder runs/ with a run in it, in the working directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(toy_run, "runs/toy")
    return tmp_path


def test_a_sentence_is_translated_by_the_run_before_it_or_by_the_newest(runs, tformer):
    expected = tformer("translate", "runs/toy", stdin="ab cd\n").stdout
    named = tformer("translate", "runs/toy", "ab cd")
    assert (named.stdout, named.stderr) == (expected, "")
    newest = tformer("translate", "ab cd")
    assert newest.stdout == expected
    assert newest.stderr.startswith("using runs/toy (step ")
    word = tformer("translate", "runs/toy", "ab").stdout
    assert tformer("translate", "ab").stdout == word
    assert tformer("translate", "runs/toy", "").stdout == "\n"
    options = ("--nbest", "2", "--beam", "2")
    assert (
        tformer("translate", "ab cd", *options).stdout
        == tformer("translate", *options, stdin="ab cd\n").stdout
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data"], "data: is not a run folder: it has no config.yaml; name a run folder"),
        (["runs"], "runs: is a folder of runs; name one of them, such as runs/toy"),
        (
            ["toy.yaml"],
            "toy.yaml: is a config, not a run folder; "
            "name the run that was trained from it, such as runs/toy",
        ),
        (["s.en"], "s.en: is a file; use --input s.en"),
        (["runs/toy", "s.en"], "s.en: is a file; use --input s.en"),
        (["runs/tyo"], "runs/tyo: no such run folder; name the folder of a run, such as runs/demo"),
        (["tyo", "ab cd"], "tyo: no such run folder; name the folder of a run, such as runs/demo"),
        (["ab", "cd"], "SENTENCE: must be one argument (ab cd); put it in quotes"),
        (["ab", "cd", "e"], "SENTENCE: must be one argument (ab cd e); put it in quotes"),
        (
            ["runs/toy", "ab", "--input", "s.en"],
            "--input: contradicts a sentence; leave one of them out",
        ),
        (["runs/toy", "\udcff"], "SENTENCE:1: not UTF-8 (byte 0xff at column 1); "),
    ],
)
def test_what_is_neither_a_run_nor_a_sentence_is_named(runs, tformer, words, message):
    (runs / "data").mkdir()
    (runs / "s.en").write_text("ab\n")
    (runs / "toy.yaml").write_text("seed: 1\n")
    result = tformer("translate", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(message)


@pytest.mark.parametrize("number", ["144", "000144"])
def test_a_checkpoint_is_named_by_its_step(toy_run, tformer, number):
    expected = tformer("translate", toy_run, "ab", "--checkpoint", "step-000144")
    assert expected.exit_code == 0
    assert tformer("translate", toy_run, "ab", "--checkpoint", number).stdout == expected.stdout


def read_until(terminal: int, wanted: bytes, seen: bytes = b"") -> bytes:
    """Return what a terminal shows up to something that is waited for, or to its end."""
    deadline = time.monotonic() + SECONDS
    while wanted not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"still waiting for {wanted!r} after {seen!r}"
        try:
            more = os.read(terminal, 1024)
        except OSError:
            more = b""
        if not more:
            break
        seen += more
    return seen


@pytest.mark.parametrize("is_redirected", [False, True])
def test_a_terminal_gets_a_prompt_for_each_line(toy_run, tformer, tmp_path, is_redirected):
    expected = tformer("translate", toy_run, stdin="ab cd\nfeg\n").stdout.splitlines()
    outer, inner = pty.openpty()
    with (tmp_path / "out").open("wb") as out:
        stdout = out if is_redirected else inner
        process = forked_tformer(
            "translate", toy_run, "--workers", "1", stdin=inner, stdout=stdout, stderr=inner
        )
    os.close(inner)
    try:
        shown = read_until(outer, b"source> ")
        step = int((toy_run / "best").read_text().removeprefix("step-"))
        assert f", {toy_run} at step {step}; type a sentence, Ctrl-D ends" in shown.decode()
        for line in ("ab cd", "feg"):
            os.write(outer, f"{line}\n".encode())
            shown = read_until(outer, b"source> ")
            assert (expected[["ab cd", "feg"].index(line)] in shown.decode()) != is_redirected
        os.write(outer, b"\x04")
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(outer)
    if is_redirected:
        assert (tmp_path / "out").read_text().splitlines() == expected


def test_without_a_terminal_nothing_is_asked(toy_run, tformer):
    result = tformer("translate", toy_run, stdin="ab\n")
    assert result.stderr == ""
