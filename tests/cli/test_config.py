"""`tformer config` and `tformer init`: what they print and write, and their errors."""

import json
import os
import shutil
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from bitexts import WRITERS
from killing import killed
from test_wheel import files
from typer.testing import CliRunner

from tformer_cli.cli.config import config_app
from tformer_cli.cli.options import message
from tformer_cli.config.load import as_plain, check_data_files, dump_config, load_config
from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.corpus.reader import read_rows
from tformer_cli.corpus.training_text import training_rows
from tformer_cli.errors import ConfigError, DataError, TformerError, UsageError

ROOT = Path(__file__).parent.parent.parent
CONFIG = """\
data:
  source_language: en
  target_language: de
  train: [{source: train.en, target: train.de}]
  valid: {source: valid.en, target: valid.de}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a configuration and its texts."""
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(CONFIG, encoding="utf-8")
    for name, num_lines in [("train", 40), ("valid", 3)]:
        for language in ("en", "de"):
            lines = "".join(f"{name} {language} {line}\n" for line in range(num_lines))
            Path(f"{name}.{language}").write_text(lines, encoding="utf-8")
    return tmp_path


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(config_app, arguments)
    if result.exception is not None:
        raise result.exception
    return result.output


def last_line(*arguments: str) -> str:
    return printed(*arguments).splitlines()[-1]


def complaint(error: type[TformerError], *arguments: str) -> str:
    with pytest.raises(error) as raised:
        printed(*arguments)
    assert raised.value.exit_code == 2
    return "\n".join(map(message, raised.value.problems))


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_config_checks(path: Path, request: pytest.FixtureRequest) -> None:
    root = load_config(path).data.root
    if root.is_dir():
        assert last_line("check", str(path)) == f"{path}: ok"
        return
    root = request.getfixturevalue("corpora") / root.name
    if not root.is_dir():
        pytest.skip(f"there is no corpus {root.name} here")
    assert last_line("check", str(path), "--set", f"data.root={root}") == f"{path}: ok"


def test_check_says_ok(folder: Path) -> None:
    assert last_line("check", "x.yaml") == "x.yaml: ok"
    assert last_line("check", "x.yaml", "--set", "seed=3", "--set", "model.dim=64") == "x.yaml: ok"


def test_check_shows_pairs_as_they_are_read(folder: Path) -> None:
    Path("train.en-de.tsv").write_text(f"\u202eA\tB\n{'x' * 61}\ty\n", encoding="utf-8")
    train = "data.train=[{pairs: train.en-de.tsv}]"
    assert printed("check", "x.yaml", "--set", train, "--set", "model.dim=64").split("\n") == [
        f"data.train.0: {folder}/train.en-de.tsv (TSV)",
        "  \\u202eA | B",
        f"  {'x' * 59}… | y",
        f"data.valid: {folder}/valid.en, {folder}/valid.de",
        *(f"  valid en {line} | valid de {line}" for line in range(3)),
        "x.yaml: ok",
        "",
    ]


@pytest.mark.parametrize(
    ("head", "row", "arguments", "columns"),
    [
        ("", "{}\t{}\n", [], ""),
        ("", "8\t{}\t9\t{}\n", ["--fields", "2", "4"], ", columns 2 and 4 of 4"),
        (
            "id\tDeutsch\tEnglish\n",
            "8\t{1}\t{0}\n",
            ["--fields", "english", "deutsch"],
            ", columns 3 and 2 of 3",
        ),
    ],
)
def test_new_takes_a_file_of_pairs(
    folder: Path, head: str, row: str, arguments: list[str], columns: str
) -> None:
    plain = printed("new", "train.en", "train.de", "--output", "plain.yaml").split("\n")
    sides = (Path(f"train.{side}").read_text().splitlines() for side in ("en", "de"))
    rows = [row.format(*pair) for pair in zip(*sides, strict=True)]
    Path("all.en-de.tsv").write_text("".join([head, *rows]), encoding="utf-8")
    lines = printed("new", "all.en-de.tsv", *arguments).split("\n")
    assert [line.replace("config.data", "plain.data") for line in lines[1:4]] == plain[1:4]
    assert lines[4:8] == [f"read: all.en-de.tsv (TSV{columns})", *plain[5:8]]
    for name in ("train.en", "valid.de", "test.en"):
        assert Path("config.data", name).read_bytes() == Path("plain.data", name).read_bytes()
    assert last_line("check", "config.yaml") == "config.yaml: ok"


