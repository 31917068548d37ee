"""One process at a time; each open file has a lock of its own, as that of another process has."""

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from tformer_cli.errors import StorageError
from tformer_cli.storage import lock
from tformer_cli.storage.lock import acquire, alone


def is_free(lock: Path) -> bool:
    with lock.open("rb") as other:
        return acquire(other.fileno())


def test_nobody_else_has_the_lock_in_the_meantime(tmp_path):
    lock = tmp_path / "lock"
    with alone(lock, "waiting"):
        assert not is_free(lock)
    assert is_free(lock)


def test_the_lock_is_free_after_an_error(tmp_path):
    with pytest.raises(KeyError), alone(tmp_path / "lock", "waiting"):
        raise KeyError
    assert is_free(tmp_path / "lock")


def test_who_comes_second_waits_for_the_first(tmp_path, monkeypatch):
    waits, order = threading.Event(), []

    class Bar:
        def __init__(self, desc: str, **_: object) -> None:
            order.append(desc)

        def __enter__(self) -> None:
            waits.set()

        def __exit__(self, *_: object) -> None:
            pass

    def second() -> None:
        with alone(tmp_path / "lock", "second waits"):
            order.append("second")

    monkeypatch.setattr(lock, "tqdm", Bar)
    thread = threading.Thread(target=second, daemon=True)
    with alone(tmp_path / "lock", "first waits"):
        thread.start()
        assert waits.wait(timeout=60)
        order.append("first")
    thread.join(timeout=60)
    assert order == ["second waits", "first", "second"]


def test_a_lock_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError) as raised, alone(tmp_path / "file" / "lock", "waiting"):
        pass
    assert str(raised.value).startswith(f"{tmp_path / 'file' / 'lock'}: cannot be written; got ")


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
    with pytest.raises(StorageError) as raised, alone(lock, "waiting"):
        pass
    expected = "cannot be written; got Is a directory; name a file"
    if kind != "folder":
        expected = "must be a regular file; remove it"
    assert str(raised.value) == f"{lock}: {expected}"
    assert precious.read_text() == "thesis\n"


def test_what_a_lock_file_holds_stays(tmp_path):
    (tmp_path / "lock").write_text("of others\n")
    with alone(tmp_path / "lock", "waiting"):
        pass
    assert (tmp_path / "lock").read_text() == "of others\n"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP])
def test_a_file_system_without_locks_lets_everybody_go_on(tmp_path, monkeypatch, number):
    """Lustre without the mount option `flock` says that there is no such function."""

    def refuse(handle: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with alone(tmp_path / "lock", "waiting"), alone(tmp_path / "lock", "waiting"):
        assert (tmp_path / "lock").exists()
