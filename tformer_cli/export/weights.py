"""Weights of other programs by ours, both ways: names, layout and rows of tokens; their files.

Marian's sinusoids are all sines, then all cosines (transformers'
MarianSinusoidalPositionalEmbedding); ours alternate (Vaswani et al. 2017, section 3.5). So
component 2i of our hidden states is its component i, and our 2i + 1 its D/2 + i. Norms and heads
do not depend on the order: a model is the same when every weight that reads or writes hidden
states is laid out in the other order.

Tokens that the other program does not have, such as `<mask>`, get zero embeddings and an output
bias that leaves them no probability.
"""

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.errors import CheckpointError
from tformer_cli.export.settings import RESTORE, SETTINGS_FILE, json_object
from tformer_cli.model.build import build_model, build_with_weights
from tformer_cli.model.network import Seq2Seq
from tformer_cli.storage.atomic import atomic_write
from tformer_cli.storage.checkpoint import check_dtypes, check_finite, read_tensors, save_tensors
from tformer_cli.storage.run_directory import MODEL_FILE

# transformers' index of weights in several files (shards).
INDEX_FILE = f"{MODEL_FILE}.index.json"
# Names no file in another folder.
SHARD = re.compile(r"[\w.-]+\.safetensors")

SIDES = ("encoder", "decoder")
# Our tables of a row per token, and the bias of their logits.
SOURCE, TARGET = "encoder.embeddings.tokens.weight", "decoder.embeddings.tokens.weight"
OUTPUT, BIAS = "output.weight", "output.bias"
# That bias (1, V) in transformers' folders.
LOGITS_BIAS = "final_logits_bias"
# Logit bias of tokens that the other program does not have: no probability, but small enough for
# label smoothing, which wants a little of every token.
ABSENT = -100.0

Weights = dict[str, Tensor]


