"""A run with a smaller vocabulary: the tokens of a text, and what spells other text."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from tformer_cli.config.schema.text import Bitext, PairsFile
from tformer_cli.config.schema.tokenizer import SubwordConfig
from tformer_cli.corpus.reader import counted, read_nonempty
from tformer_cli.export.run import write_run
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq
from tformer_cli.storage.atomic import check_absent
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.text.tokenizer import trim


class Sizes(NamedTuple):
    """How large a model is."""

    source_vocabulary: int
    target_vocabulary: int
    num_parameters: int


def trim_run(
    run: RunDirectory,
    output: RunDirectory,
    text: Bitext,
    *,
    checkpoint: str = "best",
    on_done: Callable[[int], object] = lambda count: None,
) -> tuple[Sizes, Sizes]:
    """Write a run folder with the tokens that a text needs, and return the sizes before and after.

    The logits of the tokens that are left are the same, so text is translated as before if its
    tokens and those of its translation are left (Abdaoui et al. 2020). Prefixes are left too.

    Args:
        run: the run folder, of a model with subwords.
        output: the run folder to write.
        text: its sources and targets say which tokens are left.
        checkpoint: best, last, a step, or a name such as step-000400.
        on_done: called with a number of pairs whenever some are read.

    Raises:
        TformerError: the run or the text is unusable, or `output` exists.
    """
    check_absent(output.path)
    trained = load_trained_model(run, checkpoint)
    data = trained.config.data
    if isinstance(text, PairsFile) and text.languages is None:
        text = replace(text, languages=data.direction_of(text))
    prefixes = ((prefix, "") for prefix in (data.prefixes or {}).values())
    pairs = itertools.chain(prefixes, counted(read_nonempty(text), on_done))
    tokenizers, ids = trim(trained.tokenizers, pairs)
    sizes = tokenizers.source.size, tokenizers.target.size
    config = trained.config
    if isinstance(config.tokenizer, SubwordConfig):
        config = replace(config, tokenizer=replace(config.tokenizer, vocab_size=max(sizes)))
    model = build_model(config.model, source_size=sizes[0], target_size=sizes[1], seed=0)
    _copy_weights(trained.model, model, ids)
    smaller = replace(trained, config=config, tokenizers=tokenizers, model=model)
    write_run(smaller, output.path)
    before = trained.tokenizers.source.size, trained.tokenizers.target.size
    return Sizes(*before, trained.model.num_parameters()), Sizes(*sizes, model.num_parameters())


def _copy_weights(
    original: Seq2Seq, smaller: Seq2Seq, ids: tuple[Sequence[int], Sequence[int]]
) -> None:
    """Copy all weights; of those with a row for each token, the rows of some ids of each side."""
    weights = dict(original.named_parameters())
    with torch.no_grad():
        for name, weight in smaller.named_parameters():
            rows = weights[name].detach()
            if rows.shape != weight.shape:
                rows = rows[list(ids[0] if name.startswith("encoder.") else ids[1])]
            weight.copy_(rows)
