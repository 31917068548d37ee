"""What every stack of layers has, whoever it listens to."""

from typing import NamedTuple

from torch import Tensor, nn

from tformer_cli.config.schema.model import TransformerConfig
from tformer_cli.model.blocks.attention import KVShape
from tformer_cli.model.blocks.embeddings import Embeddings
from tformer_cli.model.blocks.positions import build_positions
from tformer_cli.model.blocks.residual import Depth
from tformer_cli.model.blocks.rotary import Turn
from tformer_cli.model.layers import DecoderLayer, EncoderLayer, model_norm
from tformer_cli.model.recompute import LayerCall, kept


class Places(NamedTuple):
    """What the places of tokens mean for self-attention.

    Attributes:
        turn: of queries and keys, where positions are rotary.
        bias: added to the logits, where they have one.
    """

    turn: Turn | None
    bias: Tensor | None


class Stack(nn.Module):
    """Embeddings, layers, and where layers normalize first a final norm."""

    def __init__(
        self,
        config: TransformerConfig,
        vocab_size: int,
        layer: type[EncoderLayer] | type[DecoderLayer],
        depth: Depth,
        *,
        is_causal: bool,
    ) -> None:
        """Build the stack.

        Args:
            config: of the network.
            vocab_size: V.
            layer: what it consists of.
            depth: how many of them, and what their residuals weigh.
            is_causal: whether no token sees one behind it.
        """
        super().__init__()
        positions = build_positions(config, is_causal=is_causal)
        dropout = config.own_dropout(config.embedding_dropout)
        self.embeddings = Embeddings(vocab_size, config.dim, positions.absolute, dropout)
        self.layers = nn.ModuleList(layer(config, depth) for _ in range(depth.num_layers))
        self.norm = model_norm(config) if config.norm_position == "pre" else nn.Identity()
        self.rotary, self.bias = positions.rotary, positions.bias
        self.call: LayerCall = kept
        self.depth = depth
        self.is_causal = is_causal

    def places(self, queries: Tensor, keys: Tensor) -> Places:
        """Return what self-attention needs to know of some places.

        Args:
            queries: (T,) or (N, T) places of the tokens that are read.
            keys: (L,) or (N, L) places of all that they look at.
        """
        turn = None if self.rotary is None else self.rotary(queries)
        bias = None if self.bias is None else self.bias(queries, keys)
        return Places(turn, bias)

    def kv_shapes(self) -> list[KVShape]:
        """Return what each layer keeps of a token that it has read."""
        return [layer.self_attention.kv_shape for layer in self.each_layer()]

    def each_layer(self) -> list[EncoderLayer | DecoderLayer]:
        """Return the layers, as what they are."""
        return [layer for layer in self.layers if isinstance(layer, EncoderLayer | DecoderLayer)]
