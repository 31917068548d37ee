"""A store on disk holds what a list in memory would, however it is built."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loading import load_or_build
from weighted import weighted_store

from tformer_cli.config.schema.data import FilterConfig
from tformer_cli.config.schema.text import PlainText, PlainTrainingText, TrainingText
from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.corpus import prefetch, store_builder
from tformer_cli.corpus.duplicates import pair_digests
from tformer_cli.corpus.filters import FilterReport, PairFilter
from tformer_cli.corpus.shards import encode_shard, read_shard
from tformer_cli.corpus.store import TokenStore, id_dtype
from tformer_cli.corpus.store_builder import StoreWriter
from tformer_cli.errors import DataError, DeviceError, StorageError
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers

Lines = list[tuple[str, str]]

TOKENIZERS = build_tokenizers(CharConfig(), lambda: [("abc", "abc")], 1)
FILTERS = FilterConfig(max_length=4, max_ratio=2.0, drop_duplicates=True)
LANGUAGES = ("en", "de")
OPTIONS = {"num_processes": 1, "shard_lines": 6}

line = st.text("ab", max_size=5)
corpus = st.lists(st.tuples(line, line), max_size=20)
corpora = st.tuples(corpus, st.lists(st.tuples(line, line), min_size=1, max_size=9)).filter(
    lambda both: any(len(s) == len(t) in range(1, 5) for text in both for s, t in text)
)


class Spy:
    """A tokenizer that counts the chunks it encodes, and does something before each."""

    def __init__(self, tokenizer: Any, before: Callable[[int], None]) -> None:
        self._tokenizer = tokenizer
        self._before = before
        self.num_chunks = 0

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        self.num_chunks += 1
        self._before(self.num_chunks)
        return self._tokenizer.encode_batch(lines)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def spied(before: Callable[[int], None] = lambda _: None) -> tuple[Tokenizers, Spy]:
    spy = Spy(TOKENIZERS.source, before)
    return replace(TOKENIZERS, source=spy), spy


def write(folder: Path, corpora: Sequence[Lines], weights: Sequence[float] = (1.0, 2.5)):
    texts = []
    for number, (pairs, weight) in enumerate(zip(corpora, weights, strict=False)):
        files = folder / f"{number}.src", folder / f"{number}.tgt"
        for side, file in enumerate(files):
            file.write_text("".join(f"{pair[side]}\n" for pair in pairs))
        texts.append(TrainingText(source=files[0], target=files[1], weight=weight))
    return texts


def expected(
    corpora: Sequence[Lines], filters: FilterConfig, weights: Sequence[float] = (1.0, 2.5)
) -> tuple[TokenStore, FilterReport]:
    """Encode pair by pair, and remember every pair that was seen."""
    triples, report, seen = [], FilterReport(), set()
    for pairs, weight in zip(corpora, weights, strict=False):
        for pair in pairs:
            source, target = (TOKENIZERS.source.encode(text) for text in pair)
            shorter, longer = sorted((len(source), len(target)))
            if shorter == 0:
                report.empty += 1
            elif longer > filters.max_length:
                report.too_long += 1
            elif filters.max_ratio is not None and longer > filters.max_ratio * shorter:
                report.ratio += 1
            elif filters.drop_duplicates and pair in seen:
                report.duplicate += 1
            else:
                report.kept += 1
                triples.append((source, target, weight))
                seen.add(pair)
    return weighted_store(triples), report


def assert_same(found, wanted) -> None:
    (store, report), (wanted_store, wanted_report) = found, wanted
    assert report == wanted_report
    assert len(store) == len(wanted_store)
    for name in ("source_ids", "source_offsets", "target_ids", "target_offsets"):
        np.testing.assert_array_equal(getattr(store, name), getattr(wanted_store, name))
    assert store.weights[:].tolist() == wanted_store.weights[:].tolist()
    assert store.fingerprint() == wanted_store.fingerprint()
    assert replace(store, known_fingerprint=None).fingerprint() == wanted_store.fingerprint()


def names(stores: Path) -> list[str]:
    """What lies in a folder of stores, without the cached checksums and the locks."""
    return sorted(
        path.name
        for path in stores.iterdir()
        if path.name != "texts.json" and path.suffix != ".lock"
    )


MANY = [[("a" * (i % 5), "ab"[: i % 3]) for i in range(42)], [("a", "b"), ("aa", "ab")] * 3]


@settings(max_examples=8)
@given(corpora, st.integers(1, 30), st.booleans())
def test_a_store_is_what_a_list_in_memory_would_be(both, shard_lines, drop_duplicates):
    filters = replace(FILTERS, drop_duplicates=drop_duplicates)
    with TemporaryDirectory() as folder:
        texts = write(Path(folder), both)
        found = load_or_build(
            texts,
            TOKENIZERS,
            filters,
            stores=Path(folder) / "stores",
            num_processes=1,
            shard_lines=shard_lines,
        )
        assert_same(found, expected(both, filters))


@pytest.mark.parametrize("num_processes", [2, 3])
def test_several_processes_build_the_same(tmp_path, num_processes):
    texts = write(tmp_path, MANY)
    found = load_or_build(
        texts,
        TOKENIZERS,
        FILTERS,
        stores=tmp_path / "stores",
        num_processes=num_processes,
        shard_lines=5,
    )
    assert_same(found, expected(MANY, FILTERS))


def test_a_second_start_encodes_nothing(tmp_path):
    texts = write(tmp_path, MANY)
    first = load_or_build(texts, TOKENIZERS, FILTERS, stores=tmp_path / "stores", **OPTIONS)
    tokenizers, spy = spied()
    again = load_or_build(texts, tokenizers, FILTERS, stores=tmp_path / "stores", **OPTIONS)
    assert spy.num_chunks == 0
    assert_same(again, first)
    assert again[0].known_fingerprint is not None
    assert len(names(tmp_path / "stores")) == 1


def test_the_sentences_of_a_text_alone_are_their_own_targets(tmp_path):
    """A store of one side: half the files, and the filters look at that side alone."""
    lines = ["ab", "", "a" * 9, "ab", "b"]
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines))
    texts = [PlainTrainingText(text=tmp_path / "text", weight=2.5)]
    stores = tmp_path / "stores"
    store, report = load_or_build(texts, TOKENIZERS, FILTERS, stores=stores, **OPTIONS)
    encode = TOKENIZERS.source.encode
    wanted = weighted_store((encode(line), encode(line), 2.5) for line in ("ab", "b"))
    assert_same((store, report), (wanted, FilterReport(2, empty=1, too_long=1, duplicate=1)))
    assert store.target_ids is store.source_ids
    (folder,) = (path for path in stores.iterdir() if path.is_dir())
    assert {file.name for file in folder.iterdir()} == {
        "index.json",
        "source.ids",
        "source.offsets",
    }
    # A text and its translation of the same lines is another store.
    shutil.copy(tmp_path / "text", tmp_path / "translation")
    pairs = [TrainingText(source=tmp_path / "text", target=tmp_path / "translation")]
    load_or_build(pairs, TOKENIZERS, FILTERS, stores=stores, **OPTIONS)
    assert len(names(stores)) == 2


def test_two_texts_alone_are_no_pair(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(f"{name}\n")
    files = tmp_path / "a", tmp_path / "b"
    for texts, num_examples in (
        ([PlainTrainingText(text=file) for file in files], 2),
        ([TrainingText(source=files[0], target=files[1])], 1),
    ):
        store, _ = load_or_build(texts, TOKENIZERS, FILTERS, stores=tmp_path / "stores", **OPTIONS)
        assert len(store) == num_examples


def test_the_weights_belong_to_the_run_and_not_to_the_store(tmp_path):
    load_or_build(write(tmp_path, MANY), TOKENIZERS, FILTERS, stores=tmp_path / "stores", **OPTIONS)
    tokenizers, spy = spied()
    texts = write(tmp_path, MANY, (0.5, 3.0))
    for _ in range(2):
        found = load_or_build(texts, tokenizers, FILTERS, stores=tmp_path / "stores", **OPTIONS)
        assert_same(found, expected(MANY, FILTERS, (0.5, 3.0)))
    assert spy.num_chunks == 0


def test_a_store_that_cannot_be_written_serves_other_weights(tmp_path, small_files):
    stores = tmp_path / "stores"
    load_or_build(write(tmp_path, MANY), TOKENIZERS, FILTERS, stores=stores, **OPTIONS)
    texts = write(tmp_path, MANY, (0.5, 3.0))
    for file in (file for text in texts for file in text.files.values()):
        os.utime(file, (0, 0))
    before = {file: file.read_bytes() for file in stores.rglob("*.json")}
    with small_files(0):
        found = load_or_build(texts, TOKENIZERS, FILTERS, stores=stores, **OPTIONS)
    assert_same(found, expected(MANY, FILTERS, (0.5, 3.0)))
    assert {file: file.read_bytes() for file in stores.rglob("*.json")} == before


def test_text_filters_and_tokenizer_make_another_store(tmp_path):
    other = [MANY[0], [*MANY[1], ("b", "b")]]
    loose = replace(FILTERS, max_length=5)
    letters = build_tokenizers(CharConfig(), lambda: [("abcd", "abc")], 1)
    for corpora, filters, tokenizers in (
        (MANY, FILTERS, TOKENIZERS),
        (other, FILTERS, TOKENIZERS),
        (MANY, loose, TOKENIZERS),
        (MANY, FILTERS, letters),
    ):
        texts = write(tmp_path, corpora)
        found = load_or_build(texts, tokenizers, filters, stores=tmp_path / "stores", **OPTIONS)
        assert found[1] == expected(corpora, filters)[1]
    assert len(names(tmp_path / "stores")) == 4


def stop_before(texts: Sequence[TrainingText], stores: Path, last: int, **options: Any) -> Path:
    """Begin a build that is killed before its shard number `last`; return its folder."""

    def kill(chunk: int) -> None:
        if chunk == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_or_build(texts, spied(kill)[0], FILTERS, stores=stores, **(OPTIONS | options))
    (building,) = stores.glob("*.building")
    return building


@pytest.mark.parametrize("last", range(1, 9))
def test_a_build_that_is_killed_resumes_behind_the_shards_that_are_there(tmp_path, last):
    texts, stores = write(tmp_path, MANY), tmp_path / "stores"
    building = stop_before(texts, stores, last)
    assert len(list(building.glob("*.shard"))) == last - 1
    tokenizers, spy = spied()
    found = load_or_build(texts, tokenizers, FILTERS, stores=stores, **OPTIONS)
    assert_same(found, expected(MANY, FILTERS))
    # 42 and 6 lines in shards of 6.
    assert spy.num_chunks == 8 - (last - 1)
    assert len(names(stores)) == 1


@pytest.mark.parametrize("shard_lines", [1, 3, 4, 5, 7, 10, 12, 42, 50])
def test_shards_of_another_size_are_no_shards_of_these_lines(tmp_path, shard_lines):
    texts, stores = write(tmp_path, MANY), tmp_path / "stores"
    num_shards = -(-42 // shard_lines) + -(-6 // shard_lines)
    stop_before(texts, stores, num_shards, shard_lines=shard_lines)
    found = load_or_build(texts, TOKENIZERS, FILTERS, stores=stores, **OPTIONS)
    assert_same(found, expected(MANY, FILTERS))


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def flip_every_bit_that_counts(file: Path) -> None:
    for at in range(0, file.stat().st_size, 97):
        content = bytearray(file.read_bytes())
        content[at] ^= 1 << at % 8
        file.write_bytes(content)
        with pytest.raises(ValueError, match="is damaged"):
            read_shard(file)
        content[at] ^= 1 << at % 8
        file.write_bytes(content)
    flip_a_bit(file)


@pytest.mark.parametrize(
    "damage",
    [
        flip_every_bit_that_counts,
        Path.unlink,
        lambda shard: shard.write_bytes(b""),
        lambda shard: shard.write_bytes(shard.read_bytes()[:-1]),
        lambda shard: shard.write_bytes(shard.read_bytes() + b"half"),
    ],
)
@pytest.mark.parametrize("number", range(4))
def test_a_damaged_shard_is_encoded_again_and_no_other(tmp_path, damage, number):
    texts, stores = write(tmp_path, MANY), tmp_path / "stores"
    building = stop_before(texts, stores, 5)
    damage(building / f"0-{6 * number}.shard")
    tokenizers, spy = spied()
    found = load_or_build(texts, tokenizers, FILTERS, stores=stores, **OPTIONS)
    assert_same(found, expected(MANY, FILTERS))
    assert spy.num_chunks == 8 - 4 + 1


def test_a_store_whose_index_is_nested_without_end_is_built_again(tmp_path):
    texts, stores = write(tmp_path, MANY), tmp_path / "stores"
    before = load_or_build(texts, TOKENIZERS, FILTERS, stores=stores, **OPTIONS)
    (index,) = stores.glob("*/index.json")
    index.write_text("[" * 100_000, encoding="utf-8")
    assert_same(load_or_build(texts, TOKENIZERS, FILTERS, stores=stores, **OPTIONS), before)


@pytest.mark.parametrize("name", ["source.ids", "target.offsets", "index.json"])
def test_a_store_that_is_not_whole_is_built_again(tmp_path, name):
    texts, stores = write(tmp_path, MANY), tmp_path / "stores"
    load_or_build(texts, TOKENIZERS, FILTERS, stores=stores, **OPTIONS)
    (store,) = (path for path in stores.iterdir() if path.is_dir())
    content = (store / name).read_bytes()
    (store / name).write_bytes(content[: len(content) // 2 // 8 * 8])
    found = load_or_build(texts, TOKENIZERS, FILTERS, stores=stores, **OPTIONS)
    assert_same(found, expected(MANY, FILTERS))
    assert (store / name).stat().st_size == len(content)


def change_index(store: Path, change: Callable[[dict[str, Any]], object]) -> None:
    index = json.loads((store / "index.json").read_text())
    change(index)
    (store / "index.json").write_text(json.dumps(index))


def swap_tokens(store: Path) -> None:
    ids = np.fromfile(store / "target.ids", dtype="<u2")
    position = next(i for i in range(len(ids) - 1) if ids[i] != ids[i + 1])
    ids[[position, position + 1]] = ids[[position + 1, position]]
    ids.tofile(store / "target.ids")


def move_a_pair(index: dict[str, Any]) -> None:
    index["texts"][0]["kept"] -= 1
    index["texts"][1]["kept"] += 1


@pytest.mark.parametrize(
    "damage",
    [
        swap_tokens,
        lambda store: flip_a_bit(store / "source.ids"),
        lambda store: flip_a_bit(store / "source.offsets"),
        lambda store: flip_a_bit(store / "target.ids"),
        lambda store: flip_a_bit(store / "target.offsets"),
        lambda store: change_index(store, move_a_pair),
        lambda store: change_index(store, lambda index: index.update(id_dtypes=["<i2", "<u2"])),
        lambda store: change_index(store, lambda index: index["fingerprints"].update(x="y")),
        lambda store: change_index(store, lambda index: index.pop("checksum")),
        lambda store: change_index(store, lambda index: index.update(sha256={})),
        lambda store: (store / "index.json").write_text("[" * 100_000),
        lambda store: (store / "index.json").write_text("[]"),
        lambda store: (store / "index.json").write_text("null"),
    ],
)
def test_a_store_of_the_same_size_that_was_changed_is_built_again(tmp_path, damage):
    texts, stores = write(tmp_path, MANY), tmp_path / "stores"
    load_or_build(texts, TOKENIZERS, FILTERS, stores=stores, **OPTIONS)
    (store,) = (path for path in stores.iterdir() if path.is_dir())
    before = {file.name: file.read_bytes() for file in store.iterdir()}
    damage(store)
    tokenizers, spy = spied()
    found = load_or_build(texts, tokenizers, FILTERS, stores=stores, **OPTIONS)
    assert_same(found, expected(MANY, FILTERS))
    assert spy.num_chunks == 8
    assert {file.name: file.read_bytes() for file in store.iterdir()} == before


def test_a_store_of_another_format_is_another_store(tmp_path, monkeypatch):
    texts, stores = write(tmp_path, MANY), tmp_path / "stores"
    load_or_build(texts, TOKENIZERS, FILTERS, stores=stores, **OPTIONS)
    monkeypatch.setattr(store_builder, "STORE_VERSION", store_builder.STORE_VERSION + 1)
    tokenizers, spy = spied()
    found = load_or_build(texts, tokenizers, FILTERS, stores=stores, **OPTIONS)
    assert_same(found, expected(MANY, FILTERS))
    assert spy.num_chunks == 8
    assert len(names(stores)) == 2


def test_what_a_kill_left_of_a_finished_build_goes_with_the_next_start(tmp_path, monkeypatch):
    def killed(folder: Path, **_: object) -> None:
        raise KeyboardInterrupt

    texts, stores = write(tmp_path, MANY), tmp_path / "stores"
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            load_or_build(texts, TOKENIZERS, FILTERS, stores=stores, **OPTIONS)
    assert len(names(stores)) == 2
    tokenizers, spy = spied()
    found = load_or_build(texts, tokenizers, FILTERS, stores=stores, **OPTIONS)
    assert_same(found, expected(MANY, FILTERS))
    assert spy.num_chunks == 0
    assert len(names(stores)) == 1


def test_two_that_build_the_same_at_once_build_it_once(tmp_path):
    texts, stores = write(tmp_path, MANY), tmp_path / "stores"
    has_begun, other_begins = threading.Event(), threading.Event()

    def wait_for_the_other(chunk: int) -> None:
        has_begun.set()
        other_begins.wait()

    first, first_spy = spied(wait_for_the_other)
    second, second_spy = spied()
    found = {}

    def build(name: str, tokenizers: Tokenizers) -> None:
        found[name] = load_or_build(texts, tokenizers, FILTERS, stores=stores, **OPTIONS)

    threads = [
        threading.Thread(target=build, args=("first", first)),
        threading.Thread(target=build, args=("second", second)),
    ]
    threads[0].start()
    has_begun.wait()
    threads[1].start()
    other_begins.set()
    for thread in threads:
        thread.join()
    assert (first_spy.num_chunks, second_spy.num_chunks) == (8, 0)
    assert_same(found["first"], expected(MANY, FILTERS))
    assert_same(found["second"], expected(MANY, FILTERS))


def test_a_full_disk_is_said_and_leaves_nothing_that_counts_as_whole(tmp_path, small_files):
    many = [[("ab", "ba")] * 500 + [("ab" * 40, "ba" * 40)] * 2500, [("a", "b")]]
    texts, stores = write(tmp_path, many), tmp_path / "stores"
    options = {"stores": stores, "num_processes": 1, "shard_lines": 100}
    with small_files(20_000), pytest.raises(StorageError) as caught:
        load_or_build(texts, TOKENIZERS, FilterConfig(), **options)
    (building,) = stores.glob("*.building")
    assert str(caught.value) == (
        f"{building}/0-500.shard: cannot be written (File too large); "
        "raise the limit on the size of a file; what was saved before is intact"
    )
    assert names(stores) == [building.name]
    tokenizers, spy = spied()
    found = load_or_build(texts, tokenizers, FilterConfig(), **options)
    assert_same(found, expected(many, FilterConfig()))
    assert spy.num_chunks == 31 - 5


def test_a_disk_that_fills_up_at_the_very_end_leaves_no_store(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    texts, stores = write(tmp_path, MANY), tmp_path / "stores"
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(StorageError) as caught:
        load_or_build(texts, TOKENIZERS, FILTERS, stores=stores, **OPTIONS)
    key = names(stores)[0].removesuffix(".building")
    assert str(caught.value) == (
        f"{stores / key}: cannot be written (No space left on device); "
        "free space and run the same command again; what was saved before is intact"
    )
    assert names(stores) == [f"{key}.building"]
    monkeypatch.undo()
    tokenizers, spy = spied()
    assert_same(
        load_or_build(texts, tokenizers, FILTERS, stores=stores, **OPTIONS),
        expected(MANY, FILTERS),
    )
    assert spy.num_chunks == 0


def test_a_fault_found_late_leaves_no_store(tmp_path):
    texts, stores = write(tmp_path, MANY), tmp_path / "stores"
    with texts[1].target.open("a") as longer:
        longer.write("one line more\n")
    with pytest.raises(DataError) as caught:
        load_or_build(texts, TOKENIZERS, FILTERS, stores=stores, **OPTIONS)
    assert str(caught.value) == (
        f"{texts[1].target}:7: has no counterpart in {texts[1].source} (7 and 6 lines); "
        "line n of one file must translate line n of the other"
    )
    assert names(stores) == []


def test_a_text_that_changes_while_it_is_read_is_refused(tmp_path):
    texts, stores = write(tmp_path, MANY), tmp_path / "stores"

    def grow(chunk: int) -> None:
        if chunk == 8:
            for file in (texts[0].source, texts[0].target):
                with file.open("a") as longer:
                    longer.write("a\n")

    with pytest.raises(DataError) as caught:
        load_or_build(texts, spied(grow)[0], FILTERS, stores=stores, **OPTIONS)
    assert str(caught.value) == (
        "data.train: the text changed while it was read; run the same command again"
    )
    assert names(stores) == []


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "no lines ({source}); name files with text"),
        (
            [("", "a"), ("a" * 9, "a" * 9)],
            "nothing is left after the filters "
            "(2 pairs: 0 kept; dropped 1 empty, 1 too long); loosen data.filters",
        ),
    ],
)
def test_a_text_of_which_nothing_is_left_is_refused(tmp_path, pairs, message):
    texts, stores = write(tmp_path, [pairs]), tmp_path / "stores"
    with pytest.raises(DataError) as caught:
        load_or_build(texts, TOKENIZERS, FILTERS, stores=stores, **OPTIONS)
    assert str(caught.value) == f"data.train: {message.format(source=texts[0].source)}"
    assert names(stores) == []


def test_ids_lie_in_16_bits_where_every_one_fits(tmp_path):
    texts, stores = write(tmp_path, MANY), tmp_path / "stores"
    store, _ = load_or_build(texts, TOKENIZERS, FILTERS, stores=stores, **OPTIONS)
    assert store.source_ids.dtype == store.target_ids.dtype == np.uint16
    wide = build_tokenizers(
        CharConfig(), lambda: ((chr(0x10000 + i), "a") for i in range(70_000)), 1
    )
    wide_store, _ = load_or_build(
        write(tmp_path, [[(chr(0x10000 + 69_999), "a")]]),
        wide,
        FilterConfig(),
        stores=stores,
        **OPTIONS,
    )
    assert wide_store.source_ids.dtype == np.uint32
    assert wide_store.source_ids.max() > 1 << 16


def test_the_index_is_plain_json(tmp_path):
    texts, stores = write(tmp_path, MANY), tmp_path / "stores"
    _, report = load_or_build(texts, TOKENIZERS, FILTERS, stores=stores, **OPTIONS)
    (file,) = stores.glob("*/index.json")
    index = json.loads(file.read_text())
    assert sum(text["kept"] for text in index["texts"]) == report.kept
    assert index["id_dtypes"] == ["<u2", "<u2"]
    assert list(index["fingerprints"]) == ["1.0 2.5"]


PAIRS = [("ab", "ba"), ("", "a"), ("a", "bbb"), ("b", "b")]


@pytest.fixture
def tokenizers() -> Tokenizers:
    return build_tokenizers(CharConfig(), lambda: PAIRS, 1)


def test_ids_of_a_vocabulary_take_16_bits_where_they_can():
    assert [id_dtype(size) for size in (3, 65536, 65537)] == ["<u2", "<u2", "<u4"]


def test_a_shard_holds_the_pairs_that_the_filters_keep(tokenizers, tmp_path):
    filters = PairFilter(FilterConfig(max_ratio=2.0, drop_duplicates=True), LANGUAGES)
    report = encode_shard(tmp_path / "0-0.shard", PAIRS, tokenizers, filters)
    encode, shard = tokenizers.source.encode, read_shard(tmp_path / "0-0.shard")
    assert shard["ids 0"].tolist() == [*encode("ab"), *encode("b")]
    assert shard["ids 1"].tolist() == [*encode("ba"), *encode("b")]
    assert shard["lengths 0"].tolist() == shard["lengths 1"].tolist() == [2, 1]
    assert shard["digests"].tolist() == pair_digests([PAIRS[0], PAIRS[3]]).tolist()
    assert report == FilterReport(kept=2, empty=1, ratio=1)
    assert encode_shard(tmp_path / "0-0.shard", PAIRS, tokenizers, filters) == report


def test_digests_are_left_out_where_duplicates_do_not_matter(tokenizers, tmp_path):
    encode_shard(tmp_path / "0-0.shard", PAIRS, tokenizers, PairFilter(FilterConfig(), LANGUAGES))
    assert read_shard(tmp_path / "0-0.shard")["digests"].shape == (0, 2)


class DyingPool:
    """A pool whose processes are killed as soon as they have something to do."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> "DyingPool":
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, *_: object) -> Future:
        future: Future = Future()
        future.set_exception(BrokenProcessPool())
        return future

    def shutdown(self, **_: object) -> None: ...


