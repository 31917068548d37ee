"""A stepper without a model: what comes next depends on the last token and on the sentence."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tformer_cli.decoding.processors import TokenRoles

START, END = 0, 1
ROLES = TokenRoles(start_id=START, end_id=END, suppressed_ids=(START,))
CPU = torch.device("cpu")


class TableStepper:
    """Reads logits off a table (sentences, V, V): row `last token`, column `next token`."""

    def __init__(self, tables: Tensor) -> None:
        self.tables = tables
        self.rows = torch.empty(0, dtype=torch.long)
        self.beam_size = 0

    def start(self, sentences: Sequence[Sequence[int]], beam_size: int) -> None:
        numbers = torch.tensor([sentence[0] for sentence in sentences])
        self.beam_size = beam_size
        self.rows = numbers.repeat_interleave(beam_size)

    def step(self, ids: Tensor) -> Tensor:
        return self.tables[self.rows, ids].clone()

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        if sentences is not None:
            assert len(rows) == len(sentences) * self.beam_size
        self.rows = self.rows[rows]


def random_tables(seed: int, *, sentences: int, vocab_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(
        sentences, vocab_size, vocab_size, generator=generator, dtype=torch.float64
    ).mul(2)


def next_log_probs(table: Tensor, last: int, *, is_first: bool) -> list[float]:
    """The distribution that a search must see, computed by itself."""
    logits = table[last].clone()
    logits[START] = -torch.inf
    if is_first:
        logits[END] = -torch.inf
    return (logits - logits.logsumexp(0)).tolist()
