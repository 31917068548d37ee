"""What the rows of a search have written so far."""

import torch
from torch import Tensor

FIRST_COLUMNS = 32


class Sequences:
    """K rows for each of B places; the rows of a place are all of the same length.

    Attributes:
        tokens: (B, K, W) the start token, then `lengths` tokens, then anything.
        lengths: (B,) tokens that the rows of a place have, the start token not counted.
        last: (B, K) the newest token of each row.
        active: (B,) whether a place is at work; the others no longer grow.
    """

    def __init__(self, num_slots: int, num_beams: int, bos: int, device: torch.device) -> None:
        self.bos = bos
        self.tokens = torch.full((num_slots, num_beams, FIRST_COLUMNS), bos, device=device)
        self.lengths = torch.zeros(num_slots, dtype=torch.long, device=device)
        self.last = self.tokens[:, :, 0]
        self.active = torch.ones(num_slots, dtype=torch.bool, device=device)

    def append(self, tokens: Tensor) -> None:
        """Let each row of the active places grow by its token, (B, K)."""
        self.lengths = self.lengths + self.active
        if int(self.lengths.max()) >= self.tokens.shape[2]:
            self.tokens = torch.cat((self.tokens, torch.zeros_like(self.tokens)), dim=2)
        columns = self.lengths[:, None, None].expand(*tokens.shape, 1)
        self.tokens.scatter_(2, columns, tokens[:, :, None])
        self.last = tokens

    def reorder(self, beam_indices: Tensor) -> None:
        """Let row k of a place go on from row beam_indices[b, k], (B, K)."""
        columns = beam_indices[:, :, None].expand(self.tokens.shape)
        self.tokens = self.tokens.gather(1, columns)

    def insert(self, places: Tensor) -> None:
        """Begin anew in these places."""
        self.lengths[places] = 0
        self.active[places] = True
        # A place that ended with its first token has that token where its start token was.
        self.tokens[places, :, 0] = self.bos
        self.last[places] = self.bos

    def select(self, places: Tensor) -> None:
        """Keep these places, in this order."""
        self.tokens, self.lengths = self.tokens[places], self.lengths[places]
        self.last, self.active = self.last[places], self.active[places]

    def written_tokens(self) -> Tensor:
        """Return what each row has written, (B, K, W), filled up with the start token."""
        columns = torch.arange(self.tokens.shape[2], device=self.tokens.device)
        is_written = columns <= self.lengths[:, None]
        return self.tokens.where(is_written[:, None], self.bos)

    def written(self, places: Tensor, rows: Tensor) -> list[tuple[int, ...]]:
        """Return the tokens of some rows, the start token left out.

        Args:
            places: (n,) of each row.
            rows: (n,) which of the place's.
        """
        written = self.tokens[places, rows, 1:].tolist()
        lengths = self.lengths[places].tolist()
        return [tuple(ids[:length]) for ids, length in zip(written, lengths, strict=True)]
