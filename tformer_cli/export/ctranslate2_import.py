"""Import of a CTranslate2 folder: its weights by ours, and what translates by them.

The inverse of `specification` (export/ctranslate2.py), for our exports and for what CTranslate2's
converters wrote. Linear layers of one input are stored as one. Our decoder start token stands for
theirs, or for the zeros with which Marian's decoders start.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.errors import CheckpointError
from tformer_cli.export.converted import START, converted_config, read_side_files, settings_of
from tformer_cli.export.ctranslate2_file import (
    CONVERT_AGAIN,
    EMBEDDINGS,
    POSITION_ENCODINGS,
    StoredModel,
)
from tformer_cli.export.ctranslate2_network import (
    HEAD_NORMS,
    MEMORY_PROJECTION,
    NORMS,
    check_all_read,
    layer_scopes,
    linear_layers,
    read_network,
)
from tformer_cli.export.plain import in_languages, portable_config
from tformer_cli.export.settings import SETTINGS_FILE
from tformer_cli.export.weights import (
    BIAS,
    OUTPUT,
    SIDES,
    SOURCE,
    TARGET,
    Weights,
    interleave,
    output_bias,
    rows_of,
)
from tformer_cli.model.blocks.bias import RelativeBias, SumOfBiases
from tformer_cli.model.build import build_model, build_with_weights
from tformer_cli.model.encoder_decoder import EncoderDecoder
from tformer_cli.model.layers import Stack
from tformer_cli.model.network import Seq2Seq
from tformer_cli.storage.checkpoint import check_finite
from tformer_cli.storage.run_directory import EXPORT_FILE, RunDirectory
from tformer_cli.storage.trained_model import TrainedModel, find_model
from tformer_cli.text.special_tokens import BOS_ID
from tformer_cli.text.tokenizer import Tokenizer, Tokenizers

PROJECTION = "decoder/projection"


class Layout(NamedTuple):
    """How a file has our network."""

    config: EncoderDecoderConfig
    is_marian: bool = False  # all sines before all cosines
    is_export: bool = False  # tformer wrote it, so factors and tables are known


class Reader:
    """Reads the weights of our network from a file."""

    def __init__(self, stored: StoredModel, layout: Layout, model: EncoderDecoder) -> None:
        """`model` has the shapes, on the meta device."""
        self.stored = stored
        self.layout = layout
        self.config = layout.config
        self.model = model
        named = model.named_parameters(remove_duplicate=False)
        self.shapes = {name: tuple(weight.shape) for name, weight in named}

    def weights(self, ids: Sequence[Tensor]) -> Weights:
        """Return our weights, shared ones under each of their names.

        Ids are theirs of our tokens, of source and target; -1 of tokens that they do not have.
        """
        weights: Weights = {}
        factors = []
        for side, stack, rows in zip(SIDES, self.model.stacks(), ids, strict=True):
            factors.append(self._scale(side) / stack.embeddings.scale / self._alpha(stack))
            tokens = self._table(EMBEDDINGS[side], rows)
            weights[f"{side}.embeddings.tokens.weight"] = _times(tokens, factors[-1])
            weights |= self._stack(side, stack)
        scale = self.config.output_scale or 1.0
        factor = self.stored.number("decoder/scale_outputs", float, 1.0) / scale
        if self.config.tie_embeddings in ("none", "inputs"):
            weights[OUTPUT] = self._table(f"{PROJECTION}/weight", ids[1])
        else:
            weights[OUTPUT] = weights[TARGET]
            factor /= factors[1]
        if self.config.tie_embeddings in ("inputs", "all"):
            weights[SOURCE] = weights[TARGET]
        last = f"layers.{self.config.num_decoder_layers - 1}.feedforward_norm"
        if self.config.norm_position == "pre":
            last = "norm"
        for name in (f"decoder.{last}.weight", f"decoder.{last}.bias"):
            if name in weights:
                weights[name] = _times(weights[name], factor)
        if BIAS in self.shapes:
            weights[BIAS] = self._output_bias(ids[1])
        return weights

    def _alpha(self, stack: Stack) -> float:
        return stack.deep_norm.alpha if self.config.norm_position == "deep" else 1.0

    def _scale(self, side: str) -> float:
        """Return the factor of embeddings: a number, or a flag for sqrt(D)."""
        name, root = f"{side}/scale_embeddings", math.sqrt(self.config.dim)
        value = self.stored.number(name, float, root)
        is_flag = name in self.stored and self.stored.number_format(name) == "int8"
        return (root if value else 1.0) if is_flag else value

    def _stack(self, side: str, stack: Stack) -> Weights:
        weights: Weights = {}
        alpha = self._alpha(stack)
        if f"{side}.embeddings.positions.weight" in self.shapes:
            rows = self.shapes[f"{side}.embeddings.positions.weight"]
            table = self._tensor(f"{side}/{POSITION_ENCODINGS}")[: rows[0]]
            weights[f"{side}.embeddings.positions.weight"] = table / alpha
        own = f"{side}.embeddings.norm"
        weights |= self._norm(f"{side}/layernorm_embedding", own, factor=1 / alpha)
        for number, scope in enumerate(layer_scopes(self.stored, side)):
            prefix = f"{side}.layers.{number}"
            is_last = number == len(stack.layers) - 1
            weights |= self._linears(scope, prefix, alpha)
            for theirs, ours in NORMS.items():
                # What leaves the stack is no residual.
                factor = 1.0 if is_last and ours == "feedforward_norm" else 1 / alpha
                weights |= self._norm(f"{scope}/{theirs}", f"{prefix}.{ours}", factor=factor)
            for theirs, ours in HEAD_NORMS.items():
                weights |= self._norm(f"{scope}/{theirs}", f"{prefix}.{ours}", axis=None)
        weights |= self._norm(f"{side}/layer_norm", f"{side}.norm")
        weights |= self._bias_by_distance(side, stack)
        return weights

    def _linears(self, scope: str, prefix: str, alpha: float) -> Weights:
        weights: Weights = {}
        for theirs, ours, axis in linear_layers(self.config, prefix.partition(".")[0]):
            name = f"{scope}/{theirs}"
            names = [f"{prefix}.{part}" for part in ours]
            shapes = [self.shapes[f"{part}.weight"] for part in names]
            sizes = [shape[0] for shape in shapes]
            weight = self._tensor(f"{name}/weight", (sum(sizes), shapes[0][1]))
            weight = self._ordered(weight, axis)
            if axis == 1 and theirs != MEMORY_PROJECTION:
                weight = _times(weight, alpha)
            biases = torch.zeros(sum(sizes))
            if f"{names[0]}.bias" in self.shapes and f"{name}/bias" in self.stored:
                biases = self._tensor(f"{name}/bias", (sum(sizes),))
                biases = self._ordered(biases, 0) if axis == 0 else biases
            parts = zip(names, torch.split(weight, sizes), torch.split(biases, sizes), strict=True)
            for part, own, bias in parts:
                factor = self._query_factor(scope, part)
                weights[f"{part}.weight"] = _times(own, factor)
                if f"{part}.bias" in self.shapes:
                    weights[f"{part}.bias"] = _times(bias, factor)
        return weights

    def _query_factor(self, scope: str, part: str) -> float:
        """Return the factor of queries to what ours are multiplied by."""
        block, _, module = part.rpartition(".")
        if module != "query" or self.layout.is_export or self.config.qk_norm:
            return 1.0
        theirs = "self_attention" if block.endswith("self_attention") else "attention"
        root = math.sqrt(self.config.head_dim)
        return self.stored.number(f"{scope}/{theirs}/queries_scale", float, 1 / root) * root

    def _norm(
        self, theirs: str, ours: str, *, axis: int | None = 0, factor: float = 1.0
    ) -> Weights:
        """Return the weights of a norm, as far as our network has it, times a factor."""
        names = {f"{ours}.weight": f"{theirs}/gamma", f"{ours}.bias": f"{theirs}/beta"}
        return {
            name: _times(self._ordered(self._tensor(stored, self.shapes[name]), axis), factor)
            for name, stored in names.items()
            if name in self.shapes
        }

    def _bias_by_distance(self, side: str, stack: Stack) -> Weights:
        """Return T5's table of buckets: theirs, or that of a table of distances in our exports."""
        parts = list(stack.bias.parts) if isinstance(stack.bias, SumOfBiases) else [stack.bias]
        bias = parts[0]
        if not isinstance(bias, RelativeBias):
            return {}
        prefix = f"{side}.bias" + (".parts.0" if len(parts) > 1 else "")
        first, *others = [
            f"{scope}/self_attention/relative_attention_bias"
            for scope in layer_scopes(self.stored, side)
        ]
        for other in others:
            if not _are_equal(self.stored, first, other):
                what = "must be that of the first layer"
                raise self.stored.error(other, what)
        table = self._tensor(first)
        shape = self.shapes[f"{prefix}.table.weight"]
        if self.layout.is_export:
            reach = len(table) // (1 if stack.is_causal else 2)
            distances = -torch.arange(reach)
            if not stack.is_causal:
                distances = torch.cat([distances, -distances])
            is_seen = distances.abs() < (self.config.sliding_window or reach)
            buckets = bias.buckets(distances[is_seen])
            table = torch.zeros(shape).index_copy(0, buckets, table[: len(distances)][is_seen])
        if tuple(table.shape) != shape:
            raise self.stored.error(first, f"must have the shape {shape}", str(tuple(table.shape)))
        return {f"{prefix}.table.weight": table}

    def _output_bias(self, ids: Tensor) -> Tensor:
        name, theirs = f"{PROJECTION}/bias", None
        if name in self.stored:
            theirs = self._tensor(name, (self.stored.shape(f"{PROJECTION}/weight")[0],))
        return output_bias(theirs, ids)

    def _table(self, name: str, ids: Tensor) -> Tensor:
        """Return a row for each of our tokens, zeros for those that they do not have."""
        return rows_of(self._ordered(self._tensor(name), 1), ids)

    def _tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        actual = self.stored.shape(name)
        if shape not in (None, actual):
            raise self.stored.error(name, f"must have the shape {shape}", str(actual))
        return torch.from_numpy(self.stored.array(name))

    def _ordered(self, weight: Tensor, axis: int | None) -> Tensor:
        return interleave(weight, axis) if self.layout.is_marian else weight


