"""A file that grows part by part, with kills at every point."""

import errno
import gzip
import json
import os
import random
from pathlib import Path

import pytest
from killing import killed

from tformer_cli.errors import DataError, StorageError, UsageError
from tformer_cli.storage.partial_file import PartialFile, partial_file

MADE_FROM = {"--input": "3fe0", "decoding.beam_size": 5, "--ban": ["a", "b"]}
PARTS = ["eins\nzwei\n", "drei\n", "ä\n" * 7]
WHOLE = "".join(PARTS)


def write(path: Path, made_from: dict[str, object] = MADE_FROM, most: int = len(PARTS)) -> int:
    """Write the parts that are not there yet, so many of them; return how many there were."""
    with partial_file(path, made_from) as beginning:
        num_done = beginning.num_lines // 10
        for part in PARTS[num_done : num_done + most]:
            beginning.add(part, 10)
        if num_done + most < len(PARTS):
            raise KeyboardInterrupt
    return num_done


def interrupt(path: Path, most: int = 2) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(path, most=most)


def partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")


def record(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial.json")


def test_a_file_appears_when_it_is_whole(tmp_path):
    file = tmp_path / "new folder" / "file"
    assert write(file) == 0
    assert file.read_text() == WHOLE
    assert list(file.parent.iterdir()) == [file]
    assert not list(tmp_path.glob("*partial*"))


@pytest.mark.parametrize("name", ["file", "file.gz"])
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path, name, mode):
    file = tmp_path / name
    file.touch(mode)
    file.chmod(mode)
    interrupt(file)
    assert partial(file).stat().st_mode & 0o777 == mode | 0o600
    assert write(file) == 2
    assert file.stat().st_size > 0
    assert file.stat().st_mode & 0o777 == mode


def test_what_is_there_stays_until_the_new_file_is_whole(tmp_path):
    file = tmp_path / "file"
    file.write_text("old\n")
    interrupt(file)
    assert file.read_text() == "old\n"
    assert partial(file).read_text() == "".join(PARTS[:2])
    assert json.loads(record(file).read_text())["num_lines"] == 20
    assert write(file) == 2
    assert file.read_text() == WHOLE


def read(file: Path) -> str:
    content = file.read_bytes()
    return (gzip.decompress(content) if file.suffix == ".gz" else content).decode()


def test_a_file_named_gz_is_compressed_when_it_is_whole(tmp_path):
    file, same = tmp_path / "file.gz", tmp_path / "other.gz"
    interrupt(file)
    assert partial(file).read_text() == "".join(PARTS[:2])
    assert not file.exists()
    assert write(file) == 2
    assert read(file) == WHOLE
    assert list(tmp_path.iterdir()) == [file]
    write(same)
    assert same.read_bytes() == file.read_bytes()
    # RFC 1952: flags (no name), and four bytes of time (unknown).
    assert file.read_bytes()[3:8] == bytes(5)