def test_a_process_that_dies_is_an_error_with_a_remedy(tokenizers, tmp_path, monkeypatch):
    monkeypatch.setattr(prefetch, "ProcessPoolExecutor", DyingPool)
    texts = write(tmp_path, [PAIRS])
    filters = PairFilter(FilterConfig(), LANGUAGES)
    with pytest.raises(DeviceError) as caught:
        StoreWriter(tmp_path / "building", texts, tokenizers, [filters]).write_shards(2, 3)
    assert str(caught.value) == (
        "a worker process: was killed, probably out of memory; "
        "free memory and run the same command again: it resumes from there"
    )


def test_a_process_that_encodes_does_without_torch():
    code = "import tformer_cli.corpus.store_builder, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


RULES = {"min_letters": 0.9, "max_copied": 0.5, "drop_held_out": True, "max_similarity": 0.8}
DIRTY = [
    ("abc abc ab", "ccc ccc cc"),
    ("a1", "b"),
    ("abc bca cab ba", "abc bca cab ba"),
    ("", "b"),
    ("Abc abc ab", "ccc ccc cc"),
    ("ccc", "bbb"),
    ("a", "b"),
]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_store_has_the_pairs_that_keep_all_rules(tokenizers, tmp_path, num_processes):
    texts = write(tmp_path, [DIRTY])
    (tmp_path / "valid").write_text("CCC\n")
    config = FilterConfig(**RULES)
    store, report = load_or_build(
        texts,
        tokenizers,
        config,
        directions=[LANGUAGES],
        held_out=[PlainText(text=tmp_path / "valid")],
        stores=tmp_path / "stores",
        num_processes=num_processes,
        shard_lines=2,
    )
    encode = tokenizers.source.encode
    kept = [example.source.tolist() for example in store.examples(np.arange(len(store)))]
    assert kept == [encode("abc abc ab"), encode("a")]
    assert report == FilterReport(kept=2, empty=1, letters=1, copied=1, held_out=1, similar=1)


