import errno
import fcntl
import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from killing import Killed, cut_short

from tformer_cli.errors import StorageError, UsageError
from tformer_cli.storage.atomic import (
    atomic_directory,
    atomic_write,
    empty_directory,
    new_directory,
    recover_interrupted_writes,
    remove_directory,
    write_json,
    write_text,
)


def test_a_file_is_replaced_only_when_its_writer_succeeds(tmp_path):
    file = tmp_path / "folder" / "file.txt"
    write_text(file, "old\n")
    with pytest.raises(KeyError), atomic_write(file) as temporary:  # noqa: PT012
        temporary.write_text("half")
        assert file.read_text() == "old\n"
        raise KeyError
    assert file.read_text() == "old\n"
    with atomic_write(file) as temporary:
        temporary.write_text("new\n")
        assert file.read_text() == "old\n"
    assert file.read_text() == "new\n"
    assert list(file.parent.iterdir()) == [file]


def test_a_file_keeps_its_permissions(tmp_path):
    new, private = tmp_path / "new", tmp_path / "private"
    (tmp_path / "usual").touch()
    private.touch(0o600)
    for file in (new, private):
        write_text(file, "text\n")
        assert file.read_text() == "text\n"
    assert new.stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert private.stat().st_mode & 0o777 == 0o600


def test_a_folder_is_replaced_only_when_its_writer_succeeds(tmp_path):
    folder = tmp_path / "folder"
    with atomic_directory(folder) as temporary:
        (temporary / "old").write_text("1")
    with pytest.raises(KeyError), atomic_directory(folder) as temporary:  # noqa: PT012
        (temporary / "new").write_text("2")
        raise KeyError
    assert [file.name for file in folder.iterdir()] == ["old"]
    with atomic_directory(folder) as temporary:
        (temporary / "new").write_text("3")
    assert [file.name for file in folder.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [folder]


def test_a_kill_between_two_moves_takes_no_folder_away(tmp_path, monkeypatch):
    folder, rename = tmp_path / "folder", Path.rename
    with atomic_directory(folder) as temporary:
        (temporary / "part").write_text("old")

    def killed(self: Path, target: Path) -> Path:
        if target == folder:
            raise Killed
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed)
        with pytest.raises(Killed), atomic_directory(folder) as temporary:
            (temporary / "part").write_text("new")
    assert not folder.exists()
    recover_interrupted_writes(tmp_path)
    assert (folder / "part").read_text() == "old"
    with atomic_directory(folder) as temporary:
        (temporary / "part").write_text("new")
    recover_interrupted_writes(tmp_path)
    assert (folder / "part").read_text() == "new"
    assert list(tmp_path.iterdir()) == [folder]


def written(path: Path, content: str, write=atomic_directory) -> None:
    with write(path) as temporary:
        (temporary / "inner").mkdir()
        (temporary / "inner" / "part").write_text(content)


def appear(path: Path, kind: str) -> None:
    if kind == "file":
        path.write_text("thesis")
    else:
        path.mkdir()
    if kind == "folder":
        (path / "thesis.tex").write_text("thesis")


