"""What is done to the logits before a search sees them as log probabilities."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenRoles:
    """The ids that mean something to a search.

    Attributes:
        start_id: what every row begins with.
        end_id: what a finished row ends with.
        suppressed_ids: what a row never holds, because no text is written with it.
    """

    start_id: int
    end_id: int
    suppressed_ids: Sequence[int]


def log_probabilities(logits: Tensor, roles: TokenRoles, *, is_first: bool) -> Tensor:
    """Return float32 (or float64) log probabilities (N, V) over the ids that may come next.

    Args:
        logits: (N, V), changed in place.
        roles: the suppressed ids are impossible.
        is_first: the row is empty, so the end token is impossible too.
    """
    impossible = [*roles.suppressed_ids, roles.end_id] if is_first else list(roles.suppressed_ids)
    logits[:, impossible] = -math.inf
    wide = logits.dtype if logits.dtype == torch.float64 else torch.float32
    return logits.log_softmax(dim=-1, dtype=wide)
