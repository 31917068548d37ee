"""What the rest of the program asks of a network, whatever it is built like."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from tformer_cli.model.blocks.attention import KeyValue
from tformer_cli.model.kv_cache import Cache, KVCache, new_cache
from tformer_cli.model.recompute import recomputed
from tformer_cli.model.stack import Stack


class Network(nn.Module, ABC):
    """Reads sentences, and says what stands in some places.

    Attributes:
        max_length: longest sentence in tokens, or None where any length will do.
        output: from states to logits.
    """

    max_length: int | None
    output: nn.Linear

    def forward(
        self, source: Tensor, source_mask: Tensor, target: Tensor, target_mask: Tensor
    ) -> Tensor:
        """Return logits (N, V) of the places that `hidden_states` says."""
        logits: Tensor = self.output(self.hidden_states(source, source_mask, target, target_mask))
        return logits

    @abstractmethod
    def hidden_states(
        self, source: Tensor, source_mask: Tensor, target: Tensor, target_mask: Tensor
    ) -> Tensor:
        """Return what `output` makes logits of, (N, D): a state for each real target position.

        They come row after row. Padding is left out before the projection, the widest product of
        all.

        Args:
            source: (B, S) token ids.
            source_mask: (B, S) real source tokens.
            target: (B, T) token ids, beginning with the start token.
            target_mask: (B, T) real target tokens.
        """

    @abstractmethod
    def stacks(self) -> list[Stack]:
        """Return the stacks, in the order of the data."""

    def enable_gradient_checkpointing(self) -> None:
        """From now on let the backward pass compute again what is inside the layers."""
        for stack in self.stacks():
            stack.call = recomputed

    def num_parameters(self) -> int:
        """Count the weights; a shared one counts once."""
        return sum(parameter.numel() for parameter in self.parameters())


class Seq2Seq(Network):
    """Reads a source, and says for each target prefix what comes next."""

    def hidden_states(
        self, source: Tensor, source_mask: Tensor, target: Tensor, target_mask: Tensor
    ) -> Tensor:
        """Return the state behind each real target token, as `Network` says."""
        return self.target_hidden_states(source, source_mask, target)[target_mask]

    @abstractmethod
    def target_hidden_states(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """Return states (B, T, D) of whole targets; position t knows the source and 0..t.

        Args:
            source: (B, S) token ids.
            source_mask: (B, S) real source tokens.
            target: (B, T) token ids, beginning with the start token, padded on the right.
        """

    def init_cache(self, num_slots: int, num_rows: int = 1) -> KVCache:
        """Return a cache for so many sentences, with `num_rows` rows of each."""
        device = next(self.parameters()).device
        return new_cache(self.stacks()[-1].kv_shapes(), num_slots, num_rows, device)

    @abstractmethod
    def prefill(self, source: Tensor, source_mask: Tensor) -> list[KeyValue]:
        """Return what each layer's target tokens look at of sources, (B, Hkv, S, Dh).

        Args:
            source: (B, S) token ids.
            source_mask: (B, S) real source tokens.
        """

    def decode_step(self, target: Tensor, cache: Cache) -> Tensor:
        """Return the logits (B, K, V) that follow the next token (B, K) of each row."""
        logits: Tensor = self.output(self.decode_step_hidden(target, cache))
        return logits

    @abstractmethod
    def decode_step_hidden(self, target: Tensor, cache: Cache) -> Tensor:
        """Return the states (B, K, D) of the next token (B, K) of each row, as `step` reads it."""
