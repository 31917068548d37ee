"""Word alignment from cross-attention over given translations."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tformer_cli.device import autocast
from tformer_cli.model.inspection.attention_recorder import source_attention
from tformer_cli.search.scoring import TeacherForcing

# Source ids with EOS, and the ids of each of its translations.
Translated = tuple[Sequence[int], Sequence[Sequence[int]]]


class Aligner(TeacherForcing):
    """Aligns target tokens to source tokens by a forward pass over whole translations.

    Attention is the mean over the heads of the last layer, and over the models of an ensemble.
    """

    def align(self, sentences: Sequence[Translated]) -> list[list[tuple[int, ...]]]:
        """Return for each translation of each sentence the source position of each target token.

        It is the position with the highest attention, never that of EOS; translations are without
        EOS.
        """
        links: list[list[tuple[int, ...]]] = [[() for _ in rows] for _, rows in sentences]
        for index, maps in self.attention(sentences):
            links[index] = [tuple(weights[:, :-1].argmax(dim=-1).tolist()) for weights in maps]
        return links

    @torch.inference_mode()
    def attention(self, sentences: Sequence[Translated]) -> Iterator[tuple[int, list[Tensor]]]:
        """Yield the index of each sentence and the attention maps (T, S) of its translations.

        Row t is the attention of the step that predicts token t, which may be EOS. Sentences
        without source or without translations are left out.

        Raises:
            DeviceError: memory does not suffice for a single sentence and its translations.
        """
        widths = [
            max(len(source), *(len(row) for row in rows)) if source and rows else 0
            for source, rows in sentences
        ]
        counts = [len(rows) for _, rows in sentences]
        for batch, padded in self._batches(self._maps, sentences, widths, counts):
            maps = iter(padded)
            for index in batch:
                source, rows = sentences[index]
                yield index, [next(maps)[: len(row), : len(source)] for row in rows]

    def _maps(self, sentences: Sequence[Translated]) -> Tensor:
        """Return the maps (translations of all sentences, T, S), padded."""
        rows = [(self.special_tokens.bos, *row[:-1]) for _, rows in sentences for row in rows]
        target, _ = self._padded(rows)
        sources = [source for source, rows in sentences for _ in rows]
        source, mask = self._padded(sources)
        maps = []
        for model in self.models:
            with autocast(self.device, self.precision):
                weights = source_attention(model, source, mask, target)
            maps.append(weights.to(torch.promote_types(weights.dtype, torch.float32)).mean(dim=1))
        return torch.stack(maps).mean(dim=0)
