"""Marian NMT's own weights by those that transformers has for them, both ways.

Both lay out hidden states alike (`marian_weights`). Marian's matrices are transposed, and vectors
are rows. Its targets begin with no token but a zero embedding, where transformers has a zero row of
`<pad>`, and we have the row of `<s>`.
"""

import math
import re
import zipfile
import zlib
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.errors import CheckpointError
from tformer_cli.export.marian_npz_settings import MODEL_SETTINGS
from tformer_cli.export.marian_settings import RESTORE
from tformer_cli.export.marian_weights import (
    BIAS,
    LOGITS_BIAS,
    OUTPUT,
    OUTPUT_PROJECTION,
    SHARED,
    SOURCE,
    SOURCE_EMBEDDINGS,
    TARGET,
    TARGET_EMBEDDINGS,
    Weights,
    weight_names,
)
from tformer_cli.storage.checkpoint import check_dtypes, check_finite
from tformer_cli.text.vocabulary import BOS_ID

# Marian's names by transformers' of the modules of a layer, around what a weight is.
MODULES = {
    "self_attn.q_proj": "self_{}q",
    "self_attn.k_proj": "self_{}k",
    "self_attn.v_proj": "self_{}v",
    "self_attn.out_proj": "self_{}o",
    "self_attn_layer_norm": "self_Wo_ln_{}",
    "encoder_attn.q_proj": "context_{}q",
    "encoder_attn.k_proj": "context_{}k",
    "encoder_attn.v_proj": "context_{}v",
    "encoder_attn.out_proj": "context_{}o",
    "encoder_attn_layer_norm": "context_Wo_ln_{}",
    "fc1": "ffn_{}1",
    "fc2": "ffn_{}2",
    "final_layer_norm": "ffn_ffn_ln_{}",
}
# Tables (V, D), and the bias (1, V) of the logits.
ALL_EMBEDDINGS = "Wemb"
ENCODER_EMBEDDINGS, DECODER_EMBEDDINGS = "encoder_Wemb", "decoder_Wemb"
LOGITS, LOGITS_BIAS_NPZ = "decoder_ff_logit_out_Wt", "decoder_ff_logit_out_b"
# (D, V), of old models.
OLD_LOGITS = "decoder_ff_logit_out_W"

