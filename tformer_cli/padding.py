"""Padding of token ids to one length."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# The id of `<pad>` in every vocabulary.
PAD_ID = 0


def pad_rows(
    rows: Sequence[Sequence[int] | np.ndarray],
    *,
    first: int | None = None,
    last: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return rows of ids as one (B, L) tensor padded on the right, and its bool mask.

    The ids `first` and `last` are added at the ends of each row.
    """
    starts = 0 if first is None else 1
    stops = starts + np.array([len(row) for row in rows])
    lengths = stops if last is None else stops + 1
    columns = np.arange(lengths.max())
    mask = columns < lengths[:, None]
    ids = np.full(mask.shape, PAD_ID, dtype=np.int64)
    ids[(columns >= starts) & (columns < stops[:, None])] = np.concatenate(rows)
    if first is not None:
        ids[:, 0] = first
    if last is not None:
        ids[np.arange(len(rows)), stops] = last
    return torch.from_numpy(ids), torch.from_numpy(mask)


def flat_positions(mask: Tensor) -> Tensor:
    """Return the indices (N,) of the True positions of a mask (B, T), row after row: b * T + t."""
    return mask.flatten().nonzero()[:, 0]
