"""Splits: nothing held out is in training text, and no file of a user is lost."""

import os
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.config.schema.text import ParallelText
from tformer_cli.corpus import split as splitting
from tformer_cli.corpus.split import (
    TEST,
    TRAIN,
    VALID,
    assign_parts,
    given_split,
    split_text,
)
from tformer_cli.errors import DataError, UsageError

Pairs = list[tuple[str, str]]
LANGUAGES = ("en", "de")


def write(folder: Path, pairs: Pairs, name: str = "corpus") -> ParallelText:
    text = ParallelText(source=folder / f"{name}.en", target=folder / f"{name}.de")
    for file, side in ((text.source, 0), (text.target, 1)):
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return text


def read(text: ParallelText) -> Pairs:
    sides = (file.read_text(encoding="utf-8").split("\n")[:-1] for file in text.files.values())
    return list(zip(*sides, strict=True))


def plain(line: str) -> str:
    """A line as it is compared, by another way than the program's."""
    return " ".join(unicodedata.normalize("NFKC", line).casefold().split())


def distinct(num_pairs: int) -> Pairs:
    return [(f"tree {i}", f"Bäume {i}") for i in range(num_pairs)]


WORDS = st.sampled_from(["Yes.", "yes.", "No", "Maybe so", " maybe  SO", "", " ", "ﬁne", "fine"])
LINES = st.one_of(WORDS, st.integers(0, 60).map(str))


@given(st.lists(st.tuples(LINES, LINES), min_size=1, max_size=150))
def test_no_held_out_line_is_in_training(tmp_path_factory: pytest.TempPathFactory, pairs) -> None:
    folder = tmp_path_factory.mktemp("split")
    text = write(folder, pairs)
    try:
        split = split_text(text, folder / "my.data", LANGUAGES)
    except DataError:
        assert list(folder.glob("my.data")) == []
        return
    parts = {name: read(part) for name, part in split.texts.items()}
    for name, others in (("valid", ["train"]), ("test", ["train", "valid"])):
        for side in (0, 1):
            held = {plain(pair[side]) for pair in parts[name]}
            assert "" not in held
            assert len(held) == len(parts[name])
            for other in others:
                assert not held & {plain(pair[side]) for pair in parts[other]}
    kept = Counter(pair for part in parts.values() for pair in part)
    assert kept <= Counter(pairs)
    empty = Counter(pair for pair in pairs if not all(map(plain, pair)))
    assert (len(pairs) - kept.total() - empty.total(), empty.total()) == (
        split.num_set_aside,
        split.num_empty,
    )
    for set_aside in Counter(pairs) - kept - empty:
        shared = [plain(set_aside[side]) for side in (0, 1)]
        assert any(
            shared[side] == plain(pair[side])
            for side in (0, 1)
            for name in ("valid", "test")
            for pair in parts[name]
        )
    assert {name: len(part) for name, part in parts.items()} == split.num_pairs
    assert split.num_characters == len(set("".join(map("".join, pairs))))


def test_corpus_with_each_pair_five_times_leaks_nothing(tmp_path: Path) -> None:
    split = split_text(write(tmp_path, distinct(180) * 5), tmp_path / "my.data", LANGUAGES)
    assert split.num_pairs == {"train": 5 * (180 - 18), "valid": 9, "test": 9}
    assert split.num_set_aside == 4 * 18
    train = set(read(split.texts["train"]))
    assert not train & {*read(split.texts["valid"]), *read(split.texts["test"])}


def test_pairs_that_repeat_nothing_are_held_out_first(tmp_path: Path) -> None:
    repeated = [(f"Yes {i}", "Ja.") for i in range(500)]
    split = split_text(write(tmp_path, repeated + distinct(500)), tmp_path / "my.data", LANGUAGES)
    assert split.num_set_aside == 0
    assert split.num_pairs == {"train": 900, "valid": 50, "test": 50}


def test_parts_keep_the_order_of_the_text_and_the_text_stays(tmp_path: Path) -> None:
    text = write(tmp_path / "in", distinct(61))
    before = [file.read_bytes() for file in text.files.values()]
    split = split_text(text, tmp_path / "my.data", LANGUAGES)
    assert split.num_pairs == {"train": 55, "valid": 3, "test": 3}
    for part in split.texts.values():
        numbers = [int(source.split()[1]) for source, _ in read(part)]
        assert numbers == sorted(numbers)
    assert [file.read_bytes() for file in text.files.values()] == before
    assert sorted(path.name for path in (tmp_path / "my.data").iterdir()) == [
        "origin.json",
        *(f"{part}.{language}" for part in ("test", "train", "valid") for language in ("de", "en")),
    ]


