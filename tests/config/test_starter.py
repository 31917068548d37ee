"""The starter: what it writes, and that it is a good configuration."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sentencepiece import SentencePieceProcessor

from tformer_cli.config import starter
from tformer_cli.config.load import check_data_files, load_config
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.text import Bitext, PairsFile, ParallelText, TrainingText
from tformer_cli.config.schema.tokenizer import CharConfig, SubwordConfig
from tformer_cli.config.starter import check_replaceable, write_starter
from tformer_cli.corpus.phrases import with_phrases_extracted
from tformer_cli.corpus.reader import read_texts
from tformer_cli.corpus.records import SkippedRecordsWarning
from tformer_cli.errors import DataError, UsageError
from tformer_cli.text.subword import learn_subwords


def text_of(folder: Path, name: str = "train") -> ParallelText:
    text = ParallelText(source=folder / f"{name}.en", target=folder / f"{name}.de")
    for file in text.files.values():
        file.parent.mkdir(exist_ok=True)
        file.write_text("a\n", encoding="utf-8")
    return text


def written(
    config: Path,
    texts: Mapping[str, Bitext],
    *,
    num_pairs: int = 100,
    num_characters: int = 50,
    num_words: int = 32_000,
    languages: tuple[str, str] = ("en", "de"),
) -> Path:
    write_starter(
        config,
        texts,
        languages,
        num_pairs=num_pairs,
        num_characters=num_characters,
        num_words=num_words,
    )
    return config


def test_config_names_every_text_from_its_own_folder(tmp_path: Path) -> None:
    texts = {name: text_of(tmp_path / "my.data", name) for name in ("train", "valid", "test")}
    file = written(tmp_path / "my.yaml", texts)
    data = load_config(file).data
    check_data_files(data)
    assert (data.source_language, data.target_language) == ("en", "de")
    assert data.train[0].source == texts["train"].source
    assert (data.valid, data.test) == (texts["valid"], {"test": texts["test"]})
    assert "train: [{source: my.data/train.en," in file.read_text(encoding="utf-8")


def test_names_and_languages_that_yaml_could_misread(tmp_path: Path) -> None:
    text = text_of(tmp_path / "texts", "train")
    valid = text_of(tmp_path / "texts", "a, {b}: 'c' #d")
    (tmp_path / "out").mkdir()
    texts = {"train": text, "valid": valid}
    file = written(tmp_path / "out" / "my.yaml", texts, languages=("no", "null"))
    data = load_config(file).data
    assert data.train[0].source == text.source
    assert (data.valid, data.test) == (valid, {})
    assert (data.source_language, data.target_language) == ("no", "null")


def test_a_path_with_a_number_sign_stays_as_it_is(tmp_path: Path) -> None:
    text = PairsFile(pairs=tmp_path / "a # b.tsv")
    texts = {"train": text, "valid": text, "phrases": with_phrases_extracted(text)}
    data = load_config(written(tmp_path / "my.yaml", texts, num_pairs=1000)).data
    assert {each.source_file for each in data.texts().values()} == {text.pairs}


@pytest.mark.parametrize(
    ("num_pairs", "tokenizer", "dim", "max_steps"),
    [
        (500, CharConfig(), 128, 1000),
        (501, SubwordConfig(vocab_size=1000), 128, 4000),
        (2_000, SubwordConfig(vocab_size=1000), 128, 4000),
        (2_001, SubwordConfig(vocab_size=2000), 192, 3000),
        (5_001, SubwordConfig(vocab_size=4000), 192, 6000),
        (15_001, SubwordConfig(vocab_size=6000), 192, 6000),
        (50_001, SubwordConfig(vocab_size=8000), 256, 6000),
        (300_001, SubwordConfig(vocab_size=10000), 512, 30_000),
        (1_000_001, SubwordConfig(vocab_size=32000), 512, 100_000),
    ],
)
def test_sizes_grow_with_the_text(
    tmp_path: Path, num_pairs: int, tokenizer: object, dim: int, max_steps: int
) -> None:
    text = text_of(tmp_path)
    texts = {"train": text, "valid": text}
    config = load_config(written(tmp_path / "my.yaml", texts, num_pairs=num_pairs))
    assert config.tokenizer == tokenizer
    assert config.model.dim == dim
    assert config.training.max_steps == max_steps


@pytest.mark.parametrize("num_pairs", [limit for limit, _ in starter._SIZES[:-1]] + [1_000_001])
def test_no_search_is_shorter_than_the_text_that_is_trained_on(
    tmp_path: Path, num_pairs: int
) -> None:
    text = text_of(tmp_path)
    texts = {"train": text, "valid": text}
    config = load_config(written(tmp_path / "my.yaml", texts, num_pairs=num_pairs))
    searches = config.decoding, config.training.validation_decoding
    longest = config.data.filters.max_length
    assert [search.max_length for search in searches] == [longest, longest]


def sizes_on_the_page() -> Iterator[tuple[int, list[str]]]:
    """The largest number of pairs of each row of the table, and its other cells."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / "own-text.md"
    head, _, rows = page.read_text(encoding="utf-8").partition("| pairs | layers, width |")
    assert head
    for row in rows.partition("\n\n")[0].splitlines()[2:]:
        pairs, *cells = row.strip("| ").split(" | ")
        names = {"to a million": 1_000_000, "more": 1_000_001}
        yield names.get(pairs) or int(pairs.removeprefix("to ").replace(",", "")), cells