def tree(folder: Path) -> dict[str, str | None]:
    """All that is in a folder: what files hold, None for folders."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_text()
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("kind", ["folder", "empty folder", "file"])
@pytest.mark.parametrize("moment", ["before", "meanwhile", "at the last moment"])
def test_a_new_folder_never_replaces_what_has_its_name(tmp_path, monkeypatch, kind, moment):
    path, rename = tmp_path / "out", Path.rename
    if moment == "at the last moment" and kind == "empty folder":
        pytest.skip("an empty folder is lost to nobody")

    def late(self: Path, target: Path) -> Path:
        appear(path, kind)
        monkeypatch.undo()
        return rename(self, target)

    def write() -> None:
        with new_directory(path) as temporary:
            (temporary / "part").write_text("new")
            if moment == "meanwhile":
                appear(path, kind)

    if moment == "before":
        appear(path, kind)
    elif moment == "at the last moment":
        monkeypatch.setattr(Path, "rename", late)
    with pytest.raises(UsageError) as caught:
        write()
    assert str(caught.value) == f"{path}: already exists; remove it, or name another"
    (tmp_path / "expected").mkdir()
    appear(tmp_path / "expected" / "out", kind)
    content = tree(tmp_path)
    assert {k: v for k, v in content.items() if not k.startswith("expected")} == tree(
        tmp_path / "expected"
    )


def test_of_two_new_folders_of_one_name_the_first_that_is_whole_stays(tmp_path):
    path = tmp_path / "out"
    with pytest.raises(UsageError) as caught, new_directory(path) as slow:  # noqa: PT012
        (slow / "part").write_text("slow")
        with new_directory(path) as fast:
            (fast / "part").write_text("fast")
    assert str(caught.value) == f"{path}: already exists; remove it, or name another"
    assert tree(tmp_path) == {"out": None, "out/part": "fast"}


def test_folders_of_the_user_with_names_like_ours_stay(tmp_path):
    names = [".out.partial", ".out.replaced", ".out.removed", ".out.tformer-", ".out.tformer-mine"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.tex").write_text("thesis")
    before = tree(tmp_path)
    written(tmp_path / "out", "1", new_directory)
    written(tmp_path / "out", "2")
    recover_interrupted_writes(tmp_path)
    remove_directory(tmp_path / "out")
    assert tree(tmp_path) == before


WRITERS = {
    "new file": (None, lambda path: write_text(path, "new")),
    "file": (lambda path: write_text(path, "old"), lambda path: write_text(path, "new")),
    "new folder": (None, lambda path: written(path, "new", new_directory)),
    "folder": (lambda path: written(path, "old"), lambda path: written(path, "new")),
    "removed folder": (lambda path: written(path, "old"), remove_directory),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_kill_at_any_call_leaves_old_or_new_and_the_next_writer_leaves_no_leftovers(
    tmp_path, monkeypatch, name
):
    prepare, write = WRITERS[name]
    states, num_calls = set(), 0
    while True:
        path = tmp_path / str(num_calls) / "folder" / "name"
        if prepare is not None:
            prepare(path)
        was_killed = cut_short(lambda path=path: write(path), num_calls, monkeypatch)
        if path.parent.exists():
            recover_interrupted_writes(path.parent)
            assert [child.name for child in path.parent.iterdir()] in ([], ["name"])
        states.add(str(tree(path) or (path.read_text() if path.is_file() else None)))
        if not was_killed:
            break
        if name == "new folder" and path.exists():
            with pytest.raises(UsageError):
                write(path)
        else:
            write(path)
        assert len(list(path.parent.iterdir())) == (name != "removed folder")
        num_calls += 1
    assert num_calls >= 5
    assert len(states) == 2


def test_what_a_living_writer_is_at_stays(tmp_path):
    path = tmp_path / "file"
    with atomic_write(path) as slow:
        slow.write_text("slow")
        write_text(path, "fast")
        recover_interrupted_writes(tmp_path)
        assert path.read_text() == "fast"
        assert slow.read_text() == "slow"
    assert path.read_text() == "slow"
    assert [child.name for child in tmp_path.iterdir()] == ["file"]


def test_where_there_are_no_locks_nobody_removes_what_may_be_written_still(tmp_path, monkeypatch):
    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    test_what_a_living_writer_is_at_stays(tmp_path)


def test_a_folder_that_cannot_take_its_place_leaves_the_old_one(tmp_path, monkeypatch):
    folder, rename = tmp_path / "folder", Path.rename
    with atomic_directory(folder) as temporary:
        (temporary / "part").write_text("old")

    def refused(self: Path, target: Path) -> Path:
        if target == folder and self.name == "new":
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(StorageError), atomic_directory(folder) as temporary:
        (temporary / "part").write_text("new")
    assert (folder / "part").read_text() == "old"
    assert list(tmp_path.iterdir()) == [folder]


def test_a_link_to_a_folder_stays(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to(real)
    for content in ("old", "new"):
        with atomic_directory(link) as temporary:
            (temporary / "part").write_text(content)
    (real / "folder").mkdir()
    assert (real / "part").read_text() == "new"
    empty_directory(link)
    assert link.is_symlink()
    assert list(real.iterdir()) == []
    empty_directory(real)
    empty_directory(real)
    assert [file.name for file in tmp_path.iterdir()] == ["link"]


def test_a_folder_that_cannot_be_removed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "rmtree", denied)
    with pytest.raises(StorageError) as caught:
        empty_directory(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}: cannot be written (Permission denied)")


def denied(folder: Path) -> None:
    raise PermissionError(errno.EACCES, "Permission denied", str(folder))


def test_a_whole_file_has_the_permissions_of_any_other(tmp_path):
    write_text(tmp_path / "whole", "")
    (tmp_path / "other").write_text("")
    modes = {(tmp_path / name).stat().st_mode for name in ("whole", "other")}
    assert len(modes) == 1


def test_a_link_stays_and_what_it_points_at_is_replaced(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old\n")
    link.symlink_to(real)
    write_text(link, "new\n")
    assert link.is_symlink()
    assert real.read_text() == "new\n"


def test_a_pipe_takes_the_bytes_as_they_come(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write_text, args=(pipe, "text\n"))
    writer.start()
    assert pipe.read_text() == "text\n"
    writer.join()
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def refusal(path: Path) -> str:
    with pytest.raises(StorageError) as caught:
        write_text(path, "text\n")
    return str(caught.value)


SYSTEM_ERRORS = {
    errno.ENOSPC: "(No space left on device); free space and run the same command again; "
    "what was saved before is intact",
    errno.EDQUOT: "(Disk quota exceeded); free space and run the same command again; "
    "what was saved before is intact",
    errno.EIO: "(Input/output error); check the disk; what was saved before is intact",
}


@pytest.mark.parametrize("number", SYSTEM_ERRORS)
def test_what_a_disk_refuses_is_said_of_the_file_and_leaves_the_old_one(
    tmp_path, monkeypatch, number
):
    def refuse(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    file, folder = tmp_path / "file", tmp_path / "folder"
    write_text(file, "old\n")
    write_text(folder / "part", "old\n")
    monkeypatch.setattr(os, "fsync", refuse)
    assert refusal(file) == f"{file}: cannot be written {SYSTEM_ERRORS[number]}"
    with pytest.raises(StorageError) as caught, atomic_directory(folder) as temporary:
        (temporary / "part").write_text("new\n")
    assert str(caught.value) == f"{folder}: cannot be written {SYSTEM_ERRORS[number]}"
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}
    assert file.read_text() == (folder / "part").read_text() == "old\n"


def test_a_file_beyond_the_limit_is_refused_and_leaves_the_old_one(tmp_path, small_files):
    file = tmp_path / "file"
    write_text(file, "old\n")
    with small_files(100), pytest.raises(StorageError) as caught:
        write_text(file, "new\n" * 100)
    assert str(caught.value) == (
        f"{file}: cannot be written (File too large); "
        "raise the limit on the size of a file; what was saved before is intact"
    )
    assert file.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [file]


def test_a_path_through_a_file_is_refused(tmp_path):
    write_text(tmp_path / "file", "old\n")
    assert refusal(tmp_path / "file" / "new") == (
        f"{tmp_path}/file/new: cannot be written (File exists); "
        "there is a file where a folder must be: name another path"
    )


def test_a_folder_is_not_replaced_by_a_file(tmp_path):
    assert refusal(tmp_path) == f"{tmp_path}: cannot be written (Is a directory); name a file"


def test_a_folder_that_cannot_be_emptied_is_gone_under_its_name(tmp_path, monkeypatch):
    folder = tmp_path / "step-000003"
    folder.mkdir()
    (folder / "file").write_text("1")
    monkeypatch.setattr("shutil.rmtree", denied)
    remove_directory(folder)
    (leftover,) = tmp_path.iterdir()
    assert leftover.name.startswith(".step-000003.tformer-")
    monkeypatch.undo()
    folder.mkdir()
    remove_directory(folder)
    remove_directory(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_whole_directory_may_have_folders_in_it(tmp_path):
    with atomic_directory(tmp_path / "run") as temporary:
        (temporary / "inner" / "most").mkdir(parents=True)
        (temporary / "inner" / "most" / "file").write_text("1")
    assert (tmp_path / "run" / "inner" / "most" / "file").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_numbers_of_numpy_are_written_as_numbers(tmp_path):
    # As of `evaluate(run, decoding=BeamConfig(beam_size=sizes[0]))`.
    write_json(tmp_path / "x.json", {"beam_size": np.int64(4), "length_penalty": np.float32(0.5)})
    written = json.loads((tmp_path / "x.json").read_text())
    assert written == {"beam_size": 4, "length_penalty": 0.5}


@pytest.mark.parametrize("value", [{1}, np.zeros(1), object()])
def test_what_json_has_not_is_refused_as_json_refuses_it(value, tmp_path):
    with pytest.raises(TypeError) as expected:
        json.dumps(value)
    with pytest.raises(TypeError) as refused:
        write_json(tmp_path / "x.json", {"value": value})
    assert str(refused.value) == str(expected.value)
    assert list(tmp_path.iterdir()) == []
