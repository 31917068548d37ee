"""A stepper without a model: what comes next depends on the last token and on the sentence."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tformer_cli.search.continuous_batching import Search, decode_all
from tformer_cli.search.engine import Hypothesis, Request, SpecialTokens
from tformer_cli.search.stepper import Stepper

START, END = 0, 1
SPECIAL_TOKENS = SpecialTokens(bos=START, eos=END, suppressed=(START,))
CPU = torch.device("cpu")


class TableStepper(Stepper):
    """Reads logits off a table (sentences, V, V): row `last token`, column `next token`."""

    def __init__(self, tables: Tensor) -> None:
        self.tables = tables

    def start(self, sentences: Sequence[Sequence[int]], num_beams: int) -> None:
        self.num_beams = num_beams
        self.numbers = torch.tensor([sentence[0] for sentence in sentences])

    def insert(self, slots: Tensor, sentences: Sequence[Sequence[int]], lookahead) -> None:
        self.numbers[slots] = torch.tensor([sentence[0] for sentence in sentences])

    def step(self, ids: Tensor) -> Tensor:
        assert ids.shape == (len(self.numbers), self.num_beams)
        return self.tables[self.numbers[:, None], ids].clone()

    def reorder(self, beam_indices: Tensor) -> None:
        assert beam_indices.shape == (len(self.numbers), self.num_beams)

    def select(self, slots: Tensor) -> None:
        self.numbers = self.numbers[slots]


def search_requests(
    tables: Tensor, search: Search, requests: Sequence[Request], num_slots: int | None = None
) -> list[list[Hypothesis]]:
    """Search requests whose first id names a table, so many at a time."""
    room = num_slots or len(requests)
    found = decode_all(TableStepper(tables), search, requests, lambda _: room)
    return [hypotheses for _, hypotheses in sorted(found, key=lambda one: one[0])]


def search_tables(
    tables: Tensor, search: Search, num_slots: int | None = None
) -> list[list[Hypothesis]]:
    """Search a sentence for each table."""
    requests = [Request((number, END), number=number) for number in range(len(tables))]
    return search_requests(tables, search, requests, num_slots)


def random_tables(seed: int, *, sentences: int, vocab_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(
        sentences, vocab_size, vocab_size, generator=generator, dtype=torch.float64
    ).mul(2)


def ascending_tables(seed: int, *, sentences: int, vocab_size: int) -> Tensor:
    """Tables by which ids ascend, so that no two sequences take the same transitions and tie."""
    tables = random_tables(seed, sentences=sentences, vocab_size=vocab_size)
    back = torch.full((vocab_size, vocab_size), -torch.inf).tril()
    tables[:, :, END + 1 :] += back[:, END + 1 :]
    return tables


def next_log_probs(table: Tensor, last: int, *, is_first: bool) -> list[float]:
    """The distribution that a search must see, computed by itself."""
    logits = table[last].clone()
    logits[START] = -torch.inf
    if is_first:
        logits[END] = -torch.inf
    return (logits - logits.logsumexp(0)).tolist()
