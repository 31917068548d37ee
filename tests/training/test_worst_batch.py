"""The worst batch: no other one has more tokens, or more pairs of them."""

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.corpus.batch import Batch
from tformer_cli.corpus.bucketing import DataPosition
from tformer_cli.corpus.pipeline import epoch_plans, training_micro_batches
from tformer_cli.corpus.store import TokenStore, build_store
from tformer_cli.text.tokenizer import build_tokenizers
from tformer_cli.text.vocabulary import NUM_SPECIAL
from tformer_cli.training.worst_batch import Shape, worst_case_shapes, worst_case_store


def groups(store: TokenStore, training: TrainingConfig, seed: int = 1):
    return (
        batches
        for batches, _ in training_micro_batches(
            store,
            epoch_plans(store, batch_tokens=training.batch_tokens, seed=seed),
            accumulate=training.gradient_accumulation_steps,
            data_position=DataPosition(),
        )
    )


def cost(batch: Batch) -> tuple[int, int]:
    """Tokens of a micro-batch on its longer side, and pairs of them."""
    width = max(batch.source.shape[1], batch.target_in.shape[1])
    return len(batch.source) * width, len(batch.source) * width**2


def text(*rows: tuple[int, int]) -> TokenStore:
    return build_store(
        ([NUM_SPECIAL] * source, [NUM_SPECIAL] * target, 1.0) for source, target in rows
    )


budgets = st.builds(
    TrainingConfig,
    batch_tokens=st.integers(20, 120),
    gradient_accumulation_steps=st.sampled_from([1, 2, 3, 8]),
)


def worst_costs(training: TrainingConfig, max_length: int) -> np.ndarray:
    """The highest number of tokens and of pairs of tokens of the micro-batches at those shapes."""
    costs = [
        cost(batch)
        for shape in worst_case_shapes(training, max_length)
        for batch in next(groups(text(*[(shape.width - 1,) * 2] * shape.rows), training))
    ]
    return np.max(costs, axis=0)


@settings(max_examples=15)
@given(
    budgets,
    st.integers(3, 19),
    st.lists(st.tuples(st.integers(1, 19), st.integers(1, 19)), min_size=1, max_size=80),
)
def test_no_batch_of_a_text_costs_more(training, max_length, lengths):
    store = text(*[(min(s, max_length), min(t, max_length)) for s, t in lengths])
    found = [cost(batch) for group in islice(groups(store, training), 12) for batch in group]
    assert (np.max(found, axis=0) <= worst_costs(training, max_length)).all()


@settings(max_examples=15)
@given(budgets, st.integers(3, 19))
def test_some_batch_of_equal_lengths_costs_as_much(training, max_length):
    costs = []
    for width in range(2, max_length + 2):
        for rows in range(1, training.batch_tokens // width + 1):
            part = len(
                np.array_split(range(rows), min(training.gradient_accumulation_steps, rows))[0]
            )
            costs.append((part * width, part * width**2))
    assert np.max(costs, axis=0).tolist() == worst_costs(training, max_length).tolist()


@pytest.mark.parametrize(
    ("batch_tokens", "max_length", "shapes"),
    [
        (4096, 256, [Shape(16, 256)]),
        (300, 256, [Shape(1, 257), Shape(2, 150)]),
        (4100, 256, [Shape(16, 256), Shape(20, 205)]),
        (257, 256, [Shape(1, 257)]),
    ],
)
def test_most_tokens_and_widest_sentences_may_be_two_shapes(batch_tokens, max_length, shapes):
    assert worst_case_shapes(TrainingConfig(batch_tokens=batch_tokens), max_length) == shapes


def test_a_text_of_a_shape_is_one_batch_without_padding():
    tokenizers = build_tokenizers(CharConfig(), lambda: [("abcde", "fgh")], seed=1)
    store = worst_case_store(Shape(3, 7), tokenizers, seed=5)
    ((batch,),) = islice(groups(store, TrainingConfig(batch_tokens=22)), 1)
    assert batch.source.shape == batch.target_in.shape == (3, 7)
    assert batch.source_mask.all()
    assert batch.target_mask.all()
    words = torch.cat((batch.source[:, :-1], batch.target_in[:, 1:]))
    assert words.min() >= NUM_SPECIAL
    assert words.max() < tokenizers.source.size
    assert len(words.unique()) > 2
