"""State of a search: tensors and lists with an item per slot."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from tformer_cli.search.request import Hypothesis

INITIAL_CAPACITY = 32


@dataclass(frozen=True, slots=True)
class SearchStep:
    """Result of one step of a search.

    Attributes:
        beam_indices: (B, K) backpointers: the sequence of its slot that each sequence continues;
            None where each continues itself.
        finished: hypotheses, best first, of the slots whose search is done.
    """

    beam_indices: Tensor | None = None
    finished: dict[int, list[Hypothesis]] = field(default_factory=dict)


@dataclass(slots=True)
class SearchState:
    """State of B slots, each of which decodes one sentence.

    Every field is a tensor (B, ...), a list with an item per slot, or a state of the same slots, or
    a tuple of such states.
    """

    def select(self, slots: Tensor) -> None:
        """Keep these slots (B',), in this order; a slot may occur more than once."""
        for part in fields(self):
            setattr(self, part.name, _selected(getattr(self, part.name), slots))

    def insert(self, slots: Tensor, new: Self) -> None:
        """Overwrite these slots (B',) with the B' slots of `new`."""
        for part in fields(self):
            content = getattr(self, part.name)
            setattr(self, part.name, _inserted(content, slots, getattr(new, part.name)))


def _selected(content: Any, slots: Tensor) -> Any:
    match content:
        case SearchState():
            content.select(slots)
        case tuple():
            for state in content:
                state.select(slots)
        case list():
            return [content[slot] for slot in slots.tolist()]
        case Tensor():
            return content[slots]
    return content


def _inserted(content: Any, slots: Tensor, new: Any) -> Any:
    match content:
        case SearchState():
            content.insert(slots, new)
        case tuple():
            for state, new_state in zip(content, new, strict=True):
                state.insert(slots, new_state)
        case list():
            for slot, item in zip(slots.tolist(), new, strict=True):
                content[slot] = item
        case Tensor():
            return _with_rows(content, slots, new)
    return content


def _with_rows(content: Tensor, slots: Tensor, new: Tensor) -> Tensor:
    """Write rows (B', ...) into (B, ...), which grows where they are larger."""
    sizes = zip(content.shape[1:], new.shape[1:], strict=True)
    missing = [max(0, wanted - size) for size, wanted in sizes]
    if any(missing):
        content = pad(content, [side for more in reversed(missing) for side in (0, more)])
    index: tuple[Tensor | slice, ...] = (slots, *(slice(size) for size in new.shape[1:]))
    content[index] = new.to(content.dtype)
    return content


@dataclass(slots=True)
class Sequences(SearchState):
    """K sequences in each of B slots; all sequences of a slot have the same length.

    Attributes:
        tokens: (B, K, C) BOS, then `lengths` tokens, then unused capacity.
        lengths: (B,) tokens of each sequence of a slot, BOS excluded.
        last: (B, K) the newest token of each sequence.
        active: (B,) whether a slot is decoding; the sequences of idle slots do not grow.
    """

    tokens: Tensor
    lengths: Tensor
    last: Tensor
    active: Tensor

    @classmethod
    def empty(cls, num_slots: int, num_beams: int, bos: int, device: torch.device) -> Self:
        """Return sequences of BOS alone."""
        return cls(
            tokens=torch.full((num_slots, num_beams, INITIAL_CAPACITY), bos, device=device),
            lengths=torch.zeros(num_slots, dtype=torch.long, device=device),
            last=torch.full((num_slots, num_beams), bos, device=device),
            active=torch.ones(num_slots, dtype=torch.bool, device=device),
        )

    def append(self, tokens: Tensor) -> None:
        """Append a token (B, K) to each sequence of the active slots."""
        self.lengths = self.lengths + self.active
        if int(self.lengths.max()) >= self.tokens.shape[2]:
            self.tokens = torch.cat((self.tokens, torch.zeros_like(self.tokens)), dim=2)
        positions = self.lengths[:, None, None].expand(*tokens.shape, 1)
        self.tokens.scatter_(2, positions, tokens[:, :, None])
        self.last = tokens

    def reorder(self, beam_indices: Tensor) -> None:
        """Let sequence k of slot b continue sequence beam_indices[b, k]; (B, K)."""
        index = beam_indices[:, :, None].expand(self.tokens.shape)
        self.tokens = self.tokens.gather(1, index)

    def padded(self) -> Tensor:
        """Return the tokens (B, K, C) with BOS in place of unused capacity."""
        positions = torch.arange(self.tokens.shape[2], device=self.tokens.device)
        is_used = positions <= self.lengths[:, None]
        return self.tokens.where(is_used[:, None], self.tokens[:, :, :1])

    def token_ids(self, slots: Tensor, beams: Tensor) -> list[tuple[int, ...]]:
        """Return the tokens of n sequences, BOS excluded.

        Args:
            slots: (n,) slot of each sequence.
            beams: (n,) its index in the slot.
        """
        tokens = self.tokens[slots, beams, 1:].tolist()
        lengths = self.lengths[slots].tolist()
        return [tuple(ids[:length]) for ids, length in zip(tokens, lengths, strict=True)]


def by_score(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Return hypotheses, best first; of equal scores the earlier one stays first."""
    return sorted(hypotheses, key=lambda hypothesis: hypothesis.score, reverse=True)
