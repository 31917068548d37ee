"""The speed of a config on random tokens."""

import numpy as np
import pytest
import torch

from tformer_cli.config.load import load_config
from tformer_cli.config.starter import shipped_config
from tformer_cli.text.special_tokens import NUM_SPECIAL
from tformer_cli.training.throughput import (
    MEAN_LENGTH,
    WARMUP_STEPS,
    measure_throughput,
    random_store,
)

SMALL = ["model.dim=32", "model.feedforward_dim=32", "tokenizer.vocab_size=300"]


def test_it_counts_the_target_tokens_of_full_batches():
    config = load_config(shipped_config("demo.yaml"), SMALL)
    steps: list[None] = []
    speed = measure_throughput(
        config, device=torch.device("cpu"), seconds=0.0, on_step=lambda: steps.append(None)
    )
    assert len(steps) == WARMUP_STEPS + 1
    num_tokens = speed.tokens_per_second * speed.seconds_per_step
    assert round(num_tokens) == pytest.approx(num_tokens)
    # Only padding and the rest of the last row are missing.
    assert 0.6 * config.training.batch_tokens < num_tokens <= config.training.batch_tokens
    assert speed.seconds == 750 * speed.seconds_per_step


def test_its_sentences_are_random_words_of_the_vocabulary():
    store = random_store(40, seed=1)
    assert set(store.source_ids.tolist()) == set(range(NUM_SPECIAL, 40))
    for lengths in (store.source_lengths, store.target_lengths):
        assert lengths.min() >= 1
        assert np.mean(lengths) == pytest.approx(MEAN_LENGTH, rel=0.05)
    assert np.abs(store.source_lengths.astype(int) - store.target_lengths).max() <= 2
    assert np.array_equal(store.target_ids, random_store(40, seed=1).target_ids)
    assert not np.array_equal(store.target_ids[:50], random_store(40, seed=2).target_ids[:50])
