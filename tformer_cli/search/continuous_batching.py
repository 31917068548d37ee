"""Continuous batching: when a sentence is done, a waiting one takes its slot.

So no slot idles until the longest translation is done, and as sources get shorter there are more
slots. Every slot is padded to the longest sequence in flight, so a single runaway hypothesis slows
the whole batch. Sequences far longer than usual are therefore requeued once and restarted last.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig
from tformer_cli.search.engine import Hypothesis, OnDraft, Request, SpecialTokens
from tformer_cli.search.logits_processors import LogitsProcessor
from tformer_cli.search.state import SearchState, SearchStep
from tformer_cli.search.stepper import Stepper

# Inserting and compacting pay only for some slots at a time.
IDLE_SHARE = 0.05
# A straggler has so many times the tokens that are usual for its source. Translations of short
# sources vary more, so a source counts as at least `MIN_SOURCE_LENGTH` tokens.
STRAGGLER_RATIO = 2
MIN_SOURCE_LENGTH = 16

_Config = TypeVar("_Config", bound=DecodingConfig)
_State = TypeVar("_State", bound=SearchState)


class Search(ABC, Generic[_Config, _State]):
    """Decides how K sequences of each slot continue, and which sentences are done.

    A search keeps nothing between steps: it returns a state, which steps change.
    """

    def __init__(
        self,
        config: _Config,
        special_tokens: SpecialTokens,
        device: torch.device,
        *,
        nbest: int = 1,
        scored: bool = True,
    ) -> None:
        """Prepare for logits on a device, and `nbest` hypotheses, at most the beam size."""
        self.config = config
        self.special_tokens = special_tokens
        self.bos, self.eos = special_tokens.bos, special_tokens.eos
        self.device = device
        self.nbest = nbest
        self.scored = scored
        self.processor = LogitsProcessor(config, special_tokens, device)

    @property
    def num_beams(self) -> int:
        """K, the sequences of a slot."""
        return self.config.beam_size if isinstance(self.config, BeamConfig) else self.nbest

    def rows(self, slots: Tensor) -> Tensor:
        """Return the rows of the state for some slots (B',): the same, if a slot has one row."""
        return slots

    @abstractmethod
    def start(self, requests: Sequence[Request]) -> _State:
        """Return the state of a slot for each request."""

    @abstractmethod
    def step(self, state: _State, stepper: Stepper) -> SearchStep:
        """Give the newest tokens to the stepper, and append the next ones."""


def decode_all(
    stepper: Stepper,
    search: Search[_Config, _State],
    requests: Sequence[Request],
    max_slots: Callable[[int], int],
    on_draft: OnDraft | None = None,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Yield the index of each request and its hypotheses as soon as it is done.

    Requests start in their order, longest sources first; `max_slots` is the number of slots for a
    longest source of so many tokens. `on_draft` is called after each step for what is not done.
    """
    if not requests:
        return
    scheduler = SlotScheduler(requests, max_slots)
    first = requests[: len(scheduler.slots)]
    stepper.start([request.source for request in first], search.num_beams)
    state = search.start(first)
    while True:
        step = search.step(state, stepper)
        scheduler.num_steps += 1
        for slot, hypotheses in step.finished.items():
            yield scheduler.finish(slot), hypotheses
        if on_draft is not None and scheduler.running:
            running = scheduler.running_slots()
            rows = search.rows(torch.tensor(running, device=search.device))
            drafts = state.best(rows.view(len(running), -1)[:, 0])
            for slot, ids in zip(running, drafts, strict=True):
                # Samples may have ended, while others of their sentence have not.
                end = ids.index(search.eos) if search.eos in ids else None
                on_draft(scheduler.slots[slot], ids[:end])
        if step.beam_indices is not None and scheduler.running:
            stepper.reorder(step.beam_indices)
        if not scheduler.should_reschedule():
            continue
        unmoved = list(range(len(scheduler.slots)))
        old_slots, started = scheduler.reschedule()
        if not old_slots:
            return
        if old_slots != unmoved:
            order = torch.tensor(old_slots, device=search.device)
            stepper.select(order)
            state.select(search.rows(order))
        if started:
            slots = torch.tensor(list(started), device=search.device)
            new = [requests[index] for index in started.values()]
            lookahead = (requests[index].source for index in scheduler.lookahead(len(new)))
            stepper.insert(slots, [request.source for request in new], lookahead)
            state.insert(search.rows(slots), search.start(new))


class SlotScheduler:
    """Assigns requests, by their indices, to slots."""

    def __init__(self, requests: Sequence[Request], max_slots: Callable[[int], int]) -> None:
        self._lengths = [len(request.source) for request in requests]
        self._max_slots = max_slots
        count = min(len(requests), max_slots(self._lengths[0]))
        self.slots = list(range(count))  # the request of each slot; it may be done
        self.running = set(self.slots)
        self.num_steps = 0  # of the search so far
        self._start_steps = [0] * len(requests)
        self._waiting = deque(range(count, len(requests)))
        self._requeued: set[int] = set()
        self._oldest, self._num_oldest = 0, count  # first step of the oldest slots; those running
        # Of finished requests.
        self._num_target_tokens = self._num_source_tokens = 0

    def finish(self, slot: int) -> int:
        """Return the request of a slot, which is done."""
        index = self.slots[slot]
        self.running.remove(index)
        self._num_oldest -= self._start_steps[index] == self._oldest
        self._num_target_tokens += self.num_steps - self._start_steps[index]
        self._num_source_tokens += self._lengths[index]
        return index

    def running_slots(self) -> list[int]:
        """Return the slots whose request is not done."""
        return [slot for slot, index in enumerate(self.slots) if index in self.running]

    def should_reschedule(self) -> bool:
        """Return whether to insert requests or to drop idle slots before the next step."""
        # Learned positions may end with the longest translation, so no idle slot may be older than
        # all running ones.
        num_idle = len(self.slots) - len(self.running)
        return self._num_oldest == 0 or num_idle >= max(1, IDLE_SHARE * len(self.slots))

    def reschedule(self) -> tuple[list[int], dict[int, int]]:
        """Start waiting requests in idle slots, add slots for more, and drop idle ones.

        Return the old slot whose state each slot continues or, if it is new, copies; and the
        requests that start, in their order, by slot.
        """
        num_old_slots = len(self.slots)
        self._requeue_stragglers()
        started, idle = self._start(self._take_waiting())
        kept = self._drop(idle)
        start_steps = [self._start_steps[index] for index in self.slots]
        self._oldest = min(start_steps, default=0)
        self._num_oldest = start_steps.count(self._oldest)
        old_slots = [slot if slot < num_old_slots else 0 for slot in kept]
        new_slots = {slot: new_slot for new_slot, slot in enumerate(kept)}
        return old_slots, {new_slots[slot]: index for slot, index in started.items()}

    def lookahead(self, num_started: int) -> Iterator[int]:
        """Return what waits, up to as many as there are slots besides those that start."""
        return islice(self._waiting, len(self.slots) - num_started)

    def _requeue_stragglers(self) -> None:
        """Move stragglers to the end of the queue, each request at most once."""
        if not self._waiting or not self._num_source_tokens:
            return
        usual_ratio = max(1.0, self._num_target_tokens / self._num_source_tokens)
        for index in self.slots:
            age = self.num_steps - self._start_steps[index]
            usual = usual_ratio * max(MIN_SOURCE_LENGTH, self._lengths[index])
            can_move = index in self.running and index not in self._requeued
            if can_move and age > STRAGGLER_RATIO * usual:
                self.running.remove(index)
                self._waiting.append(index)
                self._requeued.add(index)

    def _take_waiting(self) -> list[int]:
        """Take as many requests from the queue as slots are allowed for."""
        taken: list[int] = []
        first = min(self.running, default=len(self._lengths))
        while self._waiting:
            # The first request has the longest source.
            first = min(first, self._waiting[0])
            if len(self.running) + len(taken) >= self._max_slots(self._lengths[first]):
                break
            taken.append(self._waiting.popleft())
        return taken

    def _start(self, indices: Sequence[int]) -> tuple[dict[int, int], set[int]]:
        """Start requests in idle slots, and in new ones behind them if there are more requests.

        Return the requests by slot, and the slots that are still idle.
        """
        idle = [slot for slot, index in enumerate(self.slots) if index not in self.running]
        unplaced = indices[len(idle) :]
        idle += range(len(self.slots), len(self.slots) + len(unplaced))
        self.slots += unplaced
        started = dict(zip(idle, indices, strict=False))
        for slot, index in started.items():
            self.slots[slot] = index
            self._start_steps[index] = self.num_steps
        self.running.update(indices)
        return started, set(idle[len(indices) :])

    def _drop(self, dropped: set[int]) -> list[int]:
        """Drop slots, and fill gaps among the first by the last; return what each slot was."""
        num_kept = len(self.slots) - len(dropped)
        last = (slot for slot in reversed(range(len(self.slots))) if slot not in dropped)
        kept = [next(last) if slot in dropped else slot for slot in range(num_kept)]
        self.slots = [self.slots[slot] for slot in kept]
        return kept
