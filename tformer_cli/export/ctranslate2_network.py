"""Our network by the variables of a model.bin that another program wrote."""

import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from tformer_cli.config.schema.fields import check
from tformer_cli.config.schema.model import (
    EncoderDecoderConfig,
    LearnedPositions,
    LinearScaling,
    PositionsConfig,
    RotaryPositions,
    SinusoidalPositions,
    T5Positions,
)
from tformer_cli.errors import ConfigError, Problem
from tformer_cli.export.ctranslate2_file import EMBEDDINGS, POSITION_ENCODINGS, StoredModel
from tformer_cli.export.weights import SIDES, interleave
from tformer_cli.model.blocks.embeddings import SinusoidalEncoding

KIND = "TransformerSpec"
# CTranslate2's activations by id (`common_spec.Activation`), and ours.
ACTIVATIONS = ("RELU", "GELUTanh", "SWISH", "GELU", "GELUSigmoid", "Tanh", "Sigmoid")
PLAIN = {"RELU": "relu", "SWISH": "silu", "GELU": "gelu"}
GATED = {"SWISH": "swiglu", "GELU": "geglu", "GELUTanh": "geglu_tanh"}
# Settings of an attention block.
ATTENTION = ("num_heads_kv", "head_dim")
SELF_ATTENTION = (
    *ATTENTION,
    "rotary_dim",
    "rotary_interleave",
    "rotary_base",
    "rotary_scaling_type",
    "rotary_scaling_factor",
    "relative_attention_max_distance",
)
# The second linear layer of a decoder that reads the output of the encoder.
MEMORY_PROJECTION = "attention/linear_1"
NORMS = {
    "self_attention/layer_norm": "self_attention_norm",
    "attention/layer_norm": "cross_attention_norm",
    "ffn/layer_norm": "feedforward_norm",
}
HEAD_NORMS = {
    "self_attention/q_norm": "self_attention.query_norm",
    "self_attention/k_norm": "self_attention.key_norm",
}
# Our keys that both sides have alike.
NETWORK = (
    *("dim", "num_heads", "num_kv_heads", "qk_norm", "feedforward_dim"),
    *("norm", "norm_position", "embedding_norm"),
)
# What no translation depends on.
IGNORED = re.compile(
    "(en|de)coder/(alignment_(layer|heads)|embeddings_merge|multi_query_attention|"
    "scale_alibi|alibi_use_positive_positions)"
)
# Sinusoids of other programs, by number format.
TOLERANCES = {"float32": 5e-4, "float16": 2e-3, "bfloat16": 8e-3}