# What numpy raises for a damaged file.
NPZ_ERRORS = (
    *(OSError, ValueError, TypeError, KeyError, EOFError, MemoryError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)


def layer_names(config: EncoderDecoderConfig) -> Iterator[tuple[str, str, str]]:
    """Yield our name, transformers' and Marian's of each weight inside the layers."""
    for ours, name, _ in weight_names(config):
        parts = re.fullmatch(r"model\.(\w+)\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
        assert parts is not None
        side, number, module, kind = parts.groups()
        kinds = ("scale", "bias") if module.endswith("norm") else ("W", "b")
        part = MODULES[module].format(kinds[kind == "bias"])
        yield ours, name, f"{side}_l{int(number) + 1}_{part}"


def table_names(config: EncoderDecoderConfig, stored: Container[str] = ()) -> dict[str, str]:
    """Return Marian's name by transformers' of each table, given the names that a file has."""
    if config.tie_embeddings == "all":
        return {SHARED: ALL_EMBEDDINGS}
    # Of sources and targets alone.
    is_shared = ALL_EMBEDDINGS in stored
    names = {
        SOURCE_EMBEDDINGS: ALL_EMBEDDINGS if is_shared else ENCODER_EMBEDDINGS,
        TARGET_EMBEDDINGS: ALL_EMBEDDINGS if is_shared else DECODER_EMBEDDINGS,
    }
    output = OLD_LOGITS if OLD_LOGITS in stored else LOGITS
    return names if config.tie_embeddings == "output" else names | {OUTPUT_PROJECTION: output}


def start_from_zero(ours: Mapping[str, Tensor], config: EncoderDecoderConfig) -> Weights:
    """Return our weights of the same function, with all biases and a zero embedding of `<s>`.

    The embedding is subtracted from all rows, so the hidden states before the first layer are less
    by one vector. Self-attention gets it back in the biases of its projections, and the residual
    connection in that of its output. A tied output projection changes all logits of a step by one
    number, which their softmax ignores.
    """
    names = [*(name for name, *_ in layer_names(config)), BIAS]
    weights = dict(ours)
    for name in names:
        if name.endswith("bias"):
            size = len(ours[name.removesuffix("bias") + "weight"])
            weights.setdefault(name, torch.zeros(size))
    start = ours[TARGET][BOS_ID].clone()
    shift = start * math.sqrt(config.dim)
    tables = {"none": (TARGET,), "output": (TARGET, OUTPUT), "all": (SOURCE, TARGET, OUTPUT)}
    for name in tables[config.tie_embeddings]:
        weights[name] = weights[name] - start
    for side in ("encoder", "decoder") if config.tie_embeddings == "all" else ("decoder",):
        attention = f"{side}.layers.0.self_attention"
        for part in ("query", "key", "value"):
            moved = weights[f"{attention}.{part}.weight"] @ shift
            weights[f"{attention}.{part}.bias"] = weights[f"{attention}.{part}.bias"] + moved
        weights[f"{attention}.output.bias"] = weights[f"{attention}.output.bias"] + shift
    return weights


def to_npz(
    weights: Mapping[str, Tensor],
    rows: Mapping[str, Tensor],
    config: EncoderDecoderConfig,
) -> dict[str, np.ndarray]:
    """Return Marian's weights from those of transformers.

    `rows` (V,) are the rows of each table and of the logits' bias that Marian's tokens have.
    """
    stored = {theirs: _swapped(weights[name], theirs) for _, name, theirs in layer_names(config)}
    stored |= {x: weights[name][rows[name]] for name, x in table_names(config).items()}
    stored[LOGITS_BIAS_NPZ] = weights[LOGITS_BIAS][:, rows[LOGITS_BIAS]]
    return {name: weight.contiguous().numpy() for name, weight in stored.items()}


def from_npz(
    stored: Mapping[str, Tensor], config: EncoderDecoderConfig, target_size: int
) -> Weights:
    """Return the weights of transformers from Marian's; the last row of a table is `<pad>`'s."""
    weights = {name: _swapped(stored[theirs], theirs) for _, name, theirs in layer_names(config)}
    for name, theirs in table_names(config, stored).items():
        table = stored[theirs].T if theirs == OLD_LOGITS else stored[theirs]
        weights[name] = torch.cat([table, torch.zeros(1, config.dim)])
    # Without `output-omit-bias` there is one.
    bias = stored.get(LOGITS_BIAS_NPZ, torch.zeros(1, target_size))
    weights[LOGITS_BIAS] = torch.cat([bias, torch.zeros(1, 1)], dim=1)
    return weights


def npz_shapes(
    shapes: Mapping[str, tuple[int, ...]],
    config: EncoderDecoderConfig,
    sizes: tuple[int, int],
    stored: Container[str],
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each of Marian's weights, by those inside our layers."""
    named = {theirs: shapes[ours] for ours, _, theirs in layer_names(config)}
    expected = {x: shape[::-1] if len(shape) == 2 else (1, *shape) for x, shape in named.items()}
    for name, theirs in table_names(config, stored).items():
        table = sizes[name != SOURCE_EMBEDDINGS], config.dim
        expected[theirs] = table[::-1] if theirs == OLD_LOGITS else table
    if LOGITS_BIAS_NPZ in stored:
        expected[LOGITS_BIAS_NPZ] = 1, sizes[1]
    return expected


def _swapped(weight: Tensor, theirs: str) -> Tensor:
    """Return a matrix transposed, a vector as a row, or a row as a vector."""
    if re.search("_W.$", theirs):
        return weight.T
    return weight[None] if weight.dim() == 1 else weight[0]


def read_npz(file: Path) -> tuple[dict[str, Tensor], bytes]:
    """Return the finite weights of a model.npz in float32, and its settings. Nothing is unpickled.

    Raises:
        CheckpointError: it is damaged, or has no settings, or numbers of another kind.
    """
    weights, settings = {}, b""
    try:
        # numpy leaves a damaged file open that it has opened itself.
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            for name, array in arrays.items():
                if name == MODEL_SETTINGS:
                    settings = array.tobytes()
                elif not name.startswith("special:"):
                    weights[name] = torch.from_numpy(array)
    except NPZ_ERRORS as error:
        what = "is damaged or cut short"
        raise CheckpointError(str(file), what, got=str(error), remedy=RESTORE) from None
    if not settings:
        raise CheckpointError(str(file), f"has no {MODEL_SETTINGS}", remedy=RESTORE)
    check_dtypes(file, weights, RESTORE)
    check_finite(file, weights, RESTORE)
    return {name: weight.float() for name, weight in weights.items()}, settings
