"""How probable given targets are, token by token.

The probabilities are those that a search sees: a suppressed id has none, and the end token has none
where it would be the first. So the log probability of a finished hypothesis is the sum over its
tokens here. The likelihood of an evaluation is over all ids, as the training loss is.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from tformer_cli.device import autocast
from tformer_cli.model.network import Seq2Seq
from tformer_cli.padding import pad_rows
from tformer_cli.search.batches import each_in_memory, length_batches
from tformer_cli.search.ensemble import log_mean_probabilities
from tformer_cli.search.logits_processors import TokenRoles, forbid
from tformer_cli.search.topk import log_softmax

# Padded tokens of one batch, on either side.
BATCH_TOKENS = 4096

# Rows of logits, each as wide as the vocabulary, that are held at once.
CHUNK_ROWS = 256

# Source ids with the end token, and target ids without it.
Pair = tuple[Sequence[int], Sequence[int]]


class Scorer(Protocol):
    """Says how probable given targets are."""

    @property
    def max_length(self) -> int | None:
        """Longest source or target, the end token included, or None where any length will do."""
        ...

    def score(
        self,
        pairs: Sequence[Pair],
        *,
        on_done: Callable[[int], object] = lambda count: None,
    ) -> list[tuple[float, ...]]:
        """Return for each pair, in the order given, the log probabilities of its target tokens.

        They are natural logarithms, each given the tokens before, with the end token's at the end;
        that of an impossible token is -inf.

        Args:
            pairs: source ids with the end token, and target ids without it. An empty source has
                one possible target, the empty one, and that is certain.
            on_done: called with the number of pairs whenever some are done.

        Raises:
            DeviceError: memory has no room for a single pair.
        """
        ...


class ModelScorer:
    """Asks a model of ours, or an ensemble of several, in batches of similar length."""

    def __init__(
        self,
        models: Sequence[Seq2Seq],
        roles: TokenRoles,
        *,
        device: torch.device,
        precision: torch.dtype = torch.float32,
    ) -> None:
        self.models = models
        self.roles = roles
        self.device = device
        self.precision = precision
        lengths = [model.max_length for model in models if model.max_length is not None]
        self.max_length = min(lengths, default=None)
        self.suppressed = torch.tensor(list(roles.suppressed_ids), device=device)

    @torch.inference_mode()
    def score(
        self,
        pairs: Sequence[Pair],
        *,
        on_done: Callable[[int], object] = lambda count: None,
    ) -> list[tuple[float, ...]]:
        """Return log probabilities, as `Scorer` says."""
        for model in self.models:
            model.eval()
        results = [of_an_empty_source(target) for _, target in pairs]
        widths = [max(len(source), len(target) + 1) if source else 0 for source, target in pairs]
        scored = each_in_memory(
            lambda batch: self._score([pairs[number] for number in batch]),
            length_batches(widths, [1] * len(pairs), BATCH_TOKENS),
            self.device,
        )
        for batch, found in scored:
            for index, log_probs in zip(batch, found, strict=True):
                results[index] = log_probs
            on_done(len(batch))
        on_done(sum(not source for source, _ in pairs))
        return results

    def _score(self, pairs: Sequence[Pair]) -> list[tuple[float, ...]]:
        roles = self.roles
        source, source_mask = self._padded([source for source, _ in pairs])
        target, target_mask = self._padded(
            [(roles.start_id, *target, roles.end_id) for _, target in pairs]
        )
        # A row goes in without its last token, and comes out without its first.
        ids, mask = target[:, 1:], target_mask[:, 1:]
        lengths = torch.arange(ids.shape[1], device=self.device).expand_as(ids)
        with autocast(self.device, self.precision):
            states = [
                model.states(source, source_mask, target[:, :-1])[mask] for model in self.models
            ]
            log_probs = iter(self._log_probs(states, ids[mask], lengths[mask]))
        return [tuple(itertools.islice(log_probs, len(target) + 1)) for _, target in pairs]

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        ids, mask = pad_rows(rows)
        return ids.to(self.device), mask.to(self.device)

    def _log_probs(self, states: Sequence[Tensor], ids: Tensor, lengths: Tensor) -> list[float]:
        """Return the log probability of each id (n,).

        Args:
            states: (n, D) what each decoder says before it.
            ids: (n,).
            lengths: (n,) tokens before it in its row, the start token not counted.
        """
        found: list[float] = []
        for start in range(0, len(ids), CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            answers = []
            for model, said in zip(self.models, states, strict=True):
                logits = model.output(said[rows])
                forbid(logits[:, None], self.suppressed, self.roles.end_id, lengths[rows])
                answers.append(logits)
            log_probs = log_softmax(log_mean_probabilities(answers))
            found += log_probs.gather(-1, ids[rows, None])[:, 0].tolist()
        return found


def of_an_empty_source(target: Sequence[int]) -> tuple[float, ...]:
    """Return the log probabilities of a target that nothing is the source of."""
    return (-math.inf,) * (len(target) + 1) if target else (0.0,)
