"""Streams cut into lists."""

import itertools
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield `size` items at a time, fewer at the end (itertools.batched, from Python 3.12 on)."""
    remaining = iter(items)
    while chunk := list(itertools.islice(remaining, size)):
        yield chunk
