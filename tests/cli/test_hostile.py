"""Hostile files: each gets its verdict, from `tformer translate` or as a pair from `tformer train`.

`ok` is exit code 0 and every line where it was; `error` is one line that names file and line, and
nothing left behind; `ok-or-error` is either of the two.
"""

import gzip
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy import CONFIG, write_toy

from tformer_cli import Translator
from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.corpus.reader import read_texts
from tformer_cli.corpus.store_builder import training_store
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers


@dataclass(frozen=True)
class Verdict:
    """What should become of a file; `num_lines` and `fault_line` as the table writes them."""

    num_lines: str
    verdict: str
    fault_line: str = ""


def table() -> list[Any]:
    """The table of the hostile corpus: a name and its verdict, row by row."""
    folder = os.environ.get("TFORMER_CORPORA")
    if folder is None:
        reason = "TFORMER_CORPORA names no folder of real corpora"
        return [pytest.param("", Verdict("", ""), marks=pytest.mark.skip(reason=reason))]
    rows = (Path(folder) / "hostile" / "expected.tsv").read_text(encoding="utf-8").split("\n")[1:-1]
    cells = [row.split("\t") for row in rows]
    return [pytest.param(row[0], Verdict(*row[1:4]), id=row[0]) for row in cells]


# Files that are training text together with another, which is the source where it is named `.en`.
PARTNERS = {
    "00_plain.de": "00_plain.en",
    "01_crlf.de": "01_crlf.en",
    "07_no_final_newline.de": "07_no_final_newline.en",
    "08_no_final_newline_one_side.en": "00_plain.de",
    "22_empty_lines.de": "22_empty_lines.en",
    "23_empty_one_side.de": "00_plain.en",
    "30_unequal.de": "30_unequal.en",
    "30_unequal.en": "30_unequal.de",
    "31_unequal_by_much.de": "00_plain.en",
    "32_extreme_ratio.de": "32_extreme_ratio.en",
    "40_5000_tokens.de": "40_5000_tokens.en",
    "51_u2028.de": "51_u2028.en",
}


@pytest.mark.parametrize(("name", "verdict"), table())
def test_hostile_file_gets_its_verdict(corpora, toy_run, tformer, tmp_path, name, verdict):
    file = corpora / "hostile" / name
    if name in PARTNERS:
        source, target = sorted((file, file.with_name(PARTNERS[name])), key=lambda f: f.suffix)[
            ::-1
        ]
        hold_training(tformer, source, target, verdict, tmp_path)
    else:
        hold_translation(tformer, toy_run, file, verdict, tmp_path / "output")


