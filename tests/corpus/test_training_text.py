"""What a training reads: phrase pairs in memory as in files, and held-out lines in neither."""

from dataclasses import replace
from pathlib import Path

import pytest

from tformer_cli import extract_phrases
from tformer_cli.config.schema.data import DataConfig, FilterConfig
from tformer_cli.config.schema.text import ParallelText, PlainText, PlainTrainingText, TrainingText
from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.corpus.reader import read_texts
from tformer_cli.corpus.store_builder import training_store
from tformer_cli.corpus.training_text import training_checksums, training_pairs
from tformer_cli.errors import DataError
from tformer_cli.text.tokenizer import build_tokenizers

PAIRS = {
    "train": [
        ("The dog sleeps.", "Der Hund schläft."),
        ("The cat sleeps.", "Der Kater schläft."),
        ("A dog, it runs!", "Ein Hund, er rennt!"),
        ("A cat, it runs!", "Ein Kater, er rennt!"),
    ],
    # A source and a target of phrases, in another case.
    "valid": [("the DOG", "Dackel"), ("tomcat", "KATER")],
    "test": [("It runs", "Es läuft")],
}
LANGUAGES = ("en", "de")


def text_of(folder: Path, name: str) -> dict[str, Path]:
    return {"source": folder / f"{name}.en", "target": folder / f"{name}.de"}


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    for name, pairs in PAIRS.items():
        files = text_of(tmp_path, name).values()
        for file, lines in zip(files, zip(*pairs, strict=True), strict=True):
            file.write_text("".join(f"{line}\n" for line in lines))
    train = text_of(tmp_path, "train")
    return DataConfig(
        source_language="en",
        target_language="de",
        train=(
            TrainingText(**train, weight=3),
            TrainingText(**train, tags=("[phrase]",), extract="phrases"),
        ),
        valid=ParallelText(**text_of(tmp_path, "valid")),
        test={"test": ParallelText(**text_of(tmp_path, "test"))},
    )


@pytest.fixture
def written(data: DataConfig, tmp_path: Path) -> TrainingText:
    """The phrases in files, without the held-out ones."""
    text = extract_phrases(data.train[0], tmp_path / "phrases", languages=LANGUAGES).text
    pairs = list(read_texts([text]))
    rows = PAIRS["valid"] + PAIRS["test"]
    held_out = {side.casefold() for row in rows for side in row}
    kept = [pair for pair in pairs if not {side.casefold() for side in pair} & held_out]
    assert len(pairs) > len(kept) > 0
    for file, lines in zip(text.files.values(), zip(*kept, strict=True), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines))
    return text


def test_phrases_are_trained_on_as_if_they_were_a_text(data, written, tmp_path):
    pairs = training_pairs(data)
    in_files = replace(data, train=(data.train[0], written))
    assert list(pairs()) == list(pairs()) == list(read_texts(in_files.train))
    tokenizers = build_tokenizers(CharConfig(), pairs, 1)
    store, report = training_store(data, tokenizers, tmp_path / "stores")
    other, other_report = training_store(in_files, tokenizers)
    assert store.fingerprint() == other.fingerprint()
    assert str(report) == str(other_report)
    assert store.weights[:].tolist() == other.weights[:].tolist()
    again, _ = training_store(data, tokenizers, tmp_path / "stores")
    assert again.fingerprint() == store.fingerprint()
    assert len(list((tmp_path / "stores").glob("*/index.json"))) == 1


def test_a_store_of_phrases_depends_on_all_that_decides_them(data, tmp_path):
    tokenizers = build_tokenizers(CharConfig(), training_pairs(data), 1)
    stores = tmp_path / "stores"
    changed = [
        data,
        # Words of Japanese are characters, if not of Latin letters.
        replace(data, target_language="ja"),
        replace(data, test={}),
        replace(data, train=(data.train[0], replace(data.train[1], extract=None))),
    ]
    whole, of_japanese, *others = (
        training_store(each, tokenizers, stores)[0].fingerprint() for each in changed
    )
    assert len({whole, *others}) == 3
    assert of_japanese == whole
    assert len(list(stores.glob("*/index.json"))) == len(changed)


def test_checksums_of_lines_do_not_depend_on_other_texts(data, tmp_path):
    def checksums(index: int, held_out: list[ParallelText]) -> list[str]:
        return training_checksums(data.train[index], LANGUAGES, held_out, tmp_path)

    assert checksums(0, data.held_out) == checksums(0, [])
    assert checksums(1, data.held_out) != checksums(1, [])
    assert checksums(1, [])[:2] == checksums(0, [])


def test_a_text_without_phrases_is_refused(data):
    data.train[0].source.write_text("Dog\n" * 4)
    with pytest.raises(DataError, match=r"train\.en: has no phrase pairs; give a text with"):
        training_pairs(data)


def test_monolingual_lines_have_no_target(data):
    text = PlainTrainingText(text=data.train[0].source)
    plain = replace(data, train=(text,), valid=PlainText(text=text.text), test={})
    assert list(training_pairs(plain)()) == [(source, "") for source, _ in PAIRS["train"]]


def test_filters_still_remove_held_out_lines(data):
    tokenizers = build_tokenizers(CharConfig(), training_pairs(data), 1)
    valid = replace(data.valid, source=data.train[0].source)
    data.valid.target.write_text("x\n" * 4)
    own = replace(data, valid=valid, filters=FilterConfig(drop_held_out=True))
    store, report = training_store(own, tokenizers)
    assert report.seen == len(store) + 4
