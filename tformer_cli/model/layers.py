"""One layer of the encoder, one layer of the decoder."""

from collections.abc import Callable

from torch import Tensor, nn

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.model.attention import Attention, KeyValue, View
from tformer_cli.model.cache import LayerCache
from tformer_cli.model.dropout import Dropout
from tformer_cli.model.feedforward import FeedForward
from tformer_cli.model.norms import build_norm
from tformer_cli.model.positions import Rotary

Residual = Callable[[Tensor, nn.Module, Callable[[Tensor], Tensor], nn.Module], Tensor]


def pre_norm(
    states: Tensor, norm: nn.Module, block: Callable[[Tensor], Tensor], dropout: nn.Module
) -> Tensor:
    """Return x + dropout(block(norm(x))) (Xiong et al. 2020)."""
    residual: Tensor = states + dropout(block(norm(states)))
    return residual


def post_norm(
    states: Tensor, norm: nn.Module, block: Callable[[Tensor], Tensor], dropout: nn.Module
) -> Tensor:
    """Return norm(x + dropout(block(x))) (Vaswani et al. 2017, section 3.1)."""
    residual: Tensor = norm(states + dropout(block(states)))
    return residual


RESIDUALS: dict[str, Residual] = {"pre": pre_norm, "post": post_norm}


def _attention(config: EncoderDecoderConfig) -> Attention:
    dropout = config.own_dropout(config.attention_dropout)
    return Attention(config.dim, config.num_heads, dropout)


def _feedforward(config: EncoderDecoderConfig) -> FeedForward:
    dropout = config.own_dropout(config.feedforward_dropout)
    return FeedForward(config.dim, config.feedforward_dim, config.activation, dropout)


def _norm(config: EncoderDecoderConfig) -> nn.Module:
    return build_norm(config.norm, config.dim, config.norm_epsilon)


def final_norm(config: EncoderDecoderConfig) -> nn.Module:
    """Return what stands behind the last layer: a norm where layers normalise first, or nothing."""
    return _norm(config) if config.norm_position == "pre" else nn.Identity()


def turned(
    queries: Tensor, key_value: KeyValue, rotary: Rotary | None, positions: Tensor
) -> tuple[Tensor, KeyValue]:
    """Return queries and keys as rotary positions have them; without any, as they are.

    Args:
        queries: (N, H, T, Dh).
        key_value: of the same states.
        rotary: turns heads by their places.
        positions: (T,) or (N, T) place of each token in its row.
    """
    if rotary is None:
        return queries, key_value
    keys = rotary(key_value.keys, positions)
    return rotary(queries, positions), KeyValue(keys, key_value.values)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: EncoderDecoderConfig, rotary: Rotary | None) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.self_attention_norm = _norm(config)
        self.feedforward = _feedforward(config)
        self.feedforward_norm = _norm(config)
        self.dropout = Dropout(config.dropout)
        self.residual = RESIDUALS[config.norm_position]
        self.rotary = rotary

    def forward(self, states: Tensor, view: View, positions: Tensor) -> Tensor:
        """Return (B, S, D).

        Args:
            states: (B, S, D).
            view: which source tokens may be seen.
            positions: (S,) place of each token.
        """

        def look_around(states: Tensor) -> Tensor:
            queries, key_value = turned(
                *self.self_attention.project(states), self.rotary, positions
            )
            around: Tensor = self.self_attention(queries, key_value, view)
            return around

        states = self.residual(states, self.self_attention_norm, look_around, self.dropout)
        return self.residual(states, self.feedforward_norm, self.feedforward, self.dropout)


class DecoderLayer(nn.Module):
    """Self-attention over the target so far, cross-attention to the source, feed-forward."""

    def __init__(self, config: EncoderDecoderConfig, rotary: Rotary | None) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.self_attention_norm = _norm(config)
        self.cross_attention = _attention(config)
        self.cross_attention_norm = _norm(config)
        self.feedforward = _feedforward(config)
        self.feedforward_norm = _norm(config)
        self.dropout = Dropout(config.dropout)
        self.residual = RESIDUALS[config.norm_position]
        self.rotary = rotary

    def forward(
        self,
        states: Tensor,
        self_view: View,
        source: KeyValue,
        source_view: View,
        positions: Tensor,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Return (B, T, D).

        Args:
            states: (B, T, D): the tokens of whole targets, or with a cache the next token of each
                of T rows.
            self_view: which target tokens each query sees, those in the cache included.
            source: keys and values of the source, (B, H, S, Dh).
            source_view: which source tokens may be seen.
            positions: (T,) or (B, T) place of each token in its row.
            cache: keys and values of the target so far; the new ones are added to it.
        """

        def look_back(states: Tensor) -> Tensor:
            queries, key_value = turned(
                *self.self_attention.project(states), self.rotary, positions
            )
            if cache is not None:
                key_value = cache.append(key_value)
            back: Tensor = self.self_attention(queries, key_value, self_view)
            return back

        def look_across(states: Tensor) -> Tensor:
            queries = self.cross_attention.queries(states)
            across: Tensor = self.cross_attention(queries, source, source_view)
            return across

        states = self.residual(states, self.self_attention_norm, look_back, self.dropout)
        states = self.residual(states, self.cross_attention_norm, look_across, self.dropout)
        return self.residual(states, self.feedforward_norm, self.feedforward, self.dropout)
