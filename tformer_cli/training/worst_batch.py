"""The batches that cost most memory, of all that a budget of tokens allows."""

from typing import NamedTuple

import numpy as np

from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.corpus.store import TokenStore, build_store
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.text.vocabulary import NUM_SPECIAL


class Shape(NamedTuple):
    """A batch without padding.

    Attributes:
        rows: pairs of sentences.
        width: tokens of each side of each pair, one special token included.
    """

    rows: int
    width: int


def worst_case_shapes(training: TrainingConfig, max_length: int) -> list[Shape]:
    """Return the shapes one of which costs most memory: one or two.

    Both sides are as long as they may be, for every token costs something. Whatever the model,
    memory is a sum of what grows with the tokens of a micro-batch and of what grows with the
    pairs of tokens that attention weighs. Rows are whole, so the widest sentences may leave much
    of the budget unused: the shape with most tokens and that with most pairs can be two.

    Args:
        training: the budget, and into how many micro-batches a batch is cut.
        max_length: tokens of the longest sentence that is kept, without special ones.
    """
    # No sentence is empty, so two tokens are the shortest.
    rows = np.arange(1, training.batch_tokens // 2 + 1)
    widths = np.minimum(training.batch_tokens // rows, max_length + 1)
    # The largest of the micro-batches, as numpy.array_split cuts them.
    tokens = -(-rows // training.gradient_accumulation_steps) * widths
    most = {
        int(np.lexsort((rows, second, first))[-1])
        for first, second in ((tokens, tokens * widths), (tokens * widths, tokens))
    }
    return [Shape(int(rows[place]), int(widths[place])) for place in sorted(most)]


def worst_case_store(shape: Shape, tokenizers: Tokenizers, seed: int) -> TokenStore:
    """Return a text of random tokens that is one batch of that shape."""
    random = np.random.default_rng(seed)
    size = shape.rows, shape.width - 1
    sources, targets = (
        random.integers(NUM_SPECIAL, side.size, size).tolist()
        for side in (tokenizers.source, tokenizers.target)
    )
    return build_store(
        (source, target, 1.0) for source, target in zip(sources, targets, strict=True)
    )