def test_two_sides_of_one_language_have_names_of_their_own(tmp_path: Path) -> None:
    split = split_text(write(tmp_path, distinct(9)), tmp_path / "my.data", ("en", "en"))
    assert split.texts["test"].source.name == "test.source.en"
    assert split.texts["test"].target.name == "test.target.en"


@pytest.mark.parametrize("limit", [3, 9])
def test_distinct_words_are_counted_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(splitting, "MAX_WORDS", limit)
    text = write(tmp_path, [("a cat, two", "Zwei Katzen"), ("cat 22", "eine"), ("x", "y")])
    split = split_text(text, tmp_path / "parts", LANGUAGES)
    assert split.num_words == {3: 4, 9: 5}[limit]


def test_no_more_than_a_thousand_pairs_are_held_out() -> None:
    keys = np.arange(2, 2 + 2 * 50_000, dtype=np.uint64).reshape(-1, 2)
    counts = Counter(assign_parts(keys).tolist())
    assert counts == {TRAIN: 48_000, VALID: 1000, TEST: 1000}


@pytest.mark.parametrize(
    "pairs",
    [
        distinct(2),
        [("a", "b"), ("c", "b"), ("d", "b"), ("e", "b")],
        [("a", "b")] * 100,
        [("a", "b"), *[("", "b"), ("c", " "), ("", "")] * 3],
    ],
    ids=["two", "one target", "one pair", "whitespace"],
)
def test_text_too_short_to_split_is_refused(tmp_path: Path, pairs: Pairs) -> None:
    text = write(tmp_path, pairs)
    with pytest.raises(DataError) as raised:
        split_text(text, tmp_path / "my.data", LANGUAGES)
    assert str(raised.value) == (
        f"{text.source}: needs at least 3 pairs that share no line, for training, validation and "
        f"test ({len(pairs)} pairs); give `valid`"
    )
    assert not (tmp_path / "my.data").exists()


def test_three_pairs_are_enough(tmp_path: Path) -> None:
    split = split_text(write(tmp_path, distinct(3)), tmp_path / "my.data", LANGUAGES)
    assert split.num_pairs == {"train": 1, "valid": 1, "test": 1}