def _times(weight: Tensor, factor: float) -> Tensor:
    """Return a product; a factor that is 1 but for rounding changes nothing."""
    return weight if math.isclose(factor, 1.0, rel_tol=1e-6) else weight * factor


def read_ctranslate2(
    folder: Path, *, source_language: str | None = None, target_language: str | None = None
) -> TrainedModel:
    """Return the model of a folder for CTranslate2 on the CPU, in float32.

    Nothing is unpickled. Arguments and errors are those of `import_run`.
    """
    run = RunDirectory(folder)
    read = _read_export if run.config_file.is_file() else _read_foreign
    trained = read(folder, StoredModel(folder / EXPORT_FILE))
    return in_languages(trained, source_language, target_language)


def _read_export(folder: Path, stored: StoredModel) -> TrainedModel:
    """Return the model of a folder that `tformer export` wrote."""
    files = find_model(RunDirectory(folder))
    config, tokenizers = portable_config(files.config), files.tokenizers
    assert isinstance(config.model, EncoderDecoderConfig), "CTranslate2 exports are of this kind"
    ids = [torch.arange(side.size) for side in (tokenizers.source, tokenizers.target)]
    model = _model(stored, Layout(config.model, is_export=True), tokenizers, ids)
    return TrainedModel(config, tokenizers, model, 0, files.max_source_sentences)


