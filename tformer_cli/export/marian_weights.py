"""Marian's weights by ours, both ways: their names, token ids and layout.

Marian's sinusoids are all sines, then all cosines (transformers'
MarianSinusoidalPositionalEmbedding); ours alternate (Vaswani et al. 2017, section 3.5). So
component 2i of our hidden states is its component i, and our 2i + 1 its D/2 + i. Norms and heads
do not depend on the order: a model is the same when every weight that reads or writes hidden
states is laid out in the other order.

Our start token stands for Marian's pad, with which its targets begin. Tokens that Marian does not
have, such as `<mask>`, get zero embeddings and an output bias that leaves them no probability.
"""

import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.errors import CheckpointError
from tformer_cli.export.marian_settings import OUR_IDS, RESTORE, SETTINGS_FILE, json_object
from tformer_cli.model.network import Seq2Seq
from tformer_cli.storage.atomic import atomic_write
from tformer_cli.storage.checkpoint import check_dtypes, check_finite, read_tensors, save_tensors
from tformer_cli.storage.run_directory import MODEL_FILE
from tformer_cli.text.vocabulary import NUM_SPECIAL

# transformers' index of weights in several files (shards).
INDEX_FILE = f"{MODEL_FILE}.index.json"
# Names no file in another folder.
SHARD = re.compile(r"[\w.-]+\.safetensors")

Weights = dict[str, Tensor]

# Modules of a layer by ours: Marian's name, and the axis of the weight that has a component of
# hidden states each. What writes hidden states (axis 0) has such a bias, too.
MODULES = {
    "self_attention.query": ("self_attn.q_proj", 1),
    "self_attention.key": ("self_attn.k_proj", 1),
    "self_attention.value": ("self_attn.v_proj", 1),
    "self_attention.output": ("self_attn.out_proj", 0),
    "self_attention_norm": ("self_attn_layer_norm", 0),
    "feedforward.up": ("fc1", 1),
    "feedforward.down": ("fc2", 0),
    "feedforward_norm": ("final_layer_norm", 0),
}
# Those of the decoder alone.
CROSS_MODULES = {
    "cross_attention.query": ("encoder_attn.q_proj", 1),
    "cross_attention.key": ("encoder_attn.k_proj", 1),
    "cross_attention.value": ("encoder_attn.v_proj", 1),
    "cross_attention.output": ("encoder_attn.out_proj", 0),
    "cross_attention_norm": ("encoder_attn_layer_norm", 0),
}

# Our tables of a row per token, and Marian's.
SOURCE, TARGET = "encoder.embeddings.tokens.weight", "decoder.embeddings.tokens.weight"
OUTPUT, BIAS = "output.weight", "output.bias"
SHARED = "model.shared.weight"
SOURCE_EMBEDDINGS = "model.encoder.embed_tokens.weight"
TARGET_EMBEDDINGS = "model.decoder.embed_tokens.weight"
OUTPUT_PROJECTION = "lm_head.weight"
LOGITS_BIAS = "final_logits_bias"
TABLES = {SHARED, SOURCE_EMBEDDINGS, TARGET_EMBEDDINGS, OUTPUT_PROJECTION}
# Marian's weights outside the layers; sinusoids are the same in every model.
OUTSIDE = (
    TABLES | {LOGITS_BIAS} | {f"model.{x}.embed_positions.weight" for x in ("encoder", "decoder")}
)

# Logit bias of tokens that Marian does not have: no probability, but small enough for label
# smoothing, which wants a little of every token.
ABSENT = -100.0
# Logit bias of suppressed tokens in Marian's model.
SUPPRESSED = -1e9


def weight_names(config: EncoderDecoderConfig) -> Iterator[tuple[str, str, int | None]]:
    """Yield the weights inside the layers.

    Each has our name, Marian's name, and its axis of hidden-state components, if any.
    """
    for stack, count, modules in (
        ("encoder", config.num_encoder_layers, MODULES),
        ("decoder", config.num_decoder_layers, MODULES | CROSS_MODULES),
    ):
        for number in range(count):
            layer = f"{stack}.layers.{number}"
            for ours, (theirs, axis) in modules.items():
                our_name, their_name = f"{layer}.{ours}", f"model.{layer}.{theirs}"
                yield f"{our_name}.weight", f"{their_name}.weight", axis
                yield f"{our_name}.bias", f"{their_name}.bias", 0 if axis == 0 else None


def table_names(config: EncoderDecoderConfig, stored: Container[str] = TABLES) -> dict[str, str]:
    """Return Marian's name of each of our (V, D) tables, given the names that a file has."""
    if config.tie_embeddings == "all":
        return dict.fromkeys(
            (SOURCE, TARGET, OUTPUT), SHARED if SHARED in stored else TARGET_EMBEDDINGS
        )
    source, target = (
        name if name in stored else SHARED for name in (SOURCE_EMBEDDINGS, TARGET_EMBEDDINGS)
    )
    output = target if config.tie_embeddings == "output" else OUTPUT_PROJECTION
    return {SOURCE: source, TARGET: target, OUTPUT: output}