@pytest.mark.parametrize("changed", [distinct(8), distinct(10)])
def test_text_that_changes_while_it_is_read_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: Pairs
) -> None:
    text = write(tmp_path, distinct(9))

    def changing(keys):
        write(tmp_path, changed)
        return assign_parts(keys)

    monkeypatch.setattr(splitting, "assign_parts", changing)
    with pytest.raises(DataError) as raised:
        split_text(text, tmp_path / "my.data", LANGUAGES)
    assert str(raised.value) == (
        f"{text.source}: the text changed while it was read; run the same command again"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.de", "corpus.en"]


@pytest.fixture
def text(tmp_path: Path) -> ParallelText:
    """A text that was split into `my.data` already."""
    text = write(tmp_path, distinct(9))
    split_text(text, tmp_path / "my.data", LANGUAGES)
    return text


def refusal(text: ParallelText, *, overwrite: bool = False) -> str:
    folder = text.source.parent / "my.data"
    before = {file: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(UsageError) as raised:
        split_text(text, folder, LANGUAGES, overwrite=overwrite)
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
    return str(raised.value).removeprefix(str(folder))


ALREADY = ": already exists; choose another `output`, or add `overwrite=True`"
FOREIGN = ": was not written by config new; choose another `output`"


def test_same_text_is_split_again(text: ParallelText, tmp_path: Path) -> None:
    assert split_text(text, tmp_path / "my.data", LANGUAGES).num_pairs["train"] == 7


def test_the_names_of_the_files_need_not_be_utf8(text: ParallelText, tmp_path: Path) -> None:
    named = ParallelText(
        source=text.source.rename(tmp_path / os.fsdecode(b"caf\xe9.en")),
        target=text.target.rename(tmp_path / os.fsdecode(b"caf\xe9.de")),
    )
    first = split_text(named, tmp_path / "new.data", LANGUAGES)
    assert split_text(named, tmp_path / "new.data", LANGUAGES) == first


def test_parts_of_another_text_are_kept_unless_forced(text: ParallelText, tmp_path: Path) -> None:
    other = write(tmp_path, distinct(30), "other")
    assert refusal(other) == ALREADY
    split_text(other, tmp_path / "my.data", LANGUAGES, overwrite=True)
    assert refusal(text) == ALREADY


def test_parts_that_were_edited_are_kept_unless_forced(text: ParallelText, tmp_path: Path) -> None:
    (tmp_path / "my.data" / "train.en").write_text("better\n", encoding="utf-8")
    assert refusal(text) == ALREADY
    split_text(text, tmp_path / "my.data", LANGUAGES, overwrite=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_folder_with_files_of_the_user_is_never_replaced(
    text: ParallelText, tmp_path: Path, overwrite: bool
) -> None:
    folder = tmp_path / "my.data"
    (folder / "notes.txt").touch()
    assert refusal(text, overwrite=overwrite) == FOREIGN
    (folder / "notes.txt").unlink()
    for broken in ("[]", "{", '{"files": []}', '{"files": null}', '{"files": [{}]}'):
        (folder / "origin.json").write_text(broken, encoding="utf-8")
        assert refusal(text, overwrite=overwrite) == FOREIGN
    (folder / "origin.json").unlink()
    assert refusal(text, overwrite=overwrite) == FOREIGN


def test_a_link_to_itself_is_no_text_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a.en").symlink_to("a.en")
    (tmp_path / "my.data").mkdir()
    assert refusal(ParallelText(source=tmp_path / "a.en", target=tmp_path / "a.en")) == FOREIGN


def test_given_texts_are_never_replaced(text: ParallelText, tmp_path: Path) -> None:
    folder = tmp_path / "my.data"
    inside = ParallelText(source=folder / "train.en", target=folder / "train.de")
    with pytest.raises(UsageError) as raised:
        split_text(inside, folder, LANGUAGES, overwrite=True)
    assert str(raised.value) == (
        f"{folder}: contains one of the given texts, which would be lost; choose another `output`"
    )


def test_given_validation_text_is_compared_with_training(tmp_path: Path) -> None:
    train = write(tmp_path, distinct(7), "train")
    valid = write(tmp_path, [("Tree 1", "bäume 1"), ("new", "neu")], "valid")
    split = given_split(train, valid)
    assert split.texts == {"train": train, "valid": valid}
    assert split.num_pairs == {"train": 7, "valid": 2}
    assert split.num_in_training == {"valid": 1}


def test_given_training_pairs_with_an_empty_side_are_counted_apart(tmp_path: Path) -> None:
    train = write(tmp_path, [("a", " "), *distinct(7), ("", "b"), ("", "")], "train")
    split = given_split(train, write(tmp_path, [("new", "neu")], "valid"))
    assert (split.num_pairs, split.num_empty) == ({"train": 7, "valid": 1}, 3)


def test_empty_text_is_refused(tmp_path: Path) -> None:
    text, empty = write(tmp_path, distinct(3)), write(tmp_path, [], "empty")
    for train, valid in ((text, empty), (empty, text)):
        with pytest.raises(DataError) as raised:
            given_split(train, valid)
        assert str(raised.value) == f"{empty.source}: no lines; name a file with text"
    with pytest.raises(DataError) as raised:
        split_text(empty, tmp_path / "my.data", LANGUAGES)
    assert str(raised.value) == f"{empty.source}: no lines; name a file with text"


def test_text_whose_pairs_all_have_an_empty_side_is_refused(tmp_path: Path) -> None:
    text = write(tmp_path, [("a", ""), (" ", "b"), *((f"c {i}", "\u3000") for i in range(9))])
    output, other = tmp_path / "my.data", write(tmp_path, [("new", "neu")], "other")
    message = (
        f"{text.source}: every pair has an empty side (11 pairs); "
        "name a text whose lines have translations"
    )
    for split in (
        lambda: split_text(text, output, LANGUAGES),
        lambda: given_split(text, other),
        lambda: given_split(other, text),
    ):
        with pytest.raises(DataError) as raised:
            split()
        assert str(raised.value) == message
    assert not output.exists()


def test_each_pair_counts_whenever_it_is_read(tmp_path: Path) -> None:
    text, counts = write(tmp_path, distinct(60)), list[int]()
    split = split_text(text, tmp_path / "my.data", LANGUAGES, on_done=counts.append)
    assert sum(counts) == 2 * 60
    given_split(split.texts["train"], split.texts["valid"], on_done=counts.append)
    assert sum(counts) == 2 * 60 + 2 * split.num_pairs["train"]
