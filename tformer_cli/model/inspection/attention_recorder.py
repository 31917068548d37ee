"""Attention maps of whole sentences, and tables of what positions contribute.

Maps are recorded by a copy of the network with other attention modules; the network is unchanged.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tformer_cli.kernels.attention_mask import AttentionMask
from tformer_cli.model.blocks.attention import Attention, KeyValue
from tformer_cli.model.blocks.bias import MASK_VALUE, DistanceBias
from tformer_cli.model.blocks.embeddings import LearnedEncoding
from tformer_cli.model.blocks.rotary import CosSin
from tformer_cli.model.layers import SelfAttention, Stack
from tformer_cli.model.network import Network, Seq2Seq, replace_modules
from tformer_cli.plotting.attention_maps import PositionTable


class LayerMaps(NamedTuple):
    """Attention weights of a layer, without dropout.

    Attributes:
        self_attention: (B, H, T, T).
        cross_attention: (B, H, T, S), of a layer with cross-attention.
    """

    self_attention: Tensor
    cross_attention: Tensor | None = None


class RecordingAttention(nn.Module):
    """An attention module that tells `record` the weights (N, H, T, S) of each call."""

    def __init__(self, attention: SelfAttention, record: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.attention = attention
        self.record = record

    def project_qkv(self, hidden_states: Tensor, rotary: CosSin | None) -> tuple[Tensor, KeyValue]:
        """Project for self-attention."""
        return self.attention.project_qkv(hidden_states, rotary)

    def project_q(self, hidden_states: Tensor) -> Tensor:
        """Project queries of cross-attention."""
        assert isinstance(self.attention, Attention)
        return self.attention.project_q(hidden_states)

    def project_kv(self, hidden_states: Tensor) -> KeyValue:
        """Project key-values of cross-attention."""
        assert isinstance(self.attention, Attention)
        return self.attention.project_kv(hidden_states)

    def forward(
        self, queries: Tensor, key_value: KeyValue, attention_mask: AttentionMask
    ) -> Tensor:
        """Attend, and record the weights."""
        self.record(self.attention.weights(queries, key_value, attention_mask))
        attended: Tensor = self.attention(queries, key_value, attention_mask)
        return attended


def attention_maps(
    network: Network, source: Tensor, source_mask: Tensor, target: Tensor
) -> list[list[LayerMaps]]:
    """Return the attention weights of every layer of every stack.

    Row t of a decoder belongs to the step that reads target token t and predicts token t + 1. A
    decoder-only network has S + T rows.

    Args:
        network: may be prepared for inference.
        source: (B, S) token ids.
        source_mask: (B, S) real source tokens; padding has no weight.
        target: (B, T) token ids, beginning with the start token; of a masked encoder, `source`.
    """
    layers = [stack.each_layer() for stack in network.stacks()]
    weights: dict[nn.Module, Tensor] = {}
    recorders: dict[nn.Module, RecordingAttention] = {
        attention: RecordingAttention(attention, partial(weights.__setitem__, attention))
        for stack in layers
        for layer in stack
        for attention in layer.attentions()
    }
    no_positions = target.new_empty(0)
    replace_modules(network, recorders).hidden_states(source, source_mask, target, no_positions)
    return [
        [LayerMaps(*(weights[part] for part in layer.attentions())) for layer in stack]
        for stack in layers
    ]


def source_attention(
    model: Seq2Seq,
    source: Tensor,
    source_mask: Tensor,
    target: Tensor,
    num_layers: int | None = None,
) -> Tensor:
    """Return the attention to the source, (B, T, S), the mean of heads and layers, without dropout.

    Row t belongs to the step that reads target token t. In a decoder-only network rows sum to less
    than one: the rest is attention to the target. The last `num_layers` layers count, or all. Other
    arguments: see `attention_maps`.
    """
    maps: list[Tensor] = []

    def record(weights: Tensor) -> None:
        weights = weights[:, :, -target.shape[1] :, : source.shape[1]]
        maps.append(weights.to(torch.promote_types(weights.dtype, torch.float32)).mean(dim=1))

    layers = model.stacks()[-1].each_layer()
    counted = layers if num_layers is None else layers[-num_layers:]
    attentions = [layer.attentions()[-1] for layer in counted]
    recording = replace_modules(
        model, {each: RecordingAttention(each, record) for each in attentions}
    )
    recording.target_hidden_states(source, source_mask, target)
    return torch.stack(maps).mean(dim=0)


@torch.no_grad()
def position_tables(stack: Stack, num_positions: int) -> list[PositionTable]:
    """Return what the first positions contribute to a stack; learned positions may be fewer."""
    absolute = stack.embeddings.positions
    if isinstance(absolute, LearnedEncoding):
        num_positions = min(num_positions, absolute.num_embeddings - absolute.offset)
    positions = torch.arange(num_positions, device=stack.embeddings.tokens.weight.device)
    rows = tuple(range(num_positions))
    tables = []
    if absolute is not None:
        vectors = absolute(positions).numpy(force=True)
        tables.append(PositionTable("vectors", (), rows, tuple(range(vectors.shape[1])), vectors))
    if stack.rotary is not None:
        frequencies = stack.rotary.frequencies
        cos = stack.rotary(positions)[0][:, : len(frequencies)].numpy(force=True)
        tables.append(PositionTable("turns", (), rows, tuple(frequencies.tolist()), cos))
    if stack.bias is not None:
        tables.append(_bias_table(stack.bias, positions, is_causal=stack.is_causal))
    return tables


def _bias_table(bias: DistanceBias, positions: Tensor, *, is_causal: bool) -> PositionTable:
    before = -positions.flip(0)
    distances = before if is_causal else torch.cat((before, positions[1:]))
    values = bias.of_distance(distances[None, None])[..., 0, :]  # (H or 1, distances)
    values = values.reshape(-1, len(distances))
    heads = range(1, len(values) + 1) if len(values) > 1 else ()
    masked = values.masked_fill(values <= MASK_VALUE / 2, -math.inf)
    columns = tuple(distances.tolist())
    return PositionTable("bias", (), tuple(heads), columns, masked.numpy(force=True))
