"""The encoder-decoder Transformer (Vaswani et al. 2017)."""

from torch import Tensor, nn

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.model.blocks.attention import KeyValue
from tformer_cli.model.blocks.residual import encoder_decoder_depths
from tformer_cli.model.decoder import Decoder
from tformer_cli.model.encoder import Encoder, Memory
from tformer_cli.model.init import initialize
from tformer_cli.model.kv_cache import Cache
from tformer_cli.model.network import Seq2Seq
from tformer_cli.model.stack import Stack


class EncoderDecoder(Seq2Seq):
    """One stack reads the source, and another, which looks at it, writes the target."""

    def __init__(self, config: EncoderDecoderConfig, *, source_size: int, target_size: int) -> None:
        """Build the network with freshly drawn weights.

        Args:
            config: its shape.
            source_size: size of the source vocabulary.
            target_size: size of the target vocabulary.
        """
        super().__init__()
        self.max_length = config.max_length
        depths = encoder_decoder_depths(config.num_encoder_layers, config.num_decoder_layers)
        self.encoder = Encoder(config, source_size, depths[0])
        self.decoder = Decoder(config, target_size, depths[1])
        self.output = nn.Linear(config.dim, target_size, bias=config.output_bias)
        initialize(self, config)
        if config.tie_embeddings in ("output", "all"):
            self.output.weight = self.decoder.embeddings.tokens.weight
        if config.tie_embeddings == "all":
            self.encoder.embeddings.tokens.weight = self.decoder.embeddings.tokens.weight

    def stacks(self) -> list[Stack]:
        """Return the encoder and the decoder."""
        return [self.encoder, self.decoder]

    def encode(self, source: Tensor, source_mask: Tensor) -> Memory:
        """Read source ids (B, S), of which source_mask (B, S) are real."""
        memory: Memory = self.encoder(source, source_mask)
        return memory

    def target_hidden_states(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """Return states (B, T, D) of whole targets, as `Seq2Seq` says."""
        states: Tensor = self.decoder(target, self.encode(source, source_mask))
        return states

    def prefill(self, source: Tensor, source_mask: Tensor) -> list[KeyValue]:
        """Return what cross-attention looks at, made once a sentence."""
        return self.decoder.sources(self.encode(source, source_mask))

    def decode_step_hidden(self, target: Tensor, cache: Cache) -> Tensor:
        """Return the states (B, K, D) of the next token (B, K) of each row."""
        return self.decoder.step(target, cache)
