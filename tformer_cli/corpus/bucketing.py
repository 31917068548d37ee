"""Which examples share a batch, and in which order the batches come.

A plan of one epoch is a function of (seed, epoch) and of the corpus alone, so a position in
the data is two integers (`DataPosition`), and resuming there repeats and skips nothing.
"""

from array import array
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from tformer_cli.corpus.store import slices
from tformer_cli.corpus.weights import PairWeights

# A pool this many batches deep holds enough sentences of each length to pad little, and few
# enough that who meets whom in a batch changes from epoch to epoch.
POOL_BATCHES = 64

# Share of an epoch after which the plan of the next one is made.
PREFETCH_FROM = 0.9


@dataclass(frozen=True, slots=True)
class DataPosition:
    """The next batch to train on: its epoch, and its place in that epoch's plan."""

    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The batches of one epoch, each an array of example indices.

    They lie in flat arrays: four bytes an example and a few a batch, whatever the corpus.

    Attributes:
        examples: (m,) example indices, one batch after the other.
        stops: (k + 1,) batch b is examples[stops[b] : stops[b + 1]].
        order: (k,) which batch comes when.
    """

    examples: np.ndarray
    stops: np.ndarray
    order: np.ndarray

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: int) -> np.ndarray:
        batch = self.order[place]
        return self.examples[self.stops[batch] : self.stops[batch + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[place] for place in range(len(self)))


@dataclass(frozen=True, slots=True)
class Bucketing:
    """Batches of examples of similar length within a token budget.

    Attributes:
        source_lengths: (n,) tokens that each example has in a batch, special tokens included.
        target_lengths: (n,) likewise.
        weights: (n,) how many times an epoch sees each example.
        batch_tokens: the budget: neither side of a batch is larger when padded. An example
            that is longer than the budget by itself is a batch of its own.
        seed: decides the order with the epoch.
    """

    source_lengths: np.ndarray
    target_lengths: np.ndarray
    weights: np.ndarray | PairWeights
    batch_tokens: int
    seed: int

    def plan(self, epoch: int) -> EpochPlan:
        """Return the batches of one epoch."""
        random = np.random.default_rng((self.seed, epoch))
        examples = self._drawn(random)
        random.shuffle(examples)
        num_tokens = sum(
            int(self.target_lengths[examples[places]].sum(dtype=np.int64))
            for places in slices(len(examples))
        )
        mean_length = max(1.0, num_tokens / max(1, len(examples)))
        pool_size = max(1, int(POOL_BATCHES * self.batch_tokens / mean_length))
        stops = array("q", [0])
        for start in range(0, len(examples), pool_size):
            longest = self._sort(examples[start : start + pool_size])
            stops.extend(start + stop for stop in _cuts(longest, self.batch_tokens))
        return EpochPlan(examples, np.asarray(stops), random.permutation(len(stops) - 1))

    def _drawn(self, random: np.random.Generator) -> np.ndarray:
        """Return example indices, each floor(weight) or ceil(weight) times."""
        num_examples = len(self.weights)
        most = sum(
            int(np.ceil(self.weights[places]).sum(dtype=np.int64))
            for places in slices(num_examples)
        )
        drawn = np.empty(most, dtype=np.int32 if num_examples < 2**31 else np.int64)
        num_drawn = 0
        for places in slices(num_examples):
            weights = self.weights[places]
            times = np.floor(weights).astype(np.int64)
            times += random.random(len(times)) < weights - times
            repeated = np.repeat(np.arange(places.start, places.stop), times)
            drawn[num_drawn : num_drawn + len(repeated)] = repeated
            num_drawn += len(repeated)
        return drawn[:num_drawn]

    def _sort(self, pool: np.ndarray) -> np.ndarray:
        """Sort a pool by length, in place, and return the longer length of each example."""
        source = self.source_lengths[pool].astype(np.int64)
        target = self.target_lengths[pool].astype(np.int64)
        longest = np.maximum(source, target)
        # Both sides are padded: the longer one leads, the other breaks ties.
        by_length = np.lexsort((source + target, longest))
        pool[:] = pool[by_length]
        in_order: np.ndarray = longest[by_length]
        return in_order


class EpochPlans:
    """The plans of a bucketing, each made once: that of the next epoch while one is trained on.

    One is kept, and the next one from the end of its epoch on.
    """

    def __init__(self, bucketing: Bucketing) -> None:
        """Make plans in a thread, when they are asked for."""
        self._bucketing = bucketing
        self._maker = ThreadPoolExecutor(1)
        self._plans: dict[int, Future[EpochPlan]] = {}

    def __getitem__(self, epoch: int) -> EpochPlan:
        self.prefetch(epoch)
        self._plans = {
            kept: self._plans[kept] for kept in self._plans if epoch <= kept <= epoch + 1
        }
        return self._plans[epoch].result()

    def prefetch(self, epoch: int) -> None:
        """Begin to make the plan of an epoch, unless it is there."""
        if epoch not in self._plans:
            self._plans[epoch] = self._maker.submit(self._bucketing.plan, epoch)

    def batches_from(self, position: DataPosition) -> Iterator[tuple[np.ndarray, DataPosition]]:
        """Yield batches for ever from `position` on, each with the position that follows it."""
        epoch, done = position.epoch, position.batch
        while True:
            plan = self[epoch]
            for place in range(done, len(plan)):
                if place + 1 > PREFETCH_FROM * len(plan):
                    self.prefetch(epoch + 1)
                following = (
                    DataPosition(epoch, place + 1)
                    if place + 1 < len(plan)
                    else DataPosition(epoch + 1)
                )
                yield plan[place], following
            epoch, done = epoch + 1, 0


def _cuts(longest: np.ndarray, batch_tokens: int) -> Iterator[int]:
    """Yield where each batch ends: wherever the next example would burst the budget.

    Args:
        longest: lengths of examples, ascending, so that the last of a batch is its width.
        batch_tokens: the budget.
    """
    start = 0
    while start < len(longest):
        widths = longest[start : start + max(1, batch_tokens // int(longest[start]))]
        padded = widths * np.arange(1, len(widths) + 1)
        start += max(1, int(np.searchsorted(padded, batch_tokens, side="right")))
        yield start
