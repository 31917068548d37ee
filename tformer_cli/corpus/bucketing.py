"""Which examples share a batch, and in which order the batches come.

A plan of one epoch is a function of (seed, epoch) and of the corpus alone, so a position in
the data is two integers (`Position`), and going on from there repeats nothing and skips nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

# A pool this many batches deep holds enough sentences of each length to pad little, and few
# enough that who meets whom in a batch changes from epoch to epoch.
POOL_BATCHES = 64


@dataclass(frozen=True, slots=True)
class Position:
    """The next batch to train on: its epoch, and its place in that epoch's plan."""

    epoch: int = 0
    batch: int = 0


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
    weights: np.ndarray
    batch_tokens: int
    seed: int

    def plan(self, epoch: int) -> list[np.ndarray]:
        """Return the batches of one epoch, each an array of example indices."""
        random = np.random.default_rng((self.seed, epoch))
        order = random.permutation(self._drawn(random))
        mean_length = max(1.0, float(np.mean(self.target_lengths[order])))
        pool_size = max(1, int(POOL_BATCHES * self.batch_tokens / mean_length))
        batches: list[np.ndarray] = []
        for start in range(0, len(order), pool_size):
            batches.extend(self._cut(order[start : start + pool_size]))
        return [batches[i] for i in random.permutation(len(batches))]

    def batches_from(self, position: Position) -> Iterator[tuple[np.ndarray, Position]]:
        """Yield batches for ever from `position` on, each with the position that follows it."""
        epoch, done = position.epoch, position.batch
        while True:
            plan = self.plan(epoch)
            for place in range(done, len(plan)):
                following = (
                    Position(epoch, place + 1) if place + 1 < len(plan) else Position(epoch + 1)
                )
                yield plan[place], following
            epoch, done = epoch + 1, 0

    def _drawn(self, random: np.random.Generator) -> np.ndarray:
        """Return example indices, each floor(weight) or ceil(weight) times."""
        times = np.floor(self.weights).astype(np.int64)
        times += random.random(len(times)) < self.weights - times
        return np.repeat(np.arange(len(times)), times)

    def _cut(self, pool: np.ndarray) -> Iterator[np.ndarray]:
        """Sort a pool by length and cut it wherever the next example would burst the budget."""
        source, target = self.source_lengths[pool], self.target_lengths[pool]
        # Both sides are padded: the longer one leads, the other breaks ties.
        by_length = np.lexsort((source + target, np.maximum(source, target)))
        pool, source, target = pool[by_length], source[by_length], target[by_length]
        start, widest_source, widest_target = 0, 0, 0
        for i in range(len(pool)):
            widest_source = max(widest_source, int(source[i]))
            widest_target = max(widest_target, int(target[i]))
            rows = i - start + 1
            if rows > 1 and rows * max(widest_source, widest_target) > self.batch_tokens:
                yield pool[start:i]
                start, widest_source, widest_target = i, int(source[i]), int(target[i])
        yield pool[start:]
