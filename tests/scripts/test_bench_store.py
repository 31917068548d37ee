"""The measurement of token stores, on a text of a moment."""

import store

from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.corpus.reader import read_texts
from tformer_cli.text.tokenizer import build_tokenizers


def test_a_second_start_opens_what_the_build_left(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "NUM_WORDS", 50)
    monkeypatch.setattr(store, "BLOCK_LINES", 100)
    monkeypatch.setattr(store, "WARM_UP_LINES", 30)
    store.write_text(tmp_path, 300)
    data = store.data_of(tmp_path)
    pairs = list(read_texts(data.train))
    assert len(pairs) == 300
    build_tokenizers(CharConfig(), lambda: pairs, 1).save(tmp_path / "tokenizer")
    built = store.measure_build(str(tmp_path))
    (index,) = (tmp_path / "stores").glob("*/index.json")
    before = index.stat().st_mtime_ns
    started = store.measure_start(str(tmp_path), 500, 5)
    assert index.stat().st_mtime_ns == before
    assert 0 < built["pairs_kept"] <= 300
    assert built["pairs_per_second"] > 0
    assert 0 < started["second_start_seconds"] < started["first_batch_seconds"]
