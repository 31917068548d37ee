"""Attention maps: where each token of a pass over whole sentences looks.

A double of the network notes them; the network itself knows nothing of it and does nothing for it.
"""

import copy
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from tformer_cli.model.blocks.attention import Attention, AttentionMask, KeyValue
from tformer_cli.model.blocks.rotary import Turn
from tformer_cli.model.layers import SelfAttention
from tformer_cli.model.network import Network, Seq2Seq

Part = TypeVar("Part", bound=nn.Module)


class LayerMaps(NamedTuple):
    """Where the tokens of one layer look, before any dropout.

    Attributes:
        self_attention: (B, H, T, T) at the tokens of their own stack.
        cross_attention: (B, H, T, S) at the source, where the layer looks at one.
    """

    self_attention: Tensor
    cross_attention: Tensor | None = None


class Recorder(nn.Module):
    """Stands in for an attention and keeps the weights (N, H, T, S) of its last call."""

    def __init__(self, attention: SelfAttention) -> None:
        super().__init__()
        self.attention = attention
        self.weights: Tensor

    def project_qkv(self, states: Tensor, turn: Turn | None) -> tuple[Tensor, KeyValue]:
        """Return what the attention itself does."""
        return self.attention.project_qkv(states, turn)

    def project_q(self, states: Tensor) -> Tensor:
        """Return what the attention itself does, where it looks at another stack."""
        assert isinstance(self.attention, Attention)
        return self.attention.project_q(states)

    def project_kv(self, states: Tensor) -> KeyValue:
        """Return what the attention itself does, where it looks at another stack."""
        assert isinstance(self.attention, Attention)
        return self.attention.project_kv(states)

    def forward(self, queries: Tensor, key_value: KeyValue, view: AttentionMask) -> Tensor:
        """Return what the attention itself does, and note where it looks."""
        self.weights = self.attention.weights(queries, key_value, view)
        found: Tensor = self.attention(queries, key_value, view)
        return found


def attention_maps(
    network: Network, source: Tensor, source_mask: Tensor, target: Tensor
) -> list[list[LayerMaps]]:
    """Return where every layer of every stack looks, in the order of `network.stacks()`.

    Row t of a decoder is what the step looks at that reads target token t, and so writes token
    t + 1. A stack that goes on from source to target has S + T rows.

    Args:
        network: is left as it is; a fused one will do.
        source: (B, S) token ids.
        source_mask: (B, S) real source tokens; the others have no weight.
        target: (B, T) token ids, beginning with the start token; for a network that reads one
            text alone, the same ids as `source`.
    """
    layers = [stack.each_layer() for stack in network.stacks()]
    recorders: dict[nn.Module, Recorder] = {
        one: Recorder(one) for stack in layers for layer in stack for one in layer.attentions()
    }
    # No logits are asked for.
    nowhere = torch.zeros_like(target, dtype=torch.bool)
    double(network, recorders)(source, source_mask, target, nowhere)
    return [
        [LayerMaps(*(recorders[one].weights for one in layer.attentions())) for layer in stack]
        for stack in layers
    ]


def source_attention(model: Seq2Seq, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
    """Return where the last layer looks in the source, (B, H, T, S), before any dropout.

    Row t is that of the step that reads target token t, and so writes token t + 1. Of a stack that
    goes on from source to target, rows sum to less than one: the rest is for the target.

    Args:
        model: is left as it is; a fused one will do.
        source: (B, S) token ids.
        source_mask: (B, S) real source tokens; the others have no weight.
        target: (B, T) token ids, beginning with the start token.
    """
    last = model.stacks()[-1].each_layer()[-1].attentions()[-1]
    recorder = Recorder(last)
    double(model, {last: recorder}).target_hidden_states(source, source_mask, target)
    return recorder.weights[:, :, -target.shape[1] :, : source.shape[1]]


def double(module: Part, stand_ins: Mapping[nn.Module, nn.Module]) -> Part:
    """Return a module that shares all with another but the parts that others stand in for."""
    changed: dict[str, nn.Module] = {}
    for name, part in module.named_children():
        other = stand_ins[part] if part in stand_ins else double(part, stand_ins)
        if other is not part:
            changed[name] = other
    if not changed:
        return module
    twin = copy.copy(module)
    # The copy has the register of its original, and is to have one of its own.
    twin._modules = dict(module._modules)
    for name, other in changed.items():
        setattr(twin, name, other)
    return twin
