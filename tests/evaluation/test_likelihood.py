import math
from dataclasses import replace

import pytest
import torch
from transfers import Transfers

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.corpus.batch import TENSORS, Batch
from tformer_cli.corpus.bucketing import batches_in_order
from tformer_cli.corpus.store import build_store
from tformer_cli.errors import DeviceError
from tformer_cli.evaluation.likelihood import Likelihood, reference_likelihood
from tformer_cli.model.build import build_model

V = 29


def test_likelihood_is_the_mean_over_tokens_whatever_the_batches():
    config = EncoderDecoderConfig(dim=12, num_heads=3, feedforward_dim=16, dropout=0.5)
    model = build_model(config, source_size=V, target_size=V, seed=2)
    pairs = [([7, 8], [9, 10, 11]), ([12], [13]), ([], [14, 15]), ([16] * 9, [])]
    store = build_store(pairs)
    model.eval()
    nll, correct, count = 0.0, 0, 0
    for source, target in pairs:
        ids = torch.tensor([[*source, 3]])
        logits = model.output(
            model.decoder(
                torch.tensor([[2, *target]]), model.encode(ids, torch.ones_like(ids).bool())
            )
        )[0]
        for index, right in enumerate([*target, 3]):
            nll -= math.log(logits[index].softmax(-1)[right].item())
            correct += int(logits[index].argmax() == right)
            count += 1
    for batch_tokens in (1, 20, 4096):
        likelihood = reference_likelihood(
            [model.train()],
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
    store = build_store([(source[:-1], target[:-1])])
    ids, inputs = torch.tensor([source]), torch.tensor([[2, *target[:-1]]])
    found = reference_likelihood(
        models,
        batches_in_order(store, batch_tokens=20),
        device=torch.device("cpu"),
        precision=torch.float32,
    )
    mean = torch.zeros(len(target), V)
    for model in models:
        states = model.eval().decoder(inputs, model.encode(ids, torch.ones_like(ids).bool()))
        mean += model.output(states)[0].softmax(-1) / 2
    expected = -mean[torch.arange(len(target)), target].log().mean()
    assert found.loss == pytest.approx(expected.item(), rel=1e-5)
    assert found.accuracy == (mean.argmax(-1) == torch.tensor(target)).float().mean().item()


def test_a_loss_whose_exponential_no_float_holds_has_a_perplexity():
    assert Likelihood(1000.0, 0.0, 5).perplexity == math.exp(700)


def test_a_batch_waits_for_the_device_once(monkeypatch):
    config = EncoderDecoderConfig(dim=12, num_heads=3, feedforward_dim=16)
    model = build_model(config, source_size=V, target_size=V, seed=2)
    store = build_store(([7] * length, [9] * length) for length in (5, 3, 2))
    here, there = (list(batches_in_order(store, batch_tokens=9)) for _ in range(2))
    assert [len(batch.source) for batch in here] == [2, 1]
    moved = iter(there)
    monkeypatch.setattr(Batch, "to", lambda batch, device: next(moved))
    names = (*TENSORS, "target_mask", "indices")
    with Transfers() as transfers:
        # On the host is what `cpu` returns.
        batches = [
            replace(batch, **{name: getattr(batch, name).cpu() for name in names}) for batch in here
        ]
        transfers.names.clear()
        reference_likelihood([model], batches, device=torch.device("cpu"), precision=torch.float32)
    assert transfers.names == ["tolist", "tolist"]


def limited_likelihood(most: int) -> Likelihood:
    """The likelihood by a model that has memory for so many rows at once."""
    config = EncoderDecoderConfig(dim=12, num_heads=3, feedforward_dim=16)
    model = build_model(config, source_size=V, target_size=V, seed=2)
    whole = model.forward

    def forward(source: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        if len(source) > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return whole(source, *rest)

    model.forward = forward
    lengths = [(2, 3), (1, 1), (0, 2), (9, 0), (4, 4), (5, 1), (3, 7)]
    store = build_store(([7] * source, [9] * target) for source, target in lengths)
    return reference_likelihood(
        [model],
        batches_in_order(store, batch_tokens=4096),
        device=torch.device("cpu"),
        precision=torch.float32,
    )


@pytest.mark.parametrize("most", [1, 3])
def test_a_batch_that_memory_has_no_room_for_is_halved(most):
    expected, found = limited_likelihood(7), limited_likelihood(most)
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert (found.accuracy, found.num_tokens) == (expected.accuracy, expected.num_tokens)


def test_memory_without_room_for_one_sentence_is_a_mistake():
    with pytest.raises(DeviceError, match="memory ran out on a single sentence"):
        limited_likelihood(0)
