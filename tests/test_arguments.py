"""Messages of the library name its arguments, and a command prints its options for them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import tformer_cli
from tformer_cli.cli.app import app
from tformer_cli.cli.options import OF_ARGUMENTS, in_options, message
from tformer_cli.errors import ARGUMENT, Problem

PACKAGE = Path(tformer_cli.__file__).parent
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
COMMAND = re.compile(r"`tformer [^`]*`|^tformer .*")


def parameters(command: Any) -> Iterator[str]:
    """Yield the options of a command and its commands, and what stands for their arguments."""
    for parameter in command.params:
        yield from (*parameter.opts, parameter.metavar or "")
    for one in getattr(command, "commands", {}).values():
        yield from parameters(one)


PARAMETERS = set(parameters(get_command(app)))


def library() -> Iterator[tuple[Path, ast.Module]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        if not file.is_relative_to(PACKAGE / "cli"):
            yield file, ast.parse(file.read_text(encoding="utf-8"))


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string but docstrings, with `...` for a value in it."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (one.value if isinstance(one, ast.Constant) else "..." for one in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and id(node) not in alone:
            yield node.lineno, str(node.value)


def test_the_library_names_no_option():
    found = {
        f"{file.relative_to(PACKAGE)}:{line}": option
        for file, tree in library()
        for line, text in texts(tree)
        for option in OPTION.findall(COMMAND.sub("", text))
        if option in PARAMETERS
    }
    assert found == {}


def test_options_of_arguments_are_those_of_commands():
    assert {"--set", "--workers", "SENTENCE"} <= PARAMETERS
    for options in OF_ARGUMENTS.values():
        assert set(options.split(" and ")) <= PARAMETERS


def test_arguments_that_have_options_are_those_of_public_functions():
    public: set[str] = set()
    for _, tree in library():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (node.name[0] != "_" or node.name[1] == "_"):
                public.update(one.arg for one in (*node.args.args, *node.args.kwonlyargs))
            elif isinstance(node, ast.ClassDef):
                fields = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
                public.update(map(ast.unparse, fields))
    assert set(OF_ARGUMENTS) <= public


def test_messages_name_all_arguments_that_have_options():
    named = {
        name
        for _, tree in library()
        for _, text in texts(tree)
        for name, _ in ARGUMENT.findall(text)
    }
    assert set(OF_ARGUMENTS) <= named


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`workers`", "--workers"),
        ("use `workers=1`, or `fresh=True`", "use --workers 1, or --fresh"),
        ('use `device="cpu"` or cuda', "use --device cpu or cuda"),
        ("use `BeamConfig(beam_size=5)`; lower `decoding.beam_size`", "use --beam 5; lower --beam"),
        ("`training.init_from=a/b` `run=c`", "--init-from a/b --run c"),
        ("`settings` training.max_steps", "--set training.max_steps"),
        ("take over `tokenizer` from run", "take over `tokenizer` from run"),
        ("`tformer train --find-batch` says", "`tformer train --find-batch` says"),
    ],
)
def test_a_command_prints_options_for_arguments(text, expected):
    assert in_options(text) == expected
    problem = Problem(text, text, got=text, remedy=text)
    assert message(problem) == f"{expected}: {expected} ({text}); {expected}"
    assert message(Problem("a", text)) == f"a: {expected}"


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (["clean", "FILE", "-o", "out"], "SOURCE and TARGET"),
        (["config", "new", "FILE"], "SOURCE and TARGET"),
        (["config", "check", "CONFIG"], "`source` and `target`"),
    ],
)
def test_arguments_are_named_as_the_usage_of_the_command_names_them(
    tformer, tmp_path, command, names
):
    file, config = tmp_path / "text.en", tmp_path / "config.yaml"
    file.write_text("A text.\n")
    text = f"{{pairs: {file}}}"
    data = f"source_language: en, target_language: de, train: [{text}], valid: {text}"
    config.write_text(f"data: {{{data}}}\n")
    words = [{"FILE": file, "CONFIG": config}.get(word, word) for word in command]
    result = tformer(*words)
    assert result.exit_code == 2
    assert f"name two line-aligned files as {names}, or" in result.stderr