def test_the_page_has_the_sizes_of_each_starter(tmp_path: Path) -> None:
    text = text_of(tmp_path)
    limits = []
    for num_pairs, cells in sizes_on_the_page():
        file = written(
            tmp_path / f"{num_pairs}.yaml", {"train": text, "valid": text}, num_pairs=num_pairs
        )
        config = load_config(file)
        model, tokenizer, training = config.model, config.tokenizer, config.training
        kind, rate = {"adamw": "AdamW", "muon": "Muon"}, training.optimizer.learning_rate
        assert isinstance(model, EncoderDecoderConfig)
        assert cells == [
            f"{model.num_encoder_layers} + {model.num_decoder_layers}, {model.dim}",
            f"{tokenizer.vocab_size:,}" if isinstance(tokenizer, SubwordConfig) else "characters",
            f"{kind[training.optimizer.kind]}, {rate:.0e}".replace("e-0", "e-"),
            f"{training.max_steps:,}, {training.batch_tokens:,}",
        ]
        limits.append(num_pairs)
    # Each pair more is another row.
    ends = [limit for limit, _ in starter._SIZES]
    assert limits == [*ends[:-1], ends[-2] + 1]


def test_a_text_counts_more_than_its_phrases(tmp_path: Path) -> None:
    text = text_of(tmp_path)
    phrases = with_phrases_extracted(text)
    texts = {"train": text, "valid": text, "phrases": phrases}
    train = load_config(written(tmp_path / "my.yaml", texts, num_pairs=1000)).data.train
    assert train == (TrainingText(source=text.source, target=text.target, weight=4), phrases)
    assert (phrases.files, phrases.extract, phrases.tags) == (text.files, "phrases", ("[phrase]",))


def test_phrases_of_a_file_of_pairs_are_read_as_its_lines_are(tmp_path: Path) -> None:
    valid, file = text_of(tmp_path), tmp_path / "train.jsonl"
    file.write_text('{"a": "x", "b": "y"}\n', encoding="utf-8")
    text = PairsFile(pairs=file, source_field="a", target_field="b", on_error="skip")
    texts = {"train": text, "valid": valid, "phrases": with_phrases_extracted(text)}
    own, phrases = load_config(written(tmp_path / "my.yaml", texts, num_pairs=1000)).data.train
    assert phrases == replace(own, weight=1, extract="phrases", tags=("[phrase]",))


def test_a_file_of_pairs_is_read_as_it_was_counted(tmp_path: Path) -> None:
    valid, file = text_of(tmp_path), tmp_path / "train.jsonl"
    file.write_text('{"a": "x", "b": "y"}\n{"a": "x"}\n', encoding="utf-8")
    text = PairsFile(pairs=file, source_field="a", target_field="b", on_error="skip")
    config = load_config(written(tmp_path / "my.yaml", {"train": text, "valid": valid}))
    with pytest.warns(SkippedRecordsWarning):
        assert list(read_texts(config.data.train)) == [("x", "y")]


def test_a_text_of_many_characters_has_a_vocabulary_that_holds_them(tmp_path: Path) -> None:
    text = text_of(tmp_path)
    texts = {"train": text, "valid": text}
    file = written(tmp_path / "my.yaml", texts, num_pairs=1000, num_characters=2000)
    assert load_config(file).tokenizer == SubwordConfig(vocab_size=4300)


