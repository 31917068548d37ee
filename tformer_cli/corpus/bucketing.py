"""Bucketing by length: the batches of an epoch and their order.

The plan of an epoch is a function of (seed, epoch) and the corpus, so a position in the data is
two integers (`DataPosition`), and resuming there repeats and skips nothing.
"""

from array import array
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from tformer_cli.corpus.store import PairWeights, slices

# Batches sorted by length together: enough for little padding, few enough for batches to differ
# between epochs.
POOL_BATCHES = 64

# Fraction of an epoch after which the next epoch is planned.
PREFETCH_FROM = 0.9


@dataclass(frozen=True, slots=True)
class DataPosition:
    """The next batch to train on: its epoch, and its index in that epoch's plan."""

    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The batches of one epoch, each an array of example indices.

    Batch b is examples[stops[b] : stops[b + 1]], and `order` is the order of training. These flat
    arrays take four bytes an example and a few a batch.
    """

    examples: np.ndarray
    stops: np.ndarray
    order: np.ndarray

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> np.ndarray:
        batch = self.order[index]
        return self.examples[self.stops[batch] : self.stops[batch + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[index] for index in range(len(self)))


@dataclass(frozen=True, slots=True)
class Bucketing:
    """Batches of examples of similar length within a token budget.

    Attributes:
        source_lengths: (n,) tokens of each example, special ones included.
        target_lengths: (n,) of the target.
        weights: (n,) number of times an epoch sees each example.
        batch_tokens: maximum padded tokens of either side; a longer example is its own batch.
        seed: determines the order, with the epoch.
    """

    source_lengths: np.ndarray
    target_lengths: np.ndarray
    weights: np.ndarray | PairWeights
    batch_tokens: int
    seed: int

    def plan(self, epoch: int) -> EpochPlan:
        """Return the batches of one epoch."""
        random = np.random.default_rng((self.seed, epoch))
        examples = self._sample(random)
        random.shuffle(examples)
        num_tokens = sum(
            int(self.target_lengths[examples[span]].sum(dtype=np.int64))
            for span in slices(len(examples))
        )
        mean_length = max(1.0, num_tokens / max(1, len(examples)))
        pool_size = max(1, int(POOL_BATCHES * self.batch_tokens / mean_length))
        stops = array("q", [0])
        for start in range(0, len(examples), pool_size):
            longest = self._sort(examples[start : start + pool_size])
            stops.extend(start + stop for stop in _batch_stops(longest, self.batch_tokens))
        return EpochPlan(examples, np.asarray(stops), random.permutation(len(stops) - 1))

    def _sample(self, random: np.random.Generator) -> np.ndarray:
        """Return example indices, each floor(weight) or ceil(weight) times."""
        num_examples = len(self.weights)
        max_samples = sum(
            int(np.ceil(self.weights[span]).sum(dtype=np.int64)) for span in slices(num_examples)
        )
        samples = np.empty(max_samples, dtype=np.int32 if num_examples < 2**31 else np.int64)
        num_samples = 0
        for span in slices(num_examples):
            weights = self.weights[span]
            times = np.floor(weights).astype(np.int64)
            times += random.random(len(times)) < weights - times
            repeated = np.repeat(np.arange(span.start, span.stop), times)
            samples[num_samples : num_samples + len(repeated)] = repeated
            num_samples += len(repeated)
        return samples[:num_samples]

    def _sort(self, pool: np.ndarray) -> np.ndarray:
        """Sort a pool by length in place; return the longer side of each example."""
        source = self.source_lengths[pool].astype(np.int64)
        target = self.target_lengths[pool].astype(np.int64)
        longest = np.maximum(source, target)
        # Both sides are padded: the longer one leads, the other breaks ties.
        by_length = np.lexsort((source + target, longest))
        pool[:] = pool[by_length]
        in_order: np.ndarray = longest[by_length]
        return in_order


class EpochPlans:
    """Cached plans of a bucketing, made in a thread: of the current epoch and the next one."""

    def __init__(self, bucketing: Bucketing) -> None:
        self._bucketing = bucketing
        self._planner = ThreadPoolExecutor(1)
        self._plans: dict[int, Future[EpochPlan]] = {}

    def __getitem__(self, epoch: int) -> EpochPlan:
        self.prefetch(epoch)
        self._plans = {
            kept: self._plans[kept] for kept in self._plans if epoch <= kept <= epoch + 1
        }
        return self._plans[epoch].result()

    def prefetch(self, epoch: int) -> None:
        """Start to plan an epoch, unless it is cached."""
        if epoch not in self._plans:
            self._plans[epoch] = self._planner.submit(self._bucketing.plan, epoch)

    def batches_from(
        self, data_position: DataPosition
    ) -> Iterator[tuple[np.ndarray, DataPosition]]:
        """Yield batches forever, each with the data position after it."""
        epoch, start = data_position.epoch, data_position.batch
        while True:
            plan = self[epoch]
            for index in range(start, len(plan)):
                is_last = index + 1 == len(plan)
                if index + 1 > PREFETCH_FROM * len(plan):
                    self.prefetch(epoch + 1)
                yield (
                    plan[index],
                    DataPosition(epoch + 1) if is_last else DataPosition(epoch, index + 1),
                )
            epoch, start = epoch + 1, 0


def _batch_stops(longest: np.ndarray, batch_tokens: int) -> Iterator[int]:
    """Yield the stop of each batch, before the example that would exceed the budget."""
    # Lengths ascend, so the last example of a batch has its width.
    start = 0
    while start < len(longest):
        widths = longest[start : start + max(1, batch_tokens // int(longest[start]))]
        padded = widths * np.arange(1, len(widths) + 1)
        start += max(1, int(np.searchsorted(padded, batch_tokens, side="right")))
        yield start
