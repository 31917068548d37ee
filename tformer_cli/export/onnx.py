"""Export to ONNX: a graph that encodes sources, and a graph that decodes one token.

The caller runs the loop: it picks the tokens and passes keys and values from step to step.
"""

import contextlib
import copy
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.errors import UsageError
from tformer_cli.export.format import (
    TOKENIZER_PACKAGES,
    Format,
    filled,
    token_code,
    write_sentencepiece_models,
)
from tformer_cli.export.onnx_engine import SOURCE_FILE, STEP_FILE, OnnxEngine
from tformer_cli.model.blocks.attention import (
    KeyValue,
    attention_logits,
    grouped_matmul,
)
from tformer_cli.model.blocks.attention_mask import AttentionMask, additive_mask
from tformer_cli.model.kv_cache import concatenate
from tformer_cli.model.network import Seq2Seq
from tformer_cli.search.logits_processors import suppress_tokens
from tformer_cli.search.request import SpecialTokens
from tformer_cli.storage.atomic import write_json
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.text.vocabulary import DECODER_START_IDS, EOS_ID, UNK_ID

# Larger weights stand in a file beside the graph: protobuf holds no more.
MAX_BYTES = 1 << 31
# Sizes of the example inputs that torch traces; 0 and 1 would be taken for constants.
BATCH, SOURCE, PAST = 2, 3, 4


class OnnxFormat(Format):
    """Two graphs, both vocabularies, and the sentencepiece models of their tokens."""

    program: ClassVar = "onnxruntime"
    extra: ClassVar = "onnx"

    def write(self, trained: TrainedModel, folder: Path) -> None:
        self.versions()  # Refuses missing packages before anything is traced.
        _write_graphs(trained, folder)
        write_sentencepiece_models(trained.tokenizers, folder)
        for name, tokens in _vocabularies(trained.tokenizers).items():
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
        tokens = SpecialTokens(*trained.tokenizers.special_ids(trained.config.model.kind))
        return OnnxEngine(folder, tokens, max_length=trained.model.max_length)

    def searches(self, max_length: int) -> list[DecodingConfig]:
        return super().searches(max_length)[::-1]

    def example(self, trained: TrainedModel, line: str) -> str:
        tokenizers = trained.tokenizers
        modules = ["json", "pathlib", "numpy", "onnxruntime"]
        code = token_code(tokenizers, line, modules=modules, target_tokens="tokens")
        sides = ("shared", "shared") if tokenizers.shared else ("source", "target")
        files = json.dumps(["config.json", *(f"{side}_vocabulary.json" for side in sides)])
        return filled("onnx.py.txt", **code, files=files)

    def packages(self, trained: TrainedModel) -> list[str]:
        return ["numpy", "onnxruntime", *TOKENIZER_PACKAGES[trained.tokenizers.source.kind]]


def _vocabularies(tokenizers: Tokenizers) -> dict[str, list[str]]:
    """Return the tokens of both sides by id."""
    source, target = (
        side.tokens(range(side.size)) for side in (tokenizers.source, tokenizers.target)
    )
    return {"shared": source} if tokenizers.shared else {"source": source, "target": target}