def test_new_keeps_a_file_of_pairs_beside_a_validation_text(folder: Path) -> None:
    Path("all.tsv").write_text("1\tA\tB\n", encoding="utf-8")
    languages = ("--source-language", "en", "--target-language", "de")
    valid = ("--valid-source", "valid.en", "--valid-target", "valid.de")
    printed("new", "all.tsv", "--fields", "2", "3", *valid, *languages)
    (text,) = load_config(Path("config.yaml")).data.train
    assert list(read_rows(text)) == [("A", "B")]


def test_new_wants_fields_of_one_file_only(folder: Path) -> None:
    assert complaint(UsageError, "new", "train.en", "train.de", "--fields", "1", "2") == (
        "--fields: has no effect on two text files (1 2); leave it out"
    )
    Path("all.tsv").write_text("A\tB\n", encoding="utf-8")
    assert complaint(UsageError, "new", "all.tsv") == (
        "all.tsv: has a language that neither its name nor its script tells; "
        "add --source-language with an ISO code, such as en"
    )


def test_check_tells_every_mistake(folder: Path) -> None:
    Path("x.yaml").write_text(f"{CONFIG}seed: x\nmodel: {{num_heads: 3}}\n", encoding="utf-8")
    assert complaint(ConfigError, "check", "x.yaml", "--set", "decoding.beam_size=0").split(
        "\n"
    ) == [
        "x.yaml:6: seed: must be a whole number (x)",
        "x.yaml:7: model.num_heads: must divide dim 256 (3)",
        "--set decoding.beam_size: must be at least 1 (0)",
    ]


def test_check_tells_which_texts_are_missing(folder: Path) -> None:
    Path("valid.en").unlink()
    Path("train.de").unlink()
    remedy = "correct the path, or set data.root"
    assert complaint(ConfigError, "check", "x.yaml").split("\n") == [
        f"x.yaml:4: data.train.0.target: no such file ({folder}/train.de); {remedy}",
        f"x.yaml:5: data.valid.source: no such file ({folder}/valid.en); {remedy}",
    ]


def test_show_prints_the_resolved_config(folder: Path) -> None:
    config = load_config(Path("x.yaml"), ["training.max_steps=5000"])
    arguments = ("show", "x.yaml", "--set", "training.max_steps=5000")
    assert printed(*arguments) == dump_config(config)
    assert json.loads(printed(*arguments, "--json")) == as_plain(config)
    assert "max_steps: 5000" in dump_config(config)


def test_show_needs_no_texts(folder: Path) -> None:
    Path("valid.en").unlink()
    assert f"source: {folder}/valid.en\n" in printed("show", "x.yaml")


def warnings(*settings: str) -> list[str]:
    result = CliRunner().invoke(config_app, ["check", "x.yaml", *settings])
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "x.yaml: ok")
    return result.stderr.split("\n")[:-1]


def test_check_warns_of_what_is_no_language(folder: Path) -> None:
    assert warnings() == []
    assert warnings("--set", "data.target_language=German") == [
        "data.target_language: is not an ISO code (German); write en, for instance"
    ]
    text = "{source: valid.en, target: valid.de, source_language: English}"
    assert warnings("--set", f"data.test={{own: {text}, other: {text}}}") == [
        "data.test.own.source_language: is not an ISO code (English); write en, for instance"
    ]
    Path("x.yaml").write_text(
        CONFIG.replace("  source_language: en\n  target_language: de\n", ""), encoding="utf-8"
    )
    assert [line.split("(")[1].split(")")[0] for line in warnings()] == ["source", "target"]


