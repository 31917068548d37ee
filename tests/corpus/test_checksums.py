"""Cached checksums of texts: always those of the content."""

import hashlib
import os
import time
from pathlib import Path

import pytest

from tformer_cli.corpus.checksums import SETTLED_NS, TEXTS_FILE, text_checksums
from tformer_cli.errors import DataError


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def write(path: Path, text: str, *, changed_ns: int) -> None:
    path.write_text(text)
    os.utime(path, ns=(changed_ns, changed_ns))


@pytest.fixture
def long_ago() -> int:
    return time.time_ns() - 10 * SETTLED_NS


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    return tmp_path / "stores"


def test_checksums_are_of_the_content_in_the_order_asked_for(tmp_path, stores):
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    asked = [tmp_path / name for name in ("two", "one", "two")]
    assert text_checksums(asked, stores) == [sha256("two"), sha256("one"), sha256("two")]


def test_an_unchanged_file_is_not_read_again(tmp_path, stores, long_ago):
    text = tmp_path / "text"
    write(text, "old", changed_ns=long_ago)
    assert text_checksums([text], stores) == [sha256("old")]
    write(text, "new", changed_ns=long_ago)
    assert text_checksums([text], stores) == [sha256("old")]


def test_the_name_of_a_file_need_not_be_utf8(tmp_path, stores, long_ago):
    text = tmp_path / os.fsdecode(b"text-\xff")
    write(text, "old", changed_ns=long_ago)
    text_checksums([text], stores)
    write(text, "new", changed_ns=long_ago)
    assert text_checksums([text], stores) == [sha256("old")]


@pytest.mark.parametrize(("content", "later_ns"), [("new", 1), ("newer", 0)])
def test_a_file_of_another_time_or_size_is_read_again(
    tmp_path, stores, long_ago, content, later_ns
):
    text = tmp_path / "text"
    write(text, "old", changed_ns=long_ago)
    assert text_checksums([text], stores) == [sha256("old")]
    write(text, content, changed_ns=long_ago + later_ns)
    assert text_checksums([text], stores) == [sha256(content)]


def test_a_file_that_has_just_changed_is_read_each_time(tmp_path, stores):
    text, now = tmp_path / "text", time.time_ns()
    for content in ("old", "new"):
        write(text, content, changed_ns=now)
        assert text_checksums([text], stores) == [sha256(content)]


@pytest.mark.parametrize("damage", ["", "[]", '{"TEXT": 1}', '{"TEXT": [1, 2]}', "{", "[" * 10**5])
def test_a_cache_that_is_damaged_counts_for_nothing(tmp_path, stores, long_ago, damage):
    text = tmp_path / "text"
    write(text, "content", changed_ns=long_ago)
    text_checksums([text], stores)
    (stores / TEXTS_FILE).write_text(damage.replace("TEXT", str(text)))
    assert text_checksums([text], stores) == [sha256("content")]


def test_a_missing_file_is_named(tmp_path, stores):
    with pytest.raises(DataError) as caught:
        text_checksums([tmp_path / "missing"], stores)
    assert str(caught.value) == (
        f"{tmp_path / 'missing'}: cannot be read (No such file or directory)"
    )