def _read_foreign(folder: Path, stored: StoredModel) -> TrainedModel:
    """Return the model of a folder that another program wrote."""
    settings = settings_of(folder)
    side_files = read_side_files(folder)
    tokenizers = side_files.tokenizers
    epsilon = settings.get("layer_norm_epsilon")
    if epsilon is not None and type(epsilon) not in (int, float):
        where = f"{folder / SETTINGS_FILE}: layer_norm_epsilon"
        raise CheckpointError(where, "must be a number", got=str(epsilon))
    network = read_network(stored, epsilon=epsilon)
    config = replace(
        network.config,
        tie_embeddings=_ties(stored, is_shared=tokenizers.shared),
        output_bias=True,
        source_eos=side_files.source_eos,
    )
    ids = [
        _theirs(tokens, side, stored, EMBEDDINGS[name])
        for name, tokens, side in zip(
            SIDES, side_files.tokens, (tokenizers.source, tokenizers.target), strict=True
        )
    ]
    ids[1][BOS_ID] = _start_id(folder, stored, side_files.tokens[1])
    model = _model(stored, Layout(config, network.is_marian), tokenizers, ids)
    check_all_read(stored)
    whole = converted_config(folder, config, is_shared=tokenizers.shared)
    return TrainedModel(whole, tokenizers, model, step=0)