@pytest.mark.parametrize(
    ("text", "language"),
    [("两只狗在玩耍。", "zh"), ("犬が遊んでいる。", "ja"), ("개가 놀고 있다.", "ko")],
)
def test_check_warns_of_a_bleu_that_finds_no_words(folder: Path, text: str, language: str) -> None:
    Path("valid.de").write_text(f"{text}\n" * 3, encoding="utf-8")
    assert warnings() == [
        "evaluation.bleu.tokenize: splits words at spaces, but the target looks like language "
        f"{language} (13a); write data.target_language: {language}"
    ]
    assert warnings("--set", "evaluation.bleu.tokenize=char") == []
    assert warnings("--set", "data.target_language=zh") == []
    tokenizer_13a = "evaluation.bleu.tokenize=13a"
    for code in (language, f"{language}-XX", "yue"):
        known = warnings("--set", f"data.target_language={code}", "--set", tokenizer_13a)
        assert [line.partition("; ")[2] for line in known] == [
            "write evaluation.bleu.tokenize: auto"
        ]


def test_check_warns_of_tokenized_references(folder: Path) -> None:
    Path("valid.de").write_text("Ein Satz .\nNoch einer .\nUnd einer.\n", encoding="utf-8")
    assert warnings() == [
        "evaluation.bleu.tokenize: tokenizes tokenized text: most references end in a space and "
        "a period (13a); write evaluation.bleu.tokenize: none, or detokenize the text"
    ]
    assert warnings("--set", "evaluation.bleu.tokenize=none") == []


def test_check_warns_of_references_in_subwords(folder: Path) -> None:
    Path("valid.de").write_text("▁Ein ▁Sa tz .\n" * 3, encoding="utf-8")
    assert warnings() == [
        f"{Path('valid.de').resolve()}: is cut into subwords, which BLEU counts as words (▁Ein); "
        "join them to words: BLEU is of raw text",
    ]
    assert warnings("--set", "evaluation.bleu.tokenize=none") == []


def test_check_warns_of_files_in_the_other_direction(folder: Path) -> None:
    exchanged = "{source: valid.de, target: valid.en"
    assert warnings("--set", f"data.valid={exchanged}}}") == [
        "data.valid: has the other direction by the names of its files (valid.de, valid.en); "
        "exchange source and target"
    ]
    own = "source_language: de, target_language: de"
    assert warnings("--set", f"data.valid={exchanged}, {own}}}") == []
    shutil.copy("valid.de", "other.de")
    shutil.copy("valid.en", "other.en")
    other = "{source: other.de, target: other.en}"
    items = f"[{exchanged}}}, {other}, {exchanged}, extract: phrases, tags: ['[phrase]']}}]"
    exchanged_items = [
        line for line in warnings("--set", f"data.train={items}") if "other direction" in line
    ]
    assert exchanged_items == [
        "data.train.0, data.train.2: has the other direction by the names of its files "
        "(valid.de, valid.en); exchange source and target",
        "data.train.1: has the other direction by the names of its files (other.de, other.en); "
        "exchange source and target",
    ]


def test_check_warns_of_a_missing_mecab(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise RuntimeError("MeCab")

    monkeypatch.setattr("tformer_cli.evaluation.metrics.BLEU", missing)
    assert warnings("--set", "data.target_language=ja") == [
        "evaluation.bleu.tokenize: needs MeCab and its dictionary, which are not installed "
        "(ja-mecab); pip install 'tformer[ja]'"
    ]


def test_check_warns_of_held_out_text_in_training_text(folder: Path) -> None:
    with Path("train.en").open("a") as source, Path("train.de").open("a") as target:
        source.write("VALID en 1\nvalid en 2\n")
        target.write("valid  de 1\nsomething else\n")
    test = "data.test={news: {source: train.en, target: train.de}}"
    too_high = "is partly in data.train, so its scores are too high"
    remedy = "remove them from the training text"
    assert warnings("--set", test) == [
        f"data.valid: {too_high} (1 of 3 pairs, 2 sources, 1 target); {remedy}",
        f"data.test.news: {too_high} (42 of 42 pairs, 42 sources, 42 targets); {remedy}",
    ]


def test_check_warns_of_held_out_text_whose_phrases_are_trained_on(folder: Path) -> None:
    train = "{source: train.en, target: train.de}"
    phrases = "{source: valid.en, target: valid.de, extract: phrases}"
    assert warnings("--set", f"data.train=[{train}, {phrases}]") == [
        "data.valid: is partly in data.train, so its scores are too high "
        "(3 of 3 pairs, 3 sources, 3 targets); remove them from the training text"
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["check", "x.yaml"],
        ["new", "train.en", "train.de"],
        ["new", "train.en", "train.de", "--valid-source", "valid.en", "--valid-target", "valid.de"],
    ],
    ids=["check", "new", "new with valid"],
)
def test_a_terminal_shows_how_far_a_text_is_read(folder: Path, words: list[str]) -> None:
    shown, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    command = [sys.executable, "-m", "tformer_cli", "config", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, check=True)
    os.close(terminal)
    assert os.read(shown, 1000).startswith(b"\r0 pairs [00:00, ")
    os.close(shown)
    assert b"pair [" not in done.stdout


