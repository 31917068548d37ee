"""What a power cut leaves, after any call of the system, of all that must survive one."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from corpus.loading import load_or_build
from power_cut import cut_at_every_call
from test_partial_file import WHOLE, write

from tformer_cli.config.schema.data import FilterConfig
from tformer_cli.config.schema.text import TrainingText
from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.storage import atomic, partial_file
from tformer_cli.storage.atomic import (
    atomic_directory,
    new_directory,
    recover_interrupted_writes,
    write_text,
)
from tformer_cli.storage.integrity import verify_checksums
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.tokenizer import build_tokenizers, load_tokenizers
from tformer_cli.training.saving import take_checkpoint
from tformer_cli.training.setup import save_tokenizers
from tformer_cli.training.step import TrainState

TOKENIZERS = build_tokenizers(CharConfig(), lambda: [("ab", "ba")], seed=1)

Deed = Callable[[], object]
Check = Callable[[Path], object]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


@pytest.fixture
def cut(disk, monkeypatch) -> Callable[[Deed, Check], list[object]]:
    return lambda deed, check: cut_at_every_call(deed, disk, check, monkeypatch)


def text_of(file: Path) -> str | None:
    return file.read_text() if file.exists() else None


def test_a_file_is_old_or_new_and_in_the_end_new(disk, cut):
    states = []

    def check(folder: Path) -> object:
        states.append((text_of(folder / "a"), text_of(folder / "new" / "folder" / "b")))
        return states[-1]

    write_text(disk / "a", "old")

    def deed() -> None:
        write_text(disk / "a", "new")
        write_text(disk / "new" / "folder" / "b", "new")

    assert cut(deed, check) == [("new", "new")] * 2
    assert set(states) == {("old", None), ("new", None), ("new", "new")}


def written(path: Path, content: str, write=atomic_directory) -> None:
    with write(path) as temporary:
        for name in ("part", "inner/part"):
            (temporary / name).parent.mkdir(exist_ok=True)
            (temporary / name).write_text(content)


def test_a_folder_is_old_or_new_and_in_the_end_new(disk, cut):
    states = []

    def check(folder: Path) -> object:
        recover_interrupted_writes(folder)
        states.append(tuple(text_of(folder / "a" / name) for name in ("part", "inner/part")))
        return states[-1]

    written(disk / "a", "old")
    assert cut(lambda: written(disk / "a", "new"), check) == [("new", "new")] * 2
    assert set(states) == {("old", "old"), ("new", "new")}


def test_a_new_folder_is_absent_or_whole_and_in_the_end_whole(disk, cut):
    states = []

    def check(folder: Path) -> object:
        path = folder / "runs" / "a"
        there = path.exists()
        states.append((there, *(text_of(path / name) for name in ("part", "inner/part"))))
        return states[-1]

    deed = lambda: written(disk / "runs" / "a", "new", new_directory)  # noqa: E731
    assert cut(deed, check) == [(True, "new", "new")] * 2
    assert set(states) == {(False, None, None), (True, "new", "new")}


def test_a_partial_file_goes_on_to_the_same_file(disk, cut):
    def check(folder: Path) -> object:
        if not (folder / "file").exists():
            write(folder / "file")
        return (folder / "file").read_text() == WHOLE

    assert cut(lambda: write(disk / "file"), check) == [True, True]
    # Each time, not only in the end.
    assert cut(lambda: write(disk / "other"), lambda folder: check(folder) or 1 / 0) == [True] * 2


def test_the_pointers_name_whole_checkpoints_at_any_time_and_the_newest_in_the_end(disk, cut):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    state = TrainState(
        model=model,
        optimizer=optimizer,
        scheduler=lambda step: 0.1,
        config=TrainingConfig(save_every=1, keep_checkpoints=1, keep_best=1),
        device=torch.device("cpu"),
        precision=torch.float32,
        seed=1,
    )

    def check(folder: Path) -> object:
        run, pointed = RunDirectory(folder), []
        recover_interrupted_writes(run.checkpoints)
        for name in ("last", "best"):
            checkpoint = run.pointed(name)
            if checkpoint is not None:
                assert verify_checksums(checkpoint) is None
                pointed.append(checkpoint.name)
        assert pointed or not (folder / "checkpoints" / "step-000002").exists()
        return pointed

    def deed() -> None:
        for step in (1, 2, 3):
            state.progress = replace(state.progress, step=step, score=step, best_step=step)
            take_checkpoint(RunDirectory(disk), state)

    assert cut(deed, check) == [["step-000003"] * 2] * 2


def test_a_vocabulary_is_absent_or_whole_and_in_the_end_there_with_its_origin(disk, cut):
    def check(folder: Path) -> object:
        run = RunDirectory(folder)
        recover_interrupted_writes(folder)
        if not run.tokenizer.exists():
            return None
        assert load_tokenizers(run.tokenizer).fingerprint == TOKENIZERS.fingerprint
        return text_of(run.origin_file)

    def deed() -> None:
        save_tokenizers(TOKENIZERS, {"seed": 1}, RunDirectory(disk))

    assert cut(deed, check) == ['{\n  "seed": 1\n}\n'] * 2


def test_a_token_store_is_built_to_its_end_from_whatever_is_there(disk, cut, tmp_path):
    for name, lines in (("src", "ab\na\nab\nbb\n"), ("tgt", "ba\na\nba\nb\n")):
        (tmp_path / name).write_text(lines)
    texts = [TrainingText(source=tmp_path / "src", target=tmp_path / "tgt")]

    def build(stores: Path) -> str:
        store, _ = load_or_build(
            texts, TOKENIZERS, FilterConfig(), stores=stores, num_processes=1, shard_lines=2
        )
        return store.fingerprint()

    expected = build(tmp_path / "unbroken")

    def check(folder: Path) -> object:
        is_there = any((folder / "stores").glob("*/index.json"))
        assert build(folder / "stores") == expected
        leftovers = {path.suffix for path in (folder / "stores").iterdir()} - {".lock", ".json", ""}
        assert not leftovers
        return is_there

    assert cut(lambda: build(disk / "stores"), check) == [True, True]


def unsynced_file(path: Path) -> None:
    path.with_name("temporary").write_text("new")
    path.with_name("temporary").replace(path)
    atomic.sync(path.parent)


def unsynced_folder(path: Path) -> None:
    with path.with_name("temporary").open("w") as file:
        file.write("new")
        file.flush()
        os.fsync(file.fileno())
    path.with_name("temporary").replace(path)


def late_file(path: Path) -> None:
    unsynced_file(path)
    partial_file.sync(path.parent)
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


@pytest.mark.parametrize("deed", [unsynced_file, unsynced_folder, late_file])
def test_what_is_not_synced_in_its_order_is_lost(disk, cut, deed):
    states = []

    def check(folder: Path) -> object:
        states.append(text_of(folder / "a"))
        return states[-1]

    write_text(disk / "a", "old")
    last = cut(lambda: deed(disk / "a"), check)
    assert last != ["new", "new"] or set(states) != {"old", "new"}
