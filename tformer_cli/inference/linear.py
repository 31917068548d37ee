"""Linear layers whose weights no longer change: packed, in int8, or faster for a single row."""

import copy

import torch
from torch import Tensor, nn

from tformer_cli.device import has_bfloat16_matmul, prefers_onednn

# Products of smaller matrices gain less by packing than the call costs.
MIN_PACKED_WEIGHTS = 1 << 17
# oneDNN is faster for so many rows than for a single one.
PACKED_ROWS = 4
MAX_INT8 = 127
# Products of smaller matrices gain less by int8 than quantization of the input costs.
MIN_INT8_WEIGHTS = 1 << 18


def prepare_linear(linear: nn.Linear, device: torch.device, precision: torch.dtype) -> nn.Module:
    """Return the same linear map by the fastest implementation on a device.

    Subclasses of `nn.Linear`, whose users read the weights themselves, are only cast to
    `precision`; for int8 they stay as they are.
    """
    if precision == torch.int8:
        if type(linear) is nn.Linear and linear.weight.numel() >= MIN_INT8_WEIGHTS:
            return Int8Linear(linear)
    elif precision != torch.float32:
        linear = _cast(linear, precision)
    if device.type != "cpu" or type(linear) is not nn.Linear:
        return linear
    many = pack_where_faster(linear)
    if precision != torch.float32:
        return many
    fast = in_long_rows(linear)
    return SingleRowLinear(fast, fast if many is linear else many)


def in_long_rows(linear: nn.Linear) -> nn.Linear:
    """Return the linear map with its weights in few long rows, which a CPU reads faster."""
    if linear.out_features < linear.in_features:
        return linear
    return frozen_linear(linear.weight.detach().t().contiguous().t(), linear.bias)


class SingleRowLinear(nn.Module):
    """x W^T + b, of a single row by a matrix-vector product, of more rows by another module.

    A sentence that is translated alone has a single row in greedy search. Its product takes as long
    as reading the weights, a half to a third of the time of a matrix product.
    """

    def __init__(self, linear: nn.Linear, many: nn.Module) -> None:
        super().__init__()
        self.out_features = linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.many = many

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return (..., N) for hidden states (..., D)."""
        shape = hidden_states.shape[:-1]
        if shape.numel() != 1:
            products: Tensor = self.many(hidden_states)
            return products
        row = hidden_states.reshape(-1)
        if self.bias is None:
            product = torch.mv(self.weight, row)
        else:
            product = torch.addmv(self.bias, self.weight, row)
        return product.view(*shape, -1)


class PackedLinear(nn.Module):
    """x W^T + b with W in the blocked layout of oneDNN.

    A product of a few rows takes half to two thirds of the time of torch's own, one of many rows a
    tenth less.
    """

    bias: Tensor | None  # (N,)

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features = linear.out_features
        self.bias = linear.bias
        weight = linear.weight.detach().contiguous()
        self.dtype = weight.dtype
        self.blocks: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return (..., N) for hidden states (..., D)."""
        rows = hidden_states.to(self.dtype)
        is_single = hidden_states.shape[:-1].numel() == 1
        if is_single:
            rows = rows.expand(*hidden_states.shape[:-2], PACKED_ROWS, -1)
        product: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            rows, self.blocks, self.bias, "none", [], ""
        )
        return product.narrow(-2, 0, 1) if is_single else product


def pack_where_faster(linear: nn.Linear) -> nn.Module:
    """Return the linear map with packed weights where the processor gains by it."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return linear
    if linear.weight.dtype == torch.bfloat16:
        is_faster = has_bfloat16_matmul()
    else:
        is_large = linear.weight.numel() >= MIN_PACKED_WEIGHTS
        is_faster = linear.weight.dtype == torch.float32 and is_large and prefers_onednn()
    return PackedLinear(linear) if is_faster else linear


class Int8Linear(nn.Module):
    """x W^T + b with W in int8, with a scale for each row of W and for each row of x.

    It reads a quarter of the memory, and integer products are faster. The scale of a row does not
    depend on the rest of the batch. But the batch size changes the last digits of a row, which
    rounding may turn into a whole unit: near-ties may then be decided differently.
    """

    weight: Tensor  # (N, D)
    scales: Tensor  # (N,)
    bias: Tensor | None  # (N,)

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features = linear.out_features
        weight, scales = quantize_rows(linear.weight.detach().float())
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales[:, 0])
        self.bias = linear.bias

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return (..., N) for hidden states (..., D)."""
        rows, scales = quantize_rows(hidden_states.flatten(0, -2))
        products = torch._int_mm(rows, self.weight.t()).mul(scales).mul_(self.scales)
        if self.bias is not None:
            products += self.bias
        return products.view(*hidden_states.shape[:-1], -1)


def quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows (M, D) in int8, and the scale of each row, (M, 1)."""
    highest = rows.abs().amax(dim=-1, keepdim=True)
    # A row of zeros may have any scale.
    scales = highest.clamp(min=torch.finfo(rows.dtype).tiny) / MAX_INT8
    return (rows / scales).round_().to(torch.int8), scales


def concatenate_linears(*linears: nn.Linear) -> nn.Linear:
    """Return one linear layer with the outputs of several."""
    has_bias = linears[0].bias is not None
    bias = torch.cat([linear.bias.detach() for linear in linears]) if has_bias else None
    return frozen_linear(torch.cat([linear.weight.detach() for linear in linears]), bias)


def frozen_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return the linear layer of a weight (N, D) and a bias (N,), without gradients."""
    linear = nn.Linear(weight.shape[1], len(weight), bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return linear


def _cast(linear: nn.Linear, precision: torch.dtype) -> nn.Linear:
    """Round weights once, which autocast would do in every call."""
    cast = copy.copy(linear)
    cast._parameters = {
        name: None if weight is None else nn.Parameter(weight.detach().to(precision), False)
        for name, weight in linear._parameters.items()
    }
    return cast
