"""Turns by their positions: only distances matter, and scalings keep what they promise."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.config.schema.model import (
    LinearScaling,
    NtkScaling,
    RotaryPositions,
    ScalingConfig,
    YarnScaling,
)
from tformer_cli.model.blocks.rotary import (
    RotaryEmbedding,
    apply_rotary_emb,
    scaled_frequencies,
)

N, H, T, DH = 2, 3, 7, 10

SCALINGS: dict[str, ScalingConfig | None] = {
    "none": None,
    "linear": LinearScaling(factor=3.0),
    "ntk": NtkScaling(factor=3.0),
    "yarn": YarnScaling(factor=3.0, original_length=50),
}
scalings = st.sampled_from(list(SCALINGS.values()))


def heads() -> torch.Tensor:
    return torch.randn(N, H, T, DH, dtype=torch.float64)


def encoding(scaling: ScalingConfig | None) -> RotaryEmbedding:
    return RotaryEmbedding(DH, RotaryPositions(base=100.0, scaling=scaling)).double()


def test_a_pair_of_components_is_a_complex_number_times_a_unit_one():
    states, indices = heads(), torch.tensor([0, 1, 5, 2, 40, 3, 3])
    found = apply_rotary_emb(states, encoding(None)(indices))
    first, second = states.chunk(2, dim=-1)
    rates = torch.tensor([100.0 ** (-2 * pair / DH) for pair in range(DH // 2)])
    angles = (indices[:, None] * rates).double()
    expected = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(
        found, torch.cat((expected.real, expected.imag), dim=-1), rtol=1e-6, atol=1e-5
    )


@given(scalings, st.integers(0, 500))
def test_logits_know_distances_only(scaling, shift):
    rotary, queries, keys, indices = encoding(scaling), heads(), heads(), torch.arange(T)
    here, there = (
        apply_rotary_emb(queries, rotary(where)) @ apply_rotary_emb(keys, rotary(where)).mT
        for where in (indices, indices + shift)
    )
    torch.testing.assert_close(here, there)


@given(scalings)
def test_rows_may_have_positions_of_their_own(scaling):
    rotary, states = encoding(scaling), heads()
    indices = torch.tensor([range(T), range(4, 4 + T)])
    together = apply_rotary_emb(states, rotary(indices))
    for row in range(N):
        alone = apply_rotary_emb(states[row, None], rotary(indices[row]))
        torch.testing.assert_close(together[row, None], alone)


def test_without_a_turn_heads_stay_as_they_are():
    states = heads()
    assert apply_rotary_emb(states, None) is states


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_turned_heads_keep_their_number_format(dtype):
    states = heads().to(dtype)
    turn = RotaryEmbedding(DH, RotaryPositions())(torch.arange(T))
    assert apply_rotary_emb(states, turn).dtype == dtype


@given(st.sampled_from([2, 4, 10, 64]), st.floats(1.0, 50.0))
def test_scalings_slow_the_slowest_wave_down_by_their_factor(width, factor):
    plain, _ = scaled_frequencies(width, RotaryPositions())
    linear, ntk, yarn = (
        scaled_frequencies(width, RotaryPositions(scaling=scaling))[0]
        for scaling in (
            LinearScaling(factor=factor),
            NtkScaling(factor=factor),
            YarnScaling(factor=factor, original_length=200),
        )
    )
    torch.testing.assert_close(linear, plain / factor)
    torch.testing.assert_close(ntk[0], plain[0])
    if width > 2:
        torch.testing.assert_close(ntk[-1], plain[-1] / factor)
        larger = RotaryPositions(base=10000.0 * factor ** (width / (width - 2)))
        torch.testing.assert_close(ntk, scaled_frequencies(width, larger)[0])
    assert (yarn <= plain * (1 + 1e-6)).all()
    assert (yarn >= linear * (1 - 1e-6)).all()


def test_yarn_leaves_fast_waves_alone_and_interpolates_slow_ones():
    width, original, factor = 64, 4096, 4.0
    scaling = YarnScaling(factor=factor, original_length=original)
    plain, _ = scaled_frequencies(width, RotaryPositions())
    scaled, _ = scaled_frequencies(width, RotaryPositions(scaling=scaling))
    for before, after in zip(plain.tolist(), scaled.tolist(), strict=True):
        turns = original * before / (2 * math.pi)
        # A pair on either side, for the limits are whole pairs.
        if turns > scaling.beta_fast * 1.5:
            assert math.isclose(after, before, rel_tol=1e-6)
        elif turns < scaling.beta_slow / 1.5:
            assert math.isclose(after, before / factor, rel_tol=1e-6)
        else:
            assert before / factor * 0.999 <= after <= before * 1.001


@given(st.floats(1.0, 64.0))
def test_yarn_sharpens_all_logits_alike(factor):
    rotary = encoding(YarnScaling(factor=factor, original_length=10**9))
    queries, keys, turn = heads(), heads(), rotary(torch.arange(T))
    # So long a training leaves all waves alone.
    plain = encoding(None)(torch.arange(T))
    expected = (
        apply_rotary_emb(queries, plain)
        @ apply_rotary_emb(keys, plain).mT
        * (0.1 * math.log(factor) + 1) ** 2
    )
    torch.testing.assert_close(
        apply_rotary_emb(queries, turn) @ apply_rotary_emb(keys, turn).mT, expected
    )
