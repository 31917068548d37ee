"""First weights: how they are spread, by each scheme."""

import math

import pytest
import torch
from torch import Tensor, nn

from tformer_cli.config.schema.model import (
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    LatentConfig,
    LearnedPositions,
    MaskedEncoderConfig,
    ModelConfig,
    RotaryPositions,
    T5Positions,
)
from tformer_cli.model.blocks.feedforward import FeedForward, GatedFeedForward
from tformer_cli.model.blocks.residual import DeepNorm
from tformer_cli.model.build import build_model, build_network
from tformer_cli.model.encoder_decoder import EncoderDecoder
from tformer_cli.model.network import Network

D, H, F, V = 96, 4, 160, 500
CONFIG = EncoderDecoderConfig(dim=D, num_heads=H, feedforward_dim=F, tie_embeddings="none")


def model() -> EncoderDecoder:
    return build_model(CONFIG, source_size=V, target_size=400, seed=3)


def network(config: ModelConfig) -> Network:
    return build_network(config, source_size=V, target_size=V, seed=3)


def spread(weight: Tensor) -> float:
    return weight.detach().square().mean().sqrt().item()


def assert_spread(weight: Tensor, expected: float) -> None:
    """Hold a root of a mean to what is expected, within six of its standard deviations."""
    assert abs(spread(weight) / expected - 1) < 6 * (2 * weight.numel()) ** -0.5


def xavier(linear: nn.Linear) -> float:
    return math.sqrt(2 / sum(linear.weight.shape))


def test_weights_are_a_function_of_the_seed():
    assert torch.equal(model().output.weight, model().output.weight)
    other = build_model(CONFIG, source_size=V, target_size=400, seed=4)
    assert not torch.equal(model().output.weight, other.output.weight)


def test_building_a_model_leaves_the_random_generator_alone():
    state = torch.get_rng_state()
    model()
    assert torch.equal(torch.get_rng_state(), state)


def test_matrices_are_xavier_uniform_and_biases_zero():
    matrices = [module for module in model().modules() if isinstance(module, nn.Linear)]
    assert len(matrices) > 10
    for module in matrices:
        assert_spread(module.weight, xavier(module))
        assert module.weight.abs().max() <= xavier(module) * math.sqrt(3)
        assert module.bias is None or not module.bias.any()


@pytest.mark.parametrize("scheme", ["xavier", "normal", "t5"])
@pytest.mark.parametrize(
    "positions", [LearnedPositions(max_length=90), T5Positions(num_buckets=64)]
)
def test_embeddings_and_tables_of_positions_are_normal_with_a_zero_row_for_padding(
    positions, scheme
):
    config = EncoderDecoderConfig(dim=D, num_heads=H, positions=positions, initialization=scheme)
    for stack in network(config).stacks():
        tokens = stack.embeddings.tokens.weight
        assert not tokens[0].any()
        tables = [tokens[1:]]
        if isinstance(positions, LearnedPositions):
            tables.append(stack.embeddings.positions.weight)
        else:
            tables.append(stack.bias.table.weight)
        for table in tables:
            assert_spread(table, D**-0.5)


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
@pytest.mark.parametrize("kind", [EncoderDecoderConfig, DecoderOnlyConfig, MaskedEncoderConfig])
def test_the_normal_scheme_is_that_of_gpt2(kind, activation):
    config = kind(
        dim=D, num_heads=H, feedforward_dim=F, activation=activation, initialization="normal"
    )
    for stack in network(config).stacks():
        blocks = [block for layer in stack.each_layer() for block in layer.blocks()]
        for block in blocks:
            for name, part in block.named_modules():
                if isinstance(part, nn.Linear):
                    is_last = name in ("output", "down")
                    assert_spread(part.weight, 0.02 * (len(blocks) ** -0.5 if is_last else 1))


def test_the_scheme_of_t5_goes_by_the_width_that_comes_in():
    config = EncoderDecoderConfig(
        dim=D,
        num_heads=H,
        num_kv_heads=2,
        feedforward_dim=F,
        initialization="t5",
        tie_embeddings="none",
    )
    for module in network(config).modules():
        if isinstance(module, nn.Linear):
            assert_spread(module.weight, module.in_features**-0.5)


FEEDFORWARD = {FeedForward: ("up", "down"), GatedFeedForward: ("up", "down")}
LATENT = LatentConfig(kv_lora_rank=30, rope_head_dim=8)


@pytest.mark.parametrize(
    "config",
    [
        EncoderDecoderConfig(
            dim=D, norm_position="deep", num_decoder_layers=3, tie_embeddings="none"
        ),
        EncoderDecoderConfig(
            dim=D, norm_position="deep", activation="geglu", tie_embeddings="none"
        ),
        DecoderOnlyConfig(dim=D, norm_position="deep", tie_embeddings="none"),
        DecoderOnlyConfig(
            dim=D,
            norm_position="deep",
            positions=RotaryPositions(),
            latent=LATENT,
            tie_embeddings="none",
        ),
        MaskedEncoderConfig(dim=D, norm_position="deep", tie_embeddings="none"),
    ],
)
def test_with_deep_norm_what_blocks_add_begins_smaller(config):
    """Values, what follows them, and feed-forward blocks, except what weighs these (figure 2)."""
    deep = network(config)
    if isinstance(config, EncoderDecoderConfig):
        constants = DeepNorm.for_encoder_decoder(
            config.num_encoder_layers, config.num_decoder_layers
        )
    else:
        constants = (DeepNorm.for_stack(config.num_layers),)
    for stack, deep_norm in zip(deep.stacks(), constants, strict=True):
        for layer in stack.each_layer():
            for block in layer.blocks():
                for name, part in block.named_modules():
                    if isinstance(part, nn.Linear):
                        # Latent attention has a `down`, too.
                        is_smaller = name in ("value", "output", *FEEDFORWARD.get(type(block), ()))
                        beta = deep_norm.beta if is_smaller else 1.0
                        assert_spread(part.weight, beta * xavier(part))
    assert_spread(deep.output.weight, xavier(deep.output))
