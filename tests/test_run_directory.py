import os
from pathlib import Path

import pytest

from tformer_cli.errors import CheckpointError
from tformer_cli.run_directory import (
    RunDirectory,
    newest_run,
    run_of_config,
    whole_directory,
    whole_file,
    write_text,
)


def test_a_file_is_replaced_only_when_its_writer_succeeds(tmp_path):
    file = tmp_path / "folder" / "file.txt"
    write_text(file, "old\n")
    with pytest.raises(KeyError), whole_file(file) as temporary:  # noqa: PT012
        temporary.write_text("half")
        assert file.read_text() == "old\n"
        raise KeyError
    assert file.read_text() == "old\n"
    with whole_file(file) as temporary:
        temporary.write_text("new\n")
        assert file.read_text() == "old\n"
    assert file.read_text() == "new\n"
    assert list(file.parent.iterdir()) == [file]


def test_a_folder_is_replaced_only_when_its_writer_succeeds(tmp_path):
    folder = tmp_path / "folder"
    with whole_directory(folder) as temporary:
        (temporary / "old").write_text("1")
    with pytest.raises(KeyError), whole_directory(folder) as temporary:  # noqa: PT012
        (temporary / "new").write_text("2")
        raise KeyError
    assert [file.name for file in folder.iterdir()] == ["old"]
    with whole_directory(folder) as temporary:
        (temporary / "new").write_text("3")
    assert [file.name for file in folder.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [folder]


def test_a_whole_file_has_the_permissions_of_any_other(tmp_path):
    write_text(tmp_path / "whole", "")
    (tmp_path / "other").write_text("")
    modes = {(tmp_path / name).stat().st_mode for name in ("whole", "other")}
    assert len(modes) == 1


def test_a_pointer_names_a_checkpoint(tmp_path):
    run = RunDirectory(tmp_path)
    assert run.pointed("best") is None
    run.point("best", run.checkpoint(400))
    assert (tmp_path / "best").read_text() == "step-000400\n"
    assert run.pointed("best") == tmp_path / "checkpoints" / "step-000400"


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