def test_check_refuses_what_is_no_text(folder: Path) -> None:
    Path("valid.en").write_text('<?xml version="1.0"?>\n', encoding="utf-8")
    assert complaint(DataError, "check", "x.yaml") == (
        f"{folder}/valid.en: is XML, not plain text; "
        "write source and target into two text files, one sentence a line"
    )


def test_new_splits_the_text_and_its_config_checks(folder: Path) -> None:
    assert printed("new", "train.en", "train.de", "--output", "my model.yaml").split("\n") == [
        "my model.yaml: written, en -> de",
        "train: 36 pairs in my model.data/train.en and my model.data/train.de",
        "valid: 2 pairs, 0 also in train, in my model.data/valid.en and my model.data/valid.de",
        "test: 2 pairs, 0 also in train, in my model.data/test.en and my model.data/test.de",
        "read: train.en, train.de",
        *(f"  train en {line} | train de {line}" for line in range(3)),
        "next: tformer train 'my model.yaml'",
        "",
    ]
    data = load_config(Path("my model.yaml")).data
    assert (data.source_language, data.target_language) == ("en", "de")
    assert last_line("check", "my model.yaml") == "my model.yaml: ok"


def test_new_says_what_it_set_aside(folder: Path) -> None:
    for name in ("train.en", "train.de"):
        Path(name).write_text(Path(name).read_text() * 5, encoding="utf-8")
    lines = printed("new", "train.en", "train.de").split("\n")
    assert lines[1].startswith("train: 180 pairs in ")
    assert lines[4] == "set aside: 16 pairs with a source or a target of valid or test"
    assert last_line("check", "config.yaml") == "config.yaml: ok"


VALID = ("--valid-source", "valid.en", "--valid-target", "valid.de")


@pytest.mark.parametrize(("options", "num_held_out"), [((), 2 * 27), (VALID, 0)])
def test_new_counts_the_pairs_that_training_takes(
    folder: Path, options: tuple[str, ...], num_held_out: int
) -> None:
    for language, empty in (("en", 0), ("de", 5)):
        lines = (" " if line % 10 == empty else f"{language} {line}" for line in range(600))
        Path(f"train.{language}").write_text("".join(f"{line}\n" for line in lines))
    lines = printed("new", "train.en", "train.de", *options).split("\n")
    assert lines[1].startswith(f"train: {480 - num_held_out} pairs in ")
    assert "left out: 120 pairs with an empty side" in lines
    text = Path("config.yaml").read_text(encoding="utf-8")
    assert text.startswith(f"# Settings that suit {480 - num_held_out} pairs of ")
    # Of 501 pairs and more, the tokens are subwords.
    assert load_config(Path("config.yaml")).tokenizer == CharConfig()


def test_new_adds_the_phrases_of_a_text_of_a_thousand_pairs(folder: Path) -> None:
    for language in ("en", "de"):
        lines = "".join(f"all of line {line} in {language}\n" for line in range(1000))
        Path(f"train.{language}").write_text(lines, encoding="utf-8")
    arguments = ("new", "train.en", "train.de", "--output", "my.yaml")
    lines = printed(*arguments).split("\n")
    (count,) = [line for line in lines if line.startswith("phrases: ")]
    config = load_config(Path("my.yaml"))
    text, phrases = config.data.train
    assert (text.weight, phrases.extract, phrases.tags) == (4, "phrases", ("[phrase]",))
    assert phrases.files == text.files
    rows = list(training_rows(phrases, ("en", "de"), config.data.held_out))
    assert count == f"phrases: {len(rows):,} pairs of parts of train"
    assert set(rows) >= {("all of", "all of"), ("in en", "in de")}
    shown = printed("check", "my.yaml").split("\n")
    where = f"data.train.1: {folder}/my.data/train.en, {folder}/my.data/train.de, phrase pairs"
    number = shown.index(where)
    assert shown[number + 1 : number + 4] == [f"  {' | '.join(row)}" for row in rows[:3]]
    assert shown[-2:] == ["my.yaml: ok", ""]


