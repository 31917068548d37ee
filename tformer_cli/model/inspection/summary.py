"""Summary of a network: modules, parameters, and KV cache size."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import torch
from torch import nn

from tformer_cli.config.schema.model import ModelConfig
from tformer_cli.kernels.dropout import Dropout
from tformer_cli.model.build import build_network
from tformer_cli.model.inspection.flops import TRAINING_FACTOR, count_flops
from tformer_cli.model.layers import DecoderLayer
from tformer_cli.model.network import Network, Seq2Seq, network_part


@dataclass(frozen=True, slots=True)
class ModuleSummary:
    """A module, or several consecutive modules that are equal.

    Attributes:
        name: in its parent; `layers.0-5` are six modules.
        kind: class name.
        count: number of modules.
        shapes: of the module's own weights, by name.
        shared_with: full name of the first module with the same weights, if the weights are tied.
        num_parameters: of one module, with its children; tied ones count at the first module.
        children: of one module.
    """

    name: str
    kind: str
    count: int
    shapes: dict[str, tuple[int, ...]]
    shared_with: str | None
    num_parameters: int
    children: tuple["ModuleSummary", ...]

    def walk(self, prefix: str = "") -> Iterator[tuple[str, "ModuleSummary"]]:
        """Yield all descendants with their full names, top down."""
        for child in self.children:
            yield f"{prefix}{child.name}", child
            yield from child.walk(f"{prefix}{child.name}.")


class CacheSize(NamedTuple):
    """Numbers in the KV cache over all layers, for a source token and for a target token."""

    source_token: int
    target_token: int


@dataclass(frozen=True, slots=True)
class NetworkSummary:
    """What a network is made of, and what it needs.

    Attributes:
        modules: the network, without identities and dropout.
        parameters: number in each part.
        flops: `forward` and `training`, each of a source token, a target token and a sentence.
        cache: size of the KV cache; None where a network has no cache.
    """

    modules: ModuleSummary
    parameters: dict[str, int]
    flops: dict[str, dict[str, float]]
    cache: CacheSize | None

    @property
    def num_parameters(self) -> int:
        """Number in all parts."""
        return sum(self.parameters.values())


def summarize(
    config: ModelConfig, vocab_size: int, source_length: int, target_length: int
) -> NetworkSummary:
    """Summarize the network of a config; lengths are those of the sentence that FLOPs count."""
    network = meta_model(config, source_size=vocab_size, target_size=vocab_size)
    counted = count_flops(config, vocab_size)
    lengths = (source_length, target_length)
    forward = {
        "source_token": counted.of_source_token(*lengths),
        "target_token": counted.of_target_token(*lengths),
        "sentence": counted.forward(*lengths),
    }
    return NetworkSummary(
        modules=summarize_modules(network),
        parameters=parameters_by_part(network),
        flops={
            "forward": forward,
            "training": {name: TRAINING_FACTOR * count for name, count in forward.items()},
        },
        cache=cache_size(network) if isinstance(network, Seq2Seq) else None,
    )


def meta_model(config: ModelConfig, *, source_size: int, target_size: int) -> Network:
    """Return a network on torch's meta device: its weights have shapes and take no memory."""
    with torch.device("meta"):
        return build_network(config, source_size=source_size, target_size=target_size, seed=0)


def summarize_modules(network: Network) -> ModuleSummary:
    """Return the modules of a network, without identities and dropout."""
    owners = {weight: name for name, weight in network.named_parameters()}
    return _summary("", "", network, owners)


def _summary(
    name: str, prefix: str, module: nn.Module, owners: Mapping[nn.Parameter, str]
) -> ModuleSummary:
    """Summarize a module; owners have the full name of each weight where it occurs first."""
    weights = dict(module.named_parameters(recurse=False))
    own = [weight for key, weight in weights.items() if owners[weight] == prefix + key]
    tied = {owners[weight] for key, weight in weights.items() if owners[weight] != prefix + key}
    children = tuple(_children(prefix, module, owners))
    return ModuleSummary(
        name=name,
        kind=type(module).__name__,
        count=1,
        shapes={key: tuple(weight.shape) for key, weight in weights.items()},
        shared_with=min(tied).rpartition(".")[0] if tied else None,
        num_parameters=sum(weight.numel() for weight in own)
        + sum(child.count * child.num_parameters for child in children),
        children=children,
    )


def _children(
    prefix: str, module: nn.Module, owners: Mapping[nn.Parameter, str]
) -> Iterator[ModuleSummary]:
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList):
            items = [
                _summary("", f"{prefix}{name}.{index}.", item, owners)
                for index, item in enumerate(child)
            ]
            yield from _folded(name, items)
        elif not isinstance(child, nn.Identity | Dropout):
            yield _summary(name, f"{prefix}{name}.", child, owners)


def _folded(name: str, items: list[ModuleSummary]) -> Iterator[ModuleSummary]:
    """Yield the items of a list, consecutive equal ones as one."""
    first = 0
    for item, equal in groupby(items):
        count = len(list(equal))
        numbers = f"{first}-{first + count - 1}" if count > 1 else f"{first}"
        yield replace(item, name=f"{name}.{numbers}", count=count)
        first += count


def parameters_by_part(network: Network) -> dict[str, int]:
    """Count the parameters of embeddings, of each stack without them, and of the output.

    Tied ones count where they occur first: an output tied to embeddings has none of its own.
    """
    counts = {"embeddings": 0, **{name: 0 for name, _ in network.named_children()}}
    for name, weight in network.named_parameters():
        counts[network_part(name)] += weight.numel()
    return counts


def cache_size(network: Seq2Seq) -> CacheSize:
    """Return the KV cache size of a network."""
    decoder = network.stacks()[-1]
    target = sum(shape.size for shape in decoder.kv_shapes())
    layers = [layer for layer in decoder.each_layer() if isinstance(layer, DecoderLayer)]
    source = sum(layer.cross_attention.kv_shape.size for layer in layers)
    # A decoder-only network caches source tokens as it caches target tokens.
    return CacheSize(source_token=source if layers else target, target_token=target)
