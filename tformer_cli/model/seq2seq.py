"""The encoder-decoder Transformer (Vaswani et al. 2017)."""

import torch
from torch import Tensor, nn

from tformer_cli.config.schema.model import ModelConfig
from tformer_cli.model.cache import DecoderCache
from tformer_cli.model.decoder import Decoder
from tformer_cli.model.encoder import Encoder, Memory
from tformer_cli.model.init import initialise
from tformer_cli.model.recompute import recomputed


class Seq2Seq(nn.Module):
    """Reads a source, and says for each target prefix what comes next."""

    def __init__(self, config: ModelConfig, *, source_size: int, target_size: int) -> None:
        """Build the network with freshly drawn weights.

        Args:
            config: its shape.
            source_size: size of the source vocabulary.
            target_size: size of the target vocabulary.
        """
        super().__init__()
        self.encoder = Encoder(config, source_size)
        self.decoder = Decoder(config, target_size)
        self.output = nn.Linear(config.dim, target_size, bias=False)
        initialise(self)
        if config.tie in ("output", "all"):
            self.output.weight = self.decoder.embeddings.tokens.weight
        if config.tie == "all":
            self.encoder.embeddings.tokens.weight = self.decoder.embeddings.tokens.weight

    def forward(
        self, source: Tensor, source_mask: Tensor, target: Tensor, target_mask: Tensor
    ) -> Tensor:
        """Return logits (number of real target positions, V), row after row.

        Padding is left out before the projection, the widest product of all.

        Args:
            source: (B, S) token ids.
            source_mask: (B, S) real source tokens.
            target: (B, T) token ids, beginning with the start token.
            target_mask: (B, T) real target tokens.
        """
        states = self.decoder(target, self.encode(source, source_mask))
        logits: Tensor = self.output(states[target_mask])
        return logits

    def recompute_layers(self) -> None:
        """From now on let the backward pass compute again what is inside the layers."""
        self.encoder.call = self.decoder.call = recomputed

    def encode(self, source: Tensor, source_mask: Tensor) -> Memory:
        """Read source ids (B, S), of which source_mask (B, S) are real."""
        memory: Memory = self.encoder(source, source_mask)
        return memory

    def start(self, num_places: int, num_rows: int = 1) -> DecoderCache:
        """Return a cache for so many sentences, with `num_rows` rows of each."""
        return self.decoder.start(num_places, num_rows)

    def admit(self, memory: Memory, places: Tensor, cache: DecoderCache) -> None:
        """Begin the sentences of the memory in these places (B',) of a cache."""
        self.decoder.admit(memory, places, cache)

    def step(self, target: Tensor, cache: DecoderCache) -> Tensor:
        """Return the logits (B, K, V) that follow the next token (B, K) of each row."""
        logits: Tensor = self.output(self.decoder.step(target, cache))
        return logits

    @property
    def max_length(self) -> int | None:
        """Longest source or target in tokens, or None where any length will do."""
        return self.decoder.max_length

    def num_parameters(self) -> int:
        """Count the weights; a shared one counts once."""
        return sum(parameter.numel() for parameter in self.parameters())


def build_model(config: ModelConfig, *, source_size: int, target_size: int, seed: int) -> Seq2Seq:
    """Return a model on the CPU whose weights are a function of `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Seq2Seq(config, source_size=source_size, target_size=target_size)