def test_no_phrase_is_a_held_out_line(folder: Path) -> None:
    # "warm cup" is a part of "old warm cup".
    names = [f"n{number}" for number in range(10)]
    qualities = [f"q{number}" for number in range(8)]
    lines = [f"{quality} {name}" for quality in qualities for name in names]
    lines += [f"{other} {line}" for other in qualities for line in lines if other not in line]
    Path("train.en").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    Path("train.de").write_text("".join(f"{line}e\n" for line in lines), encoding="utf-8")
    printed("new", "train.en", "train.de", "--output", "my.yaml")
    data = load_config(Path("my.yaml")).data
    phrases = [source for source, _ in training_rows(data.train[1], ("en", "de"), data.held_out)]
    held_out = [
        line
        for part in ("valid", "test")
        for line in Path(f"my.data/{part}.en").read_text(encoding="utf-8").splitlines()
    ]
    parts = {line.split(" ", 1)[1] for line in lines if line not in held_out}
    assert parts & set(held_out)
    assert phrases
    assert not set(phrases) & set(held_out)
    result = CliRunner().invoke(config_app, ["check", "my.yaml"])
    assert (result.exit_code, result.stderr) == (0, "")


def test_new_does_without_phrases_where_sentences_are_words(folder: Path) -> None:
    for language in ("en", "de"):
        lines = "".join(f"{language}{line}\n" for line in range(1000))
        Path(f"train.{language}").write_text(lines, encoding="utf-8")
    assert "phrases: " not in printed("new", "train.en", "train.de", "--output", "my.yaml")
    assert len(load_config(Path("my.yaml")).data.train) == 1


def test_new_separates_thousands(folder: Path) -> None:
    for language in ("en", "de"):
        pairs = (f"{language} {line}\n" for line in range(20_000))
        Path(f"train.{language}").write_text("".join(pairs), encoding="utf-8")
    counts = [line.split(" in ")[0] for line in printed("new", "train.en", "train.de").split("\n")]
    assert counts[1:4] == [
        "train: 18,000 pairs",
        "valid: 1,000 pairs, 0 also",
        "test: 1,000 pairs, 0 also",
    ]


def test_new_takes_a_validation_text_and_languages(folder: Path) -> None:
    Path("valid.en").write_text("new\ntrain en 1\ntrain EN 2\n", encoding="utf-8")
    Path("valid.de").write_text("neu\ntrain de 1\ntrain de 2\n", encoding="utf-8")
    languages = ["--source-language", "cs", "--target-language", "zh-Hans"]
    assert printed("new", "train.en", "train.de", *VALID, *languages).split("\n") == [
        "config.yaml: written, cs -> zh-Hans",
        "train: 40 pairs in train.en and train.de",
        "valid: 3 pairs, 2 also in train, in valid.en and valid.de",
        "read: train.en, train.de",
        *(f"  train en {line} | train de {line}" for line in range(3)),
        "next: tformer train config.yaml",
        "",
    ]
    data = load_config(Path("config.yaml")).data
    assert (data.source_language, data.target_language) == ("cs", "zh-Hans")
    assert data.valid.source == folder / "valid.en"


def test_new_tells_a_language_by_its_script(folder: Path) -> None:
    lines = "".join(f"{number} 只狗\n" for number in range(40))
    Path("corpus.txt").write_text(lines, encoding="utf-8")
    assert "config.yaml: written, en -> zh\n" in printed("new", "train.en", "corpus.txt")
    assert Path("config.data/test.zh").is_file()
    assert load_config(Path("config.yaml")).data.target_language == "zh"


