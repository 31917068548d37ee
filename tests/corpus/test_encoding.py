"""A chunk of lines, encoded and filtered."""

import subprocess
import sys
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

import pytest

from tformer_cli.config.schema.data import FilterConfig
from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.corpus import encoding
from tformer_cli.corpus.encoding import encode_pairs, encoder, id_dtype
from tformer_cli.corpus.filters import FilterReport, pair_digests
from tformer_cli.errors import TrainingError
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers

PAIRS = [("ab", "ba"), ("", "a"), ("a", "bbb"), ("b", "b")]


@pytest.fixture
def tokenizers() -> Tokenizers:
    return build_tokenizers(CharConfig(), lambda: PAIRS, 1)


def test_ids_of_a_vocabulary_take_16_bits_where_they_can():
    assert [id_dtype(size) for size in (3, 65536, 65537)] == ["<u2", "<u2", "<u4"]


def test_encoded_pairs_are_those_that_the_filters_keep(tokenizers):
    encoded = encode_pairs(PAIRS, tokenizers, FilterConfig(max_ratio=2.0, drop_duplicates=True))
    encode, (source, target) = tokenizers.source.encode, encoded.sides
    assert source.ids.tolist() == [*encode("ab"), *encode("b")]
    assert target.ids.tolist() == [*encode("ba"), *encode("b")]
    assert source.lengths.tolist() == target.lengths.tolist() == [2, 1]
    assert encoded.digests.tolist() == pair_digests([PAIRS[0], PAIRS[3]]).tolist()
    assert encoded.report == FilterReport(kept=2, empty=1, ratio=1)


def test_digests_are_left_out_where_duplicates_do_not_matter(tokenizers):
    assert encode_pairs(PAIRS, tokenizers, FilterConfig()).digests.shape == (0, 2)


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
    monkeypatch.setattr(encoding, "ProcessPoolExecutor", DyingPool)
    with (
        pytest.raises(TrainingError) as caught,
        encoder(tokenizers, FilterConfig(), num_processes=2, folder=tmp_path / "t") as encode,
    ):
        list(encode([PAIRS]))
    assert str(caught.value) == (
        "data.train: a process that encodes the text has died; "
        "free memory and run the same command again: it goes on from there"
    )


def test_a_process_that_encodes_does_without_torch():
    code = "import tformer_cli.corpus.encoding, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
