#!/usr/bin/env python
"""Compare ways to align tokens by a run's attention with an alignment by statistics.

The model reads the first pairs of its validation text. The other alignment is that of `tformer
extract-phrases` for the same tokens, among many pairs of the training text. It is no truth, but
independent of the model, and errs alike for each way.

Example: python scripts/bench/alignments.py runs/demo
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from cli import AsJson, show
from harness import aligned
from torch import Tensor

from tformer_cli.cli.entry import new_app, run
from tformer_cli.corpus.reader import read_rows
from tformer_cli.corpus.word_alignment import Links, align_words
from tformer_cli.errors import quantity
from tformer_cli.model.inspection.attention_recorder import attention_maps
from tformer_cli.search.teacher_forcing import linked_positions
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import TrainedModel, load_trained_model
from tformer_cli.text.tokenizer import with_eos

Ids = list[int]

# Training pairs for the alignment by statistics.
TRAINING_PAIRS = 30_000


def encoded(trained: TrainedModel, num_pairs: int) -> Iterator[tuple[Ids, Ids]]:
    """Yield the token ids of the first pairs of the validation text, and of training pairs."""
    data, tokenizers = trained.config.data, trained.tokenizers
    valid = data.held_out[0]
    for text, count in ((valid, num_pairs), (data.train[0], TRAINING_PAIRS)):
        for source, target in itertools.islice(read_rows(text), count):
            ids = tokenizers.source.encode(source), tokenizers.target.encode(target)
            if all(ids):
                yield ids


@torch.inference_mode()
def ways(trained: TrainedModel, source: Ids, target: Ids) -> dict[str, Sequence[int]]:
    """Return the source position of each target token, by each way to find it."""
    tokenizers, kind = trained.tokenizers, trained.config.model.kind
    source_ids = torch.tensor([with_eos(source)])
    target_ids = torch.tensor([[tokenizers.start_id(kind), *target]])
    mask = torch.ones_like(source_ids, dtype=torch.bool)
    layers = [
        maps.self_attention[0, :, source_ids.shape[1] :]
        if maps.cross_attention is None
        else maps.cross_attention[0]
        for maps in attention_maps(trained.model, source_ids, mask, target_ids)[-1]
    ]
    # (layers, T + 1, S), a row for the start token too, and no column for EOS.
    attention = torch.stack([heads.mean(dim=0)[:, : len(source)] for heads in layers])
    written, read = attention[:, :-1], attention[:, 1:]
    return {
        "last layer, highest": _highest(written[-1]),
        "all layers, highest": _highest(written.mean(dim=0)),
        "all layers, product of both shares": linked_positions(written.mean(dim=0)),
        "first layer as the token is read, highest": _highest(read[0]),
    }


def _highest(attention: Tensor) -> Sequence[int]:
    positions: list[int] = attention.argmax(dim=-1).tolist()
    return positions


def measure(found: Sequence[dict[str, Links]], expected: Sequence[Links]) -> dict[str, float]:
    """Return the F1 of the links of all sentences by each way."""
    common, total = Counter[str](), Counter[str]()
    for links, others in zip(found, expected, strict=True):
        for way, own in links.items():
            common[way] += len(own & others)
            total[way] += len(own) + len(others)
    return {way: 2 * common[way] / total[way] for way in total}


app = new_app()


@app.command()
def main(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    pairs: Annotated[int, typer.Option(min=1, help="Validation pairs to align.")] = 300,
    as_json: AsJson = False,
) -> None:
    """Print the F1 of each way to align, with links by statistics as the truth."""
    trained = load_trained_model(RunDirectory(folder))
    trained.model.eval()
    both = list(encoded(trained, pairs))
    sides = ([[str(number) for number in ids] for ids in side] for side in zip(*both, strict=True))
    expected = list(align_words(*sides))[:pairs]
    found = [
        {
            way: {(position, number) for number, position in enumerate(positions)}
            for way, positions in ways(trained, source, target).items()
        }
        for source, target in both[:pairs]
    ]
    scores = measure(found, expected)
    rows = [(way, f"{score:.3f}") for way, score in scores.items()]
    note = f"{folder}: {quantity(len(found), 'pair')}, F1 of token links"
    show(scores, as_json, lambda: aligned([("way", "F1"), *rows]), note)


if __name__ == "__main__":
    run(app)
