"""Marian's names, token ids and weight layout by ours.

Marian's sinusoids are all sines, then all cosines (transformers'
MarianSinusoidalPositionalEmbedding); ours alternate (Vaswani et al. 2017, section 3.5). So
component 2i of our hidden states is its component i, and our 2i + 1 its D/2 + i. Norms and heads
do not depend on the order: a model is the same when every weight that reads or writes hidden
states is laid out in the other order.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.text.vocabulary import BOS_ID, EOS_ID, UNK_ID

Weights = dict[str, Tensor]

# Our activations by Marian's names, and the epsilon of its norms.
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
NORM_EPSILON = 1e-5

# Our ids of Marian's special tokens. Its targets begin with <pad>, our <s>.
OUR_IDS = {"</s>": EOS_ID, "<unk>": UNK_ID, "<pad>": BOS_ID}

# Modules whose weight columns are components of hidden states: ours by Marian's.
READING = {
    "self_attention.query": "self_attn.q_proj",
    "self_attention.key": "self_attn.k_proj",
    "self_attention.value": "self_attn.v_proj",
    "feedforward.up": "fc1",
}
# Modules whose weight rows and biases are components of hidden states.
WRITING = {
    "self_attention.output": "self_attn.out_proj",
    "self_attention_norm": "self_attn_layer_norm",
    "feedforward.down": "fc2",
    "feedforward_norm": "final_layer_norm",
}
CROSS_READING = {
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key": "encoder_attn.k_proj",
    "cross_attention.value": "encoder_attn.v_proj",
}
CROSS_WRITING = {
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_attention_norm": "encoder_attn_layer_norm",
}

SOURCE, TARGET = "encoder.embeddings.tokens.weight", "decoder.embeddings.tokens.weight"
OUTPUT, BIAS = "output.weight", "output.bias"

# Logit bias of tokens that Marian does not have: no probability, but small enough for label
# smoothing, which wants a little of every token.
ABSENT = -100.0


class WeightMapping(NamedTuple):
    """Both names of a weight inside the layers, and its axis of hidden-state components, if any."""

    ours: str
    theirs: str
    axis: int | None


class EmbeddingTables(NamedTuple):
    """Weights with a row per token: (V, D) embeddings and output projection, (V,) logit bias."""

    source: Tensor
    target: Tensor
    output: Tensor
    bias: Tensor


class VocabularyMapping(NamedTuple):
    """Ids (n,) of the same n tokens in our vocabulary and in Marian's, and the sizes of both."""

    ours: Tensor
    theirs: Tensor
    our_size: int
    their_size: int

    def to_ours(self, table: Tensor, absent: float = 0.0) -> Tensor:
        """Return a table with a row for each of our ids."""
        rows = table.new_full((self.our_size, *table.shape[1:]), absent)
        rows[self.ours] = table[self.theirs]
        return rows

    def to_theirs(self, table: Tensor) -> Tensor:
        """Return a table with a row for each of Marian's ids."""
        rows = table.new_zeros((self.their_size, *table.shape[1:]))
        rows[self.theirs] = table[self.ours]
        return rows


def weight_mappings(config: EncoderDecoderConfig) -> Iterator[WeightMapping]:
    """Yield the weights inside the layers."""
    for number in range(config.num_encoder_layers):
        yield from _layer_mappings(f"encoder.layers.{number}", READING, WRITING)
    for number in range(config.num_decoder_layers):
        reading, writing = READING | CROSS_READING, WRITING | CROSS_WRITING
        yield from _layer_mappings(f"decoder.layers.{number}", reading, writing)


def _layer_mappings(
    layer: str, reading: Mapping[str, str], writing: Mapping[str, str]
) -> Iterator[WeightMapping]:
    for modules, weight_axis, bias_axis in ((reading, 1, None), (writing, 0, 0)):
        for ours, theirs in modules.items():
            our_name, their_name = f"{layer}.{ours}", f"model.{layer}.{theirs}"
            yield WeightMapping(f"{our_name}.weight", f"{their_name}.weight", weight_axis)
            yield WeightMapping(f"{our_name}.bias", f"{their_name}.bias", bias_axis)


def to_ours(
    theirs: Mapping[str, Tensor],
    tables: EmbeddingTables,
    source: VocabularyMapping,
    target: VocabularyMapping,
    config: EncoderDecoderConfig,
) -> Weights:
    """Return our weights, shared ones under each of their names."""
    weights = {
        SOURCE: interleave(source.to_ours(tables.source), 1),
        TARGET: interleave(target.to_ours(tables.target), 1),
        OUTPUT: interleave(target.to_ours(tables.output), 1),
        BIAS: target.to_ours(tables.bias.clamp(min=ABSENT), absent=ABSENT),
    }
    for ours, name, axis in weight_mappings(config):
        weights[ours] = theirs[name] if axis is None else interleave(theirs[name], axis)
    return weights


def to_theirs(
    ours: Mapping[str, Tensor],
    source: VocabularyMapping,
    target: VocabularyMapping,
    config: EncoderDecoderConfig,
) -> tuple[Weights, EmbeddingTables]:
    """Return Marian's weights inside the layers and its tables, from ours under all their names."""
    weights = {
        theirs: ours[name] if axis is None else deinterleave(ours[name], axis)
        for name, theirs, axis in weight_mappings(config)
    }
    bias = ours[BIAS] if config.output_bias else ours[OUTPUT].new_zeros(target.our_size)
    tables = EmbeddingTables(
        source=deinterleave(source.to_theirs(ours[SOURCE]), 1),
        target=deinterleave(target.to_theirs(ours[TARGET]), 1),
        output=deinterleave(target.to_theirs(ours[OUTPUT]), 1),
        bias=target.to_theirs(bias),
    )
    return weights, tables


def interleave(weight: Tensor, axis: int) -> Tensor:
    """Return Marian's weight in our order: sine and cosine components alternate along an axis."""
    order = torch.arange(weight.shape[axis]).view(2, -1).t().flatten()
    return weight.index_select(axis, order)


def deinterleave(weight: Tensor, axis: int) -> Tensor:
    """Return our weight in Marian's order: all sine components, then all cosine components."""
    order = torch.arange(weight.shape[axis]).view(-1, 2).t().flatten()
    return weight.index_select(axis, order)
