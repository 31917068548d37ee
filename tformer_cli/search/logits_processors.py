"""Logits processors: limits, penalties, bans and forced prefixes, applied to next-token scores."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.kernels.softmax import log_softmax, logsumexp
from tformer_cli.search.engine import Request, SpecialTokens
from tformer_cli.search.state import Sequences
from tformer_cli.search.topk import NextTokens

INITIAL_TOKENS = 32  # tokens of a sequence


class LogitsProcessor:
    """The rules of a config and of requests.

    Rules change the scores that a search ranks by, after the softmax. Probabilities stay those of
    the model.
    """

    def __init__(
        self, config: DecodingConfig, special_tokens: SpecialTokens, device: torch.device
    ) -> None:
        self.config = config
        self.bos, self.eos = special_tokens.bos, special_tokens.eos
        self.device = device
        self.suppressed = torch.tensor(list(special_tokens.suppressed), device=device)
        neutral = (config.repetition_penalty, config.frequency_penalty, config.no_repeat_ngram_size)
        self.has_penalties = neutral != (1, 0, 0)

    def start(self, requests: Sequence[Request], num_beams: int) -> Sequences:
        """Return K empty sequences for each request, with its limits."""
        min_lengths, max_lengths = zip(*map(self._limits, requests), strict=True)
        size = len(requests)
        # Rules may ban it: it fills sequences, and nothing generates it.
        filler = self.bos if self.bos != self.eos else int(self.suppressed[0])
        new = partial(torch.full, device=self.device)
        return Sequences(
            requests=list(requests),
            has_rules=[
                bool(request.forced or request.banned) or min_length > 1
                for request, min_length in zip(requests, min_lengths, strict=True)
            ],
            min_lengths=torch.tensor(min_lengths, device=self.device),
            max_lengths=torch.tensor(max_lengths, device=self.device),
            tokens=new((size, num_beams, INITIAL_TOKENS), filler),
            lengths=new((size,), 0),
            last=new((size, num_beams), self.bos),
            active=new((size,), True),
        )

    def _limits(self, request: Request) -> tuple[int, int]:
        """Return the minimum length, without EOS, and the maximum length, with EOS."""
        config = self.config
        source_length = len(request.source) - request.num_tags - 1
        # The token of a language is no part of what a source is compared with.
        num_start = len(request.start)
        maximum = config.max_length
        if config.max_length_ratio is not None:
            longest = num_start + math.ceil(config.max_length_ratio * source_length)
            maximum = min(maximum, longest + 1)
        maximum = max(maximum, len(request.forced) + sum(map(len, request.required)) + 1)
        shortest = num_start + math.ceil(config.min_length_ratio * source_length)
        minimum = max(config.min_length, shortest)
        return min(minimum, maximum - 1), maximum

    def suppress(self, logits: Tensor, sequences: Sequences) -> None:
        """Apply `suppress_tokens` to logits (B, K, V)."""
        suppress_tokens(logits, self.suppressed, self.eos, sequences.lengths)

    def is_active(self, sequences: Sequences) -> bool:
        """Return whether a rule changes scores of any sequence."""
        return self.has_penalties or any(sequences.has_rules)

    def __call__(self, logits: Tensor, sequences: Sequences) -> NextTokens:
        """Process logits (B, K, V), which change in place."""
        self.suppress(logits, sequences)
        if not self.is_active(sequences):
            return NextTokens(logits, logits, logsumexp(logits))
        log_probs = log_softmax(logits)
        scores = self.scores(log_probs, sequences)
        return NextTokens(scores, log_probs, log_probs.new_zeros(logits.shape[:-1]))

    def scores(self, log_probs: Tensor, sequences: Sequences) -> Tensor:
        """Return what the search ranks next tokens by, from log probabilities (B, K, V)."""
        if not self.is_active(sequences):
            return log_probs
        config = self.config
        scores = log_probs.clone()
        if config.repetition_penalty != 1:
            penalize_repetition(scores, sequences, config.repetition_penalty)
        if config.frequency_penalty != 0:
            penalize_frequency(scores, sequences, config.frequency_penalty)
        if config.no_repeat_ngram_size > 0:
            ban_repeated_ngrams(scores, sequences, config.no_repeat_ngram_size)
        if any(request.banned for request in sequences.requests):
            _ban_phrases(scores, sequences)
        eos_scores = scores[..., self.eos]
        eos_scores.masked_fill_((sequences.lengths < sequences.min_lengths)[:, None], -math.inf)
        # A sequence without any possible token may end.
        is_stuck = scores.amax(dim=-1) == -math.inf
        scores[..., self.eos] = torch.where(is_stuck, log_probs[..., self.eos], eos_scores)
        if any(request.forced for request in sequences.requests):
            _force_prefixes(scores, log_probs, sequences)
        return scores


def suppress_tokens(logits: Tensor, suppressed: Tensor, eos: int, lengths: Tensor) -> None:
    """Set the logits (B, K, V) of tokens that no hypothesis contains to -inf, in place.

    EOS is impossible in an empty sequence; `lengths` (B,) are those of the sequences.
    """
    logits.index_fill_(-1, suppressed, -math.inf)
    logits[..., eos].masked_fill_((lengths == 0)[:, None], -math.inf)


def penalize_repetition(scores: Tensor, sequences: Sequences, penalty: float) -> None:
    """Multiply the log probability of each token of a sequence (Keskar et al. 2019, section 4.1).

    Scores (B, K, V) change in place, here and in the rules below.
    """
    tokens = sequences.padded()
    scores.scatter_(-1, tokens, scores.gather(-1, tokens) * penalty)


def penalize_frequency(scores: Tensor, sequences: Sequences, penalty: float) -> None:
    """Subtract `penalty`, in nats, for each time that a token occurs in the sequence."""
    tokens = sequences.padded()
    scores.scatter_add_(-1, tokens, torch.full_like(tokens, -penalty, dtype=scores.dtype))


def ban_repeated_ngrams(scores: Tensor, sequences: Sequences, n: int) -> None:
    """Ban tokens that would complete an n-gram of the sequence again (Paulus et al. 2018)."""
    tokens = sequences.tokens
    capacity = tokens.shape[2]
    if n >= capacity:
        return
    # Position 0 is BOS, which is part of no n-gram.
    ends = torch.arange(n, capacity, device=tokens.device)
    ngrams = tokens[:, :, 1:].unfold(2, n, 1)  # (B, K, capacity - n, n)
    positions = sequences.lengths[:, None] - torch.arange(n - 2, -1, -1, device=tokens.device)
    tail = tokens.gather(2, positions.clamp(min=0)[:, None].expand(-1, tokens.shape[1], -1))
    is_repeated = (ngrams[..., :-1] == tail[:, :, None]).all(dim=-1)
    is_repeated &= (ends <= sequences.lengths[:, None])[:, None]
    # Where there is nothing to ban, BOS is banned, which is suppressed anyway.
    banned = torch.where(is_repeated, ngrams[..., -1], tokens[:, :, :1])
    scores.scatter_(-1, banned, -math.inf)


def ban_phrase(scores: Tensor, tokens: Tensor, phrase: Sequence[int]) -> None:
    """Ban the last token of a phrase after the others, in scores (K, V) for tokens (K, T)."""
    *before, last = phrase
    if tokens.shape[1] >= len(before):
        tail = tokens[:, tokens.shape[1] - len(before) :]
        is_next = (tail == torch.tensor(before, device=tokens.device)).all(dim=1)
        scores[:, last].masked_fill_(is_next, -math.inf)


def _ban_phrases(scores: Tensor, sequences: Sequences) -> None:
    lengths = sequences.lengths.tolist()
    for slot, request in enumerate(sequences.requests):
        tokens = sequences.tokens[slot, :, 1 : lengths[slot] + 1]
        for phrase in request.banned:
            ban_phrase(scores[slot], tokens, phrase)


def _force_prefixes(scores: Tensor, log_probs: Tensor, sequences: Sequences) -> None:
    """Leave only the forced token of a sequence; one of its start has log probability 0."""
    lengths = sequences.lengths.tolist()
    for slot, (request, length) in enumerate(zip(sequences.requests, lengths, strict=True)):
        if length < len(request.forced):
            token = request.forced[length]
            if length < len(request.start):
                log_probs[slot, :, token] = 0
            scores[slot] = -math.inf
            scores[slot, :, token] = log_probs[slot, :, token]
