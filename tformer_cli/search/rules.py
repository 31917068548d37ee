"""What a search keeps to besides what the model says: limits, penalties, bans, prefixes."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.search.logits_processors import (
    ban_phrase,
    ban_repeated_ngrams,
    penalize_frequency,
    penalize_repetition,
    suppress_tokens,
)
from tformer_cli.search.request import Request, SpecialTokens
from tformer_cli.search.rows import Sequences


class LogitsProcessor:
    """The rules of a config for B places.

    Rules choose among what the model offers and do not change how probable it is: they apply to
    log probabilities, after the normalisation.

    Attributes:
        most: (B,) tokens that a translation has at most, the end token included.
        has_effect: whether `apply` does anything in this company.
    """

    def __init__(
        self, config: DecodingConfig, special_tokens: SpecialTokens, device: torch.device
    ) -> None:
        self.config = config
        self.special_tokens = special_tokens
        self.device = device
        self.suppressed = torch.tensor(list(special_tokens.suppressed), device=device)
        self._requests: list[Request] = []

    def start(self, requests: Sequence[Request]) -> None:
        """Begin with a place for each request."""
        self._requests = list(requests)
        self._set_limits()

    def insert(self, places: Tensor, requests: Sequence[Request]) -> None:
        """Begin these requests in these places (B',)."""
        for place, request in zip(places.tolist(), requests, strict=True):
            self._requests[place] = request
        self._set_limits()

    def select(self, places: Tensor) -> None:
        """Keep these places (B',), in this order."""
        self._requests = [self._requests[place] for place in places.tolist()]
        self._set_limits()

    def _set_limits(self) -> None:
        limits = [self._limits(request) for request in self._requests]
        self.most = torch.tensor([most for _, most in limits], device=self.device)
        self._least = torch.tensor([least for least, _ in limits], device=self.device)
        self._has_phrases = any(request.banned for request in self._requests)
        self._has_prefixes = any(request.prefix for request in self._requests)
        config = self.config
        self.has_effect = (
            self._has_phrases
            or self._has_prefixes
            or config.repetition_penalty != 1
            or config.frequency_penalty != 0
            or config.no_repeat_ngram_size > 0
            or any(least > 1 for least, _ in limits)
        )

    def _limits(self, request: Request) -> tuple[int, int]:
        """Return the fewest tokens before the end token, and the most with it."""
        config, source_length = self.config, len(request.source) - 1
        most = config.max_length
        if config.max_length_ratio is not None:
            most = min(most, math.ceil(config.max_length_ratio * source_length) + 1)
        most = max(most, len(request.prefix) + sum(map(len, request.required)) + 1)
        least = max(config.min_length, math.ceil(config.min_length_ratio * source_length))
        return min(least, most - 1), most

    def suppress_tokens(self, logits: Tensor, rows: Sequences) -> None:
        """Make impossible, in place, what no translation has; logits are (B, K, V)."""
        suppress_tokens(logits, self.suppressed, self.special_tokens.eos, rows.lengths)

    def apply(self, log_probs: Tensor, rows: Sequences) -> Tensor:
        """Return what the search ranks continuations by, from log probabilities (B, K, V)."""
        config, eos = self.config, self.special_tokens.eos
        scores = log_probs.clone()
        if config.repetition_penalty != 1:
            penalize_repetition(scores, rows, config.repetition_penalty)
        if config.frequency_penalty != 0:
            penalize_frequency(scores, rows, config.frequency_penalty)
        if config.no_repeat_ngram_size > 0:
            ban_repeated_ngrams(scores, rows, config.no_repeat_ngram_size)
        if self._has_phrases:
            self._ban_phrases(scores, rows)
        is_short = (rows.lengths < self._least)[:, None]
        scores[..., eos].masked_fill_(is_short, -math.inf)
        # Where nothing is left, a row may end all the same.
        stuck = scores.amax(dim=-1) == -math.inf
        scores[..., eos] = torch.where(stuck, log_probs[..., eos], scores[..., eos])
        if self._has_prefixes:
            self._keep_to_prefixes(scores, log_probs, rows)
        return scores

    def _ban_phrases(self, scores: Tensor, rows: Sequences) -> None:
        lengths = rows.lengths.tolist()
        for place, request in enumerate(self._requests):
            written = rows.tokens[place, :, 1 : lengths[place] + 1]
            for phrase in request.banned:
                ban_phrase(scores[place], written, phrase)

    def _keep_to_prefixes(self, scores: Tensor, log_probs: Tensor, rows: Sequences) -> None:
        lengths = rows.lengths.tolist()
        for place, (request, length) in enumerate(zip(self._requests, lengths, strict=True)):
            if length < len(request.prefix):
                token = request.prefix[length]
                scores[place] = -math.inf
                scores[place, :, token] = log_probs[place, :, token]
