"""Cleaning: each pair is kept in order or recorded with its reason, whatever the kills."""

import gc
import json
import random
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from killing import killed

from tformer_cli import ParallelText, TformerError, clean
from tformer_cli.config.schema.data import FilterConfig
from tformer_cli.corpus import clean as clean_module
from tformer_cli.corpus import duplicates
from tformer_cli.corpus.filters import CLEANING
from tformer_cli.corpus.lines import read_lines

SENTENCE = (
    "the old man and a young woman sit in front of the red house and talk",
    ("der alte Mann und eine junge Frau sitzen vor dem roten Haus und reden"),
)
# Pairs with the reason that each is dropped for.
LABELED = [
    (("a dog runs", "ein Hund rennt"), None),
    (("a dog", ""), "empty"),
    (SENTENCE, None),
    (("dog " * 201, "Hund " * 201), "too_long"),
    (("a dog runs", "ein Hund " * 5), "ratio"),
    (("12 % a", "12 % a"), "letters"),
    (("a <b>dog</b> runs", "ein Hund rennt"), "markup"),
    (("a dog runs.....", "ein Hund rennt"), "repeats"),
    (("a dog runs", "собака бежит"), "script"),
    (("a dog runs", "ein Hund rennt"), "duplicate"),
    (("the old dog runs", "the old dog runs"), "copied"),
    (("in the year 2008", "im Jahr 2009"), "numbers"),
    (("A  held-out line", "eine Zeile"), "held_out"),
    ((f"{SENTENCE[0]}.", f"{SENTENCE[1]}."), "similar"),
    # Nothing here but LF ends a line of a file.
    (("ab\u2028cd\u2029e\x85f", "a\x0bb c\x0cd\x1ce"), None),
    (("a dog runs", "ein Hund rennt"), "duplicate"),
    (("\ufeffthe cat", "die \rKatze"), None),
]
KEPT = [pair for pair, reason in LABELED if reason is None]


@pytest.fixture(autouse=True)
def small_jobs(monkeypatch):
    monkeypatch.setattr(clean_module, "JOB_PAIRS", 3)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    (tmp_path / "test.en").write_text("a held-out LINE\n\n")
    return write(tmp_path / "text", [pair for pair, _ in LABELED])


def text_of(files: list[Path]) -> ParallelText:
    return ParallelText(source=files[0], target=files[1])


def write(prefix: Path, pairs: list[tuple[str, str]]) -> list[Path]:
    files = [Path(f"{prefix}.en"), Path(f"{prefix}.de")]
    for file, lines in zip(files, zip(*pairs, strict=True), strict=True):
        file.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return files


@pytest.fixture
def cleaned(files, tmp_path):
    def call(output: str = "new/x", **options: Any):
        options = {"languages": ("en", "de"), "held_out": [tmp_path / "test.en"], **options}
        return clean(text_of(files), tmp_path / output, **options)

    return call


def lines_of(file: Path) -> list[str]:
    return file.read_bytes().decode().split("\n")[:-1]


def test_every_pair_is_kept_in_order_or_recorded_with_its_reason(cleaned):
    result = cleaned()
    assert list(zip(*map(lines_of, result.text.files.values()), strict=True)) == KEPT
    rows = list(map(json.loads, lines_of(result.record)))
    expected = [
        {"line": number, "reason": reason, "source": pair[0], "target": pair[1]}
        for number, (pair, reason) in enumerate(LABELED, start=1)
        if reason is not None
    ]
    copies = ("duplicate", "similar")
    assert rows == sorted(expected, key=lambda row: row["reason"] in copies)
    for reason, count in result.report.dropped.items():
        of_reason = [row for row in expected if row["reason"] == reason]
        assert (count, result.examples[reason]) == (len(of_reason), of_reason[:3])
    assert (result.report.kept, result.report.seen) == (len(KEPT), len(LABELED))
    names = sorted(file.name for file in result.record.parent.iterdir())
    assert names == ["x.de", "x.dropped.jsonl", "x.en"]


def test_processes_and_compression_change_nothing(cleaned, monkeypatch):
    plain = cleaned()
    monkeypatch.setattr(clean_module, "SMALL_BYTES", 0)
    result = cleaned("gz/x.gz", workers=2)
    assert (result.report, result.examples) == (plain.report, plain.examples)
    for one, other in zip(all_files(plain), all_files(result), strict=True):
        assert other.name == f"{one.name}.gz"
        assert list(read_lines(other)) == list(read_lines(one))


def all_files(result) -> list[Path]:
    return [*result.text.files.values(), result.record]


def test_what_is_killed_again_and_again_ends_with_the_same_bytes(cleaned, tmp_path):
    whole = cleaned("whole/x")
    chooser, num_kills = random.Random(1), 0
    while killed(cleaned, chooser.randrange(5, 50)):
        num_kills += 1
    assert num_kills > 5
    result = cleaned()
    assert (result.report, result.examples) == (whole.report, whole.examples)
    for one, other in zip(all_files(whole), all_files(result), strict=True):
        assert other.read_bytes() == one.read_bytes()
    assert len(list((tmp_path / "new").iterdir())) == 3


