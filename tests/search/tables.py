"""A stepper without a model: what comes next depends on the last token and on the sentence."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tformer_cli.search.continuous_batching import search_all
from tformer_cli.search.hypothesis import Hypothesis
from tformer_cli.search.logits_processors import TokenRoles
from tformer_cli.search.request import Request
from tformer_cli.search.search import Search
from tformer_cli.search.stepper import Stepper

START, END = 0, 1
ROLES = TokenRoles(start_id=START, end_id=END, suppressed_ids=(START,))
CPU = torch.device("cpu")


class TableStepper(Stepper):
    """Reads logits off a table (sentences, V, V): row `last token`, column `next token`."""

    def __init__(self, tables: Tensor) -> None:
        self.tables = tables

    def start(self, sentences: Sequence[Sequence[int]], num_rows: int) -> None:
        self.num_rows = num_rows
        self.numbers = torch.tensor([sentence[0] for sentence in sentences])

    def admit(self, places: Tensor, sentences: Sequence[Sequence[int]], coming) -> None:
        self.numbers[places] = torch.tensor([sentence[0] for sentence in sentences])

    def step(self, ids: Tensor) -> Tensor:
        assert ids.shape == (len(self.numbers), self.num_rows)
        return self.tables[self.numbers[:, None], ids].clone()

    def reorder(self, origins: Tensor) -> None:
        assert origins.shape == (len(self.numbers), self.num_rows)

    def keep(self, places: Tensor) -> None:
        self.numbers = self.numbers[places]


def search_requests(
    tables: Tensor, search: Search, requests: Sequence[Request], num_places: int | None = None
) -> list[list[Hypothesis]]:
    """Search requests whose first id names a table, so many at a time."""
    room = num_places or len(requests)
    found = search_all(TableStepper(tables), search, requests, lambda _: room, CPU)
    return [hypotheses for _, hypotheses in sorted(found, key=lambda one: one[0])]


def search_tables(
    tables: Tensor, search: Search, num_places: int | None = None
) -> list[list[Hypothesis]]:
    """Search a sentence for each table."""
    requests = [Request((number, END), number=number) for number in range(len(tables))]
    return search_requests(tables, search, requests, num_places)


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
