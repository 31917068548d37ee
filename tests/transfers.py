"""What a GPU would be waited for: values of its tensors that Python, or a shape, depends on."""

from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Methods that copy to the host, unseen by a dispatch mode where all tensors are there already.
COPIES = {"cpu", "numpy", "tolist"}
# Operations whose result, or its shape, the host has to know; and indexing, by booleans alone.
# In inference mode composite operations come whole.
WAITING = {"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "nonzero_numpy"}
WAITING |= {"argwhere", "masked_select", "_unique2"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}


class Transfers(TorchFunctionMode):
    """Names all such calls while it is entered, as if every tensor were on a GPU.

    What `cpu` returns, and what is computed from that alone, is on the host.

    Attributes:
        names: of the calls, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self._on_host: dict[int, Tensor] = {}
        self._is_host_call = False
        self._operations = _Operations(self)

    def __enter__(self) -> Self:
        self._operations.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._operations.__exit__(*error)

    def __torch_function__(self, function, types, arguments=(), options=None):
        tensors = _tensors((arguments, options))
        self._is_host_call = bool(tensors) and all(id(x) in self._on_host for x in tensors)
        name = getattr(function, "__name__", "")
        if name in COPIES:
            self.add(name)
        result = function(*arguments, **(options or {}))
        if name == "cpu":
            # On a CPU it is the tensor itself.
            result = result.detach()
        if name == "cpu" or self._is_host_call:
            self._on_host |= {id(tensor): tensor for tensor in _tensors(result)}
        self._is_host_call = False
        return result

    def add(self, name: str) -> None:
        """Count a call, unless all its tensors are on the host."""
        if not self._is_host_call:
            self.names.append(name)


class _Operations(TorchDispatchMode):
    """Adds operations, those of a backward pass included."""

    def __init__(self, transfers: Transfers) -> None:
        super().__init__()
        self.transfers = transfers

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        name = operation.overloadpacket.__name__
        is_mask = name in INDEXING and any(
            tensor.dtype == torch.bool for tensor in _tensors(arguments[1])
        )
        if name in WAITING or is_mask:
            self.transfers.add(name)
        return operation(*arguments, **(options or {}))


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
