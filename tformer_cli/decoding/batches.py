"""Sentences of similar length, together."""

from collections.abc import Iterator, Sequence


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
