"""Encoder and decoder layers, and the stacks that they form."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tformer_cli.config.schema.model import RotaryPositions, TransformerConfig
from tformer_cli.kernels.attention_mask import AttentionMask
from tformer_cli.kernels.dropout import Dropout
from tformer_cli.model.blocks.attention import Attention, KeyValue, KVShape
from tformer_cli.model.blocks.embeddings import Embeddings, build_positions
from tformer_cli.model.blocks.feedforward import FeedForward, GatedFeedForward, build_feedforward
from tformer_cli.model.blocks.latent import LatentAttention
from tformer_cli.model.blocks.residual import (
    DeepNorm,
    Residual,
    RMSNorm,
    build_norm,
    build_residual,
)
from tformer_cli.model.blocks.rotary import CosSin, attention_factor

SelfAttention = Attention | LatentAttention

Block = SelfAttention | FeedForward | GatedFeedForward
"""A block of a layer, inside a residual connection."""

UpdateCache = Callable[[KeyValue], KeyValue]
"""Appends the key-values of new tokens to a KV cache; returns all that the tokens attend to."""


RunLayer = Callable[..., Tensor]
"""Applies a layer, its first argument, to the others."""


def run_layer(layer: nn.Module, *inputs: object) -> Tensor:
    """Return the hidden states of a layer."""
    states: Tensor = layer(*inputs)
    return states


def no_cache(key_value: KeyValue) -> KeyValue:
    """Return the key-values of the new tokens alone."""
    return key_value


def build_self_attention(config: TransformerConfig) -> SelfAttention:
    """Return the self-attention of a layer."""
    dropout = config.own_dropout(config.attention_dropout)
    if config.latent is not None:
        positions = config.positions
        factor = attention_factor(positions) if isinstance(positions, RotaryPositions) else 1.0
        return LatentAttention(
            config.dim,
            config.num_heads,
            config.latent,
            dropout,
            attention_factor=factor,
            bias=config.bias,
            epsilon=config.norm_epsilon,
        )
    norm = partial(RMSNorm, eps=config.norm_epsilon) if config.qk_norm else nn.Identity
    return _build_attention(config, norm)


def build_cross_attention(config: TransformerConfig) -> Attention:
    """Return the cross-attention of a decoder layer, which has no positions."""
    return _build_attention(config, nn.Identity)


def _build_attention(config: TransformerConfig, norm: Callable[[int], nn.Module]) -> Attention:
    return Attention(
        config.dim,
        config.num_heads,
        config.kv_heads,
        config.head_dim,
        config.own_dropout(config.attention_dropout),
        bias=config.bias,
        norm=norm,
        scale=config.attention_scale,
    )


def model_norm(config: TransformerConfig) -> nn.Module:
    """Return a norm of hidden states."""
    return build_norm(config.norm, config.dim, config.norm_epsilon, bias=config.bias)


class Layer(nn.Module):
    """What all layers share. Subclasses create the modules, in the order of the data."""

    self_attention: SelfAttention
    self_attention_norm: nn.Module
    feedforward: FeedForward | GatedFeedForward
    feedforward_norm: nn.Module
    dropout: Dropout
    residual: Residual

    def attend_to_self(
        self,
        hidden_states: Tensor,
        attention_mask: AttentionMask,
        rotary: CosSin | None,
        update_cache: UpdateCache,
    ) -> Tensor:
        """Return hidden states (N, T, D) after self-attention and its residual connection."""

        def self_attention(hidden_states: Tensor) -> Tensor:
            queries, key_value = self.self_attention.project_qkv(hidden_states, rotary)
            attended: Tensor = self.self_attention(queries, update_cache(key_value), attention_mask)
            return attended

        norm = self.self_attention_norm
        return self.residual(hidden_states, norm, self_attention, self.dropout)

    def attentions(self) -> list[SelfAttention]:
        """Return the attention blocks."""
        return [self.self_attention]

    def blocks(self) -> list[Block]:
        """Return all blocks in order."""
        return [*self.attentions(), self.feedforward]


class EncoderLayer(Layer):
    """Self-attention and feed-forward, for encoders and decoder-only networks."""

    def __init__(self, config: TransformerConfig, deep_norm: DeepNorm) -> None:
        super().__init__()
        self.self_attention = build_self_attention(config)
        self.self_attention_norm = model_norm(config)
        self.feedforward = build_feedforward(config)
        self.feedforward_norm = model_norm(config)
        self.dropout = Dropout(config.dropout)
        self.residual = build_residual(config, deep_norm)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: AttentionMask,
        rotary: CosSin | None,
        update_cache: UpdateCache = no_cache,
    ) -> Tensor:
        """Return (N, T, D).

        Args:
            hidden_states: (N, T, D).
            attention_mask: over the tokens and those of the cache.
            rotary: cos and sin of the positions of the tokens, if these are rotary.
            update_cache: of key-values.
        """
        states = self.attend_to_self(hidden_states, attention_mask, rotary, update_cache)
        return self.residual(states, self.feedforward_norm, self.feedforward, self.dropout)


class DecoderLayer(Layer):
    """Self-attention, cross-attention to the source, and feed-forward."""

    def __init__(self, config: TransformerConfig, deep_norm: DeepNorm) -> None:
        super().__init__()
        self.self_attention = build_self_attention(config)
        self.self_attention_norm = model_norm(config)
        self.cross_attention = build_cross_attention(config)
        self.cross_attention_norm = model_norm(config)
        self.feedforward = build_feedforward(config)
        self.feedforward_norm = model_norm(config)
        self.dropout = Dropout(config.dropout)
        self.residual = build_residual(config, deep_norm)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: AttentionMask,
        source: KeyValue,
        source_attention_mask: AttentionMask,
        rotary: CosSin | None,
        update_cache: UpdateCache = no_cache,
    ) -> Tensor:
        """Return (B, T, D) for whole targets, or for the next token of each of T beams.

        Arguments as for an encoder layer, with key-values of the source, (B, Hkv, S, Dh).
        """

        def cross_attention(hidden_states: Tensor) -> Tensor:
            queries = self.cross_attention.project_q(hidden_states)
            attended: Tensor = self.cross_attention(queries, source, source_attention_mask)
            return attended

        states = self.attend_to_self(hidden_states, attention_mask, rotary, update_cache)
        states = self.residual(states, self.cross_attention_norm, cross_attention, self.dropout)
        return self.residual(states, self.feedforward_norm, self.feedforward, self.dropout)

    def attentions(self) -> list[SelfAttention]:
        """Return the attention blocks."""
        return [self.self_attention, self.cross_attention]


class Stack(nn.Module):
    """Embeddings and layers; with pre-norm, a final norm.

    Attributes:
        deep_norm: its constants.
        is_causal: no token attends to a later one.
        gradient_checkpointing: in training, activations inside a layer are computed again in the
            backward pass (Chen et al. 2016, section 4.1), with the same random numbers.
        run_layer: applies a layer in training; may be compiled.
        layer_drop: probability with which a pass in training skips a layer.
    """

    def __init__(
        self,
        config: TransformerConfig,
        vocab_size: int,
        layer: type[EncoderLayer | DecoderLayer],
        num_layers: int,
        deep_norm: DeepNorm,
        *,
        is_causal: bool,
    ) -> None:
        super().__init__()
        positions = build_positions(config, is_causal=is_causal)
        dropout = config.own_dropout(config.embedding_dropout)
        norm = model_norm(config) if config.embedding_norm else None
        self.embeddings = Embeddings(
            vocab_size, config.dim, positions.absolute, dropout, norm, config.embedding_scale
        )
        self.layers = nn.ModuleList(layer(config, deep_norm) for _ in range(num_layers))
        self.norm = model_norm(config) if config.norm_position == "pre" else nn.Identity()
        self.rotary, self.bias = positions.rotary, positions.bias
        self.deep_norm = deep_norm
        self.is_causal = is_causal
        self.gradient_checkpointing = False
        self.run_layer: RunLayer = run_layer
        self.layer_drop = 0.0

    def encode_positions(
        self, queries: Tensor, keys: Tensor
    ) -> tuple[CosSin | None, Tensor | None]:
        """Return rotary cos and sin of queries, and the bias of attention logits.

        Args:
            queries: (T,) or (N, T) positions.
            keys: (L,) or (N, L) positions.
        """
        rotary = None if self.rotary is None else self.rotary(queries)
        return rotary, None if self.bias is None else self.bias(queries, keys)

    def kept_layers(self) -> list[nn.Module]:
        """Return the layers of a pass over whole sequences; in training, without the dropped ones.

        LayerDrop (Fan et al. 2020, section 3): each layer is skipped as a whole, independently of
        the others, and the kept ones are not scaled.
        """
        if not self.training or self.layer_drop == 0:
            return list(self.layers)
        # A GPU would have to be waited for; training seeds the generator of the CPU with its own.
        numbers = torch.rand(len(self.layers), device="cpu").tolist()
        return [
            layer
            for layer, number in zip(self.layers, numbers, strict=True)
            if number >= self.layer_drop
        ]

    def apply_layer(self, layer: nn.Module, *inputs: object) -> Tensor:
        """Apply a layer to whole sequences."""
        if not layer.training:
            return run_layer(layer, *inputs)
        if not self.gradient_checkpointing:
            return self.run_layer(layer, *inputs)
        states: Tensor = checkpoint(
            self.run_layer, layer, *inputs, use_reentrant=False, preserve_rng_state=True
        )
        return states

    def kv_shapes(self) -> list[KVShape]:
        """Return the shape of each layer's KV cache."""
        return [layer.self_attention.kv_shape for layer in self.each_layer()]

    def each_layer(self) -> list[EncoderLayer | DecoderLayer]:
        """Return the layers with their types."""
        return [layer for layer in self.layers if isinstance(layer, EncoderLayer | DecoderLayer)]
