"""Marian NMT's own weights by ours, both ways: their names, and where targets begin.

Marian lays out hidden states as in transformers (`weights`). Its matrices are transposed, and its
vectors are rows. Its targets begin with no token but a zero embedding, where we have the row of
`<s>`.
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
from tformer_cli.export.marian_weights import weight_names
from tformer_cli.export.settings import RESTORE
from tformer_cli.export.weights import (
    BIAS,
    LOGITS_BIAS,
    OUTPUT,
    SIDES,
    SOURCE,
    TARGET,
    Names,
    StoredWeights,
    Weights,
)
from tformer_cli.storage.checkpoint import check_dtypes, check_finite
from tformer_cli.text.special_tokens import BOS_ID

# Marian's names by ours of the modules of a layer, around what a weight is.
MODULES = {
    "self_attention.query": "self_{}q",
    "self_attention.key": "self_{}k",
    "self_attention.value": "self_{}v",
    "self_attention.output": "self_{}o",
    "self_attention_norm": "self_Wo_ln_{}",
    "cross_attention.query": "context_{}q",
    "cross_attention.key": "context_{}k",
    "cross_attention.value": "context_{}v",
    "cross_attention.output": "context_{}o",
    "cross_attention_norm": "context_Wo_ln_{}",
    "feedforward.up": "ffn_{}1",
    "feedforward.down": "ffn_{}2",
    "feedforward_norm": "ffn_ffn_ln_{}",
}
# Tables (V, D), and the bias (1, V) of the logits.
ALL_EMBEDDINGS = "Wemb"
ENCODER_EMBEDDINGS, DECODER_EMBEDDINGS = "encoder_Wemb", "decoder_Wemb"
LOGITS, LOGITS_BIAS_NPZ = "decoder_ff_logit_out_Wt", "decoder_ff_logit_out_b"
# (D, V), of old models.
OLD_LOGITS = "decoder_ff_logit_out_W"
# What is transposed, and what is a row.
MATRIX = re.compile(rf"\w+_l\d+_\w+_W.|{OLD_LOGITS}")
VECTOR = re.compile(r"\w+_l\d+_\w+_(b.|scale|bias)")

# What numpy raises for a damaged file.
NPZ_ERRORS = (
    *(OSError, ValueError, TypeError, KeyError, EOFError, MemoryError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)


def npz_names(config: EncoderDecoderConfig, stored: Container[str] = ()) -> Names:
    """Return Marian's names of our weights, given the names that a file has."""
    return Names(layer_names(config), table_names(config, stored), axis=1)


def layer_names(config: EncoderDecoderConfig) -> Iterator[tuple[str, str, int | None]]:
    """Yield what `weight_names` does, with Marian's own names."""
    for ours, _, axis in weight_names(config):
        parts = re.fullmatch(r"(\w+)\.layers\.(\d+)\.(.+)\.(weight|bias)", ours)
        assert parts is not None
        side, number, module, kind = parts.groups()
        kinds = ("scale", "bias") if module.endswith("norm") else ("W", "b")
        part = MODULES[module].format(kinds[kind == "bias"])
        yield ours, f"{side}_l{int(number) + 1}_{part}", axis


def table_names(config: EncoderDecoderConfig, stored: Container[str] = ()) -> dict[str, str]:
    """Return Marian's name of each of our (V, D) tables, given the names that a file has."""
    if config.tie_embeddings == "all":
        return dict.fromkeys((SOURCE, TARGET, OUTPUT), ALL_EMBEDDINGS)
    # Of sources and targets alone.
    is_shared = ALL_EMBEDDINGS in stored
    target = ALL_EMBEDDINGS if is_shared else DECODER_EMBEDDINGS
    output = OLD_LOGITS if OLD_LOGITS in stored else LOGITS
    return {
        SOURCE: ALL_EMBEDDINGS if is_shared else ENCODER_EMBEDDINGS,
        TARGET: target,
        OUTPUT: target if config.tie_embeddings == "output" else output,
    }


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
    for side in SIDES if config.tie_embeddings == "all" else ("decoder",):
        attention = f"{side}.layers.0.self_attention"
        for part in ("query", "key", "value"):
            moved = weights[f"{attention}.{part}.weight"] @ shift
            weights[f"{attention}.{part}.bias"] = weights[f"{attention}.{part}.bias"] + moved
        weights[f"{attention}.output.bias"] = weights[f"{attention}.output.bias"] + shift
    return weights


def to_npz(weights: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Return Marian's arrays from weights by its names, and the bias of the logits."""
    arrays = {}
    for name, weight in weights.items():
        stored = LOGITS_BIAS_NPZ if name == LOGITS_BIAS else name
        swapped = weight.T if MATRIX.fullmatch(stored) else weight.view(-1, weight.shape[-1])
        arrays[stored] = swapped.contiguous().numpy()
    return arrays


def from_npz(name: str, weight: Tensor) -> tuple[str, Tensor]:
    """Return an array of Marian as a weight; one of another shape than Marian's is left alone."""
    if name == LOGITS_BIAS_NPZ:
        return LOGITS_BIAS, weight
    if MATRIX.fullmatch(name) and weight.dim() == 2:
        return name, weight.T
    is_row = VECTOR.fullmatch(name) and weight.dim() == 2 and len(weight) == 1
    return name, weight[0] if is_row else weight


def read_npz(file: Path) -> tuple[StoredWeights, bytes]:
    """Return the finite weights of a model.npz, and its settings. Nothing is unpickled.

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
    floats = dict(from_npz(name, weight.float()) for name, weight in weights.items())
    return StoredWeights(file, file / MODEL_SETTINGS, floats), settings
