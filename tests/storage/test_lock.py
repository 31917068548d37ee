"""One process at a time; each open file has a lock of its own, as that of another process has."""

import errno
import fcntl
import io
import os
import sys
import threading
from pathlib import Path

import pytest

from tformer_cli.errors import StorageError
from tformer_cli.storage.lock import CLEAR_LINE, acquire, exclusive_lock


def is_free(lock: Path) -> bool:
    with lock.open("rb") as other:
        return acquire(other.fileno())


def test_nobody_else_has_the_lock_in_the_meantime(tmp_path):
    lock = tmp_path / "lock"
    with exclusive_lock(lock, "waiting"):
        assert not is_free(lock)
    assert is_free(lock)


def test_the_lock_is_free_after_an_error(tmp_path):
    with pytest.raises(KeyError), exclusive_lock(tmp_path / "lock", "waiting"):
        raise KeyError
    assert is_free(tmp_path / "lock")


class Terminal(io.StringIO):
    """A terminal that says when something is shown on it."""

    def __init__(self) -> None:
        super().__init__()
        self.shows = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.shows.set()
        return super().write(text)


def test_who_comes_second_waits_for_the_first(tmp_path, monkeypatch):
    terminal, order = Terminal(), []

    def second() -> None:
        with exclusive_lock(tmp_path / "lock", "second waits"):
            order.append("second")

    monkeypatch.setattr(sys, "stderr", terminal)
    thread = threading.Thread(target=second, daemon=True)
    with exclusive_lock(tmp_path / "lock", "first waits"):
        thread.start()
        assert terminal.shows.wait(timeout=60)
        assert terminal.getvalue() == "second waits"
        order.append("first")
    thread.join(timeout=60)
    assert order == ["first", "second"]
    assert terminal.getvalue() == f"second waits{CLEAR_LINE}"


def test_waiting_is_silent_without_a_terminal(tmp_path, capsys):
    has_waited = threading.Event()

    def second() -> None:
        with exclusive_lock(tmp_path / "lock", "second waits"):
            has_waited.set()

    thread = threading.Thread(target=second, daemon=True)
    with exclusive_lock(tmp_path / "lock", "first waits"):
        thread.start()
        assert not has_waited.wait(timeout=0.2)
    assert has_waited.wait(timeout=60)
    thread.join(timeout=60)
    assert capsys.readouterr() == ("", "")


def test_a_lock_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(StorageError) as raised,
        exclusive_lock(tmp_path / "file" / "lock", "waiting"),
    ):
        pass
    assert str(raised.value).startswith(f"{tmp_path / 'file' / 'lock'}: cannot be written (")


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_lock_that_is_no_file_is_refused_and_what_it_points_at_stays(tmp_path, kind):
    precious, lock = tmp_path / "precious", tmp_path / "lock"
    precious.write_text("thesis\n")
    match kind:
        case "link":
            lock.symlink_to(precious)
        case "pipe":
            os.mkfifo(lock)
        case "folder":
            lock.mkdir()
    with pytest.raises(StorageError) as raised, exclusive_lock(lock, "waiting"):
        pass
    expected = "cannot be written (Is a directory); name a file"
    if kind != "folder":
        expected = "must be a regular file; remove it"
    assert str(raised.value) == f"{lock}: {expected}"
    assert precious.read_text() == "thesis\n"


def test_what_a_lock_file_holds_stays(tmp_path):
    (tmp_path / "lock").write_text("of others\n")
    with exclusive_lock(tmp_path / "lock", "waiting"):
        pass
    assert (tmp_path / "lock").read_text() == "of others\n"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP])
def test_a_file_system_without_locks_lets_everybody_go_on(tmp_path, monkeypatch, number):
    """Lustre without the mount option `flock` says that there is no such function."""

    def refuse(handle: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with exclusive_lock(tmp_path / "lock", "waiting"), exclusive_lock(tmp_path / "lock", "waiting"):
        assert (tmp_path / "lock").exists()
