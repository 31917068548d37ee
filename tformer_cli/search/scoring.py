"""How probable given targets are, token by token.

The probabilities are those that a search sees: a suppressed id has none, and the end token has none
where it would be the first. So the log probability of a finished hypothesis is the sum over its
tokens here. The likelihood of an evaluation is over all ids, as the training loss is.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from tformer_cli.device import autocast, empty_cache, is_out_of_memory
from tformer_cli.errors import DeviceError
from tformer_cli.model.network import Seq2Seq
from tformer_cli.padding import pad_rows
from tformer_cli.search.logits_processors import suppress_tokens
from tformer_cli.search.request import SpecialTokens
from tformer_cli.search.stepper import log_mean_probabilities
from tformer_cli.search.topk import log_softmax

# Padded tokens of one batch, on either side.
BATCH_TOKENS = 4096

# Sequences of logits, each as wide as the vocabulary, that are held at once.
CHUNK_ROWS = 256

# Source ids with the end token, and target ids without it.
Pair = tuple[Sequence[int], Sequence[int]]


Result = TypeVar("Result")


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
        special_tokens: SpecialTokens,
        *,
        device: torch.device,
        precision: torch.dtype = torch.float32,
    ) -> None:
        self.models = models
        self.special_tokens = special_tokens
        self.device = device
        self.precision = precision
        lengths = [model.max_length for model in models if model.max_length is not None]
        self.max_length = min(lengths, default=None)
        self.suppressed = torch.tensor(list(special_tokens.suppressed), device=device)

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
        results = [empty_source_log_probs(target) for _, target in pairs]
        widths = [max(len(source), len(target) + 1) if source else 0 for source, target in pairs]
        scored = halving_on_oom(
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
        special_tokens = self.special_tokens
        source, source_mask = self._padded([source for source, _ in pairs])
        target, target_mask = self._padded(
            [(special_tokens.bos, *target, special_tokens.eos) for _, target in pairs]
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
                suppress_tokens(
                    logits[:, None], self.suppressed, self.special_tokens.eos, lengths[rows]
                )
                answers.append(logits)
            log_probs = log_softmax(log_mean_probabilities(answers))
            found += log_probs.gather(-1, ids[rows, None])[:, 0].tolist()
        return found


def empty_source_log_probs(target: Sequence[int]) -> tuple[float, ...]:
    """Return the log probabilities of a target that nothing is the source of."""
    return (-math.inf,) * (len(target) + 1) if target else (0.0,)


def length_batches(
    widths: Sequence[int], counts: Sequence[int], most_tokens: int
) -> Iterator[list[int]]:
    """Yield the numbers of sentences in batches of similar length, longest first.

    The longest batch needs most memory, so where it does not fit that shows at once. A sentence
    without width or without rows is in none.

    Args:
        widths: tokens that each row of a sentence takes.
        counts: rows that each sentence has.
        most_tokens: of a batch, padded; a sentence with more is alone.
    """
    numbers = [number for number, width in enumerate(widths) if width and counts[number]]
    batch: list[int] = []
    num_beams = 0
    for number in sorted(numbers, key=lambda number: -widths[number]):
        if batch and (num_beams + counts[number]) * widths[batch[0]] > most_tokens:
            yield batch
            batch, num_beams = [], 0
        batch.append(number)
        num_beams += counts[number]
    if batch:
        yield batch


def halving_on_oom(
    work: Callable[[list[int]], Result], batches: Iterable[list[int]], device: torch.device
) -> Iterator[tuple[list[int], Result]]:
    """Yield batches with what `work` returns of each; what memory has no room for is halved.

    Args:
        work: takes the numbers of a batch.
        batches: numbers of sentences.
        device: whose memory it is.

    Raises:
        DeviceError: it has no room for a single sentence.
    """
    for batch in batches:
        waiting = [batch]
        while waiting:
            part = waiting.pop()
            try:
                result = work(part)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if len(part) == 1:
                    raise DeviceError(
                        str(device),
                        "memory ran out on a single sentence and its translations",
                        remedy="use shorter lines, or fewer translations of each",
                    ) from error
            else:
                yield part, result
                continue
            # Out here the error has gone, and with it the tensors that its traceback kept alive.
            empty_cache(device)
            half = (len(part) + 1) // 2
            waiting += [part[half:], part[:half]]
