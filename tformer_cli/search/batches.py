"""Batches of sentences within a token budget, halved where memory runs out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch

from tformer_cli.device import empty_cache, suppress_out_of_memory
from tformer_cli.errors import DeviceError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def length_batches(
    widths: Sequence[int], counts: Sequence[int], max_tokens: int
) -> Iterator[list[int]]:
    """Yield the indices of sentences in batches of similar length, longest first.

    A sentence has `counts` rows of `widths` tokens; without any it is left out. The first batch
    needs most memory, so a shortage shows at once.
    """
    indices = [index for index, width in enumerate(widths) if width and counts[index]]
    indices.sort(key=lambda index: -widths[index])
    return padded_batches(indices, lambda index: (counts[index], widths[index]), max_tokens)


def padded_batches(
    items: Iterable[_Item], shape: Callable[[_Item], tuple[int, int]], max_tokens: int
) -> Iterator[list[_Item]]:
    """Yield batches of items, in their order, with at most `max_tokens`, padding included.

    `shape` says how many rows and columns an item has. One that is larger is a batch of its own.
    """
    batch: list[_Item] = []
    num_rows = width = 0
    for item in items:
        rows, columns = shape(item)
        if batch and (num_rows + rows) * max(width, columns) > max_tokens:
            yield batch
            batch, num_rows, width = [], 0, 0
        batch.append(item)
        num_rows, width = num_rows + rows, max(width, columns)
    if batch:
        yield batch


def halving_on_oom(
    work: Callable[[list[int]], _Result], batches: Iterable[list[int]], device: torch.device
) -> Iterator[tuple[list[int], _Result]]:
    """Yield batches of indices with the results of `work`; one that runs out of memory is halved.

    Raises:
        DeviceError: memory does not suffice for a single sentence.
    """
    for batch in batches:
        waiting = [batch]
        while waiting:
            part = waiting.pop()
            with suppress_out_of_memory():
                yield part, work(part)
                continue
            if len(part) == 1:
                raise DeviceError(
                    str(device),
                    "memory ran out on a single sentence and its translations",
                    remedy="use shorter lines, or fewer translations of each",
                )
            empty_cache(device)
            half = (len(part) + 1) // 2
            waiting += [part[half:], part[:half]]
