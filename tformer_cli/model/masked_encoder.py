"""The encoder alone, which says what stood behind masks (Devlin et al. 2019, section 3.1)."""

from torch import Tensor, nn

from tformer_cli.config.schema.model import MaskedEncoderConfig
from tformer_cli.model.blocks.residual import alone
from tformer_cli.model.encoder import Encoder
from tformer_cli.model.init import initialize
from tformer_cli.model.network import Network
from tformer_cli.model.stack import Stack


class MaskedEncoder(Network):
    """A stack of which each token sees all others."""

    def __init__(self, config: MaskedEncoderConfig, *, vocab_size: int) -> None:
        """Build the network with freshly drawn weights.

        Args:
            config: its shape.
            vocab_size: size of the vocabulary.
        """
        super().__init__()
        self.max_length = config.max_length
        self.encoder = Encoder(config, vocab_size, alone(config.num_layers))
        self.output = nn.Linear(config.dim, vocab_size, bias=False)
        initialize(self, config)
        if config.tie_embeddings == "output":
            self.output.weight = self.encoder.embeddings.tokens.weight

    def hidden_states(
        self, source: Tensor, source_mask: Tensor, target: Tensor, target_mask: Tensor
    ) -> Tensor:
        """Return the states (N, D) of the places asked for, row after row.

        Args:
            source: (B, S) token ids, some of which are masked.
            source_mask: (B, S) real tokens.
            target: is not looked at, for the places of source and target are the same.
            target_mask: (B, S) places asked for.
        """
        states: Tensor = self.encoder(source, source_mask).states
        return states[target_mask]

    def stacks(self) -> list[Stack]:
        """Return the only one."""
        return [self.encoder]