def test_the_name_of_a_link_says_whether_its_file_is_compressed(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link.gz"
    link.symlink_to(file)
    write(link)
    assert gzip.decompress(file.read_bytes()).decode() == WHOLE
    assert link.is_symlink()


@pytest.mark.parametrize("name", ["file", "file.gz"])
def test_nothing_is_lost_to_a_kill_at_any_call_but_the_part_at_work(tmp_path, name):
    num_calls = 0
    while True:
        file = tmp_path / str(num_calls) / name
        if not killed(lambda file=file: write(file), num_calls):
            break
        if not file.exists():
            lines = partial(file).read_text().count("\n") if partial(file).exists() else 0
            num_done = write(file)
            assert "".join(PARTS[:num_done]).count("\n") <= lines
            assert "".join(PARTS[: num_done + 1]).count("\n") >= lines
        assert read(file) == WHOLE
        num_calls += 1
    assert num_calls > 2 * 4 * len(PARTS)


def test_one_kill_after_another_changes_nothing(tmp_path):
    chooser, file, num_kills = random.Random(1), tmp_path / "file", 0
    while killed(lambda: write(file), chooser.randrange(6, 15)):
        num_kills += 1
    assert num_kills > 1
    assert file.read_text() == WHOLE
    assert list(tmp_path.iterdir()) == [file]


def test_what_was_cut_short_is_cut_off(tmp_path):
    file = tmp_path / "file"
    interrupt(file)
    with partial(file).open("a") as more:
        # More than all that is still to be written over it.
        more.write("half a li" * len(WHOLE))
    assert write(file) == 2
    assert file.read_text() == WHOLE


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: os.truncate(partial(file), 5),
        lambda file: partial(file).write_bytes(b"X" + partial(file).read_bytes()[1:]),
        lambda file: record(file).unlink(),
        lambda file: record(file).write_text(""),
        lambda file: record(file).write_text("[]"),
        lambda file: record(file).write_text('{"made_from": {}}'),
        lambda file: record(file).write_text(
            '{"made_from": {}, "num_lines": Infinity, "num_bytes": 5, "sha256": ""}'
        ),
        lambda file: os.truncate(record(file), 40),
        lambda file: record(file).write_bytes(b"\xff\xfe"),
    ],
    ids=["cut", "changed", "alone", "empty", "list", "less", "infinite", "half", "bytes"],
)
def test_what_was_damaged_is_refused_and_left_as_it_is(tmp_path, damage):
    file = tmp_path / "file"
    interrupt(file)
    damage(file)
    before = partial(file).read_bytes()
    with pytest.raises(DataError) as caught:
        write(file)
    assert str(caught.value) == (
        f"{partial(file)}: is not what was written; remove it, or name another file"
    )
    assert partial(file).read_bytes() == before
    partial(file).unlink()
    assert write(file) == 0
    assert file.read_text() == WHOLE


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"--input": "0000"}, "--input"),
        ({"decoding.beam_size": 4, "--input": None}, "--input, decoding.beam_size"),
        ({"--new": 1}, "--new"),
    ],
)
def test_the_beginning_of_something_else_is_refused_by_name(tmp_path, changes, named):
    file = tmp_path / "file"
    interrupt(file)
    with pytest.raises(UsageError) as caught:
        write(file, {**MADE_FROM, **changes})
    assert str(caught.value) == (
        f"{partial(file)}: was begun from something else (different {named}); "
        "remove it, or name another file"
    )
    assert write(file) == 2


def test_two_processes_at_one_file_are_refused(tmp_path):
    file = tmp_path / "file"
    with partial_file(file, MADE_FROM):
        with pytest.raises(UsageError) as caught:
            write(file)
        assert str(caught.value) == (
            f"{partial(file)}: another process is writing it; wait until it is done"
        )


def test_a_folder_or_a_pipe_is_no_file_to_go_on_with(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, pipe):
        with pytest.raises(UsageError) as caught, partial_file(path, MADE_FROM):
            pass
        message = "is not a regular file; name a file"
        assert str(caught.value) == f"{path}: {message}"
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_link_stays_and_the_beginning_lies_beside_what_it_points_at(tmp_path):
    real, link = tmp_path / "there" / "real", tmp_path / "link"
    real.parent.mkdir()
    link.symlink_to(real)
    interrupt(link)
    assert partial(real).exists()
    write(link)
    assert link.is_symlink()
    assert real.read_text() == WHOLE
    assert set(tmp_path.rglob("*")) == {link, real, real.parent}


def test_a_full_disk_is_said_of_the_file_and_what_fits_is_kept(tmp_path, monkeypatch):
    file = tmp_path / "file"
    interrupt(file)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StorageError) as caught:
            write(file)
    assert str(caught.value).startswith(f"{partial(file)}: cannot be written (No space left")
    assert write(file) == 2
    assert file.read_text() == WHOLE


def test_a_file_beyond_the_limit_is_said_of_the_file_also_when_it_is_closed(tmp_path, small_files):
    """What the system has refused is in the buffer still, and is refused again."""
    file = tmp_path / "file"
    with small_files(500), pytest.raises(StorageError) as caught:  # noqa: SIM117
        with partial_file(file, MADE_FROM) as beginning:
            beginning.add("x" * 600 + "\n", 1)
    assert str(caught.value).startswith(f"{partial(file)}: cannot be written (File too large)")
    assert write(file) == 0
    assert file.read_text() == WHOLE


def test_a_link_with_the_name_of_the_beginning_is_refused(tmp_path):
    (tmp_path / "precious").write_text("thesis\n")
    partial(tmp_path / "file").symlink_to(tmp_path / "precious")
    with pytest.raises(StorageError) as caught:
        write(tmp_path / "file")
    assert str(caught.value) == f"{tmp_path}/file.partial: must be a regular file; remove it"
    assert (tmp_path / "precious").read_text() == "thesis\n"


def test_a_file_of_nothing_is_empty(tmp_path):
    with partial_file(tmp_path / "file", MADE_FROM) as beginning:
        assert isinstance(beginning, PartialFile)
    assert (tmp_path / "file").read_bytes() == b""
