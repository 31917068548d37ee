"""The shape of messages, and what is said of the system's own errors."""

import errno
import os
import pickle
import sys

import pytest

from tformer_cli.errors import (
    ConfigError,
    Interrupted,
    Problem,
    StorageError,
    TformerError,
    TrainingError,
    UsageError,
    printable,
    quantity,
)
from tformer_cli.extras import package


def test_message_has_place_rule_value_and_remedy() -> None:
    error = TformerError("a.yaml:3", "must be even", got="7", remedy="write 8")
    assert str(error) == "a.yaml:3: must be even (7); write 8"
    assert str(TformerError("a", "is missing")) == "a: is missing"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 lines"), (1, "1 line"), (2, "2 lines"), (1000, "1,000 lines")]
)
def test_a_noun_has_its_number(count: int, text: str) -> None:
    assert quantity(count, "line") == text


def test_spaces_stay_and_ends_of_lines_are_escaped() -> None:
    spaces = " \xa0\u2009\u202f\u3000"
    assert printable(f"10{spaces}%\u2028\x85\t") == f"10{spaces}%\\u2028\\x85\\t"


def test_config_error_has_a_line_for_each_problem() -> None:
    problems = [Problem("a:1", "is odd", "7"), Problem("a:2", "is gone", remedy="bring it back")]
    assert str(ConfigError(problems)) == "a:1: is odd (7)\na:2: is gone; bring it back"


def test_message_moves_no_cursor() -> None:
    error = TformerError("a\x1b[31m", "is\nred", got="\udcff\u202e", remedy="ü 漢")
    assert str(error) == "a\\x1b[31m: is\\nred (\\udcff\\u202e); ü 漢"


@pytest.mark.parametrize(
    "error",
    [
        TrainingError("step 1", "loss is no number", got="nan", remedy="lower the rate"),
        ConfigError([Problem("a:1", "is odd", "7"), Problem("a:2", "is gone")]),
        Interrupted("runs/x", "interrupted", signal=15, remedy="go on"),
    ],
)
def test_error_is_the_same_in_another_process(error: TformerError) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert (found.problems, found.exit_code) == (error.problems, error.exit_code)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (
            errno.ENOSPC,
            "(No space left on device); free space and run the same command again; "
            "what was saved before is intact",
        ),
        (
            errno.EDQUOT,
            "(Disk quota exceeded); free space and run the same command again; "
            "what was saved before is intact",
        ),
        (
            errno.EFBIG,
            "(File too large); raise the limit on the size of a file; "
            "what was saved before is intact",
        ),
        (
            errno.EIO,
            "(Input/output error); check the disk; what was saved before is intact",
        ),
        (errno.EACCES, "(Permission denied); change its permissions, or name another path"),
        (errno.EPERM, "(Operation not permitted); change its permissions, or name another path"),
        (errno.EROFS, "(Read-only file system); name a writable path"),
        (
            errno.ENOENT,
            "(No such file or directory); its folder is gone or refuses files: restore it, "
            "or name another path",
        ),
        (
            errno.ENOTDIR,
            "(Not a directory); there is a file where a folder must be: name another path",
        ),
        (
            errno.EEXIST,
            "(File exists); there is a file where a folder must be: name another path",
        ),
        (errno.EISDIR, "(Is a directory); name a file"),
        (errno.ELOOP, "(Too many levels of symbolic links)"),
    ],
)
def test_refusal_of_the_system_has_a_remedy(number: int, text: str) -> None:
    error = StorageError.of(OSError(number, os.strerror(number)), "runs/x/last")
    assert str(error) == f"runs/x/last: cannot be written {text}"


def test_refusal_without_a_number_says_what_there_is() -> None:
    assert str(StorageError.of(OSError("odd"), "x")) == "x: cannot be written (odd)"


def test_a_package_that_is_damaged_is_not_said_to_be_missing(tmp_path, monkeypatch):
    (tmp_path / "pyarrow.py").write_text("from missing_part import something\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pyarrow", raising=False)
    with pytest.raises(UsageError) as caught:
        package("pyarrow", "corpora")
    assert str(caught.value) == (
        "pyarrow: is installed, but cannot be imported (No module named 'missing_part'); "
        "pip install --force-reinstall pyarrow"
    )
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"^pyarrow: is not installed; pip install"):
        package("pyarrow", "corpora")