class Names(NamedTuple):
    """Names of our weights and theirs, and the axes that Marian's order of sinusoids is along."""

    layers: Iterable[tuple[str, str, int | None]]  # all that have no row per token: ours, theirs
    tables: Mapping[str, str]  # (V, D): theirs by ours
    axis: int | None  # of the tables


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """The weights of a file by their names, and what describes the network, for messages."""

    file: Path
    settings: Path
    weights: Mapping[str, Tensor]

    def check_tables(self, names: Names, sizes: tuple[int, int], dim: int) -> None:
        """Check the tables for two vocabularies before all else, which can be no larger.

        Raises:
            CheckpointError: one is missing, or has another shape.
        """
        shapes: dict[str, tuple[int, ...]]
        shapes = {theirs: (sizes[ours != SOURCE], dim) for ours, theirs in names.tables.items()}
        if LOGITS_BIAS in self.weights:
            shapes[LOGITS_BIAS] = 1, sizes[1]
        self.check({name: x for name, x in self.weights.items() if name in shapes}, shapes)

    def network(
        self,
        names: Names,
        rows: tuple[Tensor, Tensor],
        config: EncoderDecoderConfig,
        *,
        outside: Container[str],
    ) -> Seq2Seq:
        """Return our network with these weights, of which the tables are checked.

        Args:
            names: those of the weights.
            rows: theirs (n,) of our source and target tokens, -1 of those that they do not have.
            config: the network that the settings describe.
            outside: names of weights that may be there, but are in no layer.

        Raises:
            CheckpointError: the weights of layers are not those of the config.
        """
        num_layers = config.num_encoder_layers + config.num_decoder_layers
        if num_layers > len(self.weights):
            # Every layer has weights, so too many layers fail before they are named and built.
            what = f"describes more layers than the {len(self.weights)} weights that the folder has"
            raise CheckpointError(str(self.settings), what, got=str(num_layers), remedy=RESTORE)
        layers = list(names.layers)
        sizes = {"source_size": len(rows[0]), "target_size": len(rows[1])}
        with torch.device("meta"):
            network = build_model(config, **sizes, seed=0)
        shapes = {name: tuple(weight.shape) for name, weight in network.named_parameters()}
        inside = {name: x for name, x in self.weights.items() if name not in outside}
        self.check(inside, {theirs: shapes[ours] for ours, theirs, _ in layers})
        weights = {ours: interleave(self.weights[theirs], axis) for ours, theirs, axis in layers}
        for ours, theirs in names.tables.items():
            table = rows_of(self.weights[theirs], rows[ours != SOURCE])
            weights[ours] = interleave(table, names.axis)
        bias = self.weights[LOGITS_BIAS][0] if LOGITS_BIAS in self.weights else None
        weights[BIAS] = output_bias(bias, rows[1])
        return build_with_weights(config, weights, **sizes)

    def check(self, actual: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> None:
        """Check the names and shapes of some weights against those of the settings.

        Raises:
            CheckpointError: they differ.
        """
        shapes = {name: tuple(weight.shape) for name, weight in actual.items()}
        if differing := {name for name, _ in expected.items() ^ shapes.items()}:
            settings = self.settings.name
            what = (
                f"differs in {len(differing)} of its weights from the model that {settings} "
                "describes"
            )
            raise CheckpointError(str(self.file), what, got=min(differing), remedy=RESTORE)


def to_theirs(ours: Mapping[str, Tensor], names: Names, ids: tuple[Tensor, Tensor]) -> Weights:
    """Return their weights but the output bias, from ours under all their names.

    Ids (n,) are ours of their source and target tokens.
    """
    weights = {theirs: deinterleave(ours[name], axis) for name, theirs, axis in names.layers}
    for name, theirs in names.tables.items():
        weights[theirs] = deinterleave(ours[name][ids[name != SOURCE]], names.axis)
    return weights


def rows_of(table: Tensor, rows: Tensor) -> Tensor:
    """Return some rows (n, D) of a table, zeros where `rows` (n,) is -1."""
    return torch.where(rows[:, None] < 0, 0.0, table[rows.clamp(min=0)])


def output_bias(theirs: Tensor | None, rows: Tensor) -> Tensor:
    """Return our output bias (n,): some items of theirs (None for zeros), `ABSENT` for -1."""
    bias = torch.zeros(len(rows)) if theirs is None else theirs[rows.clamp(min=0)]
    return torch.where(rows < 0, ABSENT, bias.clamp(min=ABSENT))


def interleave(weight: Tensor, axis: int | None) -> Tensor:
    """Return Marian's weight in our order: sine and cosine components alternate along an axis."""
    if axis is None:
        return weight
    order = torch.arange(weight.shape[axis]).view(2, -1).t().flatten()
    return weight.index_select(axis, order)


def deinterleave(weight: Tensor, axis: int | None) -> Tensor:
    """Return our weight in Marian's order: all sine components, then all cosine components."""
    if axis is None:
        return weight
    order = torch.arange(weight.shape[axis]).view(-1, 2).t().flatten()
    return weight.index_select(axis, order)


def our_weights(model: Seq2Seq) -> Weights:
    """Return our weights on the CPU in float32, shared ones under each of their names."""
    named = model.named_parameters(remove_duplicate=False)
    return {name: weight.detach().to("cpu", torch.float32) for name, weight in named}


def write_weights(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Write the weights file of a folder."""
    contiguous = {name: weight.contiguous() for name, weight in weights.items()}
    # Files of safetensors are private to their owner; those of `atomic_write` are not.
    with atomic_write(folder / MODEL_FILE) as temporary:
        save_tensors(contiguous, temporary, {"format": "pt"})


def weights_file(folder: Path) -> Path:
    """Return the weights file of a folder, or the index of its shards."""
    whole, index = folder / MODEL_FILE, folder / INDEX_FILE
    return index if index.is_file() and not whole.is_file() else whole


def read_weights(file: Path) -> StoredWeights:
    """Return the finite weights of a file, or of the shards of an index, in float32."""
    settings = file.with_name(SETTINGS_FILE)
    if file.name != INDEX_FILE:
        return StoredWeights(file, settings, _read(file))
    weights: dict[str, Tensor] = {}
    for shard, names in _shards(file).items():
        part = _read(file.parent / shard)
        if differing := part.keys() ^ names:
            what = f"differs in {len(differing)} of its weights from what {INDEX_FILE} says"
            path = str(file.parent / shard)
            raise CheckpointError(path, what, got=min(differing), remedy=RESTORE)
        weights |= part
    return StoredWeights(file, settings, weights)


def _shards(index: Path) -> dict[str, set[str]]:
    """Return the weight names of each shard."""
    weight_map = json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(x, str) for x in weight_map.values()):
        what = "has no weight_map that names the file of each weight"
        raise CheckpointError(str(index), what, remedy=RESTORE)
    shards: dict[str, set[str]] = {}
    for name, shard in weight_map.items():
        if not SHARD.fullmatch(shard):
            what = "names no safetensors file of its folder"
            raise CheckpointError(str(index), what, got=shard, remedy=RESTORE)
        shards.setdefault(shard, set()).add(name)
    return shards


def _read(file: Path) -> dict[str, Tensor]:
    try:
        weights = dict(read_tensors(file))
    except CheckpointError as error:
        (problem,) = error.problems
        where, what = problem.where, problem.what
        raise CheckpointError(where, what, got=problem.got, remedy=RESTORE) from None
    check_dtypes(file, weights, RESTORE)
    check_finite(file, weights, RESTORE)
    return {name: weight.float() for name, weight in weights.items()}
