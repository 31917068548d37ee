import os
from pathlib import Path

import pytest

from tformer_cli.errors import CheckpointError
from tformer_cli.storage.run_directory import RunDirectory, newest_run, run_of_config


def test_runs_beside_each_other_share_their_stores():
    assert RunDirectory(Path("runs/a")).stores == RunDirectory(Path("runs/b")).stores
    assert RunDirectory(Path("runs/a")).stores == Path("runs/.store")


@pytest.mark.parametrize(("folder", "name"), [("runs/a", "."), ("runs/a/b", ".."), ("runs", "a")])
def test_a_run_named_from_within_has_the_same_stores(tmp_path, monkeypatch, folder, name):
    (tmp_path / "runs" / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / folder)
    assert RunDirectory(Path(name)).stores.resolve() == tmp_path.resolve() / "runs" / ".store"


def test_a_pointer_names_a_checkpoint(tmp_path):
    run = RunDirectory(tmp_path)
    assert run.pointed("best") is None
    run.point("best", run.checkpoint(400))
    assert (tmp_path / "best").read_text() == "step-000400\n"
    assert run.pointed("best") == tmp_path / "checkpoints" / "step-000400"


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"/etc\n", b"../..\n", b".\n", b"a/b\n", b"x" * 5000, b"\xff\xfe", b"a\0"],
)
def test_a_damaged_pointer_leads_to_no_folder(tmp_path, content):
    run = RunDirectory(tmp_path)
    (run.checkpoints / "a" / "b").mkdir(parents=True)
    (run.path / "best").write_bytes(content)
    assert run.pointed("best") == tmp_path / "best"


def test_a_pipe_in_place_of_a_pointer_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "best")
    assert RunDirectory(tmp_path).pointed("best") == tmp_path / "best"


def test_newest_run_is_the_one_saved_last(tmp_path):
    for name, when in (("a", 300), ("b", 500), ("c", 400)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "last").write_text("step-000001\n")
        os.utime(tmp_path / name / "last", (when, when))
    (tmp_path / "without checkpoint").mkdir()
    assert newest_run(tmp_path) == RunDirectory(tmp_path / "b")


def test_no_run_at_all_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        newest_run(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/: no run with a checkpoint in it; "
        "train one with `tformer train CONFIG`, or name a run folder"
    )


def test_the_run_of_a_config(tmp_path):
    assert run_of_config(Path("configs/demo.yaml"), None).path == Path("runs/demo")
    assert run_of_config(Path("configs/demo.yaml"), Path("x")).path == Path("x")
    (tmp_path / "tokenizer").mkdir()
    assert run_of_config(tmp_path / "config.yaml", None).path == tmp_path
    assert run_of_config(tmp_path / "other.yaml", None).path == Path("runs/other")


def test_foreign_folders_are_no_checkpoints(tmp_path):
    run = RunDirectory(tmp_path)
    for name in ("step-1000000", "step-000999", "step-copy", "step-", "average-last-2"):
        (run.checkpoints / name).mkdir(parents=True)
    assert run.step_checkpoints() == [run.checkpoint(999), run.checkpoint(1_000_000)]
