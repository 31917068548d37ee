"""Sentences of similar length, together."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch

from tformer_cli.device import give_back_memory, is_out_of_memory
from tformer_cli.errors import DeviceError

Result = TypeVar("Result")


def length_batches(
    widths: Sequence[int], counts: Sequence[int], most_tokens: int
) -> Iterator[list[int]]:
    """Yield the numbers of sentences in batches of similar length, longest first.

    The longest batch needs most memory, so where it does not fit that shows at once. A sentence
    without width or without rows is in none.

    Args:
        widths: tokens that each row of a sentence takes.
        counts: rows that each sentence has.
        most_tokens: of a batch, padded; a sentence with more is alone.
    """
    numbers = [number for number, width in enumerate(widths) if width and counts[number]]
    batch: list[int] = []
    num_rows = 0
    for number in sorted(numbers, key=lambda number: -widths[number]):
        if batch and (num_rows + counts[number]) * widths[batch[0]] > most_tokens:
            yield batch
            batch, num_rows = [], 0
        batch.append(number)
        num_rows += counts[number]
    if batch:
        yield batch


def each_in_memory(
    work: Callable[[list[int]], Result], batches: Iterable[list[int]], device: torch.device
) -> Iterator[tuple[list[int], Result]]:
    """Yield batches with what `work` returns of each; what memory has no room for is halved.

    Args:
        work: takes the numbers of a batch.
        batches: numbers of sentences.
        device: whose memory it is.

    Raises:
        DeviceError: it has no room for a single sentence.
    """
    for batch in batches:
        waiting = [batch]
        while waiting:
            part = waiting.pop()
            try:
                result = work(part)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if len(part) == 1:
                    raise DeviceError(
                        str(device),
                        "memory ran out on a single sentence and its translations",
                        remedy="use shorter lines, or fewer translations of each",
                    ) from error
            else:
                yield part, result
                continue
            # Out here the error has gone, and with it the tensors that its traceback kept alive.
            give_back_memory(device)
            half = (len(part) + 1) // 2
            waiting += [part[half:], part[:half]]
