import math

import torch
from torch import nn

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.model.seq2seq import Seq2Seq, build_model

CONFIG = EncoderDecoderConfig(dim=64, num_heads=4, feedforward_dim=128, tie="none")


def model() -> Seq2Seq:
    return build_model(CONFIG, source_size=500, target_size=400, seed=3)


def test_weights_are_a_function_of_the_seed():
    assert torch.equal(model().output.weight, model().output.weight)
    other = build_model(CONFIG, source_size=500, target_size=400, seed=4)
    assert not torch.equal(model().output.weight, other.output.weight)


def test_building_a_model_leaves_the_random_generator_alone():
    state = torch.get_rng_state()
    model()
    assert torch.equal(torch.get_rng_state(), state)


def test_matrices_are_xavier_uniform_and_biases_zero():
    for module in model().modules():
        if isinstance(module, nn.Linear):
            outputs, inputs = module.weight.shape
            limit = math.sqrt(6 / (inputs + outputs))
            assert module.weight.abs().max() <= limit
            assert abs(module.weight.std() / (limit / math.sqrt(3)) - 1) < 0.05
            assert module.bias is None or not module.bias.any()


def test_embeddings_are_normal_with_a_zero_row_for_padding():
    tokens = model().encoder.embeddings.tokens.weight
    assert not tokens[0].any()
    assert abs(tokens[1:].std() * 8 - 1) < 0.02