PLAIN = b"abc de\nfab\ngeg cab\nbad\n"
PACKED = gzip.compress(PLAIN, mtime=0)
OK, ERROR, EITHER = "ok", "error", "ok-or-error"
OWN = {
    "crlf.en": (PLAIN.replace(b"\n", b"\r\n"), Verdict("4", OK)),
    "lone_cr.en": (b"abc\nde\rf\ng\n", Verdict("3", OK)),
    "bom.en": (b"\xef\xbb\xbf" + PLAIN, Verdict("4", OK)),
    "bom_mid.en": ("a\n\ufeffb\nc\ufeff\n".encode(), Verdict("3", OK)),
    "utf16.en": ("\ufeffabc\n".encode("utf-16-le"), Verdict("1", ERROR, "1")),
    "no_final_newline.en": (PLAIN[:-1], Verdict("4", OK)),
    "nul.en": (b"a\nb\0c\0\nd\n", Verdict("3", EITHER, "2")),
    "invalid.en": (b"a\nb\nc \xff\xfe\x80\nd\n", Verdict("4", ERROR, "3")),
    "latin1.en": ("a\nö ä\n".encode("latin-1"), Verdict("2", ERROR, "2")),
    "overlong.en": (b"a\nb \xc0\xaf\n", Verdict("2", ERROR, "2")),
    "surrogate.en": (b"a\n\xed\xa0\xbd\xed\xb8\x80\n", Verdict("2", ERROR, "2")),
    "truncated_char.en": (b"a\nb\nc\xc3", Verdict("3", ERROR, "3")),
    "late.en": (b"a\n" * 10_000 + b"\xfe\na\n", Verdict("10002", ERROR, "10001")),
    "empty.en": (b"", Verdict("0", OK)),
    "newlines.en": (b"\n\n\n", Verdict("3", OK)),
    "empty_lines.en": (b"\nab\n\n\ncd\n\n", Verdict("6", OK)),
    "blank.en": (" \n\t\n\u00a0\n\u3000\u2003\nab\n".encode(), Verdict("5", OK)),
    "zero_width.en": ("\u200b\n\u200d\n\ufeff\ufeff\n".encode(), Verdict("3", OK)),
    "separators.en": (
        "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1d\x1e\nb\n".encode(),
        Verdict("2", OK),
    ),
    "tabs.en": (b"a\tb\n\tc\nd\t\n", Verdict("3", OK)),
    "control.en": (b"a\x07\x08\nb\x1b[31mc\x1b[0m\n\x7f\n", Verdict("3", OK)),
    "noncharacters.en": ("\ufffe\n\uffff\U0010ffff\n\ue000\n".encode(), Verdict("3", OK)),
    "unseen.en": ("漢字\nשלום 👩‍👩‍👧\n".encode(), Verdict("2", OK)),
    "reserved.en": (b"a</s>b\n</s>\n<unk> @@ ||| &lt; \\n\n", Verdict("3", OK)),
    "long.en": (b"ab\n" + b"a" * 20_000 + b"\ncd\n", Verdict("3", EITHER, "2")),
    "equal.en": (b"ab\n" * 50, Verdict("50", OK)),
    "good.en.gz": (PACKED, Verdict("4", OK)),
    "members.en.gz": (PACKED + PACKED, Verdict("8", OK)),
    "nothing.en.gz": (gzip.compress(b""), Verdict("0", OK)),
    "cut.en.gz": (PACKED[:-9], Verdict("", ERROR)),
    "crc.en.gz": (PACKED[:-8] + b"\0\0\0\0" + PACKED[-4:], Verdict("", ERROR)),
    "plain.en.gz": (PLAIN, Verdict("", ERROR)),
    "empty.en.gz": (b"", Verdict("", ERROR)),
    "gzip.en": (PACKED, Verdict("4", EITHER)),
    "garbage.en.gz": (PACKED + b"junk", Verdict("4", EITHER)),
    "name with ü 漢.en": (PLAIN, Verdict("4", OK)),
    "-dash.en": (PLAIN, Verdict("4", OK)),
}


@pytest.mark.parametrize("name", OWN)
def test_bytes_of_the_same_kinds_get_their_verdict(toy_run, tformer, tmp_path, name):
    content, verdict = OWN[name]
    file = tmp_path / name
    file.write_bytes(content)
    hold_translation(tformer, toy_run, file, verdict, tmp_path / "output")


@pytest.mark.parametrize(
    ("source", "target", "verdict"),
    [
        (PLAIN, PLAIN.upper(), Verdict("4", OK)),
        (PLAIN.replace(b"\n", b"\r\n"), PLAIN[:-1], Verdict("4", OK)),
        (PLAIN, b"A\n\nB\n \n", Verdict("4", OK)),
        ("a\u2028b\nc\n".encode(), "A\x85B\nC\n".encode(), Verdict("2", OK)),
        (b"a\n" + b"b " * 5000 + b"\nc\n", b"A\n" + b"B " * 5000 + b"\nC\n", Verdict("3", OK)),
        (PLAIN, PLAIN + b"G\n", Verdict("5", ERROR, "5")),
        (PLAIN, b"A\n", Verdict("1", ERROR, "2")),
        (PLAIN, b"", Verdict("0", ERROR, "1")),
        (PLAIN, b"A\nB\xff\nC\nD\n", Verdict("4", ERROR, "2")),
    ],
    ids=["plain", "line_ends", "blank", "separators", "long", "more", "less", "empty", "invalid"],
)
def test_pairs_of_the_same_kinds_get_their_verdict(tformer, tmp_path, source, target, verdict):
    files = tmp_path / "a.en", tmp_path / "a.de"
    for file, content in zip(files, (source, target), strict=True):
        file.write_bytes(content)
    hold_training(tformer, *files, verdict, tmp_path)


