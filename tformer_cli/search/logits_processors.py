"""What makes tokens less probable than the model says, or impossible; all of it in place."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tformer_cli.search.rows import Sequences


def suppress_tokens(logits: Tensor, suppressed: Tensor, eos: int, lengths: Tensor) -> None:
    """Make what may not come next impossible, in place.

    Args:
        logits: (B, K, V).
        suppressed: (n,) ids that never come.
        eos: does not come in an empty row.
        lengths: (B,) tokens that the rows have.
    """
    logits.index_fill_(-1, suppressed, -math.inf)
    logits[..., eos].masked_fill_((lengths == 0)[:, None], -math.inf)


def penalize_repetition(log_probs: Tensor, rows: Sequences, penalty: float) -> None:
    """Multiply the log probability of each token that a row has (Keskar et al. 2019, section 4.1).

    Args:
        log_probs: (B, K, V).
        rows: what is written.
        penalty: above 1 disfavours repetition.
    """
    tokens = rows.written_tokens()
    log_probs.scatter_(-1, tokens, log_probs.gather(-1, tokens) * penalty)


def penalize_frequency(log_probs: Tensor, rows: Sequences, penalty: float) -> None:
    """Take `penalty` off the log probability of a token for each time that a row has it.

    Args:
        log_probs: (B, K, V).
        rows: what is written.
        penalty: in nats.
    """
    tokens = rows.written_tokens()
    log_probs.scatter_add_(-1, tokens, torch.full_like(tokens, -penalty, dtype=log_probs.dtype))


def ban_repeated_ngrams(log_probs: Tensor, rows: Sequences, size: int) -> None:
    """Make impossible what would end an n-gram that the row has already (Paulus et al. 2018).

    Args:
        log_probs: (B, K, V).
        rows: what is written.
        size: n.
    """
    tokens = rows.tokens
    num_columns = tokens.shape[2]
    if size >= num_columns:
        return
    # Column 0 is the start token, which is part of no n-gram.
    ends = torch.arange(size, num_columns, device=tokens.device)
    windows = tokens[:, :, 1:].unfold(2, size, 1)  # (B, K, num_columns - size, size)
    places = rows.lengths[:, None] - torch.arange(size - 2, -1, -1, device=tokens.device)
    tail = tokens.gather(2, places.clamp(min=0)[:, None].expand(-1, tokens.shape[1], -1))
    is_seen = (windows[..., :-1] == tail[:, :, None]).all(dim=-1)
    is_seen &= (ends <= rows.lengths[:, None])[:, None]
    # What is banned from rows that end no n-gram is the start token, which never comes.
    banned = torch.where(is_seen, windows[..., -1], rows.bos)
    log_probs.scatter_(-1, banned, -math.inf)


def ban_phrase(log_probs: Tensor, written: Tensor, phrase: Sequence[int]) -> None:
    """Make the last token of a phrase impossible behind the others.

    Args:
        log_probs: (K, V), those of a place.
        written: (K, T) tokens of its rows.
        phrase: token ids.
    """
    *before, last = phrase
    length = written.shape[1]
    if length < len(before):
        return
    is_next = torch.ones(len(written), dtype=torch.bool, device=written.device)
    for column, token in enumerate(before, start=length - len(before)):
        is_next &= written[:, column] == token
    log_probs[:, last].masked_fill_(is_next, -math.inf)
