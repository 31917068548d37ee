import math

import pytest
import torch

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.corpus.pipeline import batches_in_order
from tformer_cli.corpus.store import build_store
from tformer_cli.evaluation.likelihood import reference_likelihood
from tformer_cli.model.build import build_model

V = 29


def test_likelihood_is_the_mean_over_tokens_whatever_the_batches():
    config = EncoderDecoderConfig(dim=12, num_heads=3, feedforward_dim=16, dropout=0.5)
    model = build_model(config, source_size=V, target_size=V, seed=2)
    pairs = [([7, 8], [9, 10, 11]), ([12], [13]), ([], [14, 15]), ([16] * 9, [])]
    store = build_store((source, target, 1.0) for source, target in pairs)
    model.eval()
    nll, correct, count = 0.0, 0, 0
    for source, target in pairs:
        ids = torch.tensor([[*source, 3]])
        logits = model.output(
            model.decoder(
                torch.tensor([[2, *target]]), model.encode(ids, torch.ones_like(ids).bool())
            )
        )[0]
        for place, right in enumerate([*target, 3]):
            nll -= math.log(logits[place].softmax(-1)[right].item())
            correct += int(logits[place].argmax() == right)
            count += 1
    for batch_tokens in (1, 20, 4096):
        likelihood = reference_likelihood(
            model.train(),
            batches_in_order(store, batch_tokens=batch_tokens),
            device=torch.device("cpu"),
            precision=torch.float32,
        )
        assert likelihood.loss == pytest.approx(nll / count, rel=1e-5)
        assert likelihood.accuracy == pytest.approx(correct / count)
        assert likelihood.num_tokens == count
        assert likelihood.perplexity == pytest.approx(math.exp(nll / count), rel=1e-5)


def test_the_likelihood_of_an_ensemble_is_that_of_the_mean_probability():
    config = EncoderDecoderConfig(dim=12, num_heads=3, feedforward_dim=16, dropout=0.5)
    models = [build_model(config, source_size=V, target_size=V, seed=seed) for seed in (2, 3)]
    source, target = [7, 8, 3], [9, 10, 11, 3]
    store = build_store([(source[:-1], target[:-1], 1.0)])
    ids, inputs = torch.tensor([source]), torch.tensor([[2, *target[:-1]]])
    found = reference_likelihood(
        models[0],
        batches_in_order(store, batch_tokens=20),
        device=torch.device("cpu"),
        precision=torch.float32,
        others=models[1:],
    )
    mean = torch.zeros(len(target), V)
    for model in models:
        states = model.eval().decoder(inputs, model.encode(ids, torch.ones_like(ids).bool()))
        mean += model.output(states)[0].softmax(-1) / 2
    expected = -mean[torch.arange(len(target)), target].log().mean()
    assert found.loss == pytest.approx(expected.item(), rel=1e-5)
    assert found.accuracy == (mean.argmax(-1) == torch.tensor(target)).float().mean().item()
