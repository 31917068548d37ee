"""How a stack knows the order of its tokens, and how long a sequence may be."""

import dataclasses
import math

import pytest
import torch

from tformer_cli.config.schema.model import (
    AlibiPositions,
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    LatentConfig,
    LearnedPositions,
    ModelConfig,
    NoPositions,
    RotaryPositions,
    SinusoidalPositions,
    T5Positions,
    YarnScaling,
)
from tformer_cli.model.blocks.embeddings import SinusoidalEncoding, build_positions
from tformer_cli.model.build import build_model

V = 23


def test_sinusoidal_encoding_follows_the_formula():
    dim = 6
    encoding = SinusoidalEncoding(dim, SinusoidalPositions())(torch.arange(13))
    for position in range(13):
        for i in range(dim // 2):
            angle = position / 10000 ** (2 * i / dim)
            assert math.isclose(encoding[position, 2 * i], math.sin(angle), abs_tol=1e-6)
            assert math.isclose(encoding[position, 2 * i + 1], math.cos(angle), abs_tol=1e-6)


def test_tensor2tensors_frequencies_reach_the_last_one():
    """They are a geometric series from 1 to 1/10000, both included."""
    encoding = SinusoidalEncoding(10, SinusoidalPositions(frequencies="tensor2tensor"))
    torch.testing.assert_close(encoding.frequencies[::2], torch.logspace(0, -4, 5))
    torch.testing.assert_close(encoding.frequencies[::2], encoding.frequencies[1::2])


def test_sinusoidal_encoding_depends_on_the_position_alone():
    encoding = SinusoidalEncoding(8, SinusoidalPositions())
    in_rows = encoding(torch.tensor([[3, 1], [0, 3]]))
    torch.testing.assert_close(in_rows[0, 0], in_rows[1, 1])
    torch.testing.assert_close(in_rows[0, 1], encoding(torch.arange(5))[1])


def test_learned_positions_are_rows_of_a_table():
    config = EncoderDecoderConfig(dim=8, positions=LearnedPositions(max_length=17))
    learned = build_positions(config, is_causal=True)
    assert learned.absolute(torch.tensor([16])).shape == (1, 8)


@pytest.mark.parametrize(
    ("chosen", "window", "members"),
    [
        (SinusoidalPositions(), None, {"absolute"}),
        (LearnedPositions(), None, {"absolute"}),
        (RotaryPositions(), None, {"rotary"}),
        (AlibiPositions(), None, {"bias"}),
        (T5Positions(), 5, {"bias"}),
        (RotaryPositions(), 5, {"rotary", "bias"}),
        (NoPositions(), None, set()),
    ],
)
def test_a_scheme_is_one_of_three_members_and_a_window_a_bias(chosen, window, members):
    config = EncoderDecoderConfig(dim=8, positions=chosen, sliding_window=window)
    positions = build_positions(config, is_causal=True)
    names = (field.name for field in dataclasses.fields(positions))
    assert {name for name in names if getattr(positions, name) is not None} == members


def test_rotary_positions_turn_a_head_or_of_latent_attention_the_shared_key():
    config = EncoderDecoderConfig(dim=24, num_heads=4, positions=RotaryPositions())
    latent = dataclasses.replace(config, latent=LatentConfig(kv_lora_rank=7, rope_head_dim=10))
    for chosen, width in ((config, 6), (latent, 10)):
        cos, _ = build_positions(chosen, is_causal=True).rotary(torch.arange(3))
        assert cos.shape == (3, width)


@pytest.mark.parametrize("kind", [EncoderDecoderConfig, DecoderOnlyConfig])
@pytest.mark.parametrize(
    "chosen",
    [
        SinusoidalPositions(),
        RotaryPositions(),
        RotaryPositions(scaling=YarnScaling(factor=4.0, original_length=20)),
        AlibiPositions(),
        T5Positions(num_buckets=4, max_distance=9),
        NoPositions(),
    ],
)
@torch.no_grad()
def test_all_but_learned_positions_go_on_for_ever(chosen, kind):
    config = kind(dim=8, num_heads=2, feedforward_dim=11, positions=chosen, tie_embeddings="output")
    config = dataclasses.replace(config, **dict.fromkeys(counts(config), 1))
    model = build_model(config, source_size=V, target_size=V, seed=1).double().eval()
    assert model.max_length is None
    source, target = torch.randint(6, V, (1, 300)), torch.randint(6, V, (1, 150))
    real = torch.ones_like(source, dtype=torch.bool)
    whole = model.output(model.target_hidden_states(source, real, target))
    cache = model.init_cache(1)
    cache.insert(torch.arange(1), model.prefill(source, real), real)
    steps = [model.decode_step(target[:, index, None], cache) for index in range(150)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)


def counts(config: ModelConfig) -> list[str]:
    """Return the keys that say how many layers there are."""
    names = (field.name for field in dataclasses.fields(config))
    return [name for name in names if name.endswith("layers")]


@pytest.mark.parametrize(("kind", "longest"), [(EncoderDecoderConfig, 17), (DecoderOnlyConfig, 8)])
@torch.no_grad()
def test_learned_positions_end_where_the_model_says(kind, longest):
    """A stream has half of them for the source, and half for the target."""
    config = kind(dim=8, num_heads=2, positions=LearnedPositions(max_length=17))
    model = build_model(config, source_size=V, target_size=V, seed=1).eval()
    assert model.max_length == longest
    ids = torch.randint(6, V, (1, longest))
    real = torch.ones_like(ids, dtype=torch.bool)
    assert model.target_hidden_states(ids, real, ids).isfinite().all()
    with pytest.raises(IndexError):
        model.target_hidden_states(torch.cat((ids, ids), dim=1), real.repeat(1, 2), ids)