def hold_translation(tformer, run: Path, file: Path, expected: Verdict, output: Path) -> None:
    """Translate a file, and hold what comes of it to the verdict."""
    folder = output.parent
    before = set(folder.iterdir())
    result = tformer("translate", run, "--input", file, "--output", output, "--beam", 1)
    if result.exit_code != 0:
        assert_refused(result, [file], expected)
        assert set(folder.iterdir()) == before
        return
    assert expected.verdict in (OK, EITHER)
    assert "\x1b" not in result.stderr
    lines, translations = lines_of(file), output.read_bytes().decode("utf-8").split("\n")
    assert translations.pop() == ""
    assert len(translations) == len(lines) == int(expected.num_lines)
    assert not any(translations[i] for i, line in enumerate(lines) if is_blank(line))


def hold_training(tformer, source: Path, target: Path, expected: Verdict, folder: Path) -> None:
    """Train a step on two files, and hold what comes of it to the verdict."""
    run = folder / "run"
    result = tformer("train", one_step(folder, source, target), "--run", run)
    if result.exit_code != 0:
        assert_refused(result, [source, target], expected)
        assert not (run / "checkpoints").exists()
        return
    assert expected.verdict in (OK, EITHER)
    assert f"training text: {expected.num_lines} pairs: " in result.stderr
    pairs = zip(lines_of(source), lines_of(target), strict=True)
    num_blank = sum(any(map(is_blank, pair)) for pair in pairs)
    assert (f"{num_blank} empty" in result.stderr) == (num_blank > 0)


def assert_refused(result, files: list[Path], expected: Verdict) -> None:
    assert expected.verdict in (ERROR, EITHER), result.stderr
    assert result.exit_code == 2
    names = "|".join(re.escape(str(file)) for file in files)
    refusal = re.fullmatch(rf"({names})(:(\d+))?: [^\n]+\n", result.stderr)
    assert refusal is not None, result.stderr
    assert expected.fault_line in ("", refusal[3])
    assert result.stderr[:-1].isprintable()


def one_step(folder: Path, source: Path, target: Path) -> Path:
    """Write a config that trains for one step on two files."""
    config = CONFIG.replace(
        "source: train.src, target: train.tgt", f"source: {source}, target: {target}"
    )
    for key, value in (
        ("max_steps", 1),
        ("validate_every", 1),
        ("warmup_steps", 1),
        ("greedy, max_length", 3),
    ):
        config = re.sub(rf"{key}: \d+", f"{key}: {value}", config)
    return write_toy(folder / "toy", pairs=1, config=config)


def lines_of(file: Path) -> list[str]:
    """The lines of a file by the rule alone: LF ends one, and CR before it is no part of it."""
    content = file.read_bytes()
    content = gzip.decompress(content) if file.suffix == ".gz" else content
    lines = content.decode("utf-8-sig").split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def is_blank(line: str) -> bool:
    return not line.strip()


# ---------------------------------------------------------------- what single files show


@pytest.fixture
def hostile(corpora: Path) -> Path:
    return corpora / "hostile"


def translations(tformer, run: Path, file: Path) -> list[str]:
    return tformer("translate", run, "--input", file, "--beam", 1).stdout.split("\n")[:-1]


@pytest.mark.parametrize(
    "name",
    [
        "01_crlf.en",
        "02_mixed_eol.en",
        "04_bom.en",
        "07_no_final_newline.en",
        "70 name with space ü 漢.en",
        "-71_leading_dash.en",
    ],
)
def test_marks_and_line_ends_are_no_text(hostile, toy_run, tformer, name):
    plain = translations(tformer, toy_run, hostile / "00_plain.en")
    assert translations(tformer, toy_run, hostile / name) == plain


def test_carriage_returns_are_in_no_vocabulary(hostile):
    plain, crlf = (
        [hostile / f"{name}.{side}" for side in ("en", "de")] for name in ("00_plain", "01_crlf")
    )
    assert stored(*crlf)[0].fingerprint == stored(*plain)[0].fingerprint
    assert stored(*crlf)[1] == stored(*plain)[1]


