"""Norms and ratios of parts against those of all their numbers."""

import pytest
import torch
from torch import nn
from train_states import batch, train_state

from tformer_cli.training.part_norms import part_of, watch_parts
from tformer_cli.training.step import accumulate_gradients


def test_parts_are_layers_and_what_stands_around_them():
    subject = train_state().model
    assert {part_of(name) for name, _ in subject.named_parameters()} == {
        "encoder.embeddings",
        "encoder.layers.0",
        "encoder.norm",
        "decoder.layers.0",
        "decoder.norm",
    }
    assert part_of("output.weight") == "output"
    assert part_of("decoder.layers.11.cross_attention.key.bias") == "decoder.layers.11"


def grad_norms(model: nn.Module) -> torch.Tensor:
    return torch.stack([weight.grad.norm() for weight in model.parameters()])


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten().double() for tensor in tensors])


def test_norms_and_ratios_are_those_of_all_numbers_of_a_part():
    subject = train_state()
    accumulate_gradients(subject, [batch()], num_tokens=6)
    part_reports = watch_parts(subject.model, grad_norms(subject.model))
    before = {name: weight.detach().clone() for name, weight in subject.model.named_parameters()}
    weights: dict[str, nn.Parameter] = dict(subject.model.named_parameters())
    gradients = {name: weight.grad.clone() for name, weight in weights.items()}
    subject.optimizer.step()
    reports = part_reports()
    assert reports.keys() == {part_of(name) for name in weights}
    for part, report in reports.items():
        names = [name for name in weights if part_of(name) == part]
        norm = flat([gradients[name] for name in names]).norm().item()
        was = flat([before[name] for name in names])
        moved = flat([weights[name].detach() for name in names]) - was
        assert report.grad_norm == pytest.approx(norm, rel=1e-5)
        assert report.update_ratio == pytest.approx((moved.norm() / was.norm()).item(), rel=1e-4)


def test_a_part_that_was_zero_has_no_ratio():
    """As the bias of an output before the first step, whose matrix is that of the embeddings."""
    part = nn.Linear(1, 3)
    with torch.no_grad():
        part.weight.zero_()
        part.bias.zero_()
    for weight in part.parameters():
        weight.grad = torch.ones_like(weight)
    part_reports = watch_parts(part, grad_norms(part))
    torch.optim.SGD(part.parameters(), lr=0.1).step()
    assert [report.update_ratio for report in part_reports().values()] == [None]
