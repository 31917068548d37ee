"""One layer of a stack that sees itself alone, and one that looks at a source as well."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from tformer_cli.config.schema.model import TransformerConfig
from tformer_cli.model.blocks.attention import Attention, AttentionMask, KeyValue
from tformer_cli.model.blocks.dropout import Dropout
from tformer_cli.model.blocks.feedforward import FeedForward, GatedFeedForward, build_feedforward
from tformer_cli.model.blocks.latent import LatentAttention
from tformer_cli.model.blocks.norms import RMSNorm, build_norm
from tformer_cli.model.blocks.residual import Depth, build_residual
from tformer_cli.model.blocks.rotary import Turn

SelfAttention = Attention | LatentAttention

Block = SelfAttention | FeedForward | GatedFeedForward
"""What a layer adds to the states."""

Remember = Callable[[KeyValue], KeyValue]
"""Takes the keys and values of new tokens, and returns all that these tokens look at."""


def forget(key_value: KeyValue) -> KeyValue:
    """Let tokens look at each other only."""
    return key_value


def build_self_attention(config: TransformerConfig) -> SelfAttention:
    """Return the attention of a stack to itself."""
    dropout = config.own_dropout(config.attention_dropout)
    if config.latent is not None:
        return LatentAttention(
            config.dim,
            config.num_heads,
            config.latent,
            dropout,
            bias=config.bias,
            epsilon=config.norm_epsilon,
        )
    norm = partial(RMSNorm, eps=config.norm_epsilon) if config.qk_norm else nn.Identity
    return Attention(
        config.dim, config.num_heads, config.kv_heads, dropout, bias=config.bias, norm=norm
    )


def build_cross_attention(config: TransformerConfig) -> Attention:
    """Return the attention of a decoder to its source, which knows no positions."""
    dropout = config.own_dropout(config.attention_dropout)
    return Attention(config.dim, config.num_heads, config.kv_heads, dropout, bias=config.bias)


def model_norm(config: TransformerConfig) -> nn.Module:
    """Return a norm over the width of the model."""
    return build_norm(config.norm, config.dim, config.norm_epsilon, bias=config.bias)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward; a stack that is all of a model has such layers too."""

    def __init__(self, config: TransformerConfig, depth: Depth) -> None:
        super().__init__()
        self.self_attention = build_self_attention(config)
        self.self_attention_norm = model_norm(config)
        self.feedforward = build_feedforward(config)
        self.feedforward_norm = model_norm(config)
        self.dropout = Dropout(config.dropout)
        self.residual = build_residual(config, depth)

    def forward(
        self, states: Tensor, view: AttentionMask, turn: Turn | None, remember: Remember = forget
    ) -> Tensor:
        """Return (N, T, D).

        Args:
            states: (N, T, D).
            view: which tokens each one sees, remembered ones included.
            turn: of the place of each token, where positions are rotary.
            remember: gives what tokens before these have left.
        """

        def look_around(states: Tensor) -> Tensor:
            queries, key_value = self.self_attention.project_qkv(states, turn)
            around: Tensor = self.self_attention(queries, remember(key_value), view)
            return around

        states = self.residual(states, self.self_attention_norm, look_around, self.dropout)
        return self.residual(states, self.feedforward_norm, self.feedforward, self.dropout)

    def attentions(self) -> list[SelfAttention]:
        """Return the attention to its own stack."""
        return [self.self_attention]

    def blocks(self) -> list[Block]:
        """Return what is added to the states, in order."""
        return [*self.attentions(), self.feedforward]


class DecoderLayer(nn.Module):
    """Self-attention over the target so far, cross-attention to the source, feed-forward."""

    def __init__(self, config: TransformerConfig, depth: Depth) -> None:
        super().__init__()
        self.self_attention = build_self_attention(config)
        self.self_attention_norm = model_norm(config)
        self.cross_attention = build_cross_attention(config)
        self.cross_attention_norm = model_norm(config)
        self.feedforward = build_feedforward(config)
        self.feedforward_norm = model_norm(config)
        self.dropout = Dropout(config.dropout)
        self.residual = build_residual(config, depth)

    def forward(
        self,
        states: Tensor,
        self_view: AttentionMask,
        source: KeyValue,
        source_view: AttentionMask,
        turn: Turn | None,
        remember: Remember = forget,
    ) -> Tensor:
        """Return (B, T, D).

        Args:
            states: (B, T, D): the tokens of whole targets, or the next token of each of T rows.
            self_view: which target tokens each query sees, remembered ones included.
            source: keys and values of the source, (B, Hkv, S, Dh).
            source_view: which source tokens may be seen.
            turn: of the place of each token, where positions are rotary.
            remember: gives what tokens before these have left.
        """

        def look_back(states: Tensor) -> Tensor:
            queries, key_value = self.self_attention.project_qkv(states, turn)
            back: Tensor = self.self_attention(queries, remember(key_value), self_view)
            return back

        def look_across(states: Tensor) -> Tensor:
            queries = self.cross_attention.project_q(states)
            across: Tensor = self.cross_attention(queries, source, source_view)
            return across

        states = self.residual(states, self.self_attention_norm, look_back, self.dropout)
        states = self.residual(states, self.cross_attention_norm, look_across, self.dropout)
        return self.residual(states, self.feedforward_norm, self.feedforward, self.dropout)

    def attentions(self) -> list[SelfAttention]:
        """Return the attention to its own stack, and that to the source."""
        return [self.self_attention, self.cross_attention]

    def blocks(self) -> list[Block]:
        """Return what is added to the states, in order."""
        return [*self.attentions(), self.feedforward]
