"""`tformer clean`: what it prints is what it wrote."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bitexts import NEEDS_PYARROW, WRITERS, write

from tformer_cli import ParallelText, clean
from tformer_cli.corpus.filters import CLEANING

PAIRS = [
    ("a dog runs", "ein Hund rennt"),
    ("in the year 2008", "im Jahr 2009"),
    ("a dog", ""),
    ("dog " * 40 + "<b>", "Hund " * 40),
]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    files = [tmp_path / "crawl.en", tmp_path / "crawl.de"]
    for file, lines in zip(files, zip(*PAIRS, strict=True), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines))
    return files


def test_the_report_has_counts_and_examples_of_each_reason(tformer, files, tmp_path):
    result = tformer("clean", *files, "-o", tmp_path / "x")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "4 pairs: 1 kept; dropped 1 empty, 1 with markup, 1 with other numbers",
        "empty: 25.00%",
        "  3: a dog",
        "  3: ",
        "markup: 25.00%",
        f"  4: {'dog ' * 25}",
        f"  4: {'Hund ' * 20}",
        "numbers: 25.00%",
        "  2: in the year 2008",
        "  2: im Jahr 2009",
        f"{tmp_path / 'x.dropped.jsonl'}: line, reason, source and target of each pair dropped",
        f"{tmp_path / 'x.en'}, {tmp_path / 'x.de'}: 1 pair",
    ]


def test_options_are_those_of_the_library(tformer, files, tmp_path):
    (tmp_path / "test").write_text("A dog runs\n")
    words = (
        "--held-out",
        tmp_path / "test",
        "--set",
        "data.filters.max_markup=null",
        "--workers",
        1,
    )
    result = tformer("clean", *files, "-o", tmp_path / "x.gz", *words, "--json")
    assert result.stderr == ""
    expected = clean(
        ParallelText(source=files[0], target=files[1]),
        tmp_path / "y.gz",
        languages=("en", "de"),
        filters=replace(CLEANING, max_markup=None),
        held_out=[tmp_path / "test"],
    )
    assert json.loads(result.stdout) == {
        "num_pairs": 4,
        "num_kept": expected.report.kept,
        "dropped": expected.report.dropped,
        "examples": expected.examples,
        "record": str(tmp_path / "x.dropped.jsonl.gz"),
        "text": {"source": str(tmp_path / "x.en.gz"), "target": str(tmp_path / "x.de.gz")},
    }
    for end in ("en", "de", "dropped.jsonl"):
        content = (tmp_path / f"x.{end}.gz").read_bytes()
        assert content == (tmp_path / f"y.{end}.gz").read_bytes()


def test_a_file_of_pairs_is_cleaned_as_two_files_are(tformer, files, tmp_path):
    table = tmp_path / "crawl.tsv"
    table.write_text("".join(f"{target}\t{source}\n" for source, target in PAIRS))
    languages = ("--source-language", "en", "--target-language", "de")
    for words in ([*files, "-o", tmp_path / "x"], [table, "--fields", 2, 1, "-o", tmp_path / "y"]):
        assert tformer("clean", *words, *languages).exit_code == 0
    for end in ("en", "de", "dropped.jsonl"):
        assert (tmp_path / f"x.{end}").read_bytes() == (tmp_path / f"y.{end}").read_bytes()


def test_records_without_a_pair_stop_or_are_skipped(tformer, tmp_path):
    units = (f"<tu><tuv xml:lang='{code}'><seg>a</seg></tuv></tu>" for code in ("en", "de"))
    pair = "<tu><tuv xml:lang='en'><seg>a</seg></tuv><tuv xml:lang='de'><seg>b</seg></tuv></tu>"
    file = tmp_path / "a.tmx"
    file.write_text(f"<tmx><body>\n{pair}\n{''.join(units)}</body></tmx>")
    words = ("clean", file, "-o", tmp_path / "x")
    result = tformer(*words)
    assert (result.exit_code, result.stderr) == (2, f"{file}:3: has no text in de (en)\n")
    with pytest.warns(UserWarning, match=r"records without a pair were skipped \(2\)"):
        result = tformer(*words, "--on-error", "skip")
    assert (result.exit_code, (tmp_path / "x.de").read_text()) == (0, "b\n")


@pytest.mark.parametrize("name", WRITERS)
def test_each_format_is_cleaned_as_two_files_are(tformer, files, tmp_path, name):
    if name in NEEDS_PYARROW:
        pytest.importorskip("pyarrow")
    file = write(tmp_path, name, PAIRS)
    languages = ("--source-language", "en", "--target-language", "de")
    for words in ([*files, "-o", tmp_path / "x"], [file, "-o", tmp_path / "y"]):
        result = tformer("clean", *words, *languages)
        assert (result.exit_code, result.stderr) == (0, "")
    for end in ("en", "de", "dropped.jsonl"):
        assert (tmp_path / f"x.{end}").read_bytes() == (tmp_path / f"y.{end}").read_bytes()


@pytest.mark.parametrize("name", ["a.tmx", "a.xlf", "b.xliff", "a.zip"])
def test_languages_are_those_that_a_file_names(tformer, tmp_path, name):
    file = write(tmp_path, name, PAIRS)
    given = tformer(
        "clean", file, "-o", tmp_path / "x", "--source-language", "en", "--target-language", "de"
    )
    told = tformer("clean", file, "-o", tmp_path / "y", "--source-language", "en", "--json")
    assert (given.exit_code, told.exit_code) == (0, 0)
    target = Path(json.loads(told.stdout)["text"]["target"])
    assert target.suffix.startswith(".de")
    assert target.read_bytes() == (tmp_path / "x.de").read_bytes()


def test_a_file_of_three_languages_needs_both_options(tformer, tmp_path):
    units = "".join(f"<tuv xml:lang='{code}'><seg>a</seg></tuv>" for code in ("fr", "de", "en"))
    file = tmp_path / "a.tmx"
    file.write_text(f"<tmx><header srclang='en-US'/><body><tu>{units}</tu></body></tmx>")
    result = tformer("clean", file, "-o", tmp_path / "x", "--target-language", "fr")
    assert (result.exit_code, result.stderr) == (
        2,
        f"{file}: does not tell which of its languages are source and target (en, fr, de); "
        "add --source-language and --target-language\n",
    )


def test_any_length_in_words_is_allowed(tformer, files, tmp_path):
    words = ("clean", *files, "-o", tmp_path / "x", "--set")
    assert tformer(*words, "data.filters.max_length=100000").exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--set", "max_ratio=2.5"],
            "--set max_ratio: only keys of data.filters can be changed here; "
            "write data.filters.max_ratio=2.5",
        ),
        (
            ["--set", "training.seed=2"],
            "--set training.seed: only keys of data.filters can be changed here",
        ),
        (
            ["--set", "data.filters.max_copied=2"],
            "--set data.filters.max_copied: must be at most 1 (2.0)",
        ),
        (
            ["--source-language", "1"],
            "--source-language: must be an ISO code (1); write en, for instance",
        ),
        (["-o", "crawl"], "--output: would replace the text"),
        (
            ["-o", "cleaned/"],
            "--output: must be what names of files begin with, not a folder (cleaned/); "
            "add a name, such as cleaned/text",
        ),
        (
            ["-o", ""],
            "--output: must be what names of files begin with, not a folder (an empty text); "
            "add a name, such as text",
        ),
        (
            ["--on-error", "skip"],
            "--on-error: has no effect on two text files (skip); leave it out",
        ),
        (["--held-out", "none"], "none: no such file; name a text that is there"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(
    tformer, files, tmp_path, monkeypatch, words, message
):
    monkeypatch.chdir(tmp_path)
    result = tformer("clean", *files, *([] if "-o" in words else ["-o", "x"]), *words)
    assert result.exit_code == 2
    assert result.stderr.startswith(message)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["crawl.de", "crawl.en"]


def test_a_language_that_nothing_identifies_is_named_with_the_options_for_it(
    tformer, files, tmp_path
):
    pytest.importorskip("py3langid", reason="py3langid is not installed")
    words = ("--source-language", "tlh", "--set", "data.filters.min_language=0.5")
    result = tformer("clean", *files, "-o", tmp_path / "x", *words)
    assert result.stderr == (
        "data.filters.min_language: needs languages that py3langid knows (tlh); "
        "set --source-language and --target-language, or set it to null\n"
    )