def linear_layers(
    config: EncoderDecoderConfig, side: str
) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Yield the linear layers of a layer; those of one input are one in CTranslate2.

    Each has its name there, ours in the order of their outputs, and the axis of the weight that has
    a component of hidden states each.
    """
    parts = "self_attention.query", "self_attention.key", "self_attention.value"
    yield "self_attention/linear_0", parts, 1
    yield "self_attention/linear_1", ("self_attention.output",), 0
    if side == "decoder":
        yield "attention/linear_0", ("cross_attention.query",), 1
        yield MEMORY_PROJECTION, ("cross_attention.key", "cross_attention.value"), 1
        yield "attention/linear_2", ("cross_attention.output",), 0
    if config.is_gated:
        yield "ffn/linear_0", ("feedforward.gate",), 1
        yield "ffn/linear_0_noact", ("feedforward.up",), 1
    else:
        yield "ffn/linear_0", ("feedforward.up",), 1
    yield "ffn/linear_1", ("feedforward.down",), 0


class StoredNetwork(NamedTuple):
    """Our network, and how the file lays out its hidden states."""

    config: EncoderDecoderConfig
    is_marian: bool  # all sines before all cosines


def read_network(stored: StoredModel, *, epsilon: float | None) -> StoredNetwork:
    """Return our network by the settings and shapes of a file.

    `epsilon` is that of norms in config.json; None for CTranslate2's default.

    Raises:
        CheckpointError: a variable is missing or has an impossible shape.
        ConfigError: all settings that our network does not have.
    """
    problems: list[Problem] = []

    def note(name: str, what: str, got: str | None = None) -> None:
        problems.append(Problem(f"{stored.file}: {name}", what, got))

    if stored.kind != KIND:
        note("the kind of network", f"must be {KIND}, an encoder and a decoder", stored.kind)
        raise ConfigError(problems)
    sides = [_side(stored, side) for side in SIDES]
    shared = {key: value for key, value in sides[0].items() if key != "num_layers"}
    for key, value in shared.items():
        if sides[1][key] != value:
            note(f"decoder: {key}", f"must be {value}, as in the encoder", str(sides[1][key]))
    choices = GATED if shared["is_gated"] else PLAIN
    number = shared["activation"]
    activation = dict(enumerate(ACTIVATIONS)).get(number, str(number))
    if activation not in choices:
        note("encoder/activation", f"must be one of {', '.join(choices)}", activation)
    positions, is_marian = _positions(stored, shared)
    if positions is None:
        what = "must be a table, rotary with all dimensions in halves, or a bias by distance"
        note("position encodings", what)
    if epsilon is None:
        epsilon = 1e-6 if shared["norm"] == "rms" else 1e-5
    config = EncoderDecoderConfig(
        **{key: shared[key] for key in NETWORK},
        activation=choices.get(activation, "relu"),  # type: ignore[arg-type]
        norm_epsilon=epsilon,
        bias=any(re.search("/layer_.*/(bias|beta)$", name) for name in stored.names()),
        positions=positions or SinusoidalPositions(),
        num_encoder_layers=sides[0]["num_layers"],
        num_decoder_layers=sides[1]["num_layers"],
    )
    if not problems:
        for problem in check(config, "model"):
            note(problem.where, problem.what, problem.got)
    if problems:
        raise ConfigError(problems)
    return StoredNetwork(config, is_marian)


def check_all_read(stored: StoredModel) -> None:
    """Refuse a file with variables that our network has no counterpart of."""
    unread = sorted(name for name in stored.unread if not IGNORED.fullmatch(name))
    # One of each layer's.
    kinds = {re.sub(r"layer_\d+", "layer_0", name): name for name in reversed(unread)}
    what = "is a part that tformer's network does not have"
    problems = [Problem(f"{stored.file}: {name}", what) for name in sorted(kinds.values())]
    if problems:
        raise ConfigError(problems)


def layer_scopes(stored: StoredModel, side: str) -> list[str]:
    """Return the scope of each layer of a side."""
    pattern = re.compile(rf"{side}/layer_(\d+)/")
    numbers = {match[1] for match in map(pattern.match, stored.names()) if match}
    return [f"{side}/layer_{number}" for number in range(len(numbers))]


def _side(stored: StoredModel, side: str) -> dict[str, Any]:
    """Return the settings of a side; all its layers have equal ones."""
    layers = layer_scopes(stored, side)
    first = f"{side}/layer_0"
    attention = f"{first}/self_attention"
    settings = _attention_settings(stored, attention, SELF_ATTENTION)
    blocks: dict[str, tuple[str, ...]] = {"self_attention": SELF_ATTENTION}
    if side == "decoder":
        blocks["attention"] = ATTENTION
    for layer, (block, keys) in itertools.product(layers, blocks.items()):
        for key, value in _attention_settings(stored, f"{layer}/{block}", keys).items():
            if value != settings[key]:
                what = f"must be {settings[key]}, as in {attention}"
                raise stored.error(f"{layer}/{block}/{key}", what, str(value))
    num_heads = stored.number(f"{side}/num_heads", int, 8)
    kv_heads = settings.pop("num_heads_kv")
    dim = stored.shape(EMBEDDINGS[side])[-1]
    head_dim = settings.pop("head_dim")
    if num_heads < 1 or (head_dim or dim // num_heads) * num_heads != dim:
        raise stored.error(f"{side}/num_heads", f"must divide {dim}, the width", str(num_heads))
    if stored.number(f"{side}/alibi", int, 0):
        raise stored.error(f"{side}/alibi", "is a part that tformer's network does not have")
    norm = f"{attention}/layer_norm/beta"
    return {
        **settings,
        "dim": dim,
        "num_heads": num_heads,
        "num_kv_heads": None if kv_heads in (None, num_heads) else int(kv_heads),
        "qk_norm": f"{attention}/q_norm/gamma" in stored,
        "feedforward_dim": stored.shape(f"{first}/ffn/linear_0/weight")[0],
        "activation": stored.number(f"{side}/activation", int, 0),
        "is_gated": f"{first}/ffn/linear_0_noact/weight" in stored,
        "norm": "layer" if norm in stored else "rms",
        "norm_position": "pre" if stored.number(f"{side}/pre_norm", int, 1) else "post",
        "embedding_norm": f"{side}/layernorm_embedding/gamma" in stored,
        "num_layers": len(layers),
    }


def _attention_settings(
    stored: StoredModel, scope: str, keys: tuple[str, ...]
) -> dict[str, float | None]:
    return {
        key: stored.number(f"{scope}/{key}", float, 0.0) if f"{scope}/{key}" in stored else None
        for key in keys
    }


def _positions(
    stored: StoredModel, settings: dict[str, Any]
) -> tuple[PositionsConfig | None, bool]:
    """Return our positions, if we have them, and whether they are laid out as Marian's."""
    tables = [
        f"{side}/{POSITION_ENCODINGS}" for side in SIDES if f"{side}/{POSITION_ENCODINGS}" in stored
    ]
    biases = [f"{side}/layer_0/self_attention/relative_attention_bias" for side in SIDES]
    if settings["rotary_dim"] is not None:
        return _rotary(settings), False
    if biases[0] in stored:
        sizes = {stored.shape(name)[0] for name in biases}
        max_distance = int(settings["relative_attention_max_distance"] or 0)
        positions = T5Positions(num_buckets=max(sizes), max_distance=max_distance)
        return (positions if len(sizes) == 1 else None), False
    if len(tables) < len(SIDES):
        return None, False
    sinusoids = {_sinusoids(stored, name) for name in tables}
    if len(sinusoids) == 1 and (pair := sinusoids.pop()) is not None:
        return pair
    return LearnedPositions(max_length=min(stored.shape(name)[0] for name in tables)), False


