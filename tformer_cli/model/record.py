"""Attention maps: which source tokens each step of a pass over whole targets looks at.

A double of the decoder notes them; the decoder itself knows nothing of it and does nothing for it.
"""

import copy

from torch import Tensor

from tformer_cli.model.attention import Attention, KeyValue, View, attention_weights
from tformer_cli.model.decoder import Decoder
from tformer_cli.model.encoder import Memory
from tformer_cli.model.layers import DecoderLayer


class Recorder:
    """Stands in for an attention and keeps the weights (N, H, T, S) of its last call."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        self.weights: Tensor

    def queries(self, states: Tensor) -> Tensor:
        """Return what the attention itself does."""
        return self.attention.queries(states)

    def key_value(self, states: Tensor) -> KeyValue:
        """Return what the attention itself does."""
        return self.attention.key_value(states)

    def __call__(self, queries: Tensor, key_value: KeyValue, view: View) -> Tensor:
        """Return what the attention itself does, and note where it looks."""
        self.weights = attention_weights(queries, key_value.keys, view)
        found: Tensor = self.attention(queries, key_value, view)
        return found


def cross_attention_weights(decoder: Decoder, target: Tensor, memory: Memory) -> list[Tensor]:
    """Return the weights of each layer's cross-attention, (B, H, T, S), before any dropout.

    Row t is what the step looks at that reads target token t, and so writes token t + 1.

    Args:
        decoder: is left as it is; a fused one will do.
        target: (B, T) token ids, beginning with the start token.
        memory: of the sources; its padding has no weight.
    """
    double = copy.copy(decoder)
    layers, recorders = [], []
    for layer in decoder.layers:
        assert isinstance(layer, DecoderLayer)
        recorder = Recorder(layer.cross_attention)
        listener = copy.copy(layer)
        # Both share the registers of their parts with the original. What stands in the instance
        # itself comes first, and belongs to the copy alone.
        vars(listener)["cross_attention"] = recorder
        layers.append(listener)
        recorders.append(recorder)
    vars(double)["layers"] = layers
    double(target, memory)
    return [recorder.weights for recorder in recorders]