def test_pairs_that_are_judged_are_not_judged_again(cleaned, tmp_path, monkeypatch):
    assert killed(cleaned, 30)
    num_lines = json.loads((tmp_path / "new/x.dropped.jsonl.partial.json").read_text())["num_lines"]
    assert 0 < num_lines < len(LABELED)
    judged = []
    of_job = clean_module._dropped_rows
    monkeypatch.setattr(
        clean_module, "_dropped_rows", lambda rules, job: judged.extend(job) or of_job(rules, job)
    )
    done: list[int] = []
    cleaned(on_done=done.append)
    assert [number for number, _ in judged] == list(range(num_lines + 1, len(LABELED) + 1))
    assert sum(done) == len(LABELED)


def test_a_record_of_other_filters_is_not_resumed(cleaned, tmp_path):
    assert killed(cleaned, 30)
    with pytest.raises(TformerError) as caught:
        cleaned(filters=replace(CLEANING, max_ratio=2.0))
    assert str(caught.value) == (
        f"{tmp_path / 'new' / 'x.dropped.jsonl.partial'}: was begun from something else "
        "(different filters); remove it, or name another file"
    )


def test_without_rules_only_empty_pairs_are_dropped(cleaned):
    result = cleaned(filters=FilterConfig(max_length=1000))
    assert result.report.dropped == {"empty": 1}


def test_a_text_without_lines_stays_so(tmp_path):
    files = write(tmp_path / "text", [("", "")])
    for file in files:
        file.write_text("")
    result = clean(text_of(files), tmp_path / "x", languages=("en", "de"))
    assert (result.report.seen, result.examples) == (0, {})
    assert [file.read_bytes() for file in all_files(result)] == [b"", b"", b""]


def test_memory_does_not_grow_with_the_text(tmp_path, monkeypatch):
    monkeypatch.setattr(clean_module, "JOB_PAIRS", 100)
    monkeypatch.setattr(duplicates, "GROUP_PAIRS", 100)
    rng = random.Random(1)
    words = ["dog", "cat", "runs", "sleeps", "park", "house", "near", "old", "man", "red"]

    def phrase() -> str:
        return " ".join(rng.choices(words, k=8))

    peaks = []
    for count in (500, 3000):
        pairs = [(phrase(), phrase()) for _ in range(count)]
        files = write(tmp_path / str(count), pairs)
        gc.collect()
        tracemalloc.start()
        clean(text_of(files), tmp_path / f"{count}.x", languages=("en", "de"))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # The files have 80 bytes a pair, their signatures 128.
    assert peaks[1] - peaks[0] < 30 * 2500


@pytest.mark.parametrize(
    ("output", "languages", "message"),
    [
        (
            "text",
            ("en", "de"),
            "`output`: would replace the text ({}/text.en); choose another name",
        ),
        ("x", ("en", "en"), None),
    ],
)
def test_outputs_replace_no_text(cleaned, tmp_path, output, languages, message):
    if message is None:
        names = [file.name for file in all_files(cleaned(output, languages=languages))]
        assert names == ["x.source.en", "x.target.en", "x.dropped.jsonl"]
        return
    with pytest.raises(TformerError) as caught:
        cleaned(output, languages=languages)
    assert str(caught.value) == message.format(tmp_path)


@pytest.mark.parametrize("function", ["_find_copies", "_write_sides"])
@pytest.mark.parametrize("change", [lambda lines: lines[:-1], lambda lines: [*lines, "one more"]])
def test_a_text_that_changes_meanwhile_is_refused(
    cleaned, files, monkeypatch, tmp_path, function, change
):
    def change_before(*arguments: Any) -> Any:
        for file in files:
            lines = change(lines_of(file))
            file.write_bytes("".join(f"{line}\n" for line in lines).encode())
        return unchanged(*arguments)

    unchanged = getattr(clean_module, function)
    monkeypatch.setattr(clean_module, function, change_before)
    with pytest.raises(TformerError) as caught:
        cleaned()
    assert str(caught.value) == (
        f"{files[0]}: the text changed while it was read; run the same command again"
    )
    assert not list((tmp_path / "new").glob("x.??"))


def test_a_full_disk_is_said_and_room_for_it_ends_the_cleaning(tmp_path, small_files):
    rng = random.Random(2)
    words = [f"{a}{b}en" for a in ("g", "l", "tr", "fr") for b in ("a", "e", "o", "u")]
    pairs = [(" ".join(rng.choices(words, k=9)), " ".join(words[:9])) for _ in range(300)]
    files = write(tmp_path / "text", pairs)
    with small_files(20_000), pytest.raises(TformerError) as caught:
        clean(text_of(files), tmp_path / "new/x", languages=("en", "de"))
    assert str(caught.value).startswith(f"{tmp_path}/new: cannot be written (File too large)")
    assert clean(text_of(files), tmp_path / "new/x", languages=("en", "de")).report.seen == 300


def test_a_line_without_its_pair_is_an_error_before_a_record_is_begun(cleaned, files, tmp_path):
    files[0].write_text("a\n" * 20)
    with pytest.raises(TformerError, match="has no counterpart in"):
        cleaned()
    assert not (tmp_path / "new").exists()
