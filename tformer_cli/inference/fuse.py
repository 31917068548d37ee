"""A model as it is when its weights no longer change: the same function, with less to do."""

import copy
import functools
from collections.abc import Callable

import torch
from torch import nn

from tformer_cli.inference.int8 import quantize_where_faster
from tformer_cli.inference.pack import pack_where_faster
from tformer_cli.model.blocks.linear import prepare_for_few_rows
from tformer_cli.model.network import Seq2Seq


def fused(model: Seq2Seq, precision: torch.dtype = torch.float32) -> Seq2Seq:
    """Return a model for inference, which shares its weights with `model` but what is changed.

    Its modules have no hooks and are not to be moved, trained or saved any more.

    Args:
        model: is left as it is.
        precision: number format of matrix products, which the weights are kept in; int8 rounds the
            large matrices.
    """
    twin = twin_of(model)
    for stack in twin.stacks():
        for layer in stack.each_layer():
            layer.self_attention = layer.self_attention.fused()
            layer.feedforward = layer.feedforward.fused()
    if precision == torch.int8:
        _exchange_maps(twin, quantize_where_faster)
    elif precision != torch.float32:
        _narrow(twin, precision)
    if next(twin.parameters()).device.type == "cpu":
        _exchange_maps(twin, pack_where_faster)
        if precision == torch.float32:
            _exchange_maps(twin, prepare_for_few_rows)
    for module in list(twin.eval().modules()):
        _bare(module)
    return twin


def twin_of(model: Seq2Seq) -> Seq2Seq:
    """Return a model with modules of its own, which share the weights of `model`."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin: Seq2Seq = copy.deepcopy(model, shared)
    return twin


def _exchange_maps(model: nn.Module, change: Callable[[nn.Linear], nn.Module]) -> None:
    """Put in the place of each linear map what `change` makes of it."""
    for module in list(model.modules()):
        for name, part in list(module.named_children()):
            if type(part) is nn.Linear:
                setattr(module, name, change(part))


def _narrow(model: nn.Module, precision: torch.dtype) -> None:
    """Round the weights of products once, where autocast would do so in every call."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            for name, weight in list(module.named_parameters()):
                rounded = nn.Parameter(weight.detach().to(precision), requires_grad=False)
                setattr(module, name, rounded)


def _bare(module: nn.Module) -> None:
    """Take off what torch wraps around a module; with a few rows it costs more than the module.

    A call goes straight to `forward`, and weights and parts are plain attributes.
    """
    module.__dict__.update(module._parameters, **module._buffers, **module._modules)
    module.__class__ = _bare_kind(type(module))  # type: ignore[arg-type]


@functools.cache
def _bare_kind(kind: type[nn.Module]) -> type[nn.Module]:
    """Return one class for all modules of a kind: torch.compile takes each class by itself."""
    return type(kind.__name__, (kind,), {"__call__": kind.forward})
