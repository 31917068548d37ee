"""Export to ONNX: a graph that encodes sources, and a graph that decodes one token.

The caller runs the loop: it picks the tokens and passes keys and values from step to step, as our
engine does by our own searches.
"""

import contextlib
import copy
import itertools
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.errors import Problem, UsageError
from tformer_cli.export.format import (
    TOKENIZER_PACKAGES,
    Format,
    filled,
    no_language_tokens,
    token_code,
    write_sentencepiece_models,
)
from tformer_cli.extras import package
from tformer_cli.kernels.attention import attention_logits, grouped_matmul
from tformer_cli.kernels.attention_mask import AttentionMask, additive_mask
from tformer_cli.model.blocks.attention import KeyValue
from tformer_cli.model.kv_cache import DecoderCache, LayerCache, concatenate
from tformer_cli.model.network import Seq2Seq
from tformer_cli.padding import pad_rows
from tformer_cli.search.continuous_batching import decode_all
from tformer_cli.search.engine import (
    Engine,
    Hypothesis,
    Job,
    OnDone,
    OnWarning,
    Pair,
    SpecialTokens,
)
from tformer_cli.search.logits_processors import suppress_tokens
from tformer_cli.search.native_engine import build_search
from tformer_cli.search.stepper import Sentence, Stepper
from tformer_cli.search.teacher_forcing import empty_source_log_probs
from tformer_cli.storage.atomic import write_json
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.special_tokens import EOS_ID, UNK_ID
from tformer_cli.text.tokenizer import Tokenizers

SOURCE_FILE, STEP_FILE = "encoder.onnx", "decoder_step.onnx"
CPU = torch.device("cpu")
# Sentences that the engine translates together.
BATCH_SIZE = 32
# Larger weights stand in a file beside the graph: protobuf holds no more.
MAX_PROTOBUF_BYTES = 1 << 31
# Sizes of the example inputs that torch traces; 0 and 1 would be taken for constants.
EXAMPLE_BATCH, EXAMPLE_SOURCE, EXAMPLE_PAST = 2, 3, 4


class OnnxFormat(Format):
    """Two graphs, both vocabularies, and the sentencepiece models of their tokens."""

    program: ClassVar = "onnxruntime"
    extra: ClassVar = "onnx"

    def unsupported(self, trained: TrainedModel) -> Iterator[Problem]:
        if trained.tokenizers.source.kind == "m2m":
            yield no_language_tokens("an ONNX folder", "ctranslate2")

    def write(self, trained: TrainedModel, folder: Path) -> None:
        self.versions()  # Refuses missing packages before anything is traced.
        _write_graphs(trained, folder)
        tokenizers = trained.tokenizers
        write_sentencepiece_models(tokenizers, folder)
        sides = tokenizers.source, tokenizers.target
        for name, side in zip(_side_names(tokenizers), sides, strict=True):
            write_json(folder / f"{name}_vocabulary.json", side.tokens(range(side.size)))
        config = {
            "start_id": trained.tokenizers.start_id(trained.config.model.kind),
            "end_id": EOS_ID,
            "unk_id": UNK_ID,
            "max_length": trained.config.decoding.max_length,
        }
        write_json(folder / "config.json", config)

    def engine(self, trained: TrainedModel, folder: Path) -> "OnnxEngine":
        tokens = SpecialTokens(*trained.tokenizers.special_ids(trained.config.model.kind))
        return OnnxEngine(folder, tokens, max_length=trained.model.max_length)

    def searches(self, own: DecodingConfig) -> list[DecodingConfig]:
        return super().searches(own)[::-1]

    def example(self, trained: TrainedModel, line: str) -> str:
        tokenizers = trained.tokenizers
        modules = ["json", "pathlib", "numpy", "onnxruntime"]
        code = token_code(trained, line, modules=modules, target_tokens="tokens")
        files = [f"{side}_vocabulary.json" for side in _side_names(tokenizers)]
        return filled("onnx.py.txt", **code, files=json.dumps(["config.json", *files]))

    def packages(self, trained: TrainedModel) -> list[str]:
        return ["numpy", "onnxruntime", *TOKENIZER_PACKAGES[trained.tokenizers.source.kind]]


def _side_names(tokenizers: Tokenizers) -> tuple[str, str]:
    """Return how the files of the source and target vocabulary begin."""
    return ("shared", "shared") if tokenizers.shared else ("source", "target")


class SourceGraph(nn.Module):
    """Encodes sources (B, S) to the keys and values (B, Hkv, S, Dh) of each decoder layer."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, source_mask: Tensor) -> list[KeyValue]:
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

        The newest token is (B, 1), the mask of real source tokens (B, S). Keys and values stand by
        layer: (B, Hkv, S, Dh) of the source, (B, Hkv, P, Dh) of the P earlier target tokens.
        Suppressed tokens have probability 0, and so has EOS as the first token.
        """
        layers = [
            LayerPast(KeyValue(*cross), KeyValue(*own))
            for cross, own in zip(source, past, strict=True)
        ]
        cache = EqualLengthCache(layers, self.model.attended_source(source_mask))
        logits = self.model.decode_step(token, cache)  # (B, 1, V)
        suppress_tokens(logits, self.suppressed, self.eos, cache.newest[:, 0])
        return logits[:, 0].log_softmax(dim=-1), [layer.own for layer in layers]


@dataclass(slots=True)
class LayerPast(LayerCache):
    """KV cache of a layer for sequences of equal length."""

    source: KeyValue  # (B, Hkv, S, Dh)
    own: KeyValue  # of the target tokens so far, (B, Hkv, P, Dh)

    def append(self, new: KeyValue) -> KeyValue:
        self.own = concatenate(self.own, new)
        return self.own


