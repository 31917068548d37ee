"""Searches the translations of lines, of which each is one request or several."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tformer_cli.config.schema.decoding import DecodingConfig, SampleConfig
from tformer_cli.search.engine import Engine, Hypothesis, OnDone, OnWarning, Request
from tformer_cli.translate.options import MBR
from tformer_cli.translate.postprocess import (
    Postprocessor,
    Translation,
    best_combinations,
    sample_combinations,
)

if TYPE_CHECKING:
    from tformer_cli.search.teacher_forcing import Aligner


@dataclass(frozen=True)
class LineSearch:
    """Requests to translations, by an engine, with word alignments if there is an aligner."""

    engine: Engine
    postprocessor: Postprocessor
    aligner: "Aligner | None"

    def __call__(
        self,
        requests: Sequence[Sequence[Request]],
        search: DecodingConfig,
        num_hypotheses: int,
        count: int,
        *,
        mbr: MBR | None = None,
        scored: bool = True,
        on_done: OnDone = lambda count: None,
        on_warning: OnWarning = lambda problem: None,
        on_draft: Callable[[int, str], object] | None = None,
    ) -> list[list[Translation]]:
        """Return the `count` best translations of each line, best first.

        Args:
            requests: the pieces of each line.
            search: how to translate them.
            num_hypotheses: of each piece, from which the translations are chosen.
            count: translations of a line at most.
            mbr: minimum-Bayes-risk decoding, if it chooses.
            scored: whether to compute scores where a line has one translation.
            on_done: called with numbers of lines, which sum to that of all.
            on_warning: as for `Engine.translate`.
            on_draft: called with the index of a line and its translation so far.
        """
        pieces = list(itertools.chain.from_iterable(requests))
        if not pieces:
            # Under torchrun the last window may have fewer lines than there are processes.
            return []
        hypotheses = self.engine.translate(
            pieces,
            search,
            nbest=num_hypotheses,
            # Several translations of a line are ranked by their scores.
            scored=scored or count > 1,
            on_done=_in_proportion(on_done, len(pieces), len(requests)),
            on_warning=on_warning,
            on_draft=self.postprocessor.draft_lines(requests, on_draft) if on_draft else None,
        )
        ranked = (self._rerank(candidates, mbr) for candidates in hypotheses)
        by_line = [(line, [next(ranked) for _ in line]) for line in requests]
        if mbr is None and isinstance(search, SampleConfig):
            chosen = [sample_combinations(*line) for line in by_line]
        else:
            chosen = [best_combinations(candidates, count) for _, candidates in by_line]
        return list(self.postprocessor.decode_lines(requests, chosen, self.aligner))

    def _rerank(self, hypotheses: list[Hypothesis], mbr: MBR | None) -> list[Hypothesis]:
        if mbr is None:
            return hypotheses
        from tformer_cli.translate.mbr import rerank

        decode = self.postprocessor.tokenizers.target.decode
        texts = [decode(hypothesis.token_ids) for hypothesis in hypotheses]
        uses_whitespace = self.postprocessor.separator != ""
        return rerank(mbr.utility, hypotheses, texts, uses_whitespace=uses_whitespace)


def _in_proportion(
    on_done: Callable[[int], object], num_pieces: int, num_lines: int
) -> Callable[[int], object]:
    """Return a callback for pieces that calls `on_done` with lines; they sum to `num_lines`."""
    pieces_done = 0

    def on_pieces(count: int) -> None:
        nonlocal pieces_done
        before = pieces_done * num_lines // num_pieces
        pieces_done += count
        on_done(pieces_done * num_lines // num_pieces - before)

    return on_pieces
