"""Teacher forcing: log probabilities of given targets, and their alignment to the source.

Probabilities are those that a search sees: suppressed tokens are impossible, and EOS is as the
first token. So the log probability of a finished hypothesis is the sum over its tokens here. The
likelihood of an evaluation, like the training loss, is over all tokens.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from tformer_cli.device import autocast, batch_size_factor
from tformer_cli.kernels.softmax import log_softmax
from tformer_cli.model.inspection.attention_recorder import source_attention
from tformer_cli.model.network import Seq2Seq
from tformer_cli.padding import flat_positions, pad_rows
from tformer_cli.search.batches import halving_on_oom, length_batches
from tformer_cli.search.engine import Pair, SpecialTokens
from tformer_cli.search.logits_processors import suppress_tokens
from tformer_cli.search.topk import log_mean_probabilities

# Padded tokens of a batch of a core, on either side.
BATCH_TOKENS = 4096
# Rows of its logits, (rows, V), in memory at a time.
CHUNK_ROWS = 256

# Source ids with EOS, and the ids of each of its translations.
Translated = tuple[Sequence[int], Sequence[Sequence[int]]]
# That of each target token, or None.
SourcePositions = tuple[int | None, ...]
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class TeacherForcing:
    """Runs models over given targets, in batches of similar length."""

    def __init__(
        self,
        models: Sequence[Seq2Seq],
        special_tokens: SpecialTokens,
        device: torch.device,
        precision: torch.dtype = torch.float32,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        """Combine models with how they compute; threads that share them have a `lock`."""
        self.models = models
        self.special_tokens = special_tokens
        self.device = device
        self.precision = precision
        self._lock = lock or nullcontext()

    def _batches(
        self,
        work: Callable[[list[_Item]], _Result],
        items: Sequence[_Item],
        widths: Sequence[int],
        counts: Sequence[int],
    ) -> Iterator[tuple[list[int], _Result]]:
        """Yield the indices of items, in batches, with the results of `work`."""
        for model in self.models:
            model.eval()
        max_tokens = batch_size_factor(self.device) * BATCH_TOKENS
        batches = length_batches(widths, counts, max_tokens)

        def locked(batch: Sequence[int]) -> _Result:
            with self._lock:
                return work([items[i] for i in batch])

        return halving_on_oom(locked, batches, self.device)

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        ids, mask = pad_rows(rows)
        return ids.to(self.device), mask.to(self.device)


class ModelScorer(TeacherForcing):
    """Scores by a model, or by an ensemble."""

    @property
    def max_length(self) -> int | None:
        return min((m.max_length for m in self.models if m.max_length is not None), default=None)

    @torch.inference_mode()
    def score(
        self, pairs: Sequence[Pair], *, on_done: Callable[[int], object] = lambda count: None
    ) -> list[tuple[float, ...]]:
        results = [empty_source_log_probs(target) for _, target in pairs]
        widths = [max(len(source), len(target) + 1) if source else 0 for source, target in pairs]
        for batch, scores in self._batches(self._score, pairs, widths, [1] * len(pairs)):
            for index, log_probs in zip(batch, scores, strict=True):
                results[index] = log_probs
            on_done(len(batch))
        on_done(widths.count(0))
        return results

    def _score(self, pairs: Sequence[Pair]) -> list[tuple[float, ...]]:
        bos, eos = self.special_tokens.bos, self.special_tokens.eos
        source, source_mask = self._padded([source for source, _ in pairs])
        # The decoder reads all but the last token, and predicts all but the first.
        targets, mask = pad_rows([(bos, *target, eos) for _, target in pairs])
        positions = flat_positions(mask[:, 1:]).to(self.device)
        target_in, target_out = (ids.to(self.device) for ids in (targets[:, :-1], targets[:, 1:]))
        ids = target_out.flatten().index_select(0, positions)
        lengths = positions % target_out.shape[1]
        with autocast(self.device, self.precision):
            hidden_states = [
                model.hidden_states(source, source_mask, target_in, positions)
                for model in self.models
            ]
            log_probs = iter(self._log_probs(hidden_states, ids, lengths))
        return [tuple(itertools.islice(log_probs, len(target) + 1)) for _, target in pairs]

    def _log_probs(
        self, hidden_states: Sequence[Tensor], ids: Tensor, lengths: Tensor
    ) -> list[float]:
        """Return the log probabilities of tokens (n,), by hidden states (n, D) of each model.

        `lengths` (n,) are the numbers of tokens before them, BOS excluded.
        """
        suppressed = torch.tensor(list(self.special_tokens.suppressed), device=self.device)
        results = []
        num_rows = batch_size_factor(self.device) * CHUNK_ROWS
        for start in range(0, len(ids), num_rows):
            rows = slice(start, start + num_rows)
            predictions = []
            for model, states in zip(self.models, hidden_states, strict=True):
                logits = model.output(states[rows])
                suppress_tokens(logits[:, None], suppressed, self.special_tokens.eos, lengths[rows])
                predictions.append(logits)
            log_probs = log_softmax(log_mean_probabilities(predictions))
            results.append(log_probs.gather(-1, ids[rows, None])[:, 0])
        return torch.cat(results).tolist()


class Aligner(TeacherForcing):
    """Aligns target tokens to source tokens by attention to the source.

    Attention is the mean over heads, layers and the models of an ensemble.
    """

    def align(
        self, sentences: Sequence[Translated], num_tags: int = 0, num_start: int = 0
    ) -> list[list[SourcePositions]]:
        """Return for each translation of each sentence the source position of each target token.

        See `linked_positions`; it is never that of EOS. Translations are without EOS. The first
        `num_tags` tokens of each source and `num_start` tokens of each translation do not count:
        they are no text, such as that of a language, and have no position.
        """
        links: list[list[SourcePositions]] = [[()] * len(rows) for _, rows in sentences]
        for index, maps in self.attention(sentences):
            links[index] = [
                (*[None] * num_start, *linked_positions(weights[num_start:, num_tags:-1]))
                for weights in maps
            ]
        return links

    @torch.inference_mode()
    def attention(
        self, sentences: Sequence[Translated], num_layers: int | None = None
    ) -> Iterator[tuple[int, list[Tensor]]]:
        """Yield the index of each sentence and the attention maps (T, S) of its translations.

        Row t is the attention of the step that predicts token t, which may be EOS. Sentences
        without source or without translations are left out. The last `num_layers` layers count,
        or all.
        """
        widths = [
            max(len(source), *map(len, rows), 0) if source else 0 for source, rows in sentences
        ]
        counts = [len(rows) for _, rows in sentences]
        work = partial(self._maps, num_layers=num_layers)
        for batch, padded in self._batches(work, sentences, widths, counts):
            maps = iter(padded)
            for index in batch:
                source, rows = sentences[index]
                yield index, [next(maps)[: len(row), : len(source)] for row in rows]

    def _maps(self, sentences: Sequence[Translated], num_layers: int | None) -> Tensor:
        """Return the maps (translations of all sentences, T, S), padded."""
        rows = [(self.special_tokens.bos, *row[:-1]) for _, rows in sentences for row in rows]
        target, _ = self._padded(rows)
        source, mask = self._padded([source for source, rows in sentences for _ in rows])
        maps = []
        for model in self.models:
            with autocast(self.device, self.precision):
                maps.append(source_attention(model, source, mask, target, num_layers))
        return torch.stack(maps).mean(dim=0)


def linked_positions(attention: Tensor) -> tuple[int, ...]:
    """Return the source position of each target token by the attention (T, S) that predicts it.

    It is the one with the highest product of two shares: that of the source token in the attention
    of the target token, and that of the target token in all attention to the source token. So a
    source token that all look at, such as a period, is linked to few.
    """
    totals = attention.sum(dim=0).clamp_min(torch.finfo(attention.dtype).tiny)
    return tuple((attention * (attention / totals)).argmax(dim=-1).tolist())


def empty_source_log_probs(target: Sequence[int]) -> tuple[float, ...]:
    """Return the log probabilities of a target of an empty source."""
    return (-math.inf,) * (len(target) + 1) if target else (0.0,)
