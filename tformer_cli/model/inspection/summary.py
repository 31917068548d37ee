"""What a network consists of: its modules, its parameters, and what it keeps of a token."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import torch
from torch import nn

from tformer_cli.config.schema.model import ModelConfig
from tformer_cli.model.blocks.dropout import Dropout
from tformer_cli.model.build import build_network
from tformer_cli.model.layers import DecoderLayer
from tformer_cli.model.network import Network, Seq2Seq


@dataclass(frozen=True, slots=True)
class Part:
    """A module, or several in a row that are alike.

    Attributes:
        name: in the module that it belongs to; `layers.0-5` are six.
        kind: name of its class.
        count: how many there are.
        shapes: of the weights of its own, by name.
        shared_with: full name of the module that has the same weights and comes first, if any.
        num_parameters: of one, with those of its parts; shared ones count where they come first.
        parts: of one.
    """

    name: str
    kind: str
    count: int
    shapes: dict[str, tuple[int, ...]]
    shared_with: str | None
    num_parameters: int
    parts: tuple["Part", ...]

    def walk(self, prefix: str = "") -> Iterator[tuple[str, "Part"]]:
        """Yield all parts of this one with their full names, top down."""
        for part in self.parts:
            yield f"{prefix}{part.name}", part
            yield from part.walk(f"{prefix}{part.name}.")


class Kept(NamedTuple):
    """Numbers that the cache of a network keeps, over all layers.

    Attributes:
        source_token: of each source token, once a sentence.
        target_token: of each target token.
    """

    source_token: int
    target_token: int


def skeleton(config: ModelConfig, *, source_size: int, target_size: int) -> Network:
    """Return a network whose weights have shapes and no numbers, and so take no memory.

    Args:
        config: its shape.
        source_size: size of the source vocabulary.
        target_size: size of the target vocabulary.
    """
    with torch.device("meta"):
        return build_network(config, source_size=source_size, target_size=target_size, seed=0)


def tree(network: Network) -> Part:
    """Return the modules of a network, without those that have no weights and change no width."""
    owners = {weight: name for name, weight in network.named_parameters()}
    return _part("", "", network, owners)


def _part(name: str, path: str, module: nn.Module, owners: Mapping[nn.Parameter, str]) -> Part:
    """Return a module with all that is inside.

    Args:
        name: in the module that it belongs to.
        path: what the names of its weights begin with.
        module: itself.
        owners: full name of each weight, where it comes first.
    """
    weights = dict(module.named_parameters(recurse=False))
    own = [weight for key, weight in weights.items() if owners[weight] == path + key]
    shared = {owners[weight] for key, weight in weights.items() if owners[weight] != path + key}
    parts = tuple(_parts(path, module, owners))
    return Part(
        name=name,
        kind=type(module).__name__,
        count=1,
        shapes={key: tuple(weight.shape) for key, weight in weights.items()},
        shared_with=min(shared).rpartition(".")[0] if shared else None,
        num_parameters=sum(weight.numel() for weight in own)
        + sum(part.count * part.num_parameters for part in parts),
        parts=parts,
    )


def _parts(path: str, module: nn.Module, owners: Mapping[nn.Parameter, str]) -> Iterator[Part]:
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList):
            items = [
                _part("", f"{path}{name}.{index}.", item, owners)
                for index, item in enumerate(child)
            ]
            yield from _folded(name, items)
        elif not isinstance(child, nn.Identity | Dropout):
            yield _part(name, f"{path}{name}.", child, owners)


def _folded(name: str, items: list[Part]) -> Iterator[Part]:
    """Yield the items of a list, those in a row that are alike as one."""
    first = 0
    for item, alike in groupby(items):
        count = len(list(alike))
        numbers = f"{first}-{first + count - 1}" if count > 1 else f"{first}"
        yield replace(item, name=f"{name}.{numbers}", count=count)
        first += count


def parameters_by_part(network: Network) -> dict[str, int]:
    """Count the parameters of embeddings, of each stack without them, and of the output.

    Shared ones count where they come first: an output that is an embedding has none of its own.
    """
    counts = {"embeddings": 0, **{name: 0 for name, _ in network.named_children()}}
    for name, weight in network.named_parameters():
        stack, part = name.split(".")[:2]
        counts["embeddings" if part == "embeddings" else stack] += weight.numel()
    return counts


def kept(network: Seq2Seq) -> Kept:
    """Return what the cache of a network keeps of a token."""
    writing = network.stacks()[-1]
    target = sum(widths.size for widths in writing.kv_shapes())
    listening = [layer for layer in writing.each_layer() if isinstance(layer, DecoderLayer)]
    source = sum(layer.cross_attention.kv_shape.size for layer in listening)
    # Where nothing listens to a source, it stands in the same stream as its target.
    return Kept(source_token=source if listening else target, target_token=target)
