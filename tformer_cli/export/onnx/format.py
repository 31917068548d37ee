"""A trained model as a folder of graphs that onnxruntime, and much else, runs.

One graph reads sources, the other writes a token behind those that there are. What goes round is
the caller's: which token to take, and what has been remembered of the others.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.errors import Problem, UsageError
from tformer_cli.export.check import searches
from tformer_cli.export.extra import package
from tformer_cli.export.format import Format
from tformer_cli.export.onnx.engine import SOURCE_FILE, STEP_FILE, OnnxEngine
from tformer_cli.export.onnx.example import example
from tformer_cli.export.onnx.graphs import SourceGraph, StepGraph, traceable
from tformer_cli.export.token_example import TOKEN_PACKAGES, sentencepiece_models
from tformer_cli.storage.atomic import write_json
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.text.vocabulary import DECODER_START_IDS, EOS_ID, UNK_ID
from tformer_cli.translate.preprocess import special_tokens

# What torch writes the graphs with, and what runs them.
PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime")
# A file of ONNX holds no more; what is larger has its weights beside it.
MAX_BYTES = 1 << 31
# Sizes of the examples that torch follows through a model; none of them may be 0 or 1.
BATCH, SOURCE, PAST = 2, 3, 4


class OnnxFormat(Format):
    """Two graphs, the tokens of both vocabularies, and the sentencepiece models that make them."""

    program: ClassVar = "onnxruntime"
    is_exact: ClassVar = True

    def unsupported(self, trained: TrainedModel) -> Iterator[Problem]:
        """Yield nothing: a graph is whatever the model computes."""
        yield from ()

    def write(self, trained: TrainedModel, folder: Path) -> None:
        """Write the graphs and what makes their tokens, as `Format` says."""
        for name in PACKAGES:
            package(name, "onnx")
        write_graphs(trained, folder)
        tokenizers = trained.tokenizers
        for name, content in sentencepiece_models(tokenizers).items():
            (folder / f"{name}.model").write_bytes(content)
        for name, tokens in vocabularies(tokenizers).items():
            write_json(folder / f"{name}_vocabulary.json", tokens)
        write_json(
            folder / "config.json",
            {
                "start_id": DECODER_START_IDS[trained.config.model.kind],
                "end_id": EOS_ID,
                "unk_id": UNK_ID,
                "max_length": trained.config.decoding.max_length,
            },
        )

    def engine(self, trained: TrainedModel, folder: Path) -> OnnxEngine:
        """Return onnxruntime with what has been written, and our searches."""
        roles = special_tokens(trained.tokenizers.target, trained.config.model)
        return OnnxEngine(folder, roles, max_length=trained.model.max_length)

    def searches(self, max_length: int) -> list[DecodingConfig]:
        """Return beam search and greedy search, which the example is."""
        return searches(max_length)[::-1]

    def example(self, trained: TrainedModel, line: str) -> str:
        """Return lines of Python that translate a line, as `Format` says."""
        return example(trained.tokenizers, line)

    def packages(self, trained: TrainedModel) -> list[str]:
        """Return what has to be installed for that."""
        return ["numpy", "onnxruntime", *TOKEN_PACKAGES[trained.tokenizers.source.kind]]

    def versions(self) -> dict[str, str]:
        """Return the versions of what wrote the graphs and ran them."""
        return {name: package(name, "onnx").__version__ for name in PACKAGES}


def vocabularies(tokenizers: Tokenizers) -> dict[str, list[str]]:
    """Return the tokens of both sides, each at the place of its id, by the names of the sides."""
    source, target = (
        side.tokens(range(side.size)) for side in (tokenizers.source, tokenizers.target)
    )
    return {"shared": source} if tokenizers.shared else {"source": source, "target": target}


@torch.no_grad()
def write_graphs(trained: TrainedModel, folder: Path) -> None:
    """Write the two graphs of a model into a folder that is there."""
    model = traceable(trained.model)
    roles = special_tokens(trained.tokenizers.target, trained.config.model)
    reading, stepping = SourceGraph(model), StepGraph(model, roles)
    ids = torch.full((BATCH, SOURCE), EOS_ID)
    mask = torch.ones_like(ids, dtype=torch.bool)
    source = [tuple(kept) for kept in reading(ids, mask)]
    widths = model.stacks()[-1].kv_shapes()
    past = [
        tuple(torch.zeros(BATCH, kept.num_heads, PAST, width) for width in (kept.key, kept.value))
        for kept in widths
    ]
    names = {
        which: [f"{which}_{part}.{i}" for i in range(len(widths)) for part in ("keys", "values")]
        for which in ("source", "past", "target")
    }
    rows, read = {0: "batch"}, {0: "batch", 1: "source_length"}
    seen, remembered = {0: "batch", 2: "source_length"}, {0: "batch", 2: "past_length"}
    _write_graph(
        reading,
        (ids, mask),
        folder / SOURCE_FILE,
        input_names=["source", "source_mask"],
        output_names=names["source"],
        dynamic_shapes=(read, read),
    )
    _write_graph(
        stepping,
        (ids[:, :1], mask, source, past),
        folder / STEP_FILE,
        input_names=["token", "source_mask", *names["source"], *names["past"]],
        output_names=["log_probs", *names["target"]],
        dynamic_shapes=(
            rows,
            read,
            [(seen, seen)] * len(widths),
            [(remembered, remembered)] * len(widths),
        ),
    )


def _write_graph(graph: nn.Module, inputs: tuple[Any, ...], file: Path, **names: Any) -> None:
    try:
        with _quiet():
            program = torch.onnx.export(graph, inputs, dynamo=True, verbose=False, **names)
    except torch.onnx.OnnxExporterError as error:
        raise UsageError(
            "torch.onnx",
            "cannot write this network",
            got=str(error).strip().partition("\n")[0],
            remedy="pip install --upgrade 'tformer[onnx]'",
        ) from None
    assert program is not None
    num_bytes = sum(weight.nbytes for weight in graph.parameters())
    program.save(str(file), external_data=num_bytes >= MAX_BYTES)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what torch says of its own parts from people who have asked for a file."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
