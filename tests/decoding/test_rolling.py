"""Places of sentences that are done: who takes them, and how far they are read on."""

import torch
from decoding.tables import CPU, END, ROLES, TableStepper, random_tables
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig
from tformer_cli.decoding.beam import BeamSearch
from tformer_cli.decoding.greedy import GreedySearch
from tformer_cli.decoding.request import Request
from tformer_cli.decoding.rolling import search_all

MOST = 9
SEARCHES = [
    lambda: GreedySearch(GreedyConfig(max_length=MOST), ROLES, CPU),
    lambda: BeamSearch(BeamConfig(size=2, max_length=MOST), ROLES, CPU),
]


class LearnedPositions(TableStepper):
    """Counts the tokens of each place; there is no position beyond the last of a translation."""

    def start(self, sentences, num_rows):
        super().start(sentences, num_rows)
        self.lengths = torch.zeros(len(sentences), dtype=torch.long)

    def admit(self, places, sentences):
        super().admit(places, sentences)
        self.lengths[places] = 0

    def step(self, ids: Tensor) -> Tensor:
        self.lengths += 1
        assert self.lengths.max() <= MOST
        return super().step(ids)

    def keep(self, places):
        super().keep(places)
        self.lengths = self.lengths[places]


@settings(max_examples=12)
@given(st.integers(0, 10_000), st.integers(1, 60), st.sampled_from(SEARCHES))
def test_no_place_is_read_beyond_the_longest_translation(seed, num_places, search):
    tables = random_tables(seed, sentences=70, vocab_size=5)
    # Some sentences end at once, and some at the limit alone.
    tables[::3, :, END] += 4
    tables[1::7, :, END] = -torch.inf
    asked = [Request((number, END)) for number in range(len(tables))]
    found = search_all(LearnedPositions(tables), search(), asked, num_places, CPU)
    assert sorted(number for number, _ in found) == list(range(len(tables)))
