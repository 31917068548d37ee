"""A search over any number of sentences, a few of them at a time.

When a sentence is done, one that waits takes its place, so no place idles while the longest
translation is written on; and as sources get shorter there are more places. An idle place is read
on with the others, but never ahead of them all.

All places have room for as many tokens as the longest translation has, and are read as far. So one
that gets far longer than its like, most of all one that never ends, begins anew behind the others.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import torch

from tformer_cli.search.request import Hypothesis, Request
from tformer_cli.search.search import Search
from tformer_cli.search.stepper import Stepper

# Reading new sentences, and leaving idle places out, pay when there are some of them.
IDLE_SHARE = 0.05
# A translation is late when it is so many times as long as is usual for its source. Those of short
# sources vary more.
LATE = 2
SHORT = 16


def decode_all(
    stepper: Stepper,
    search: Search,
    requests: Sequence[Request],
    room: Callable[[int], int],
    device: torch.device,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Yield the number of each sentence, counted from 0, and its hypotheses when it is done.

    Args:
        stepper: says what may come next.
        search: decides how rows go on.
        requests: they begin in this order, longest sources first.
        room: sentences at work at a time where the longest source has so many tokens.
        device: where the logits are.
    """
    if not requests:
        return
    places = _Places(requests, room)
    first = [requests[number] for number in places.numbers()]
    stepper.start([request.source for request in first], search.num_beams)
    search.start(first)
    while True:
        advance = search.advance(stepper)
        places.num_steps += 1
        for place, hypotheses in advance.ended.items():
            yield places.end(place), hypotheses
        if advance.beam_indices is not None and places.numbers():
            stepper.reorder(advance.beam_indices)
        if not places.should_change():
            continue
        places.put_off_late_ones()
        newcomers = places.next_ones()
        if more := max(0, len(newcomers) - len(places.idle())):
            # What they begin as does not matter, for the newcomers take them at once.
            order = torch.tensor([*range(len(places.owners)), *[0] * more], device=device)
            stepper.select(order)
            search.select(order)
            places.add(more)
        if newcomers:
            taken = torch.tensor(places.begin(newcomers), device=device)
            admitted = [requests[number] for number in newcomers]
            sources = [request.source for request in admitted]
            stepper.insert(taken, sources, places.lookahead(len(sources)))
            search.insert(taken, admitted)
        busy = closed_up([owner is not None for owner in places.owners])
        if not busy:
            return
        if len(busy) < len(places.owners):
            order = torch.tensor(busy, device=device)
            stepper.select(order)
            search.select(order)
            places.select(busy)


class _Places:
    """Who is at work, and who waits.

    Attributes:
        owners: the number of the sentence in each place; None is an idle place.
        num_steps: that the search has taken so far.
    """

    def __init__(self, requests: Sequence[Request], room: Callable[[int], int]) -> None:
        self._requests = requests
        self._room = room
        count = min(len(requests), room(len(requests[0].source)))
        self.owners: list[int | None] = list(range(count))
        self.num_steps = 0
        self._begun = [0] * count
        self._waiting = deque(range(count, len(requests)))
        self._put_off: set[int] = set()
        # Of those that are done.
        self._num_written = self._num_read = 0

    def numbers(self) -> list[int]:
        """Return the numbers of the sentences at work."""
        return [owner for owner in self.owners if owner is not None]

    def idle(self) -> list[int]:
        """Return the idle places."""
        return [place for place, owner in enumerate(self.owners) if owner is None]

    def end(self, place: int) -> int:
        """Let the sentence in a place leave, which is done; return its number."""
        number = self._leave(place)
        self._num_written += self.num_steps - self._begun[place]
        self._num_read += self._length(number)
        return number

    def should_change(self) -> bool:
        """Return whether idle places are to be taken, or left out, before the next step."""
        # Learned positions may end where the longest translation does, so no place is read on that
        # is older than all sentences at work.
        at_work = zip(self._begun, self.owners, strict=True)
        oldest = min((begun for begun, owner in at_work if owner is not None), default=0)
        is_ahead = min(self._begun) < oldest
        return is_ahead or len(self.idle()) >= max(1, IDLE_SHARE * len(self.owners))

    def put_off_late_ones(self) -> None:
        """Let late sentences wait behind all others, each of them once."""
        if not self._waiting or not self._num_read:
            return
        usual = max(1.0, self._num_written / self._num_read)
        for place, owner in enumerate(self.owners):
            if owner is None or owner in self._put_off:
                continue
            age = self.num_steps - self._begun[place]
            if age > LATE * usual * max(SHORT, self._length(owner)):
                self._waiting.append(self._leave(place))
                self._put_off.add(owner)

    def next_ones(self) -> list[int]:
        """Return the numbers of those there is room for; they wait no more."""
        together = self.numbers()
        num_at_work = len(together)
        while self._waiting:
            # The first one has the longest source.
            first = min((*together, self._waiting[0]))
            if len(together) >= self._room(self._length(first)):
                break
            together.append(self._waiting.popleft())
        return together[num_at_work:]

    def lookahead(self, newcomers: int) -> Iterator[Sequence[int]]:
        """Yield the sources that come after so many newcomers, with them no more than fit."""
        numbers = islice(self._waiting, len(self.owners) - newcomers)
        return (self._requests[number].source for number in numbers)

    def add(self, count: int) -> None:
        """Add so many idle places."""
        self.owners += [None] * count
        self._begun += [self.num_steps] * count

    def begin(self, numbers: Sequence[int]) -> list[int]:
        """Give these sentences idle places; return which."""
        taken = self.idle()[: len(numbers)]
        for place, number in zip(taken, numbers, strict=True):
            self.owners[place], self._begun[place] = number, self.num_steps
        return taken

    def select(self, places: Sequence[int]) -> None:
        """Keep these places, in this order."""
        self.owners = [self.owners[place] for place in places]
        self._begun = [self._begun[place] for place in places]

    def _leave(self, place: int) -> int:
        number, self.owners[place] = self.owners[place], None
        assert number is not None
        return number

    def _length(self, number: int) -> int:
        return len(self._requests[number].source)


def closed_up(is_busy: Sequence[bool]) -> list[int]:
    """Return the busy places, the last ones in the gaps among the first, so that few move."""
    busy = [place for place, is_one in enumerate(is_busy) if is_one]
    last = iter(reversed(busy))
    return [place if is_busy[place] else next(last) for place in range(len(busy))]