def test_a_name_may_begin_with_a_dash(hostile, toy_run, tformer, monkeypatch):
    monkeypatch.chdir(hostile)
    plain = translations(tformer, toy_run, Path("00_plain.en"))
    for words in (["--input", "./-71_leading_dash.en"], ["--input=-71_leading_dash.en"]):
        result = tformer("translate", toy_run, *words, "--beam", 1)
        assert result.stdout.split("\n")[:-1] == plain


def test_equal_lines_have_equal_translations(hostile, toy_run, tformer):
    assert len(set(translations(tformer, toy_run, hostile / "46_identical_lines.en"))) == 1


def test_mixed_lengths_translate_as_one_at_a_time(hostile, toy_run, tformer):
    file = hostile / "45_mixed_lengths.en"
    translator, greedy = Translator.load(toy_run), GreedyConfig(max_length=20)
    lines = lines_of(file)
    together = translator.translate(lines, decoding=greedy)
    for i in range(0, len(lines), 7):
        assert translator.translate([lines[i]], decoding=greedy) == [together[i]]


def test_neighbours_of_a_long_line_translate_as_if_alone(hostile, toy_run, tformer, tmp_path):
    file = hostile / "40_5000_tokens.en"
    first, _, third = lines_of(file)
    found = translations(tformer, toy_run, file)
    alone = tmp_path / "alone.en"
    alone.write_text(f"{first}\n{third}\n", encoding="utf-8")
    assert [found[0], found[2]] == translations(tformer, toy_run, alone)


@pytest.mark.parametrize(
    "name", ["51_u2028.en", "52_tabs.en", "53_control.en", "56_reserved_tokens.en"]
)
def test_each_line_is_one_json_object(hostile, toy_run, tformer, name):
    output = tformer("translate", toy_run, "--input", hostile / name, "--json", "--beam", 1).stdout
    objects = [json.loads(line) for line in output.split("\n")[:-1]]
    assert [found["source"] for found in objects] == lines_of(hostile / name)


def test_pairs_with_one_blank_side_are_dropped_together(hostile):
    _, kept, report = stored(hostile / "00_plain.en", hostile / "23_empty_one_side.de")
    sources, targets = lines_of(hostile / "00_plain.en"), lines_of(hostile / "23_empty_one_side.de")
    assert kept == [(sources[i], targets[i]) for i in (0, 2, 4)]
    assert report == "5 pairs: 3 kept; dropped 2 empty"


def test_long_pair_is_dropped_and_counted(hostile):
    _, kept, report = stored(hostile / "40_5000_tokens.en", hostile / "40_5000_tokens.de")
    assert len(kept) == 2
    assert report == "3 pairs: 2 kept; dropped 1 too long"


def test_pair_of_extreme_ratio_is_dropped_and_counted(hostile, tformer, tmp_path):
    file = one_step(tmp_path, hostile / "32_extreme_ratio.en", hostile / "32_extreme_ratio.de")
    limits = (
        "--set",
        "data.filters={max_length: 9999, max_ratio: 9}",
        "--set",
        "training.batch_tokens=10000",
    )
    result = tformer("train", file, "--run", tmp_path / "run", *limits)
    assert result.exit_code == 0, result.stderr
    assert re.search(
        r"training text: 3 pairs: \d kept; dropped \d of unequal length\n", result.stderr
    )


def test_training_on_no_lines_is_refused(hostile, tformer, tmp_path):
    empty, other = hostile / "20_empty_file.en", tmp_path / "empty.de"
    other.touch()
    result = tformer("train", one_step(tmp_path, empty, other), "--run", tmp_path / "run")
    assert (result.exit_code, result.stderr) == (
        2,
        "data.train: no lines with text to learn a vocabulary from; name files with text\n",
    )


def stored(source: Path, target: Path) -> tuple[Tokenizers, list[tuple[str, str]], str]:
    """The vocabulary of two files, the pairs that training keeps of them, and its report."""
    data = DataConfig(
        train=(TrainingText(source=source, target=target),),
        valid=ParallelText(source=source, target=target),
    )
    tokenizers = build_tokenizers(CharConfig(), lambda: read_texts(data.train), 1)
    store, report = training_store(data, tokenizers)
    examples = store.examples(np.arange(len(store)))
    decode = tokenizers.source.decode, tokenizers.target.decode
    return tokenizers, [(decode[0](e.source), decode[1](e.target)) for e in examples], str(report)
