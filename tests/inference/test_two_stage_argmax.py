import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tformer_cli.inference.two_stage_argmax import TwoStageArgmax

D = 16


def output(generator: torch.Generator, vocab_size: int, *, bias: bool) -> nn.Linear:
    """Return a map with logits that differ by less than bfloat16 tells apart."""
    layer = nn.Linear(D, vocab_size, bias=bias).requires_grad_(False)
    few = torch.randn(3, D, generator=generator)
    nearly = 1 + 1e-4 * torch.randn(vocab_size, D, generator=generator)
    layer.weight.copy_(few[torch.randint(3, (vocab_size,), generator=generator)] * nearly)
    if bias:
        layer.bias.copy_(torch.randn(vocab_size, generator=generator))
    return layer


@given(
    st.integers(0, 10_000),
    st.integers(3, 100),
    st.booleans(),
    st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_the_best_of_rough_logits_is_the_best_of_exact_ones(seed, vocab_size, bias, scale):
    generator = torch.Generator().manual_seed(seed)
    layer = output(generator, vocab_size, bias=bias).double()
    states = scale * torch.randn(5, 2, D, generator=generator, dtype=torch.float64)
    banned = torch.randint(vocab_size, (vocab_size // 2,), generator=generator)

    def forbid(logits):
        logits[..., banned] = -math.inf
        logits[0, 1, 0] = -math.inf

    exact = layer(states)
    forbid(exact)
    assert TwoStageArgmax(layer).best(states, forbid).tolist() == exact.argmax(dim=-1).tolist()


def test_bfloat16_alone_would_find_others():
    generator = torch.Generator().manual_seed(1)
    layer, states = output(generator, 100, bias=True), torch.randn(50, 1, D, generator=generator)
    rough = nn.functional.linear(states.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16())
    found = TwoStageArgmax(layer).best(states, lambda logits: None)
    assert found.tolist() == layer(states).argmax(dim=-1).tolist()
    assert found.tolist() != rough.argmax(dim=-1).tolist()


def test_the_largest_rounding_errors_hide_no_best_token():
    # bfloat16 has the numbers 1 and 1 + 2^-7; those about halfway are off by 2^-8.
    down, up = torch.full((256,), 1 + 2**-8), torch.full((256,), 1 + 2**-8 + 2**-18)
    states, layer = torch.cat((down, up))[None, None], nn.Linear(512, 50).requires_grad_(False)
    layer.weight.zero_()
    layer.bias.zero_()
    # Products that lose, and such that gain, about 2^-7 each: exact logits are about 0.
    layer.weight[7], layer.weight[3] = torch.cat((down, -up)), torch.cat((-down, up))
    layer.bias[7] = 0.5
    exact = nn.functional.linear(states.double(), layer.weight.double(), layer.bias.double())
    rough = nn.functional.linear(states.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16())
    assert (exact.argmax(), rough.argmax()) == (7, 3)
    assert TwoStageArgmax(layer).best(states, lambda logits: None).tolist() == [[7]]


def test_states_that_are_no_numbers_have_a_token_too():
    layer = output(torch.Generator().manual_seed(1), 50, bias=False)
    states = torch.full((2, 1, D), math.nan)
    states[1] = 1.0
    found = TwoStageArgmax(layer).best(states, lambda logits: None)
    assert 0 <= found.min() <= found.max() < 50
    assert found[1] == layer(states[1]).argmax()
