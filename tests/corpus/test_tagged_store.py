"""Tags of training texts: reserved ids before each source, kept beside the encoded text."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loading import load_or_build

from tformer_cli.config.schema.data import MAX_TAGS, DataConfig, SamplingConfig
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.corpus.bucketing import DataPosition, epoch_plans, training_micro_batches
from tformer_cli.corpus.reader import read_texts
from tformer_cli.corpus.store import PairTags, TokenStore, build_store, temperature_weights
from tformer_cli.corpus.store_builder import training_store
from tformer_cli.text.special_tokens import EOS_ID, NUM_SPECIAL, SPECIAL_TOKENS
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers

TEXTS = {"a": ["ab", "abc", ""], "b": ["c", "ca", "cab"], "c": ["b"]}
TAGS = {"a": (), "b": ("bt", "old"), "c": ("old",)}
# By the order of first appearance.
IDS = {"a": [], "b": [6, 7], "c": [7]}


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    for name, lines in TEXTS.items():
        for side, rows in (("src", lines), ("tgt", map(str.upper, lines))):
            (tmp_path / f"{name}.{side}").write_text("".join(f"{row}\n" for row in rows))
    files = {
        name: {"source": tmp_path / f"{name}.src", "target": tmp_path / f"{name}.tgt"}
        for name in TEXTS
    }
    return DataConfig(
        train=tuple(TrainingText(**files[name], tags=TAGS[name]) for name in TEXTS),
        valid=ParallelText(**files["a"]),
    )


@pytest.fixture
def tokenizers(data: DataConfig) -> Tokenizers:
    return build_tokenizers(CharConfig(), lambda: read_texts(data.train), 1)


def untagged(data: DataConfig) -> DataConfig:
    return replace(data, train=tuple(replace(text, tags=()) for text in data.train))


def expected(tokenizers: Tokenizers) -> list[tuple[list[int], list[int]]]:
    """Each pair with text, its source behind the ids of its tags."""
    return [
        (IDS[name] + tokenizers.source.encode(line), tokenizers.target.encode(line.upper()))
        for name, lines in TEXTS.items()
        for line in lines
        if line
    ]


def rows(store: TokenStore) -> list[tuple[list[int], list[int]]]:
    examples = store.examples(np.arange(len(store)))
    return [(list(map(int, x.source)), list(map(int, x.target))) for x in examples]


def test_a_vocabulary_reserves_as_many_tags_as_a_config_may_have():
    tags = [i for i, token in enumerate(SPECIAL_TOKENS) if token.startswith("<tag_")]
    assert tags == [*range(NUM_SPECIAL - MAX_TAGS, NUM_SPECIAL)]


def test_each_source_begins_with_the_tags_of_its_text(data, tokenizers):
    store, _ = training_store(data, tokenizers)
    assert rows(store) == expected(tokenizers)
    assert store.source_lengths.tolist() == [len(source) for source, _ in expected(tokenizers)]


def test_tags_change_the_fingerprint_and_no_file(data, tokenizers, tmp_path):
    stores = tmp_path / "stores"
    plain, _ = training_store(untagged(data), tokenizers, stores)
    (directory,) = (path for path in stores.iterdir() if path.is_dir())
    before = {file.name: file.read_bytes() for file in directory.glob("*.ids")}
    tagged, _ = training_store(data, tokenizers, stores)
    assert [path for path in stores.iterdir() if path.is_dir()] == [directory]
    assert {file.name: file.read_bytes() for file in directory.glob("*.ids")} == before
    assert tagged.fingerprint() != plain.fingerprint()
    # What is cached beside the files is what the content has.
    for store, own in ((plain, untagged(data)), (tagged, data)):
        assert replace(store, known_fingerprint=None).fingerprint() == store.fingerprint()
        assert training_store(own, tokenizers, stores)[0].fingerprint() == store.fingerprint()
    # Names decide nothing, ids do.
    renamed = tuple(
        replace(text, tags=tuple(name[::-1] for name in text.tags)) for text in data.train
    )
    other, _ = training_store(replace(data, train=renamed), tokenizers, stores)
    assert other.fingerprint() == tagged.fingerprint()


def test_batches_have_the_tags_and_fit_the_budget(data, tokenizers):
    store, _ = training_store(data, tokenizers)
    plans = epoch_plans(store, batch_tokens=12, seed=1)
    seen = []
    steps = training_micro_batches(store, plans, accumulate=1, data_position=DataPosition())
    for (batch,), _ in islice(steps, len(plans[0])):
        assert batch.source.numel() <= 12
        seen += [
            (int(index), ids[mask].tolist())
            for index, ids, mask in zip(batch.indices, batch.source, batch.source_mask, strict=True)
        ]
    wanted = [[*source, EOS_ID] for source, _ in expected(tokenizers)]
    assert sorted(seen) == list(enumerate(wanted))


def test_a_cached_fingerprint_is_that_of_its_target_tags(data, tokenizers, tmp_path):
    fingerprints = set()
    for target_tags in ((), (6,), (7,)):
        first_ids = [((6,), target_tags)] * len(data.train)
        filters, stores = data.filters, tmp_path / "stores"
        store, _ = load_or_build(
            data.train, tokenizers, filters, first_ids=first_ids, stores=stores
        )
        assert replace(store, known_fingerprint=None).fingerprint() == store.fingerprint()
        fingerprints.add(store.fingerprint())
    assert len(fingerprints) == 3
    assert len(list((tmp_path / "stores").glob("*/index.json"))) == 1


runs = st.lists(st.tuples(st.integers(0, 4), st.lists(st.integers(6, 15), max_size=3)), min_size=1)


@given(runs.filter(lambda runs: any(tags for _, tags in runs)))
def test_tags_of_runs_stand_for_each_pair_of_a_run(runs):
    tags = PairTags.of_runs([count for count, _ in runs], [own for _, own in runs])
    flat = [own for count, own in runs for _ in range(count)]
    found = tags[np.arange(len(flat))]
    assert [row[row > 0].tolist() for row in found] == flat


@given(runs, runs)
def test_fingerprints_see_tags(one, other):
    def store(runs: Sequence[tuple[int, list[int]]]) -> TokenStore:
        pairs = build_store(([20], [21]) for count, _ in runs for _ in range(count))
        if not any(tags for _, tags in runs):
            return pairs
        counts, tags = zip(*runs, strict=True)
        return replace(pairs, tags=PairTags.of_runs(counts, tags))

    same = store(one).fingerprint() == store(other).fingerprint()
    assert not same or rows(store(one)) == rows(store(other))


# ------------------------------------------------ sampling by temperature


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10_000),
            st.floats(0.01, 100),
            st.sampled_from(["en-de", "en-fr", "de-fr"]),
        ),
        min_size=1,
    ).filter(lambda texts: any(count for count, _, _ in texts)),
    st.floats(1, 1000),
)
def test_temperature_gives_each_direction_its_share_of_an_epoch(texts, temperature):
    counts, weights, directions = zip(*texts, strict=True)
    found = np.array(temperature_weights(weights, directions, temperature, counts))
    pairs = np.array(counts) * np.array(weights)
    sizes = {d: sum(pairs[np.array(directions) == d]) for d in set(directions)}
    # Arivazhagan et al. 2019: p_i is proportional to (D_i / sum of all D) ** (1 / T).
    powers = {d: (size / pairs.sum()) ** (1 / temperature) for d, size in sizes.items()}
    for direction, power in powers.items():
        share = (found * counts)[np.array(directions) == direction].sum() / pairs.sum()
        assert share == pytest.approx(power / sum(powers.values()))
    # Within a direction the weights of texts stay in proportion.
    for i, j in itertools.combinations(range(len(texts)), 2):
        if directions[i] == directions[j] and sizes[directions[i]]:
            assert found[i] * weights[j] == pytest.approx(found[j] * weights[i])


@given(st.lists(st.tuples(st.integers(1, 999), st.sampled_from("abc")), min_size=1))
def test_temperature_one_keeps_the_weights(texts):
    counts, directions = zip(*texts, strict=True)
    assert temperature_weights([1.0] * len(texts), directions, 1.0, counts) == [1.0] * len(texts)


def test_an_epoch_samples_by_the_temperature(data, tokenizers, tmp_path):
    """Of 2 and 3 pairs, at a temperature of 1000, each direction has half of the epoch."""
    one, other, _ = data.train
    many = replace(data, train=(one, replace(other, target_language="fr", tags=())))
    plain, _ = training_store(many, tokenizers, tmp_path)
    even = replace(many, sampling=SamplingConfig(temperature=1000))
    store, _ = training_store(even, tokenizers, tmp_path)
    assert store.weights[:] == pytest.approx([1.25] * 2 + [5 / 6] * 3, rel=1e-3)
    assert store.fingerprint() == replace(store, known_fingerprint=None).fingerprint()
    assert store.fingerprint() != plain.fingerprint()
    # The encoded text on the disk is the same.
    assert len([path for path in tmp_path.iterdir() if path.is_dir() and len(path.name) == 32]) == 1
    plans = epoch_plans(store, batch_tokens=100, seed=1)
    epochs = [np.concatenate(plans[epoch]) for epoch in range(400)]
    assert 0.45 < np.mean(np.concatenate(epochs) % 5 < 2) < 0.55
    again = epoch_plans(store, batch_tokens=100, seed=1)
    assert all(np.array_equal(np.concatenate(again[i]), epochs[i]) for i in (399, 0, 7))
