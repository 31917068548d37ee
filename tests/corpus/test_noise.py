"""Noise on examples: a function of seed, epoch and pair, with the shares that are asked for."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toy import write_toy

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.training import SourceNoiseConfig
from tformer_cli.corpus.batch import collate
from tformer_cli.corpus.noise import ExampleNoise, Masking, random_numbers, with_noise
from tformer_cli.corpus.reader import read_texts
from tformer_cli.corpus.store import BidirectionalStore, Example, build_store
from tformer_cli.corpus.store_builder import training_store
from tformer_cli.text.special_tokens import FIRST_TAG_ID, NUM_SPECIAL
from tformer_cli.text.tokenizer import build_tokenizers

SIZE = 500
SUBWORDS = "tokenizer={kind: subword, vocab_size: 300}"
BOTH = ("training.subword_sampling={kind: bpe_dropout, dropout: 0.5}", "training.source_noise={}")


def noise_and_examples(folder: Path, *settings: str):
    config = load_config(write_toy(folder, pairs=40), [SUBWORDS, *settings])
    texts = config.data.train
    tokenizers = build_tokenizers(config.tokenizer, lambda: read_texts(texts), config.seed)
    store, _ = training_store(config.data, tokenizers)
    noise = ExampleNoise.from_config(config, tokenizers)
    assert (noise is not None) == bool(settings)
    return noise, store.examples(np.arange(len(store)))


def plain(examples: list[Example]) -> list[tuple[int, list[int], list[int]]]:
    return [
        (each.index, np.asarray(each.source).tolist(), np.asarray(each.target).tolist())
        for each in examples
    ]


def test_what_is_drawn_depends_on_seed_epoch_and_pair_alone(tmp_path):
    noise, examples = noise_and_examples(tmp_path, *BOTH)
    whole = plain(noise.apply(examples, 3))
    assert whole == [plain(noise.apply([each], 3))[0] for each in examples]
    assert whole[::-1] == plain(noise.apply(examples[::-1], 3))
    others = noise.apply(examples, 4), replace(noise, seed=noise.seed + 1).apply(examples, 3)
    for changed in (plain(examples), *map(plain, others)):
        for side in (1, 2):
            assert [row[side] for row in changed] != [row[side] for row in whole]
    # The same text has other segmentations on each side and in each pair.
    text = examples[0].source
    twice = [Example(index, text, text) for index in (7, 8)]
    quiet = replace(noise, source_noise=None)
    epochs = [plain(quiet.apply(twice, epoch)) for epoch in range(9)]
    drawn = {str([rows[pair][side] for rows in epochs]) for pair in (0, 1) for side in (1, 2)}
    assert len(drawn) == 4


@pytest.mark.parametrize("both", [False, True], ids=["one direction", "both directions"])
def test_each_time_that_an_epoch_has_a_pair_is_drawn_anew(both, tmp_path):
    noise, examples = noise_and_examples(tmp_path, *BOTH)
    pairs = build_store((x.source, x.target) for x in examples)
    store = BidirectionalStore(pairs) if both else pairs
    size = len(store.weights)
    indices = np.arange(3 * size)
    thrice = store.examples(indices)
    sides = [row[1:] for row in plain(thrice)]
    assert sides == 3 * sides[:size]
    assert [example.index for example in thrice] == indices.tolist()
    masked = Masking(0.5, SIZE, seed=1).apply(collate(thrice), 0).source.tolist()
    for drawn in ([row[1:] for row in plain(noise.apply(thrice, 0))], masked):
        times = [{str(drawn[index + time * size]) for time in range(3)} for index in range(size)]
        # A short sentence may be drawn alike by chance.
        assert np.mean([len(each) for each in times]) > 2


def test_a_segmentation_that_is_too_long_is_not_taken(tmp_path):
    noise, examples = noise_and_examples(tmp_path, BOTH[0])
    shortest = replace(noise, max_length=0)
    assert plain(shortest.apply(examples, 0)) == plain(examples)


def test_a_config_without_noise_has_none(tmp_path):
    noise, _ = noise_and_examples(tmp_path)
    assert noise is None


def noisy(source: np.ndarray, seed: int, **keys: float) -> np.ndarray:
    numbers = np.random.default_rng(seed).random((4, len(source)))
    return with_noise(source, SourceNoiseConfig(**keys), numbers, SIZE)


SOURCE = np.arange(100, 160)


def test_noise_of_zero_changes_nothing():
    for seed in range(20):
        np.testing.assert_array_equal(noisy(SOURCE, seed, drop=0.0, replace=0.0, swap=0), SOURCE)


def test_tokens_are_dropped_as_often_as_asked_and_stay_in_order():
    kept = [noisy(SOURCE, seed, drop=0.2, swap=0) for seed in range(500)]
    assert all((np.diff(each) > 0).all() for each in kept)
    total = 500 * len(SOURCE)
    sigma = (0.2 * 0.8 / total) ** 0.5
    assert 1 - sum(map(len, kept)) / total == pytest.approx(0.2, abs=4 * sigma)


def test_one_token_at_least_is_left():
    assert {len(noisy(SOURCE[:1], seed, drop=0.99)) for seed in range(50)} == {1}
    assert min(len(noisy(SOURCE[:3], seed, drop=0.99)) for seed in range(50)) == 1
    assert len(noisy(SOURCE[:0], 0, drop=0.5)) == 0


def test_tokens_are_replaced_by_any_ordinary_one():
    rows = np.stack([noisy(SOURCE, seed, drop=0.0, replace=0.3, swap=0) for seed in range(500)])
    is_replaced = rows != SOURCE
    sigma = (0.3 * 0.7 / rows.size) ** 0.5
    expected = 0.3 * (1 - 1 / (SIZE - NUM_SPECIAL))
    assert is_replaced.mean() == pytest.approx(expected, abs=4 * sigma)
    new = rows[is_replaced]
    assert (new.min(), new.max()) == (NUM_SPECIAL, SIZE - 1)


@pytest.mark.parametrize("swap", [1, 3])
def test_no_token_moves_further_than_allowed(swap):
    moves = set()
    for seed in range(300):
        row = noisy(SOURCE, seed, drop=0.0, swap=swap)
        assert sorted(row) == SOURCE.tolist()
        moves |= set((row - SOURCE).tolist())
    assert moves == set(range(-swap, swap + 1))


def test_tags_stay_in_front():
    tags = np.array([FIRST_TAG_ID, FIRST_TAG_ID + 1])
    for seed in range(50):
        row = noisy(np.concatenate((tags, SOURCE[:4])), seed, drop=0.5, replace=0.5, swap=3)
        np.testing.assert_array_equal(row[:2], tags)
        assert (row[2:] >= NUM_SPECIAL).all()
        assert 1 <= len(row[2:]) <= 4


def test_the_token_of_a_language_stays_in_front(tmp_path):
    path = write_toy(tmp_path, pairs=40)
    noise = "training.source_noise={drop: 0.5, replace: 0.5}"
    config = load_config(path, [SUBWORDS, noise])
    tokenizers = build_tokenizers(
        config.tokenizer, lambda: read_texts(config.data.train), config.seed
    )
    # Only an imported vocabulary has such tokens.
    config = replace(config, data=replace(config.data, language_marks="tokens"))
    language, tag = NUM_SPECIAL + 7, FIRST_TAG_ID
    examples = [Example(index, np.array([language, tag, *SOURCE]), SOURCE) for index in range(50)]
    changed = ExampleNoise.from_config(config, tokenizers).apply(examples, 0)
    assert {tuple(each.source[:2]) for each in changed} == {(language, tag)}
    assert len({tuple(each.source[2:]) for each in changed}) == len(examples)


def test_numbers_are_uniform_and_differ_by_purpose():
    indices = np.arange(2000)
    one = random_numbers(1, "a", 0, indices, 10)
    # The deviation of a mean of 20,000 uniform numbers is 0.002.
    assert one.mean() == pytest.approx(0.5, abs=0.008)
    assert (one.min() >= 0, one.max() < 1) == (True, True)
    for other in (random_numbers(1, "b", 0, indices, 10), random_numbers(1, "a", 1, indices, 10)):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.03
    np.testing.assert_array_equal(random_numbers(1, "a", 0, indices[5:6], 4)[0], one[5, :4])
