from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tformer_cli.config.schema.data import DataConfig, FilterConfig
from tformer_cli.config.schema.text import ParallelText, PlainText, PlainTrainingText, TrainingText
from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.corpus.bucketing import (
    DataPosition,
    batches_in_order,
    epoch_plans,
    training_micro_batches,
)
from tformer_cli.corpus.reader import read_texts
from tformer_cli.corpus.store_builder import evaluation_store, training_store
from tformer_cli.errors import DataError
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    texts = {"a": [("ab", "AB"), ("", "X"), ("abc" * 5, "ABC")], "b": [("c", "C"), ("ba", "")]}
    for name, pairs in texts.items():
        for suffix, lines in zip(("src", "tgt"), zip(*pairs, strict=True), strict=True):
            (tmp_path / f"{name}.{suffix}").write_text("".join(f"{line}\n" for line in lines))
    files = [
        {"source": tmp_path / f"{name}.src", "target": tmp_path / f"{name}.tgt"} for name in texts
    ]
    return DataConfig(
        train=(TrainingText(**files[0]), TrainingText(**files[1], weight=2.5)),
        valid=ParallelText(**files[0]),
        filters=FilterConfig(max_length=9),
    )


@pytest.fixture
def tokenizers(data: DataConfig) -> Tokenizers:
    return build_tokenizers(CharConfig(), lambda: read_texts(data.train), 1)


def test_training_store_holds_the_pairs_that_the_filters_keep(data, tokenizers):
    store, report = training_store(data, tokenizers)
    decoded = [
        (tokenizers.source.decode(example.source), tokenizers.target.decode(example.target))
        for example in store.examples(np.arange(len(store)))
    ]
    assert decoded == [("ab", "AB"), ("c", "C")]
    assert store.weights[:].tolist() == [1.0, 2.5]
    assert str(report) == "5 pairs: 2 kept; dropped 2 empty, 1 too long"


def test_training_store_is_kept_where_that_is_asked(data, tokenizers, tmp_path):
    once, _ = training_store(data, tokenizers)
    kept, _ = training_store(data, tokenizers, tmp_path / "stores")
    assert kept.fingerprint() == once.fingerprint()
    assert len(list((tmp_path / "stores").glob("*/index.json"))) == 1


def test_evaluation_store_holds_every_line(data, tokenizers):
    store = evaluation_store(data.valid, tokenizers)
    targets = [example.target for example in store.examples(np.arange(3))]
    assert list(map(tokenizers.target.decode, targets)) == ["AB", "X", "ABC"]
    held = [i for batch in batches_in_order(store, batch_tokens=20) for i in batch.indices.tolist()]
    assert sorted(held) == [0, 1, 2]


def test_a_text_alone_is_its_own_target(data, tokenizers, tmp_path):
    store = evaluation_store(PlainText(text=tmp_path / "a.src"), tokenizers)
    lines = ["ab", "", "abc" * 5]
    for example, line in zip(store.examples(np.arange(3)), lines, strict=True):
        ids = tokenizers.source.encode(line)
        assert list(example.source) == list(example.target) == ids
    plain = PlainTrainingText(text=tmp_path / "b.src")
    assert list(read_texts([plain])) == [("c", ""), ("ba", "")]


def test_an_empty_evaluation_text_is_refused(tokenizers, tmp_path):
    text = ParallelText(source=tmp_path / "empty", target=tmp_path / "translations")
    text.source.write_text("")
    text.target.write_text("")
    with pytest.raises(DataError) as caught:
        evaluation_store(text, tokenizers)
    assert str(caught.value) == f"{tmp_path / 'empty'}: no lines; name a file with text"


@pytest.mark.parametrize("accumulate", [1, 2, 3, 100])
def test_accumulation_cuts_a_batch_and_changes_nothing_in_it(data, tokenizers, accumulate):
    store, _ = training_store(data, tokenizers)

    def steps(pieces: int) -> list[tuple[list[int], DataPosition]]:
        plans = epoch_plans(store, batch_tokens=12, seed=1)
        groups = training_micro_batches(
            store, plans, accumulate=pieces, data_position=DataPosition()
        )
        return [
            ([i for batch in group for i in batch.indices.tolist()], position)
            for group, position in islice(groups, 7)
        ]

    assert steps(accumulate) == steps(1)
