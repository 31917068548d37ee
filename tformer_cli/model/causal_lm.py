"""The Transformer without an encoder: source and target in one stream (Radford et al. 2018)."""

from torch import Tensor, nn

from tformer_cli.config.schema.model import DecoderOnlyConfig
from tformer_cli.model.blocks.attention import KeyValue
from tformer_cli.model.init import initialize
from tformer_cli.model.kv_cache import Cache
from tformer_cli.model.network import Seq2Seq
from tformer_cli.model.stack import Stack
from tformer_cli.model.stream import Stream


class DecoderOnly(Seq2Seq):
    """One stack, and one vocabulary."""

    def __init__(self, config: DecoderOnlyConfig, *, vocab_size: int) -> None:
        """Build the network with freshly drawn weights.

        Args:
            config: its shape.
            vocab_size: of the vocabulary that both languages share.
        """
        super().__init__()
        self.max_length = config.max_length
        self.stream = Stream(config, vocab_size)
        self.output = nn.Linear(config.dim, vocab_size, bias=False)
        initialize(self, config)
        if config.tie_embeddings == "output":
            self.output.weight = self.stream.embeddings.tokens.weight

    def stacks(self) -> list[Stack]:
        """Return the only one."""
        return [self.stream]

    def target_hidden_states(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """Return states (B, T, D) of whole targets, as `Seq2Seq` says."""
        states: Tensor = self.stream(source, source_mask, target)
        return states

    def prefill(self, source: Tensor, source_mask: Tensor) -> list[KeyValue]:
        """Return what each layer makes of the first part of the stream."""
        return self.stream.prefill(source, source_mask)

    def decode_step_hidden(self, target: Tensor, cache: Cache) -> Tensor:
        """Return the states (B, K, D) of the next token (B, K) of each row."""
        return self.stream.step(target, cache)