def test_new_asks_for_a_language_that_nothing_tells(folder: Path) -> None:
    Path("train.en").rename("train.txt")
    arguments = ("new", "train.txt", "train.de")
    assert complaint(UsageError, *arguments) == (
        "train.txt: has a language that neither its name nor its script tells; "
        "add --source-language with an ISO code, such as en"
    )
    assert complaint(UsageError, *arguments, "--source-language", "English") == (
        "--source-language: must be an ISO code (English); write en, for instance"
    )
    assert "fr -> de" in printed(*arguments, "--source-language", "fr")


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("memory.tmx", "<?xml version='1.0'?>\n<tmx>\n", "is TMX, not plain text"),
        ("memory.csv", "en,de\na,b\n", "is CSV, not plain text"),
        ("memory.xlsx", "PK\x03\x04", "is an Excel workbook, not plain text"),
    ],
)
def test_new_refuses_what_is_no_text(folder: Path, name: str, content: str, what: str) -> None:
    Path(name).write_text(content, encoding="utf-8")
    assert complaint(DataError, "new", name, name).startswith(f"{name}: {what}; ")
    assert complaint(DataError, "new", "train.en", name, "--target-language", "de").startswith(
        f"{name}: {what}; "
    )


def test_new_refuses_languages_that_the_files_have_the_other_way_round(folder: Path) -> None:
    languages = ("--source-language", "en", "--target-language", "de")
    for words in (languages, languages[:2], languages[2:]):
        assert complaint(UsageError, "new", "train.de", "train.en", *words) == (
            f"{words[0]}: is the language of the other file by their names ({words[1]}); "
            "exchange the files, or the languages"
        )
    assert "en -> de" in printed("new", "train.en", "train.de", *languages)
    shutil.copy("train.en", "train.zh-CN")
    shutil.copy("train.de", "train.zh-TW")
    words = ("new", "train.zh-CN", "train.zh-TW", "--force", "--source-language")
    for code in ("zh-TW", "zh_tw", "zho-TW"):
        assert complaint(UsageError, *words, code).startswith("--source-language: is the language")
    assert "zh -> zh-TW" in printed(*words, "zh")


def test_new_refuses_a_validation_text_in_the_other_direction(folder: Path) -> None:
    words = ("new", "train.en", "train.de", "--valid-source", "valid.de", "--valid-target")
    assert complaint(UsageError, *words, "valid.en") == (
        "--valid-source: is in the target language by its name (valid.de); "
        "exchange --valid-source and --valid-target"
    )


@pytest.mark.parametrize("words", [(2, "de", 4, "en"), (2, "de"), (4, "en"), (2, "de-AT")])
@pytest.mark.parametrize("name", ["a.en-de.tmx", "a.en-de.tsv"])
def test_new_reads_a_file_of_pairs_in_the_direction_asked_for(
    folder: Path, name: str, words: tuple[int | str, ...]
) -> None:
    rows = [("en", "de"), *((f"a{i}", f"b{i}") for i in range(3))]
    kind = Path(name).suffix
    Path(name).write_bytes(WRITERS[f"a{kind}"](rows[kind == ".tmx" :]))
    options = [{2: "--source-language", 4: "--target-language"}.get(w, w) for w in words]
    languages = "de-AT -> en" if "de-AT" in words else "de -> en"
    out = printed("new", name, *options)
    assert f": written, {languages}\n" in out
    assert out.count("| a") == 3


def test_new_refuses_columns_in_the_other_direction(folder: Path) -> None:
    words = ("new", "a.en-de.tsv", "--target-language", "en")
    Path("a.en-de.tsv").write_text("OK\tOK\na0\tb0\na1\tb1\na2\tb2\n", encoding="utf-8")
    assert complaint(UsageError, *words) == (
        "--target-language: is the language of the other side by the name of the file (en); "
        "name source and target by --fields"
    )
    assert "de -> en" in printed(*words, "--fields", "2", "1")