class EqualLengthCache(DecoderCache):
    """KV cache without shared slots: each sequence has its own tokens, and attends to all."""

    def __init__(self, layers: Sequence[LayerPast], source_mask: Tensor) -> None:
        keys = layers[0].own.keys
        self.layers = layers
        self.source_lengths = source_mask.sum(dim=1)
        self.source_mask = additive_mask(source_mask, keys.dtype)[:, None, None]
        self._positions = torch.arange(keys.shape[2] + 1, device=keys.device)
        # (B, 1) position of the newest token
        self.newest = self._positions[-1:].expand(source_mask.shape[0], -1)

    def advance(self) -> Tensor:
        return self.newest

    def key_positions(self) -> Tensor:
        return self._positions.expand(self.newest.shape[0], -1)

    def mask(self) -> None:
        """Mask no target token."""


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
    ids = torch.full((EXAMPLE_BATCH, EXAMPLE_SOURCE), EOS_ID)
    mask = torch.ones_like(ids, dtype=torch.bool)
    source = [tuple(key_value) for key_value in source_graph(ids, mask)]
    widths = model.stacks()[-1].kv_shapes()
    past = [
        tuple(
            torch.zeros(EXAMPLE_BATCH, layer.num_heads, EXAMPLE_PAST, width)
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
    program.save(str(file), external_data=num_bytes >= MAX_PROTOBUF_BYTES)


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


class OnnxEngine(Engine):
    """Runs the graphs of a folder."""

    def __init__(self, folder: Path, tokens: SpecialTokens, *, max_length: int | None) -> None:
        """Load the graphs, for sentences of up to `max_length` tokens (None for any)."""
        onnxruntime = package("onnxruntime", "onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(str(folder / name), options, ["CPUExecutionProvider"])
            for name in (SOURCE_FILE, STEP_FILE)
        )
        self.special_tokens = tokens
        self.max_length = max_length
        self.scorer = self

    def decode(self, job: Job, on_done: OnDone, on_warning: OnWarning) -> list[list[Hypothesis]]:
        results: dict[int, list[Hypothesis]] = {}
        for start in range(0, len(job.requests), BATCH_SIZE):
            batch = job._replace(requests=job.requests[start : start + BATCH_SIZE])
            search = build_search(batch, self.special_tokens, CPU)
            # A slot for each sentence, so none is inserted later: sequences have one length.
            stepper = OnnxStepper(self.encoder, self.decoder)
            decoded = decode_all(stepper, search, batch.requests, lambda _: BATCH_SIZE)
            for index, hypotheses in decoded:
                results[start + index] = hypotheses
                on_done(1)
        return [results[index] for index in range(len(job.requests))]

    def score(
        self, pairs: Sequence[Pair], *, on_done: Callable[[int], object] = lambda count: None
    ) -> list[tuple[float, ...]]:
        """Score one pair at a time."""
        scores = []
        for source, target in pairs:
            scores.append(self._score(source, target) if source else empty_source_log_probs(target))
            on_done(1)
        return scores

    def _score(self, source: Sequence[int], target: Sequence[int]) -> tuple[float, ...]:
        special = self.special_tokens
        stepper = OnnxStepper(self.encoder, self.decoder)
        stepper.start([source], 1)
        tokens = (special.bos, *target, special.eos)
        return tuple(
            float(stepper.step(torch.tensor([[token]]))[0, 0, following])
            for token, following in itertools.pairwise(tokens)
        )


class OnnxStepper(Stepper):
    """Sequences of one length that all start together."""

    def __init__(self, encoder: Any, decoder: Any) -> None:
        self.encoder, self.decoder = encoder, decoder
        self.source_names = [node.name for node in encoder.get_outputs()]
        nodes = [node for node in decoder.get_inputs() if node.name.startswith("past_")]
        self.past_names = [node.name for node in nodes]
        self.empty = [(node.shape[1], 0, node.shape[3]) for node in nodes]
        self.num_beams = 1
        self.inputs: dict[str, Any] = {}
        self.past: list[Any] = []

    def start(self, sentences: Sequence[Sentence], num_beams: int) -> None:
        source, mask = (part.numpy() for part in pad_rows(sentences))
        cross = self.encoder.run(None, {"source": source, "source_mask": mask})
        self.num_beams = num_beams
        names = ("source_mask", *self.source_names)
        repeated = (np.repeat(part, num_beams, axis=0) for part in (mask, *cross))
        self.inputs = dict(zip(names, repeated, strict=True))
        count = len(sentences) * num_beams
        self.past = [np.zeros((count, *shape), np.float32) for shape in self.empty]

    def step(self, ids: Tensor) -> Tensor:
        past = dict(zip(self.past_names, self.past, strict=True))
        inputs = {"token": ids.reshape(-1, 1).numpy(), **self.inputs, **past}
        log_probs, *self.past = self.decoder.run(None, inputs)
        return torch.from_numpy(log_probs).view(*ids.shape, -1)

    def reorder(self, beam_indices: Tensor) -> None:
        first = torch.arange(len(beam_indices))[:, None] * self.num_beams
        self._select_past((first + beam_indices).flatten())

    def select(self, slots: Tensor) -> None:
        rows = (slots[:, None] * self.num_beams + torch.arange(self.num_beams)).flatten()
        self.inputs = {name: part[rows.numpy()] for name, part in self.inputs.items()}
        self._select_past(rows)

    def _select_past(self, rows: Tensor) -> None:
        self.past = [part[rows.numpy()] for part in self.past]
