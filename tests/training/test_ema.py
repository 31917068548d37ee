import pytest
import torch

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.model.build import build_model
from tformer_cli.training.ema import MovingAverage


@pytest.fixture
def model():
    config = EncoderDecoderConfig(dim=8, num_heads=2, feedforward_dim=8, num_encoder_layers=1)
    return build_model(config, source_size=20, target_size=20, seed=1)


def test_the_average_is_the_weighted_sum_of_all_weights_so_far(model):
    average = MovingAverage(model, decay=0.5)
    weight = model.encoder.layers[0].feedforward.inner.weight
    history = [weight.detach().double().clone()]
    for step in range(1, 6):
        with torch.no_grad():
            weight += torch.randn_like(weight)
        history.append(weight.detach().double().clone())
        average.update(model, step)
    expected = history[0]
    for step, value in enumerate(history[1:], start=1):
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    actual = average.model.encoder.layers[0].feedforward.inner.weight
    torch.testing.assert_close(actual.double(), expected, rtol=1e-6, atol=1e-6)


def test_a_model_that_stands_still_is_its_own_average(model):
    average = MovingAverage(model, decay=0.9)
    average.update(model, 1)
    for mean, weight in zip(average.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mean, weight)


def test_shared_weights_stay_shared(model):
    average = MovingAverage(model, decay=0.9).model
    assert [name for name, _ in average.named_parameters()] == [
        name for name, _ in model.named_parameters()
    ]
    assert not {p.data_ptr() for p in average.parameters()} & {
        p.data_ptr() for p in model.parameters()
    }
