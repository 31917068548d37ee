"""What a Marian model has where ours has something else: names, ids, and the layout of weights.

Marian's waves are all sines, then all cosines (transformers' MarianSinusoidalPositionalEmbedding);
ours alternate, as Vaswani et al. 2017, section 3.5 have it. So component 2i of our states is its
component i, and our component 2i + 1 its component D/2 + i. Norms do not mind the order, and
neither do the heads: a model is the same when every weight that reads or writes states is laid out
in the other order.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.text.vocabulary import BOS_ID, EOS_ID, UNK_ID

Weights = dict[str, Tensor]

# Our activations by Marian's names, and the one epsilon of its norms.
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
NORM_EPSILON = 1e-5

# Our ids of its special tokens. Its targets begin with <pad>, which takes the place of our <s>.
OUR_IDS = {"</s>": EOS_ID, "<unk>": UNK_ID, "<pad>": BOS_ID}

# Maps from states, by our name and theirs: the columns of their weights are components of states.
READING = {
    "self_attention.query": "self_attn.q_proj",
    "self_attention.key": "self_attn.k_proj",
    "self_attention.value": "self_attn.v_proj",
    "feedforward.inner": "fc1",
}
# Maps to states, and norms: the rows of their weights and their biases are.
WRITING = {
    "self_attention.output": "self_attn.out_proj",
    "self_attention_norm": "self_attn_layer_norm",
    "feedforward.outer": "fc2",
    "feedforward_norm": "final_layer_norm",
}
READING_ACROSS = {
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key": "encoder_attn.k_proj",
    "cross_attention.value": "encoder_attn.v_proj",
}
WRITING_ACROSS = {
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_attention_norm": "encoder_attn_layer_norm",
}

SOURCE, TARGET = "encoder.embeddings.tokens.weight", "decoder.embeddings.tokens.weight"
OUTPUT, BIAS = "output.weight", "output.bias"

# Of a token that Marian does not have. A number that leaves it no probability, and is small enough
# for label smoothing, which wants a little of every token.
ABSENT = -100.0


class WeightMapping(NamedTuple):
    """A weight inside the layers.

    Attributes:
        ours: our name of it.
        theirs: Marian's.
        axis: along which it has the components of states, if it has them.
    """

    ours: str
    theirs: str
    axis: int | None


class Tables(NamedTuple):
    """What a Marian model has a row of for each token.

    Attributes:
        source: (V, D) embeddings.
        target: (V, D) embeddings.
        output: (V, D).
        bias: (V,) added to the logits.
    """

    source: Tensor
    target: Tensor
    output: Tensor
    bias: Tensor


class Rows(NamedTuple):
    """Which ids of two vocabularies mean the same token: item n of the one, item n of the other.

    Attributes:
        ours: (n,) our ids.
        theirs: (n,) Marian's.
        our_size: all ids that we have.
        their_size: all that Marian has.
    """

    ours: Tensor
    theirs: Tensor
    our_size: int
    their_size: int

    def to_ours(self, table: Tensor, absent: float = 0.0) -> Tensor:
        """Return a table with a row for each of our ids from one with a row for each of theirs."""
        found = table.new_full((self.our_size, *table.shape[1:]), absent)
        found[self.ours] = table[self.theirs]
        return found

    def to_theirs(self, table: Tensor) -> Tensor:
        """Return a table with a row for each of their ids from one with a row for each of ours."""
        found = table.new_zeros((self.their_size, *table.shape[1:]))
        found[self.theirs] = table[self.ours]
        return found


def weight_mappings(config: EncoderDecoderConfig) -> Iterator[WeightMapping]:
    """Yield the weights inside the layers."""
    for number in range(config.num_encoder_layers):
        yield from _layer_mappings("encoder", number, READING, WRITING)
    for number in range(config.num_decoder_layers):
        reading, writing = READING | READING_ACROSS, WRITING | WRITING_ACROSS
        yield from _layer_mappings("decoder", number, reading, writing)


def _layer_mappings(
    stack: str, number: int, reading: Mapping[str, str], writing: Mapping[str, str]
) -> Iterator[WeightMapping]:
    layer = f"{stack}.layers.{number}"
    for ours, theirs in reading.items():
        yield WeightMapping(f"{layer}.{ours}.weight", f"model.{layer}.{theirs}.weight", 1)
        yield WeightMapping(f"{layer}.{ours}.bias", f"model.{layer}.{theirs}.bias", None)
    for ours, theirs in writing.items():
        yield WeightMapping(f"{layer}.{ours}.weight", f"model.{layer}.{theirs}.weight", 0)
        yield WeightMapping(f"{layer}.{ours}.bias", f"model.{layer}.{theirs}.bias", 0)


def to_ours(
    theirs: Mapping[str, Tensor],
    tables: Tables,
    source: Rows,
    target: Rows,
    config: EncoderDecoderConfig,
) -> Weights:
    """Return our weights, shared ones under each of their names, in Marian's number format.

    Args:
        theirs: Marian's weights inside the layers, by their names.
        tables: its other ones.
        source: the ids of the source language.
        target: those of the target language.
        config: our shape of the model.
    """
    weights = {
        SOURCE: interleave(source.to_ours(tables.source), 1),
        TARGET: interleave(target.to_ours(tables.target), 1),
        OUTPUT: interleave(target.to_ours(tables.output), 1),
        BIAS: target.to_ours(tables.bias.clamp(min=ABSENT), absent=ABSENT),
    }
    for mapping in weight_mappings(config):
        weight = theirs[mapping.theirs]
        weights[mapping.ours] = weight if mapping.axis is None else interleave(weight, mapping.axis)
    return weights


def to_theirs(
    ours: Mapping[str, Tensor], source: Rows, target: Rows, config: EncoderDecoderConfig
) -> tuple[Weights, Tables]:
    """Return Marian's weights inside the layers, by their names, and its tables.

    Args:
        ours: our weights, shared ones under each of their names.
        source: the ids of the source language.
        target: those of the target language.
        config: our shape of the model.
    """
    weights = {
        mapping.theirs: ours[mapping.ours]
        if mapping.axis is None
        else deinterleave(ours[mapping.ours], mapping.axis)
        for mapping in weight_mappings(config)
    }
    bias = ours[BIAS] if config.output_bias else ours[OUTPUT].new_zeros(target.our_size)
    tables = Tables(
        source=deinterleave(source.to_theirs(ours[SOURCE]), 1),
        target=deinterleave(target.to_theirs(ours[TARGET]), 1),
        output=deinterleave(target.to_theirs(ours[OUTPUT]), 1),
        bias=target.to_theirs(bias),
    )
    return weights, tables


def interleave(weight: Tensor, axis: int) -> Tensor:
    """Return a weight of Marian's with its sines and cosines in turn along an axis."""
    order = torch.arange(weight.shape[axis]).view(2, -1).t().flatten()
    return weight.index_select(axis, order)


def deinterleave(weight: Tensor, axis: int) -> Tensor:
    """Return a weight of ours with all sines before all cosines along an axis."""
    order = torch.arange(weight.shape[axis]).view(-1, 2).t().flatten()
    return weight.index_select(axis, order)
