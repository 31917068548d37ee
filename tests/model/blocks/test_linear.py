import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tformer_cli.model.blocks.linear import (
    FEW_ROWS,
    MANY_INPUTS,
    FewRowsLinear,
    prepare_for_few_rows,
)

of_any_shape = given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.integers(1, 70),
    st.integers(1, 70),
    st.booleans(),
    st.integers(0, 99),
)


@of_any_shape
def test_a_map_for_few_rows_is_the_map(shape, num_inputs, num_outputs, bias, seed):
    torch.manual_seed(seed)
    linear = nn.Linear(num_inputs, num_outputs, bias=bias).double().requires_grad_(False)
    # Every other column, as what is left of a product may lie.
    states = torch.randn(*shape, 2 * num_inputs, dtype=torch.float64)[..., ::2]
    found = FewRowsLinear(linear)(states)
    torch.testing.assert_close(found, linear(states))
    assert found.is_contiguous()


@pytest.mark.parametrize("num_rows", [1, 2, FEW_ROWS, FEW_ROWS + 1])
@pytest.mark.parametrize(
    ("num_inputs", "num_outputs"),
    [(MANY_INPUTS, MANY_INPUTS), (MANY_INPUTS - 1, MANY_INPUTS), (MANY_INPUTS, 9), (9, 9), (9, 99)],
)
def test_whatever_its_size_a_prepared_map_is_the_map(num_inputs, num_outputs, num_rows):
    torch.manual_seed(1)
    linear = nn.Linear(num_inputs, num_outputs).double().requires_grad_(False)
    states = torch.randn(num_rows, 1, num_inputs, dtype=torch.float64)
    expected, weight = linear(states), linear.weight.clone()
    prepared = prepare_for_few_rows(linear)
    torch.testing.assert_close(prepared(states), expected)
    assert torch.equal(prepared.weight, weight)
    assert isinstance(prepared, FewRowsLinear) == (num_outputs >= num_inputs == MANY_INPUTS)
    assert prepared.weight.t().is_contiguous() == (MANY_INPUTS > num_inputs < num_outputs)
