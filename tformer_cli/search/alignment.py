"""Which source tokens a model looks at while it writes given translations."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tformer_cli.device import autocast
from tformer_cli.model.inspection.record import source_attention
from tformer_cli.model.network import Seq2Seq
from tformer_cli.padding import pad_rows
from tformer_cli.search.scoring import halving_on_oom, length_batches

# Padded tokens of one batch, on either side.
BATCH_TOKENS = 4096

# Source ids with the end token, and the ids of each of its translations.
Translated = tuple[Sequence[int], Sequence[Sequence[int]]]


class Aligner:
    """Asks a model of ours, or all of an ensemble, by one pass over whole translations.

    Attention is the mean over the heads of the last layer, and over the models.
    """

    def __init__(
        self,
        models: Sequence[Seq2Seq],
        bos: int,
        *,
        device: torch.device,
        precision: torch.dtype = torch.float32,
    ) -> None:
        self.models = models
        self.bos = bos
        self.device = device
        self.precision = precision

    def align(self, sentences: Sequence[Translated]) -> list[list[tuple[int, ...]]]:
        """Return links, as `Aligner` says: the source token that each one looks at most."""
        found: list[list[tuple[int, ...]]] = [[() for _ in rows] for _, rows in sentences]
        for number, maps in self.attention(sentences):
            found[number] = [tuple(looks[:, :-1].argmax(dim=-1).tolist()) for looks in maps]
        return found

    @torch.inference_mode()
    def attention(self, sentences: Sequence[Translated]) -> Iterator[tuple[int, list[Tensor]]]:
        """Yield the number of each sentence, counted from 0, and the maps (T, S) of its rows.

        Row t says how much the step that writes token t looks at each source token. A sentence
        without source or without translations has none and does not come.

        Args:
            sentences: source ids with the end token, and rows of ids, with the end token where
                the step that writes it counts.

        Raises:
            DeviceError: memory has no room for a single sentence and its rows.
        """
        for model in self.models:
            model.eval()
        widths = [
            max(len(source), *(len(row) for row in rows)) if source and rows else 0
            for source, rows in sentences
        ]
        counts = [len(rows) for _, rows in sentences]
        found = halving_on_oom(
            lambda batch: self._maps([sentences[number] for number in batch]),
            length_batches(widths, counts, BATCH_TOKENS),
            self.device,
        )
        for batch, padded in found:
            maps = iter(padded)
            for number in batch:
                source, rows = sentences[number]
                yield number, [next(maps)[: len(row), : len(source)] for row in rows]

    def _maps(self, sentences: Sequence[Translated]) -> Tensor:
        """Return the maps (rows of all sentences, T, S), padded."""
        rows = [(self.bos, *row[:-1]) for _, rows in sentences for row in rows]
        target = pad_rows(rows)[0].to(self.device)
        sources = [source for source, rows in sentences for _ in rows]
        source, mask = (part.to(self.device) for part in pad_rows(sources))
        maps = []
        for model in self.models:
            with autocast(self.device, self.precision):
                weights = source_attention(model, source, mask, target)
            maps.append(weights.to(torch.promote_types(weights.dtype, torch.float32)).mean(dim=1))
        return torch.stack(maps).mean(dim=0)