def to_ours(
    theirs: Mapping[str, Tensor],
    source_ids: Tensor,
    target_ids: Tensor,
    config: EncoderDecoderConfig,
    *,
    is_scaled: bool,
) -> Weights:
    """Return our weights, shared ones under each of their names, from Marian's.

    Ids (n,) are Marian's of the tokens of a side, in the order of `shared_ids`. Scaled is a model
    that multiplies embeddings by sqrt(D), as ours does.
    """
    weights = {}
    for ours, name in table_names(config, theirs).items():
        rows = theirs[name][source_ids if ours == SOURCE else target_ids]
        weights[ours] = interleave(_all_rows(rows), 1)
    bias = theirs.get(LOGITS_BIAS, torch.zeros(1, len(target_ids)))[0, target_ids]
    weights[BIAS] = _all_rows(bias.clamp(min=ABSENT), absent=ABSENT)
    for ours, name, axis in weight_names(config):
        weights[ours] = interleave(theirs[name], axis)
    return weights if is_scaled else _scaled_down(weights, config)


def to_theirs(
    ours: Mapping[str, Tensor], suppressed_ids: Sequence[int], config: EncoderDecoderConfig
) -> Weights:
    """Return Marian's weights, shared ones once, from ours under all their names."""
    weights = {
        theirs: deinterleave(ours[name], axis) for name, theirs, axis in weight_names(config)
    }
    for name, theirs in table_names(config).items():
        weights[theirs] = deinterleave(ours[name][shared_ids(len(ours[name]))], 1)
    bias = ours[BIAS].clone() if config.output_bias else torch.zeros(len(ours[OUTPUT]))
    bias[list(suppressed_ids)] = SUPPRESSED
    weights[LOGITS_BIAS] = bias[None, shared_ids(len(bias))]
    return weights


def shared_ids(size: int) -> Tensor:
    """Return our ids (n,) of the tokens that Marian has too, for a vocabulary of ours."""
    return torch.tensor([*OUR_IDS.values(), *range(NUM_SPECIAL, size)])


def _all_rows(rows: Tensor, absent: float = 0.0) -> Tensor:
    """Return a table with a row for each of our ids, from the rows of `shared_ids`."""
    size = NUM_SPECIAL + len(rows) - len(OUR_IDS)
    table = rows.new_full((size, *rows.shape[1:]), absent)
    table[shared_ids(size)] = rows
    return table


def _scaled_down(weights: Weights, config: EncoderDecoderConfig) -> Weights:
    """Return weights for a model that multiplies embeddings by sqrt(D), from one that does not.

    If the output projection shares them, the last norm compensates.
    """
    root = math.sqrt(config.dim)
    factors = {SOURCE: 1 / root, TARGET: 1 / root}
    if config.tie_embeddings != "none":
        last = f"decoder.layers.{config.num_decoder_layers - 1}.feedforward_norm"
        factors |= {OUTPUT: 1 / root, f"{last}.weight": root, f"{last}.bias": root}
    return weights | {name: weights[name] * factor for name, factor in factors.items()}


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


def rows_of(table: Tensor, ids: Tensor) -> Tensor:
    """Return the rows (n, D) of a table that ids (n,) name, zeros where an id is -1."""
    return torch.where(ids[:, None] < 0, 0.0, table[ids.clamp(min=0)])


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


def read_weights(file: Path) -> dict[str, Tensor]:
    """Return the finite weights of a file, or of the shards of an index, in float32."""
    if file.name != INDEX_FILE:
        return _read(file)
    weights: dict[str, Tensor] = {}
    for shard, names in _shards(file).items():
        part = _read(file.parent / shard)
        if differing := part.keys() ^ names:
            what = f"differs in {len(differing)} of its weights from what {INDEX_FILE} says"
            path = str(file.parent / shard)
            raise CheckpointError(path, what, got=min(differing), remedy=RESTORE)
        weights |= part
    return weights


def check_weights(
    file: Path,
    actual: Mapping[str, Tensor],
    expected: Mapping[str, tuple[int, ...]],
    settings: str = SETTINGS_FILE,
) -> None:
    """Check the names and shapes of weights in a file against those of its settings."""
    shapes = {name: tuple(weight.shape) for name, weight in actual.items()}
    if differing := {name for name, _ in expected.items() ^ shapes.items()}:
        what = (
            f"differs in {len(differing)} of its weights from the model that {settings} describes"
        )
        raise CheckpointError(str(file), what, got=min(differing), remedy=RESTORE)


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