def _ties(stored: StoredModel, *, is_shared: bool) -> Literal["none", "output", "all"]:
    """Return which tables of tokens are the same."""
    source, target = (EMBEDDINGS[side] for side in SIDES)
    if not _are_equal(stored, target, f"{PROJECTION}/weight"):
        return "none"
    are_scaled_alike = stored.number("encoder/scale_embeddings", float, -1.0) == stored.number(
        "decoder/scale_embeddings", float, -1.0
    )
    is_all = is_shared and are_scaled_alike and _are_equal(stored, source, target)
    return "all" if is_all else "output"


def _are_equal(stored: StoredModel, first: str, second: str) -> bool:
    same_shape = stored.shape(first) == stored.shape(second)
    return same_shape and np.array_equal(stored.array(first), stored.array(second))


def _theirs(tokens: Sequence[str], ours: Tokenizer, stored: StoredModel, table: str) -> Tensor:
    """Return their ids (n,) of our tokens, -1 of those that they do not have."""
    stored.check_rows(table, tokens)
    ids = {token: number for number, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        raise stored.error(table, "is of a vocabulary with a token twice")
    return torch.tensor([ids.get(token, -1) for token in ours.tokens(range(ours.size))])


def _start_id(folder: Path, stored: StoredModel, tokens: Sequence[str]) -> int:
    """Return the id of what translations begin with; -1 for zeros."""
    settings = settings_of(folder)
    where = str(folder / SETTINGS_FILE)
    if settings.get("add_source_bos"):
        raise CheckpointError(f"{where}: add_source_bos", "must be false", got="true")
    if stored.number("decoder/start_from_zero_embedding", int, 0):
        return -1
    start = settings.get("decoder_start_token", START)
    if start not in tokens:
        what = "must be a token of the target vocabulary"
        raise CheckpointError(f"{where}: decoder_start_token", what, got=str(start))
    return tokens.index(start)


def _model(
    stored: StoredModel, layout: Layout, tokenizers: Tokenizers, ids: Sequence[Tensor]
) -> Seq2Seq:
    sizes = {"source_size": tokenizers.source.size, "target_size": tokenizers.target.size}
    for side, count in zip(
        SIDES, (layout.config.num_encoder_layers, layout.config.num_decoder_layers), strict=True
    ):
        if count != len(layer_scopes(stored, side)):
            raise stored.error(side, f"must have {count} layers, as config.yaml says")
    with torch.device("meta"):
        shapes = build_model(layout.config, **sizes, seed=0)
    assert isinstance(shapes, EncoderDecoder)
    weights = Reader(stored, layout, shapes).weights(ids)
    check_finite(stored.file, weights, CONVERT_AGAIN)
    return build_with_weights(layout.config, weights, **sizes)
