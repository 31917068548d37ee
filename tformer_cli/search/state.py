"""The state that a search keeps."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from tformer_cli.search.engine import Hypothesis, Phrase, Request


class SearchStep(NamedTuple):
    """Result of a step of a search."""

    # (B, K) backpointers: which sequence of its slot each one continues; None if all its own.
    beam_indices: Tensor | None
    # Hypotheses, best first, of each slot whose sentence is done.
    finished: Mapping[int, list[Hypothesis]]


@dataclass(slots=True)
class SearchState:
    """State of B slots, which decode a sentence each.

    A field is a tensor (B, ...), a list with an item per slot, another state, or a number for all.
    """

    def select(self, slots: Tensor) -> None:
        """Keep these slots (B',), in this order; a slot may occur more than once."""
        for part in fields(self):
            content = getattr(self, part.name)
            if isinstance(content, Tensor):
                setattr(self, part.name, content[slots])
            elif isinstance(content, list):
                content[:] = [content[slot] for slot in slots.tolist()]
            elif isinstance(content, SearchState):
                content.select(slots)

    def best(self, rows: Tensor) -> list[Phrase]:
        """Return the tokens so far, BOS excluded, of the best sequence of each row (n,)."""
        parts = (getattr(self, part.name) for part in fields(self))
        return next(part for part in parts if isinstance(part, SearchState)).best(rows)

    def insert(self, slots: Tensor, new: Self) -> None:
        """Overwrite these slots (B',) with the B' slots of `new`."""
        for part in fields(self):
            content, new_content = getattr(self, part.name), getattr(new, part.name)
            if isinstance(content, Tensor):
                setattr(self, part.name, _with_rows(content, slots, new_content))
            elif isinstance(content, list):
                for slot, item in zip(slots.tolist(), new_content, strict=True):
                    content[slot] = item
            elif isinstance(content, SearchState):
                content.insert(slots, new_content)


def _with_rows(content: Tensor, slots: Tensor, rows: Tensor) -> Tensor:
    """Write rows (B', ...) into content (B, ...), which is padded where they are larger."""
    missing = [max(0, new - old) for old, new in zip(content.shape, rows.shape, strict=True)][1:]
    if any(missing):
        content = pad(content, [size for more in reversed(missing) for size in (0, more)])
    index: tuple[Tensor | slice, ...] = (slots, *(slice(size) for size in rows.shape[1:]))
    content[index] = rows.to(content.dtype)
    return content


@dataclass(slots=True)
class Sequences(SearchState):
    """K sequences in each of B slots; all sequences of a slot have the same length."""

    requests: list[Request]
    has_rules: list[bool]  # whether a request has forced tokens, banned phrases or a minimum length
    min_lengths: Tensor  # (B,) minimum number of tokens, without EOS
    max_lengths: Tensor  # (B,) maximum number of tokens, with EOS
    tokens: Tensor  # (B, K, C) BOS, then `lengths` tokens, then unused capacity
    lengths: Tensor  # (B,) tokens of each sequence, BOS excluded
    last: Tensor  # (B, K) newest tokens
    active: Tensor  # (B,) whether a slot is decoding; idle slots do not grow
    length_bound: int = 0  # no sequence is longer, as far as is known without asking the device

    def append(self, tokens: Tensor) -> None:
        """Append a token (B, K) to each sequence of the active slots."""
        self.lengths = self.lengths + self.active
        self.length_bound += 1
        if self.length_bound >= self.tokens.shape[2]:
            self.length_bound = int(self.lengths.max())
            if self.length_bound >= self.tokens.shape[2]:
                self.tokens = torch.cat((self.tokens, torch.zeros_like(self.tokens)), dim=2)
        positions = self.lengths[:, None, None].expand(*tokens.shape, 1)
        self.tokens.scatter_(2, positions, tokens[:, :, None])
        self.last = tokens

    def reorder(self, beam_indices: Tensor) -> None:
        """Let sequence k of slot b continue sequence beam_indices[b, k]; (B, K)."""
        self.tokens = self.tokens.gather(1, beam_indices[:, :, None].expand(self.tokens.shape))

    def padded(self) -> Tensor:
        """Return the tokens (B, K, C) with BOS in place of unused capacity."""
        positions = torch.arange(self.tokens.shape[2], device=self.tokens.device)
        is_used = positions <= self.lengths[:, None]
        return self.tokens.where(is_used[:, None], self.tokens[:, :, :1])

    def best(self, rows: Tensor) -> list[Phrase]:
        return self.token_ids(rows, torch.zeros_like(rows))

    def token_ids(self, slots: Tensor, beams: Tensor) -> list[Phrase]:
        """Return the tokens, BOS excluded, of the sequences beams (n,) of slots (n,)."""
        tokens = self.tokens[slots, beams]
        # BOS makes room for the length, so that both come from the device together.
        tokens[:, 0] = self.lengths[slots]
        return [tuple(ids[1 : 1 + ids[0]]) for ids in tokens.tolist()]
