"""Batches of an epoch, bucketed by length, and the position in them.

The plan of an epoch is a function of (seed, epoch) and the corpus, so a position in the data is
two integers (`DataPosition`), and resuming there repeats and skips nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from tformer_cli.corpus.batch import Batch, collate
from tformer_cli.corpus.store import BidirectionalStore, Example, PairWeights, TokenStore, slices
from tformer_cli.text.special_tokens import BOS_ID

# Batches sorted by length together: enough for little padding, few enough for batches to differ
# between epochs.
POOL_BATCHES = 64

# Fraction of an epoch after which the next epoch is planned.
PREFETCH_FROM = 0.9

# Gives examples the form in which an epoch sees them.
ExampleChange = Callable[[Sequence[Example], int], list[Example]]

# The batches of an epoch in the order of training, each an array of samples: of n examples, number
# i is i where an epoch has it for the first time, then i + n, i + 2 n and so on.
EpochPlan = list[np.ndarray]


@dataclass(frozen=True, slots=True)
class DataPosition:
    """The next batch to train on: its epoch, and its index in that epoch's plan."""

    epoch: int = 0
    batch: int = 0

    def next_epoch(self) -> "DataPosition":
        """Return the beginning of the first epoch from which no batch was taken."""
        return self if self.batch == 0 else DataPosition(self.epoch + 1)


@dataclass(frozen=True, slots=True)
class Bucketing:
    """Batches of examples of similar length within a token budget."""

    source_lengths: np.ndarray  # (n,) tokens of each source, special ones included
    target_lengths: np.ndarray  # (n,) of each target
    weights: np.ndarray | PairWeights  # (n,) number of times an epoch sees each example
    batch_tokens: int  # maximum padded tokens of either side; a longer example is its own batch
    seed: int  # determines the order, with the epoch

    def plan(self, epoch: int) -> EpochPlan:
        """Return the batches of one epoch."""
        random = np.random.default_rng((self.seed, epoch))
        samples = self._sample(random)
        random.shuffle(samples)
        num_tokens = sum(
            int(self.target_lengths[samples[span] % len(self.weights)].sum(dtype=np.int64))
            for span in slices(len(samples))
        )
        mean_length = max(1.0, num_tokens / max(1, len(samples)))
        pool_size = max(1, int(POOL_BATCHES * self.batch_tokens / mean_length))
        batches: EpochPlan = []
        for start in range(0, len(samples), pool_size):
            pool = samples[start : start + pool_size]
            batches += _split(pool, self._sort(pool), self.batch_tokens)
        return [batches[index] for index in random.permutation(len(batches)).tolist()]

    def _sample(self, random: np.random.Generator) -> np.ndarray:
        """Return samples of the examples, each floor(weight) or ceil(weight) times."""
        num_examples = len(self.weights)
        max_samples = max_times = 0
        for span in slices(num_examples):
            times = np.ceil(self.weights[span]).astype(np.int64)
            max_samples += int(times.sum())
            max_times = max(max_times, int(times.max()))
        fits = num_examples * max_times < 2**31
        samples = np.empty(max_samples, dtype=np.int32 if fits else np.int64)
        num_samples = 0
        for span in slices(num_examples):
            weights = self.weights[span]
            times = np.floor(weights).astype(np.int64)
            times += random.random(len(times)) < weights - times
            repeated = np.repeat(np.arange(span.start, span.stop), times)
            firsts = np.repeat(np.cumsum(times) - times, times)
            repeated += num_examples * (np.arange(len(repeated)) - firsts)
            samples[num_samples : num_samples + len(repeated)] = repeated
            num_samples += len(repeated)
        return samples[:num_samples]

    def _sort(self, pool: np.ndarray) -> np.ndarray:
        """Reorder a pool by length; return the longer side of each sample."""
        examples = pool % len(self.weights)
        source, target = self.source_lengths[examples], self.target_lengths[examples]
        longest = np.maximum(source, target)
        # Both sides are padded: the longer one leads, the other breaks ties.
        by_length = np.lexsort((source + target, longest))
        pool[:] = pool[by_length]
        return np.asarray(longest[by_length])


class EpochPlans:
    """Cached plans of a bucketing, made in a thread: of the current epoch and the next one."""

    def __init__(self, bucketing: Bucketing) -> None:
        self._bucketing = bucketing
        self._planner = ThreadPoolExecutor(1)
        self._plans: dict[int, Future[EpochPlan]] = {}

    def __getitem__(self, epoch: int) -> EpochPlan:
        self.prefetch(epoch)
        for other in self._plans.keys() - {epoch, epoch + 1}:
            del self._plans[other]
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
                after = DataPosition(epoch + 1) if is_last else DataPosition(epoch, index + 1)
                yield plan[index], after
            epoch, start = epoch + 1, 0


def _split(pool: np.ndarray, longest: np.ndarray, batch_tokens: int) -> Iterator[np.ndarray]:
    """Yield the batches of a sorted pool; each ends before the example that exceeds the budget."""
    # Lengths ascend, so the last example of a batch has its width.
    start = 0
    while start < len(pool):
        widths = longest[start : start + max(1, batch_tokens // int(longest[start]))]
        padded = widths * np.arange(1, len(widths) + 1)
        size = max(1, int(np.searchsorted(padded, batch_tokens, side="right")))
        yield pool[start : start + size]
        start += size


def epoch_plans(
    store: TokenStore | BidirectionalStore, *, batch_tokens: int, seed: int
) -> EpochPlans:
    """Return the batches of each epoch; `batch_tokens` is the budget of one optimizer step."""
    return EpochPlans(_bucketing(store, batch_tokens, seed))


def training_micro_batches(
    store: TokenStore | BidirectionalStore,
    plans: EpochPlans,
    *,
    accumulate: int,
    data_position: DataPosition,
    start_id: int = BOS_ID,
    rank: int = 0,
    num_ranks: int = 1,
    change: ExampleChange | None = None,
) -> Iterator[tuple[list[Batch], DataPosition]]:
    """Yield forever the micro-batches of each optimizer step, and the data position after it.

    Each batch is split by rows into `accumulate` micro-batches for each rank. A rank beyond the
    rows of a batch gets an empty list. `change`, if any, is applied to the examples of each.
    """
    position = data_position
    for samples, next_position in plans.batches_from(data_position):
        parts = np.array_split(samples, min(accumulate * num_ranks, len(samples)))
        own = [store.examples(part) for part in parts[rank::num_ranks]]
        if change is not None:
            own = [change(examples, position.epoch) for examples in own]
        yield [collate(examples, start_id) for examples in own], next_position
        position = next_position


def batches_in_order(
    store: TokenStore, *, batch_tokens: int, start_id: int = BOS_ID
) -> Iterator[Batch]:
    """Yield every example once, in batches of similar length."""
    for samples in _bucketing(store, batch_tokens, seed=0).plan(epoch=0):
        yield collate(store.examples(samples), start_id)


def _bucketing(store: TokenStore | BidirectionalStore, batch_tokens: int, seed: int) -> Bucketing:
    return Bucketing(
        source_lengths=_with_special(store.source_lengths),  # EOS
        target_lengths=_with_special(store.target_lengths),  # BOS of the input, EOS of the labels
        weights=store.weights,
        batch_tokens=batch_tokens,
        seed=seed,
    )


def _with_special(lengths: np.ndarray) -> np.ndarray:
    """Add one special token to each length, in 16 bits if sums of two fit: they sort faster."""
    fits = int(lengths.max(initial=0)) + 1 < 1 << 15
    return lengths.astype(np.uint16 if fits else np.int32) + 1
