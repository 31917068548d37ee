"""Files of one output: names that begin alike, and no input among them."""

from pathlib import Path

import pytest

from tformer_cli.errors import UsageError
from tformer_cli.storage.outputs import check_outputs, output_files


@pytest.mark.parametrize(
    ("output", "names"),
    [
        ("out", ["out.a", "out.b"]),
        ("out.gz", ["out.a.gz", "out.b.gz"]),
        ("sub/out.en", ["sub/out.en.a", "sub/out.en.b"]),
    ],
)
def test_names_begin_with_the_output(tmp_path, monkeypatch, output, names):
    monkeypatch.chdir(tmp_path)
    assert output_files(output, ["a", "b"]) == [tmp_path / name for name in names]


@pytest.mark.parametrize("output", ["", ".", "..", "sub/"])
def test_a_folder_is_no_output(output):
    with pytest.raises(UsageError, match="not a folder"):
        output_files(output, ["a"])


def test_no_output_is_an_input(tmp_path):
    file, link = tmp_path / "a", tmp_path / "link"
    file.touch()
    link.symlink_to(file)
    check_outputs([file], [tmp_path / "b"])
    with pytest.raises(UsageError, match="would replace the text"):
        check_outputs([file], [tmp_path / "b", link])


def test_an_input_can_be_read_more_than_once():
    with pytest.raises(UsageError, match="must be a regular file"):
        check_outputs([Path("/dev/null")], [])
