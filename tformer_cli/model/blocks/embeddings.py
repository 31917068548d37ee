"""From token ids to the vectors that enter a stack."""

import math

from torch import Tensor, nn

from tformer_cli.model.blocks.dropout import Dropout


class Embeddings(nn.Module):
    """Token vectors times sqrt(D), plus positions (Vaswani et al. 2017, section 3.4)."""

    def __init__(
        self, vocab_size: int, dim: int, positions: nn.Module | None, dropout: float
    ) -> None:
        """Build the table.

        Args:
            vocab_size: V.
            dim: D.
            positions: gives the vector of each place, where it has one.
            dropout: share of the elements set to zero in training.
        """
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, dim)
        self.positions = positions
        self.dropout = Dropout(dropout)
        self.scale = math.sqrt(dim)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return (N, T, D).

        Args:
            ids: (N, T) token ids.
            positions: (T,) or (N, T) place of each token in its row.
        """
        embedded = self.tokens(ids) * self.scale
        if self.positions is not None:
            embedded = embedded + self.positions(positions)
        dropped: Tensor = self.dropout(embedded)
        return dropped
