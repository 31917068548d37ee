"""A search over any number of sentences, a few of them at a time.

When a sentence is done, one that waits takes its place, so no place idles while the longest
translation is written on. An idle place is read on with the others, but never ahead of them all.
"""

import itertools
from collections.abc import Iterator, Sequence

import torch

from tformer_cli.decoding.hypothesis import Hypothesis
from tformer_cli.decoding.request import Request
from tformer_cli.decoding.search import Search
from tformer_cli.decoding.stepper import Stepper

# Reading new sentences, and leaving idle places out, pay when there are some of them.
IDLE_SHARE = 0.05


def search_all(
    stepper: Stepper,
    search: Search,
    requests: Sequence[Request],
    num_places: int,
    device: torch.device,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Yield the number of each sentence, counted from 0, and its hypotheses when it is done.

    Args:
        stepper: says what may come next.
        search: decides how rows go on.
        requests: they begin in this order.
        num_places: sentences at work at a time.
        device: where the logits are.
    """
    waiting = iter(enumerate(requests))
    first = list(itertools.islice(waiting, num_places))
    if not first:
        return
    owners: list[int | None] = [number for number, _ in first]
    num_steps, begun = 0, [0] * len(owners)
    stepper.start([request.source for _, request in first], search.num_rows)
    search.start([request for _, request in first])
    while True:
        advance = search.advance(stepper.step(search.newest()))
        num_steps += 1
        for place, hypotheses in advance.ended.items():
            number, owners[place] = owners[place], None
            assert number is not None
            yield number, hypotheses
        idle = [place for place, owner in enumerate(owners) if owner is None]
        if advance.origins is not None and len(idle) < len(owners):
            stepper.reorder(advance.origins)
        # Learned positions may end where the longest translation does, so no place is read on that
        # is older than all sentences at work.
        at_work = [step for step, owner in zip(begun, owners, strict=True) if owner is not None]
        is_ahead = min(begun) < min(at_work, default=num_steps)
        if len(idle) < max(1, IDLE_SHARE * len(owners)) and not is_ahead:
            continue
        if newcomers := list(itertools.islice(waiting, len(idle))):
            places = torch.tensor(idle[: len(newcomers)], device=device)
            stepper.admit(places, [request.source for _, request in newcomers])
            search.admit(places, [request for _, request in newcomers])
            for place, (number, _) in zip(idle, newcomers, strict=False):
                owners[place], begun[place] = number, num_steps
        busy = closed_up([owner is not None for owner in owners])
        if not busy:
            return
        if len(busy) < len(owners):
            places = torch.tensor(busy, device=device)
            stepper.keep(places)
            search.keep(places)
            owners, begun = [owners[place] for place in busy], [begun[place] for place in busy]


def closed_up(is_busy: Sequence[bool]) -> list[int]:
    """Return the busy places, the last ones in the gaps among the first, so that few move."""
    busy = [place for place, is_one in enumerate(is_busy) if is_one]
    last = iter(reversed(busy))
    return [place if is_busy[place] else next(last) for place in range(len(busy))]
