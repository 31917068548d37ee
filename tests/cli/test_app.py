"""The whole command: help, version, errors of the process."""

import errno
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from terminals import open_terminal
from toy import write_toy

from tformer_cli.cli.app import app
from tformer_cli.cli.entry import refusal
from tformer_cli.cli.options import HELP_PANELS
from tformer_cli.cli.printing import tell

ROOT = Path(__file__).parents[2]
COMMANDS = [
    "",
    "demo",
    "init",
    "doctor",
    "train",
    "translate",
    "serve",
    "distill",
    "back-translate",
    "extract-phrases",
    "eval",
    "tune",
    "calibrate",
    "score",
    "compare",
    "clean",
    "vocab",
    "model",
    "average",
    "plot",
    "heatmap",
    "report",
    "import",
    "trim",
    "extend",
    "export",
    "config",
    "config check",
    "config new",
    "config show",
]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tformer_cli", *words], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_the_text_that_was_agreed_on(tformer, golden, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "100")
    output = tformer(*command.split(), "--help").stdout
    golden(f"help/{command.replace(' ', '-') or 'tformer'}.txt", output)


def test_panels_have_options_of_commands_and_each_once():
    group = typer.main.get_command(app)
    names = [name for panel in HELP_PANELS.values() for name in panel]
    options = {name for each in group.commands.values() for p in each.params for name in p.opts}
    assert len(set(names)) == len(names)
    assert set(names) <= options


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "config"])
def test_help_shows_each_option_once(tformer, command):
    found = typer.main.get_command(app)
    for word in command.split():
        found = found.commands[word]
    shown = re.findall(r"^  (?:-\w, )?(--[\w-]+)", tformer(*command.split(), "-h").stdout, re.M)
    options = [p.opts for p in found.params if p.param_type_name == "option"]
    assert len(shown) == len(options) + 1
    assert all(set(shown) & set(names) for names in options)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "config"])
def test_each_example_of_help_is_a_line_to_paste(tformer, command):
    """Each parses: its commands exist and know its options."""
    _, _, after = tformer(*command.split(), "--help").stdout.partition("\nExamples:\n")
    examples = after.partition("\n\n")[0].splitlines()
    assert examples
    lines = [line for example in examples for line in example.split(" && ")]
    assert any(line.strip().startswith(f"tformer {command}") for line in lines)
    for line in lines:
        program, *words = shlex.split(line.rpartition(" | ")[2])
        assert program == "tformer"
        command = typer.main.get_command(app)
        while hasattr(command, "commands"):
            name, *words = words
            command = command.commands[name]
        command.make_context(name, words)


