"""The decoder, and the encoder-decoder Transformer (Vaswani et al. 2017)."""

from collections.abc import Collection, Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tformer_cli.config.schema.model import EncoderDecoderConfig, TransformerConfig
from tformer_cli.kernels.attention_mask import AttentionMask, padding_mask
from tformer_cli.model.blocks.attention import KeyValue
from tformer_cli.model.blocks.embeddings import KeptTokens
from tformer_cli.model.blocks.residual import DeepNorm
from tformer_cli.model.encoder import Encoder, Memory
from tformer_cli.model.kv_cache import DecoderCache
from tformer_cli.model.layers import DecoderLayer, Stack
from tformer_cli.model.network import Seq2Seq


class Decoder(Stack):
    """A stack with causal self-attention, and cross-attention to the source."""

    def __init__(
        self, config: TransformerConfig, vocab_size: int, num_layers: int, deep_norm: DeepNorm
    ) -> None:
        super().__init__(config, vocab_size, DecoderLayer, num_layers, deep_norm, is_causal=True)

    def forward(self, target: Tensor, memory: Memory, kept: Tensor | None = None) -> Tensor:
        """Return hidden states (B, T, D) of whole targets (B, T), padded on the right.

        A mask (B, T) says which tokens keep their embedding.
        Target padding needs no mask: no real position attends to a later one.
        """
        positions = torch.arange(target.shape[1], device=target.device)
        rotary, bias = self.encode_positions(positions, positions)
        mask = AttentionMask(bias=bias, is_causal=True)
        source_mask = AttentionMask(mask=padding_mask(memory.mask))
        states = self.embeddings(target, positions, kept)
        layers = self.kept_layers()
        for layer, source in zip(layers, _project_source(layers, memory), strict=True):
            states = self.apply_layer(layer, states, mask, source, source_mask, rotary)
        normed: Tensor = self.norm(states)
        return normed

    def step(self, target: Tensor, cache: DecoderCache) -> Tensor:
        """Return hidden states (B, K, D) of the next token (B, K) of each beam."""
        positions = cache.advance()  # (B, K)
        mask = cache.mask()
        rotary, bias = self.encode_positions(positions, cache.key_positions())
        if bias is not None:
            mask = bias if mask is None else mask + bias
        self_mask, source_mask = AttentionMask(bias=mask), AttentionMask(bias=cache.source_mask)
        states = self.embeddings(target, positions)
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            states = layer(
                states, self_mask, layer_cache.source, source_mask, rotary, layer_cache.append
            )
        normed: Tensor = self.norm(states)
        return normed

    def project_source(self, memory: Memory) -> list[KeyValue]:
        """Return the key-values of each layer's cross-attention."""
        return _project_source(self.layers, memory)


def _project_source(layers: Iterable[nn.Module], memory: Memory) -> list[KeyValue]:
    key_values: list[KeyValue] = []
    for layer in layers:
        assert isinstance(layer, DecoderLayer)
        key_values.append(layer.cross_attention.project_kv(memory.states))
    return key_values


class EncoderDecoder(Seq2Seq):
    """An encoder, and a decoder with cross-attention to it."""

    def __init__(self, config: EncoderDecoderConfig, *, source_size: int, target_size: int) -> None:
        super().__init__()
        self.max_length = config.max_length
        depths = config.num_encoder_layers, config.num_decoder_layers
        constants = DeepNorm.for_encoder_decoder(*depths)
        self.encoder = Encoder(config, source_size, depths[0], constants[0])
        self.decoder = Decoder(config, target_size, depths[1], constants[1])
        self.output = nn.Linear(config.dim, target_size, bias=config.output_bias)
        self.source_eos, self.output_scale = config.source_eos, config.output_scale
        self.has_fixed_bias = config.output_bias and not config.train_output_bias

    def tie_weights(self, tie: str) -> None:
        """Tie also the source embeddings to those of the target, if `tie` is `inputs` or `all`."""
        super().tie_weights(tie)
        if tie in ("inputs", "all"):
            self.encoder.embeddings.tokens.weight = self.decoder.embeddings.tokens.weight

    def freeze(self, parts: Collection[str]) -> None:
        """Exclude the weights of some parts from training, and an output bias that is fixed."""
        super().freeze(parts)
        if self.has_fixed_bias:
            self.output.bias.requires_grad_(False)

    def stacks(self) -> list[Stack]:
        """Return the encoder and the decoder."""
        return [self.encoder, self.decoder]

    def encode(self, source: Tensor, source_mask: Tensor) -> Memory:
        """Encode source ids (B, S) with a mask (B, S) of real tokens."""
        memory: Memory = self.encoder(source, self.attended_source(source_mask))
        return memory

    def attended_source(self, source_mask: Tensor) -> Tensor:
        """Return the mask (B, S) without the last token of each source, if that EOS is not seen.

        Nothing attends to it then, as if the source ended before it.
        """
        if self.source_eos:
            return source_mask
        without = pad(source_mask[:, 1:], (0, 1))
        # A source of EOS alone keeps it: attention needs something. Logical operators, since
        # onnxruntime has no Where of booleans.
        return without | (source_mask & ~without.any(dim=1, keepdim=True))

    def target_hidden_states(
        self, source: Tensor, source_mask: Tensor, target: Tensor, kept: KeptTokens | None = None
    ) -> Tensor:
        """Return hidden states (B, T, D) of whole targets (teacher forcing)."""
        kept_source, kept_target = kept or (None, None)
        memory: Memory = self.encoder(source, self.attended_source(source_mask), kept_source)
        return self._scaled(self.decoder(target, memory, kept_target))

    def prefill(self, source: Tensor, source_mask: Tensor) -> list[KeyValue]:
        """Encode sources; return the key-values of cross-attention."""
        return self.decoder.project_source(self.encode(source, source_mask))

    def decode_step_hidden(self, target: Tensor, cache: DecoderCache) -> Tensor:
        """Return hidden states (B, K, D) of the next token (B, K) of each beam."""
        return self._scaled(self.decoder.step(target, cache))

    def _scaled(self, hidden_states: Tensor) -> Tensor:
        return hidden_states if self.output_scale is None else hidden_states * self.output_scale
