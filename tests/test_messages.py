"""The page of messages lists every message as a command prints it; the sources say which."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import tformer_cli
from tformer_cli import errors
from tformer_cli.cli.options import in_options
from tformer_cli.config.parse import _SCALARS
from tformer_cli.serve import refusal

PACKAGE = Path(tformer_cli.__file__).parent
DOCUMENT = PACKAGE.parent / "docs" / "reference" / "messages.md"

Function = ast.FunctionDef | ast.AsyncFunctionDef

# What takes a rule as its second argument: a position or a key comes first.
RAISING = {
    *(name for name, value in vars(errors).items() if isinstance(value, type)),
    *(name for name, value in vars(refusal).items() if isinstance(value, type)),
    *("_fail", "_error", "error", "stored.error", "note"),
} - {"ConfigError"}
# What returns it, to be raised elsewhere.
RETURNING = {"rule", "_unknown_key", "_fault", "_without_colon", "_misplaced_colon", "_rule"}


def stated_rules() -> set[str]:
    """Every rule that a message can state, with `...` where a value stands."""
    rules = {rule for rule, _ in _SCALARS.values()}
    for function in functions():
        for expression in stated(function):
            rules.update(map(in_options, texts(expression, function)))
    return rules


def functions() -> Iterator[Function]:
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


def stated(function: Function) -> Iterator[ast.expr]:
    """Yield the expressions of the rules that a function states."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called.removeprefix("self.") in RAISING and len(node.args) > 1:
                yield node.args[1]
            elif called == "StorageError.of" and len(node.args) > 2:
                yield node.args[2]
        elif isinstance(node, ast.Return) and node.value and function.name in RETURNING:
            yield node.value.elts[0] if isinstance(node.value, ast.Tuple) else node.value
    if function.name == "of":
        yield from function.args.defaults


def texts(expression: ast.expr, function: Function) -> Iterator[str]:
    """Yield the texts that an expression can have; none where it only passes one on."""
    match expression:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "..." for part in parts
            )
            # Two values side by side read as one; values alone state nothing.
            text = re.sub(r"\.\.\.( ?\.\.\.)+", "... " if " " in text else "...", text)
            if text != "...":
                yield text
        case ast.IfExp(body=one, orelse=other):
            yield from texts(one, function)
            yield from texts(other, function)
        case ast.Name(id=name):
            for value in values_of(name, function):
                yield from texts(value, function)


def values_of(name: str, function: Function) -> Iterator[ast.expr]:
    """Yield what a function assigns to a name, alone or among others."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        match node.targets[0], node.value:
            case ast.Name(id=target), value if target == name:
                yield value
            case ast.Tuple(elts=targets), ast.Tuple(elts=values):
                for target, value in zip(targets, values, strict=True):
                    if ast.unparse(target) == name:
                        yield value


def documented() -> set[str]:
    """Every rule in the tables of the document."""
    row = re.compile(r"^\| `[^`]+` \| `([^`]+)` \|", flags=re.MULTILINE)
    return set(row.findall(DOCUMENT.read_text(encoding="utf-8")))


def test_every_rule_that_is_passed_on_is_stated_elsewhere():
    """An expression that holds no text would hide a message from the tests below."""
    passed_on = {
        ast.unparse(expression)
        for function in functions()
        for expression in stated(function)
        if not list(texts(expression, function))
    }
    assert passed_on == {
        "what",  # a parameter of what raises it, or one of _SCALARS
        "f'{subject}{what}'",
        "problem.what",
        "*_unknown_key(key, cls, kinds)",
        "_without_colon(lines, begun)",
        "_without_colon(lines, above)",
        "_misplaced_colon(lines, line, column)",
        "rule",
        "None",
    }


def test_every_message_of_the_sources_is_documented():
    assert stated_rules() - documented() == set()


def test_every_documented_message_is_in_the_sources():
    assert documented() - stated_rules() == set()


def test_no_rule_ends_in_parentheses_before_those_of_its_value():
    assert [rule for rule in stated_rules() if rule.endswith(")")] == []
