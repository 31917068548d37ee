"""The moving average against its sum written out."""

import pytest
import torch

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.model.build import build_model
from tformer_cli.training.ema import MovingAverage


@pytest.fixture
def network():
    config = EncoderDecoderConfig(dim=8, num_heads=2, feedforward_dim=8, num_encoder_layers=1)
    return build_model(config, source_size=20, target_size=20, seed=1)


def test_the_average_is_the_weighted_sum_of_all_weights_so_far(network):
    ema = MovingAverage(network, decay=0.5)
    weight = network.encoder.layers[0].feedforward.up.weight
    history = [weight.detach().double().clone()]
    for step in range(1, 6):
        with torch.no_grad():
            weight += torch.randn_like(weight)
        history.append(weight.detach().double().clone())
        ema.update(network, step)
    expected = history[0]
    for step, value in enumerate(history[1:], start=1):
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    actual = ema.model.encoder.layers[0].feedforward.up.weight
    torch.testing.assert_close(actual.double(), expected, rtol=1e-6, atol=1e-6)


def test_a_model_that_stands_still_is_its_own_average(network):
    ema = MovingAverage(network, decay=0.9)
    ema.update(network, 1)
    for mean, weight in zip(ema.model.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(mean, weight)


def test_shared_weights_stay_shared(network):
    ema = MovingAverage(network, decay=0.9).model
    assert [name for name, _ in ema.named_parameters()] == [
        name for name, _ in network.named_parameters()
    ]
    assert not {p.data_ptr() for p in ema.parameters()} & {
        p.data_ptr() for p in network.parameters()
    }