def test_each_text_is_filtered_by_its_own_languages(tokenizers, tmp_path):
    texts = write(tmp_path, [[("abc", "abc")], [("abc", "abc")]])
    _, report = load_or_build(
        texts,
        tokenizers,
        FilterConfig(max_other_script=0.5),
        directions=[("en", "de"), ("ru", "de")],
        stores=tmp_path / "stores",
        **OPTIONS,
    )
    assert report == FilterReport(kept=1, script=1)


@pytest.mark.parametrize("rules", [{"max_similarity": 0.5}, {"drop_duplicates": True}])
def test_pairs_of_another_direction_are_no_copies(tokenizers, tmp_path, rules):
    pairs = [("abc abc ab bca", "ccc bbb aaa"), ("abc abc ab bca", "ccc bbb aaa")]
    swapped = [pair[::-1] for pair in pairs]
    directions = [("en", "de"), ("de", "en"), ("en", "nl"), ("en", "de")]
    texts = write(tmp_path, [pairs, swapped, pairs, pairs], [1.0] * 4)

    def report(*numbers: int) -> FilterReport:
        return load_or_build(
            [texts[number] for number in numbers],
            tokenizers,
            FilterConfig(**rules),
            directions=[directions[number] for number in numbers],
            stores=tmp_path / "stores",
            **OPTIONS,
        )[1]

    assert report(0, 1, 2, 3) == report(0, 3) + report(1) + report(2)
    assert report(0, 3).kept == 1


def test_a_store_depends_on_held_out_text_and_languages_only_if_they_count(tokenizers, tmp_path):
    texts, valid = write(tmp_path, [DIRTY]), tmp_path / "valid"
    stores = tmp_path / "stores"

    def num_kept(line: str, **rules) -> int:
        valid.write_text(line)
        held_out = [PlainText(text=valid)]
        options = {"directions": [LANGUAGES], "held_out": held_out, "stores": stores, **OPTIONS}
        return len(load_or_build(texts, tokenizers, FilterConfig(**rules), **options)[0])

    assert [num_kept("ccc\n"), num_kept("b\n")] == [6, 6]
    assert len([name for name in names(stores) if "." not in name]) == 1
    assert num_kept("ccc\n", drop_held_out=True) == 5
    assert num_kept("b\n", drop_held_out=True) == 4
