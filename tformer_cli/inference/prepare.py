"""Prepare a network for inference: fused projections, weights in the fastest layout, no hooks."""

import copy
import functools
from typing import cast

import torch
from torch import Tensor, nn

from tformer_cli.inference.linear import concatenate_linears, prepare_linear
from tformer_cli.model.blocks.attention import Attention, KeyValue, split_heads
from tformer_cli.model.blocks.feedforward import FeedForward, GatedFeedForward
from tformer_cli.model.layers import Block
from tformer_cli.model.network import Module, Seq2Seq, replace_modules


def prepare_for_inference(
    model: Seq2Seq, device: torch.device, precision: torch.dtype = torch.float32
) -> Seq2Seq:
    """Return a copy of a model for inference, which shares the weights that it does not change.

    The model is moved to the device. The copy has no hooks, and is not to be moved, trained or
    saved. The precision is that of matrix products and their weights; int8 rounds large matrices.
    """
    model.to(device)
    layers = [layer for stack in model.stacks() for layer in stack.each_layer()]
    blocks = [block for layer in layers for block in (layer.self_attention, layer.feedforward)]
    fused = replace_modules(model, {block: _fuse(block) for block in blocks})
    prepared: dict[nn.Module, nn.Module] = {
        module: prepare_linear(module, device, precision)
        for module in fused.modules()
        if isinstance(module, nn.Linear)
    }
    return _without_hooks(replace_modules(fused, prepared))


def _fuse(block: Block) -> nn.Module:
    """Return a block that computes the same by fewer operations."""
    if isinstance(block, Attention):
        return FusedAttention(block)
    if isinstance(block, GatedFeedForward):
        return FusedGatedFeedForward(block)
    if isinstance(block, FeedForward) and block.activation is torch.relu:
        # In place: nothing else needs the output of `up`.
        block = copy.copy(block)
        block.activation = torch.relu_
    return block


class FusedAttention(Attention):
    """Self-attention with one matrix product for queries, keys and values."""

    def __init__(self, parts: Attention) -> None:
        nn.Module.__init__(self)
        self.num_heads, self.num_kv_heads = parts.num_heads, parts.num_kv_heads
        self.dropout, self.query_scale = parts.dropout, parts.query_scale
        self.output = parts.output
        self.kv_shape = parts.kv_shape
        self.attend = parts.attend
        self.query_norm, self.key_norm = parts.query_norm, parts.key_norm
        self.projection = concatenate_linears(parts.query, parts.key, parts.value)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, KeyValue]:
        """Return queries and key-values of the same hidden states, without positions."""
        sizes = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        heads = split_heads(self.projection(hidden_states), sum(sizes))  # (N, H + 2 Hkv, T, Dh)
        queries, keys, values = heads.split_with_sizes(sizes, dim=1)
        return queries, KeyValue(keys, values)


class FusedGatedFeedForward(nn.Module):
    """Gated feed-forward with one matrix product for `gate` and `up`, without dropout."""

    def __init__(self, parts: GatedFeedForward) -> None:
        super().__init__()
        self.projection = concatenate_linears(parts.gate, parts.up)
        self.down, self.activation = parts.down, parts.activation

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return (..., D) for hidden states (..., D)."""
        gate, up = self.projection(hidden_states).chunk(2, dim=-1)
        down: Tensor = self.down(self.activation(gate) * up)
        return down


def _without_hooks(module: Module) -> Module:
    """Return a copy of a module, in evaluation mode, without torch's machinery around `forward`.

    Calls go straight to `forward`, and weights and submodules are plain attributes. With few rows
    the machinery takes a fifth to a third of a decoding step.
    """
    children = {
        name: None if child is None else _without_hooks(child)
        for name, child in module._modules.items()
    }
    weights = {**module._parameters, **module._buffers}
    kind = _class_without_hooks(type(module))  # type: ignore[arg-type]
    bare = kind.__new__(kind)
    bare.__dict__.update(module.__dict__, **weights, **children)
    bare.__dict__.update(
        _parameters=dict(module._parameters),
        _buffers=dict(module._buffers),
        _modules=children,
        training=False,
    )
    return cast(Module, bare)


@functools.cache
def _class_without_hooks(kind: type[nn.Module]) -> type[nn.Module]:
    """Return one class for all modules of a class: torch.compile compiles for each class."""
    return type(kind.__name__, (kind,), {"__call__": kind.forward})
