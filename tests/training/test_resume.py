"""What is said of a run whose config has changed."""

from dataclasses import replace
from pathlib import Path

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig, ParallelText, TrainingText
from tformer_cli.run_directory import RunDirectory
from tformer_cli.training.resume import accepted_changes

RUN = RunDirectory(Path("runs/x"))


def data_in(folder: str, root: str | None = None, train: str = "train") -> DataConfig:
    def sides(name: str) -> dict[str, Path]:
        return {"source": Path(folder, f"{name}.en"), "target": Path(folder, f"{name}.de")}

    return DataConfig(
        root=None if root is None else Path(root),
        train=(TrainingText(**sides(train)),),
        valid=ParallelText(**sides("sub/valid")),
        test={"news": ParallelText(**sides("test"))},
    )


def changes(before: DataConfig, now: DataConfig) -> list[str]:
    return accepted_changes(RUN, Config(data=before), Config(data=now))


def test_data_that_moved_is_one_line() -> None:
    assert changes(data_in("/a/text"), data_in("/a/text")) == []
    assert changes(data_in("/a/text"), data_in("/b/text")) == ["data moved: /a/text -> /b/text"]
    with_root = data_in("/a/text/x", "/a/text"), data_in("/b/x", "/b")
    assert changes(*with_root) == ["data moved: /a/text -> /b"]


def test_a_single_file_that_moved_is_one_line() -> None:
    before = data_in("/a")
    test = replace(before.test["news"], source=Path("/b/test.en"))
    now = replace(before, test={"news": test})
    assert changes(before, now) == ["data moved: /a -> /b"]


def test_data_of_other_names_is_listed_file_by_file() -> None:
    assert changes(data_in("/a"), data_in("/b", train="other"))[:2] == [
        "accepted a changed setting: data.test.news.source: /a/test.en -> /b/test.en",
        "accepted a changed setting: data.test.news.target: /a/test.de -> /b/test.de",
    ]


def test_other_changes_are_listed_beside_moved_data() -> None:
    before, now = data_in("/a"), replace(data_in("/b"), source_language="en")
    assert changes(before, now) == [
        "data moved: /a -> /b",
        "accepted a changed setting: data.source_language: source -> en",
    ]
