"""What ONNX gets to know of a model: one graph reads sources, another writes a token."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tformer_cli.inference.fuse import twin_of
from tformer_cli.model.blocks.attention import (
    AttentionMask,
    KeyValue,
    attention_logits,
    grouped_matmul,
)
from tformer_cli.model.kv_cache import unseen
from tformer_cli.model.network import Seq2Seq
from tformer_cli.search.logits_processors import suppress_tokens
from tformer_cli.search.request import SpecialTokens


def naive_attend_for_export(
    queries: Tensor, keys: Tensor, values: Tensor, view: AttentionMask, dropout: float
) -> Tensor:
    """Attend in one way for all sizes, which a graph does not know; nothing is dropped."""
    return grouped_matmul(attention_logits(queries, keys, view).softmax(dim=-1), values)


class SourceGraph(nn.Module):
    """Reads sources, once."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, source_mask: Tensor) -> list[KeyValue]:
        """Return what each layer's target tokens look at, (B, Hkv, S, Dh).

        Args:
            source: (B, S) token ids.
            source_mask: (B, S) real source tokens.
        """
        return self.model.prefill(source, source_mask)


class StepGraph(nn.Module):
    """Reads the newest token of each row, and says which may come next."""

    suppressed: Tensor

    def __init__(self, model: Seq2Seq, roles: SpecialTokens) -> None:
        super().__init__()
        self.model = model
        self.end_id = roles.eos
        self.register_buffer("suppressed", torch.tensor(list(roles.suppressed)))

    def forward(
        self,
        token: Tensor,
        source_mask: Tensor,
        source: Sequence[tuple[Tensor, Tensor]],
        past: Sequence[tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, list[KeyValue]]:
        """Return log probabilities (B, V) of what comes next, and what is remembered by then.

        What no translation contains has a probability of zero, and so has an end token that would
        be the first.

        Args:
            token: (B, 1) the newest, or the start token.
            source_mask: (B, S) real source tokens.
            source: keys and values of the source, for each layer.
            past: what is remembered of the target tokens before, (B, Hkv, P, Dh), for each layer.
        """
        layers = [
            RowPast(KeyValue(*seen), KeyValue(*own)) for seen, own in zip(source, past, strict=True)
        ]
        cache = RowCache(layers, source_mask)
        logits = self.model.decode_step(token, cache)  # (B, 1, V)
        suppress_tokens(logits, self.suppressed, self.end_id, cache.places[:, 0])
        return logits[:, 0].log_softmax(dim=-1), [layer.own for layer in layers]


@dataclass(slots=True)
class RowPast:
    """What a layer remembers of rows that are all of the same length.

    Attributes:
        source: keys and values of the sources, (B, Hkv, S, Dh).
        own: of the target tokens so far, (B, Hkv, P, Dh).
    """

    source: KeyValue
    own: KeyValue

    def append(self, new: KeyValue) -> KeyValue:
        """Take those of the newest tokens, as `Past` says."""
        self.own = behind_each_other(self.own, new)
        return self.own

    def append_to_source(self, new: KeyValue) -> KeyValue:
        """Do the same; return those of the source, too."""
        return behind_each_other(self.source, self.append(new))


def behind_each_other(first: KeyValue, second: KeyValue) -> KeyValue:
    """Return keys and values of both."""
    keys = torch.cat((first.keys, second.keys), dim=2)
    return KeyValue(keys, torch.cat((first.values, second.values), dim=2))


class RowCache:
    """A cache without columns that rows share: each row has its own tokens, and sees all of them.

    Attributes:
        layers: one for each layer.
        source_lengths: (B,) tokens of each source.
        source_seen: (B, 1, 1, S) minus infinity for padding.
        longest_source: S.
        places: (B, 1) place of the newest token.
    """

    def __init__(self, layers: Sequence[RowPast], source_mask: Tensor) -> None:
        """Take up what is remembered.

        Args:
            layers: one for each layer.
            source_mask: (B, S) real source tokens.
        """
        keys = layers[0].own.keys
        self.layers = layers
        self.source_lengths = source_mask.sum(dim=1)
        self.source_seen = unseen(source_mask, keys.dtype)[:, None, None]
        self.longest_source = source_mask.shape[1]
        self._columns = torch.arange(keys.shape[2] + 1, device=keys.device)
        self.places = self._columns[-1:].expand(source_mask.shape[0], -1)

    def advance(self) -> Tensor:
        """Return the places of the newest tokens, as `Cache` says."""
        return self.places

    def column_places(self) -> Tensor:
        """Return the places of all target tokens, (B, P + 1)."""
        return self._columns.expand(self.places.shape[0], -1)

    def visible(self) -> None:
        """Hide nothing."""
        return

    def visible_stream(self) -> Tensor:
        """Hide the padding of sources."""
        own = torch.zeros_like(self.column_places(), dtype=self.source_seen.dtype)
        return torch.cat((self.source_seen, own[:, None, None]), dim=3)


def traceable(model: Seq2Seq) -> Seq2Seq:
    """Return a model that attends by the formula alone, and shares the weights of `model`."""
    twin = twin_of(model)
    for stack in twin.stacks():
        for layer in stack.each_layer():
            for attention in layer.attentions():
                attention.attend = naive_attend_for_export
    return twin.eval()