class SourceGraph(nn.Module):
    """Encodes sources (B, S) to the keys and values (B, Hkv, S, Dh) of each decoder layer."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, source_mask: Tensor) -> list[KeyValue]:
        """Return the keys and values of the source by layer."""
        return self.model.prefill(source, source_mask)


class StepGraph(nn.Module):
    """Decodes one token of each sequence."""

    suppressed: Tensor

    def __init__(self, model: Seq2Seq, tokens: SpecialTokens) -> None:
        super().__init__()
        self.model = model
        self.eos = tokens.eos
        self.register_buffer("suppressed", torch.tensor(list(tokens.suppressed)))

    def forward(
        self,
        token: Tensor,
        source_mask: Tensor,
        source: Sequence[tuple[Tensor, Tensor]],
        past: Sequence[tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, list[KeyValue]]:
        """Return log probabilities (B, V) of the next token, and all keys and values.

        Suppressed tokens have probability 0, and so has EOS as the first token.

        Args:
            token: (B, 1) the newest token, or the start token.
            source_mask: (B, S) real source tokens.
            source: keys and values of the source by layer, (B, Hkv, S, Dh).
            past: keys and values of the P earlier target tokens by layer, (B, Hkv, P, Dh).
        """
        layers = [
            LayerPast(KeyValue(*cross), KeyValue(*own))
            for cross, own in zip(source, past, strict=True)
        ]
        cache = EqualLengthCache(layers, source_mask)
        logits = self.model.decode_step(token, cache)  # (B, 1, V)
        suppress_tokens(logits, self.suppressed, self.eos, cache.newest[:, 0])
        return logits[:, 0].log_softmax(dim=-1), [layer.own for layer in layers]


@dataclass(slots=True)
class LayerPast:
    """KV cache of a layer for sequences of equal length."""

    source: KeyValue  # (B, Hkv, S, Dh)
    own: KeyValue  # of the target tokens so far, (B, Hkv, P, Dh)

    def append(self, new: KeyValue) -> KeyValue:
        """Append the newest tokens, and return all target tokens."""
        self.own = concatenate(self.own, new)
        return self.own

    def append_to_source(self, new: KeyValue) -> KeyValue:
        """Append the newest tokens, and return source and target tokens."""
        return concatenate(self.source, self.append(new))


class EqualLengthCache:
    """KV cache without shared slots: each sequence has its own tokens, and attends to all.

    Attributes:
        layers: one per layer.
        source_lengths: (B,) tokens of each source.
        source_mask: (B, 1, 1, S) minus infinity for padding.
        source_length: S.
        newest: (B, 1) position of the newest token.
    """

    def __init__(self, layers: Sequence[LayerPast], source_mask: Tensor) -> None:
        keys = layers[0].own.keys
        self.layers = layers
        self.source_lengths = source_mask.sum(dim=1)
        self.source_mask: Tensor | None = additive_mask(source_mask, keys.dtype)[:, None, None]
        self.source_length = source_mask.shape[1]
        self._positions = torch.arange(keys.shape[2] + 1, device=keys.device)
        self.newest = self._positions[-1:].expand(source_mask.shape[0], -1)

    def advance(self) -> Tensor:
        """Return the positions of the newest tokens."""
        return self.newest

    def key_positions(self) -> Tensor:
        """Return the positions of all target tokens, (B, P + 1)."""
        return self._positions.expand(self.newest.shape[0], -1)

    def mask(self) -> None:
        """Mask no target token."""
        return

    def joint_mask(self) -> Tensor:
        """Mask the padding of sources."""
        assert self.source_mask is not None
        own = torch.zeros_like(self.key_positions(), dtype=self.source_mask.dtype)
        return torch.cat((self.source_mask, own[:, None, None]), dim=3)


def traceable(model: Seq2Seq) -> Seq2Seq:
    """Return a copy of shared weights whose attention is one formula for all sizes."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    copied: Seq2Seq = copy.deepcopy(model, shared)
    for stack in copied.stacks():
        for layer in stack.each_layer():
            for attention in layer.attentions():
                attention.attend = _attend_by_formula
    return copied.eval()


def _attend_by_formula(
    queries: Tensor, keys: Tensor, values: Tensor, mask: AttentionMask, dropout: float
) -> Tensor:
    return grouped_matmul(attention_logits(queries, keys, mask).softmax(dim=-1), values)


@torch.no_grad()
def _write_graphs(trained: TrainedModel, folder: Path) -> None:
    model = traceable(trained.model)
    tokens = SpecialTokens(*trained.tokenizers.special_ids(trained.config.model.kind))
    source_graph, step_graph = SourceGraph(model), StepGraph(model, tokens)
    ids = torch.full((BATCH, SOURCE), EOS_ID)
    mask = torch.ones_like(ids, dtype=torch.bool)
    source = [tuple(key_value) for key_value in source_graph(ids, mask)]
    widths = model.stacks()[-1].kv_shapes()
    past = [
        tuple(
            torch.zeros(BATCH, layer.num_heads, PAST, width)
            for width in (layer.key_dim, layer.value_dim)
        )
        for layer in widths
    ]
    names = {
        which: [f"{which}_{part}.{i}" for i in range(len(widths)) for part in ("keys", "values")]
        for which in ("source", "past", "target")
    }
    batch, batch_source = {0: "batch"}, {0: "batch", 1: "source_length"}
    cross, own = {0: "batch", 2: "source_length"}, {0: "batch", 2: "past_length"}
    _write_graph(
        source_graph,
        (ids, mask),
        folder / SOURCE_FILE,
        input_names=["source", "source_mask"],
        output_names=names["source"],
        dynamic_shapes=(batch_source, batch_source),
    )
    _write_graph(
        step_graph,
        (ids[:, :1], mask, source, past),
        folder / STEP_FILE,
        input_names=["token", "source_mask", *names["source"], *names["past"]],
        output_names=["log_probs", *names["target"]],
        dynamic_shapes=(
            batch,
            batch_source,
            [(cross, cross)] * len(widths),
            [(own, own)] * len(widths),
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
    """Silence torch's warnings about its own parts."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