def _rotary(settings: dict[str, Any]) -> RotaryPositions | None:
    dim = settings["dim"] // settings["num_heads"]
    if settings["rotary_interleave"] or settings["rotary_dim"] not in (0, dim):
        return None
    scaling = None
    if settings["rotary_scaling_type"] is not None:
        factor = settings["rotary_scaling_factor"]
        if settings["rotary_scaling_type"] != 0 or factor is None:
            return None
        scaling = LinearScaling(factor=factor)
    return RotaryPositions(base=settings["rotary_base"] or 10000.0, scaling=scaling)


def _sinusoids(stored: StoredModel, name: str) -> tuple[SinusoidalPositions, bool] | None:
    """Return the sinusoids of a table, and whether they are laid out as Marian's.

    None for other numbers.
    """
    table = torch.from_numpy(stored.array(name))
    rows, dim = table.shape
    tolerance = TOLERANCES[stored.number_format(name)]
    if dim % 2 or dim < 4:
        return None
    for positions in (SinusoidalPositions(), SinusoidalPositions(frequencies="tensor2tensor")):
        ours = SinusoidalEncoding(dim, positions)(torch.arange(rows))
        for is_marian, theirs in ((False, table), (True, interleave(table, 1))):
            if torch.allclose(theirs, ours, rtol=0, atol=tolerance):
                return positions, is_marian
    return None