def test_quiet_leaves_results_and_errors(tformer, tmp_path, monkeypatch):
    file = write_toy(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    commands = [("train", file), ("eval",), ("translate", "ab c")]
    loud = [tformer(*words) for words in commands]
    quiet = [tformer(*words, "--quiet") for words in commands]
    assert all(result.stderr for result in loud)
    assert [(result.exit_code, result.stderr) for result in quiet] == [(0, "")] * 3
    assert [result.stdout for result in quiet] == [result.stdout for result in loud]
    assert quiet[0].stdout == ""
    assert "finished at step 24\n" in (tmp_path / "runs" / "toy" / "train.log").read_text()
    for words in (("train", "no.yaml"), ("eval", "none"), ("translate", "--beam", "x")):
        assert tformer(*words, "-q").stderr == tformer(*words).stderr != ""


def test_ctrl_c_is_answered_by_a_line(tformer, toy_run, monkeypatch):
    def pressed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tformer_cli.api.evaluate", pressed)
    result = tformer("eval", toy_run)
    message = "tformer eval: interrupted; re-run the command\n"
    assert (result.exit_code, result.stderr) == (130, message)
    monkeypatch.setattr("tformer_cli.cli.config.load_config", pressed)
    result = tformer("config", "show", "no.yaml")
    assert result.stderr == "tformer config show: interrupted; re-run the command\n"


def test_ctrl_c_during_the_first_imports_is_answered_by_a_line(tmp_path):
    # What a shell runs in the background ignores SIGINT.
    restored = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    (tmp_path / "typer.py").write_text(
        f"import signal\n{restored}\nsignal.raise_signal(signal.SIGINT)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, function = project["scripts"]["tformer"].split(":")
    # As pip writes the script.
    script = f"from {module} import {function}\n{function}()"
    for start in (["-m", "tformer_cli"], ["-c", script]):
        words = [sys.executable, *start, "--help"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        message = "tformer: interrupted; re-run the command\n"
        assert (done.returncode, done.stdout, done.stderr) == (130, "", message)


def test_a_terminal_gets_colors_unless_they_are_unwanted(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    message = "no.yaml: no such file; name a config, or create one with `tformer config new`"
    for environment, where in (({}, "\x1b[31mno.yaml\x1b[0m"), ({"NO_COLOR": "1"}, "no.yaml")):
        with open_terminal() as terminal:
            words = [sys.executable, "-m", "tformer_cli", "config", "show", "no.yaml"]
            subprocess.run(words, stderr=terminal.stream, env={**os.environ, **environment})
            assert terminal.text() == f"{message}\r\n".replace("no.yaml", where)


def test_help_loads_no_torch():
    code = (
        "import sys; sys.argv = ['tformer', '--help']\n"
        "from tformer_cli.cli.app import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_a_mistake_is_one_line_without_a_traceback():
    done = run("config", "show", "no/such.yaml")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "no/such.yaml: no such file; name a config, or create one with `tformer config new`\n"
    )


def test_a_mistake_names_the_option_of_an_argument(tmp_path):
    (tmp_path / "x.yaml").write_text("seed: 1\n")
    done = run("config", "show", str(tmp_path / "x.yaml"), "--set", "seed")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "--set seed: must be KEY=VALUE (seed)"


def test_a_warning_names_the_options_of_its_command(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"en": "a"}\n{"en": "b", "de": "c"}\n', encoding="utf-8")
    languages = ("--source-language", "en", "--target-language", "de")
    done = run("clean", str(file), *languages, "-o", str(tmp_path / "x"), "--on-error", "skip")
    assert done.returncode == 0
    assert "records without a pair were skipped (1)" in done.stderr
    assert done.stderr.endswith("set --fields SOURCE and TARGET, such as translation.en\n")


@pytest.mark.parametrize("command", COMMANDS[1:])
def test_no_command_begins_in_a_folder_that_has_been_removed(
    tformer, tmp_path, monkeypatch, command
):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    result = tformer(*command.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "the current folder: has been removed; change to one that is there\n"


def test_debug_shows_the_traceback():
    done = run("--debug", "config", "show", "no/such.yaml")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (
            "runs/x/last",
            "runs/x/last: cannot be read or written (Permission denied); "
            "change its permissions, or name another path",
        ),
        (
            None,
            "tformer: a file or stream cannot be read or written (Permission denied); "
            "change its permissions, or name another path",
        ),
    ],
)
def test_what_the_system_refuses_is_one_line(file, message, monkeypatch):
    assert str(refusal(OSError(errno.EACCES, os.strerror(errno.EACCES), file))) == message
    # As where the shell has closed it.
    monkeypatch.setattr(sys, "stdout", None)
    assert str(refusal(OSError(errno.EACCES, os.strerror(errno.EACCES), file))) == message


def test_names_with_escapes_move_no_cursor(capfd):
    tell("runs/\x1b[31mred: é\nnext: tformer translate 'a\tb'")
    assert capfd.readouterr().out == ("runs/\\x1b[31mred: é\nnext: tformer translate 'a\\tb'\n")


def test_lack_of_memory_is_one_clear_line():
    assert str(refusal(MemoryError())).startswith("tformer: memory ran out; ")
