"""The interface of all networks."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tformer_cli.model.blocks.attention import KeyValue
from tformer_cli.model.blocks.embeddings import KeptTokens
from tformer_cli.model.kv_cache import DecoderCache, KVCache
from tformer_cli.model.layers import Stack, run_layer

Module = TypeVar("Module", bound=nn.Module)


class Network(nn.Module, ABC):
    """A Transformer that predicts tokens.

    Attributes:
        max_length: maximum sentence length in tokens, or None without limit.
        output: the output projection, from hidden states to logits.
    """

    max_length: int | None
    output: nn.Linear

    def forward(
        self, source: Tensor, source_mask: Tensor, target: Tensor, target_positions: Tensor
    ) -> Tensor:
        """Return the logits (N, V) of the real target positions, by what `hidden_states` takes."""
        states = self.hidden_states(source, source_mask, target, target_positions)
        logits: Tensor = self.output(states)
        return logits

    @abstractmethod
    def hidden_states(
        self,
        source: Tensor,
        source_mask: Tensor,
        target: Tensor,
        target_positions: Tensor,
        kept: KeptTokens | None = None,
    ) -> Tensor:
        """Return hidden states (N, D) of the real target positions, before the output projection.

        They are flattened over the batch without padding, so the output projection, the largest
        matrix product, skips padding.

        Args:
            source: (B, S) token ids.
            source_mask: (B, S) real source tokens.
            target: (B, T) token ids, beginning with the start token.
            target_positions: (N,) indices of the real tokens of the flattened target.
            kept: tokens that keep their embedding; None for all.
        """

    @abstractmethod
    def stacks(self) -> list[Stack]:
        """Return the stacks in the order of the data."""

    def tie_weights(self, tie: str) -> None:
        """Tie the output projection to the embeddings of its stack, if `tie` is `output` or `all`.

        It is the config's `tie_embeddings`.
        """
        if tie in ("output", "all"):
            self.output.weight = self.stacks()[-1].embeddings.tokens.weight

    def enable_gradient_checkpointing(self) -> None:
        """Recompute the activations of layers in the backward pass."""
        for stack in self.stacks():
            stack.gradient_checkpointing = True

    def set_layer_drop(self, probability: float) -> None:
        """Skip each layer in training with a probability (LayerDrop)."""
        for stack in self.stacks():
            stack.layer_drop = probability

    def compile_layers(self, backend: str | Callable[..., Any] = "inductor") -> None:
        """Compile the layers for training, with kernels that all layers and batch shapes share."""
        compiled = torch.compile(run_layer, dynamic=True, backend=backend)
        for stack in self.stacks():
            stack.run_layer = compiled

    @property
    def source_embeddings(self) -> Tensor:
        """The embeddings (V, D) of source tokens."""
        return self.stacks()[0].embeddings.tokens.weight

    def freeze(self, parts: Collection[str]) -> None:
        """Exclude the weights of some parts from training; `network_part` says which they are."""
        for name, weight in self.named_parameters():
            weight.requires_grad_(network_part(name) not in parts)

    def freeze_all_but_source_embeddings(self) -> None:
        """Exclude all other weights from training."""
        for weight in self.parameters():
            weight.requires_grad_(weight is self.source_embeddings)

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are not frozen; tied ones occur once."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def num_parameters(self) -> int:
        """Return the number of parameters; tied ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def num_frozen_parameters(self) -> int:
        """Return the number of parameters that are excluded from training."""
        return self.num_parameters() - sum(x.numel() for x in self.trained_parameters())


class Seq2Seq(Network):
    """A network that predicts a target from a source, token by token."""

    def hidden_states(
        self,
        source: Tensor,
        source_mask: Tensor,
        target: Tensor,
        target_positions: Tensor,
        kept: KeptTokens | None = None,
    ) -> Tensor:
        """Return hidden states (N, D) of the real target positions."""
        states = self.target_hidden_states(source, source_mask, target, kept)
        return states.flatten(0, 1).index_select(0, target_positions)

    @abstractmethod
    def target_hidden_states(
        self, source: Tensor, source_mask: Tensor, target: Tensor, kept: KeptTokens | None = None
    ) -> Tensor:
        """Return hidden states (B, T, D) of whole targets (teacher forcing).

        Position t depends on the source and on target positions 0..t.

        Args:
            source: (B, S) token ids.
            source_mask: (B, S) real source tokens.
            target: (B, T) token ids, beginning with the start token, padded on the right.
            kept: tokens that keep their embedding; None for all.
        """

    def init_cache(self, num_slots: int, num_beams: int = 1) -> KVCache:
        """Return an empty KV cache for so many sentences at a time, with their beams."""
        device = next(self.parameters()).device
        return KVCache(self.stacks()[-1].kv_shapes(), num_slots, num_beams, device)

    @abstractmethod
    def prefill(self, source: Tensor, source_mask: Tensor) -> list[KeyValue]:
        """Return each layer's key-values of sources, (B, Hkv, S, Dh), for `KVCache.insert`.

        Args:
            source: (B, S) token ids.
            source_mask: (B, S) real source tokens.
        """

    def attended_source(self, source_mask: Tensor) -> Tensor:
        """Return the mask (B, S) of source tokens that targets attend to, of the real ones."""
        return source_mask

    def decode_step(self, target: Tensor, cache: DecoderCache) -> Tensor:
        """Append a token (B, K) to each beam; return the logits (B, K, V) of the next one."""
        logits: Tensor = self.output(self.decode_step_hidden(target, cache))
        return logits

    @abstractmethod
    def decode_step_hidden(self, target: Tensor, cache: DecoderCache) -> Tensor:
        """Return the hidden states (B, K, D) of `decode_step`."""


def network_part(weight: str) -> str:
    """Return the part that a weight belongs to: `embeddings`, the name of a stack, or `output`.

    Embeddings are those of all stacks, with positions that are added to them. Tied weights belong
    where they occur first, so an output tied to embeddings belongs to these.
    """
    module, inner = weight.split(".")[:2]
    return inner if inner == "embeddings" else module


def replace_modules(module: Module, replacements: Mapping[nn.Module, nn.Module]) -> Module:
    """Return a module with other submodules, which shares everything else with the original."""
    changed: dict[str, nn.Module] = {}
    for name, child in module.named_children():
        new = replacements[child] if child in replacements else replace_modules(child, replacements)
        if new is not child:
            changed[name] = new
    if not changed:
        return module
    copied = copy.copy(module)
    # `copy.copy` shares the dict of submodules.
    copied._modules = dict(module._modules)
    for name, new in changed.items():
        setattr(copied, name, new)
    return copied