def test_a_text_of_few_words_has_a_vocabulary_that_it_fills(tmp_path: Path) -> None:
    words = ["".join(letters) for letters in itertools.product("abcdefghij", repeat=3)]
    text = text_of(tmp_path)
    file = written(
        tmp_path / "my.yaml", {"train": text, "valid": text}, num_pairs=5_001, num_words=len(words)
    )
    tokenizer = load_config(file).tokenizer
    assert tokenizer == SubwordConfig(vocab_size=1000)
    model = learn_subwords([" ".join(words)], tokenizer)
    assert SentencePieceProcessor(model_proto=model).get_piece_size() == 1000
    with pytest.raises(DataError, match="is larger than"):
        learn_subwords([" ".join(words)], SubwordConfig(vocab_size=8000))


def repeated(words: Sequence[str]) -> list[str]:
    return [" ".join(words[index % len(words) :][:4]) for index in range(600)]


@pytest.mark.parametrize(
    "lines",
    [
        repeated(["zero", "one", "two", "three", "four", "five", "six"]) + repeated("0123456"),
        repeated("abcdefghij") + repeated("ABCDEFGHIJ"),
        list("大小山川日月") * 100,
        ["hello"] * 600 + ["one two", "three four"],
    ],
)
def test_a_toy_text_has_a_vocabulary_that_it_fills(tmp_path: Path, lines: list[str]) -> None:
    text = text_of(tmp_path)
    num_characters, num_words = len(set("".join(lines))), len(set(" ".join(lines).split()))
    texts = {"train": text, "valid": text}
    file = written(
        tmp_path / "my.yaml",
        texts,
        num_pairs=len(lines),
        num_characters=num_characters,
        num_words=num_words,
    )
    tokenizer = load_config(file).tokenizer
    assert isinstance(tokenizer, SubwordConfig)
    model = SentencePieceProcessor(model_proto=learn_subwords(lines, tokenizer))
    assert model.get_piece_size() == tokenizer.vocab_size
    pieces = {model.id_to_piece(index) for index in range(tokenizer.vocab_size)}
    assert set("".join(lines)) - {" "} <= pieces


@pytest.mark.parametrize("name", ["~root", "a\x85b", "x # y\nz", "x # y\u2028z"])
def test_names_that_yaml_or_a_shell_would_read_otherwise(tmp_path: Path, name: str) -> None:
    text = text_of(tmp_path, name)
    file = written(tmp_path / "my.yaml", {"train": text, "valid": text})
    assert load_config(file).data.valid == text


def test_every_key_of_the_starter_has_a_comment(tmp_path: Path) -> None:
    text = text_of(tmp_path)
    file = written(tmp_path / "my.yaml", {"train": text, "valid": text})
    lines = file.read_text(encoding="utf-8").split("\n")
    silent = [line.split(":")[0].strip() for line in lines if line and "#" not in line]
    # Headings, and counts that say what they are.
    assert silent == ["model", "num_encoder_layers", "num_decoder_layers", "training"]


def test_config_that_is_there_is_kept_unless_forced(tmp_path: Path) -> None:
    config, text = tmp_path / "my.yaml", text_of(tmp_path)
    check_replaceable(config, text.files, overwrite=False)
    config.touch()
    check_replaceable(config, text.files, overwrite=True)
    with pytest.raises(UsageError) as raised:
        check_replaceable(config, text.files, overwrite=False)
    remedy = "choose another `output`, or add `overwrite=True`"
    assert str(raised.value) == f"{config}: already exists; {remedy}"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_is_replaced_by_no_config(overwrite: bool, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        check_replaceable(tmp_path, {}, overwrite=overwrite)
    assert str(raised.value) == f"{tmp_path}: is a folder; name a file in it"


def test_a_link_to_itself_is_neither_config_nor_text(tmp_path: Path) -> None:
    link = tmp_path / "a.en"
    link.symlink_to(link)
    check_replaceable(tmp_path / "my.yaml", {"source": link}, overwrite=False)
    check_replaceable(link, text_of(tmp_path / "texts").files, overwrite=False)


def test_given_text_is_never_replaced_by_a_config(tmp_path: Path) -> None:
    text = text_of(tmp_path)
    with pytest.raises(UsageError) as raised:
        check_replaceable(text.source, text.files, overwrite=True)
    assert str(raised.value) == (
        f"{text.source}: is one of the given texts, and would be lost; choose another `output`"
    )