def test_new_names_its_option_for_the_keys_of_a_file_of_pairs(folder: Path) -> None:
    Path("a.jsonl").write_text('{"x": "a"}\n', encoding="utf-8")
    words = ("new", "a.jsonl", "--source-language", "en", "--target-language", "de")
    assert complaint(DataError, *words) == (
        "a.jsonl:1: has no text at en and de (x); "
        "set --fields SOURCE and TARGET, such as translation.en"
    )
    assert complaint(UsageError, "new", "a.jsonl", "--fields", "1", *words[2:]) == (
        "--fields: must be two columns or keys, of source and target (1 --source-language); "
        "add the second one"
    )


def test_new_refuses_one_file_as_both_sides(folder: Path) -> None:
    assert complaint(DataError, "new", "train.en", "train.en") == (
        "train.en: is source and target at once; name the file that holds the translations"
    )
    assert not Path("config.data").exists()


def test_new_that_was_killed_begins_again(folder: Path) -> None:
    arguments = ("new", "train.en", "train.de", "--output", "my.yaml")
    num_calls = 0
    while killed(lambda: printed(*arguments), num_calls):
        # The config comes last: where it is, all is.
        if not Path("my.yaml").exists():
            printed(*arguments)
            assert not [path for path in folder.iterdir() if path.name.startswith(".")]
        check_data_files(load_config(Path("my.yaml")).data)
        assert {path.name for path in Path("my.data").iterdir()} == {
            "origin.json",
            *(f"{part}.{side}" for part in ("train", "valid", "test") for side in ("en", "de")),
        }
        shutil.rmtree("my.data")
        Path("my.yaml").unlink()
        num_calls += 3
    assert num_calls > 20


def test_new_replaces_files_only_when_forced(folder: Path) -> None:
    arguments = ("new", "train.en", "train.de", "--output", "x.yaml")
    message = "x.yaml: already exists; choose another --output, or add --force"
    assert complaint(UsageError, *arguments) == message
    assert printed(*arguments, "--force").startswith("x.yaml: written, en -> de\n")


def test_new_refuses_half_a_validation_text(folder: Path) -> None:
    together = "--valid-source and --valid-target go together"
    assert complaint(UsageError, "new", "train.en", "train.de", "--valid-source", "valid.en") == (
        f"--valid-target: {together}; add --valid-target"
    )
    assert complaint(UsageError, "new", "train.en", "train.de", "--valid-target", "valid.de") == (
        f"--valid-source: {together}; add --valid-source"
    )


def test_new_refuses_what_can_be_read_only_once(folder: Path) -> None:
    os.mkfifo("pipe")
    assert complaint(UsageError, "new", "train.en", "pipe") == (
        "TARGET: must be read more than once, and a pipe cannot be; write it to a file first"
    )


def test_new_lets_errors_of_the_texts_through(folder: Path) -> None:
    assert (
        complaint(DataError, "new", "train.en", "none.de")
        == "none.de: no such file; name a text that is there"
    )
    assert complaint(DataError, "new", "train.en", "valid.de").startswith("train.en:4: ")
    assert sorted(path.name for path in folder.iterdir() if "train" not in path.name) == [
        "valid.de",
        "valid.en",
        "x.yaml",
    ]


def test_init_copies_configs_and_demo_text_and_may_be_repeated(tformer, tmp_path):
    folder = tmp_path / "new"
    for _ in range(2):
        result = tformer("init", folder)
        assert result.exit_code == 0
        assert result.stdout.splitlines()[-1] == f"next: tformer train {folder}/configs/demo.yaml"
        assert files(folder) == files(ROOT)
    assert tformer("config", "check", folder / "configs" / "demo.yaml").exit_code == 0


def test_init_quotes_what_to_run_next(tformer, tmp_path):
    result = tformer("init", tmp_path / "mein Ordner")
    assert result.stdout.splitlines()[-1] == (
        f"next: tformer train '{tmp_path}/mein Ordner/configs/demo.yaml'"
    )


def test_init_replaces_no_file_and_then_writes_none(tformer, tmp_path):
    own = tmp_path / "data" / "demo" / "valid.en"
    own.parent.mkdir(parents=True)
    own.write_text("mine\n", encoding="utf-8")
    result = tformer("init", tmp_path)
    assert (result.exit_code, result.stderr) == (
        2,
        f"{own}: already exists with other content; name another folder\n",
    )
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [own]
