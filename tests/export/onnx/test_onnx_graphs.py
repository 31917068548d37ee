"""What a graph computes, before anyone writes it down: the model itself says what is right."""

import math

import pytest
import torch
from exportable import MEMBERS
from family import translating
from hypothesis import given

from tformer_cli.export.onnx.graphs import SourceGraph, StepGraph, traceable
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq
from tformer_cli.search.request import SpecialTokens

B, S, T, V = 3, 6, 7, 23
LENGTHS = torch.tensor([6, 1, 4])
ROLES = SpecialTokens(bos=1, eos=2, suppressed=(0, 1, 5))


def built(config) -> Seq2Seq:
    model = build_model(config, source_size=V, target_size=V, seed=7).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def source():
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(6, V, (B, S), generator=generator)
    return ids, torch.arange(S) < LENGTHS[:, None]


@torch.no_grad()
def stepped(model, ids, mask, target):
    """Log probabilities (B, T, V) of a token at a time, through both graphs."""
    twin = traceable(model)
    reading, stepping = SourceGraph(twin), StepGraph(twin, ROLES)
    seen = reading(ids, mask)
    past = [
        (
            torch.zeros(len(ids), kept.num_heads, 0, kept.key),
            torch.zeros(len(ids), kept.num_heads, 0, kept.value),
        )
        for kept in model.stacks()[-1].kv_shapes()
    ]
    found = []
    for place in range(target.shape[1]):
        log_probs, past = stepping(target[:, place, None], mask, seen, past)
        found.append(log_probs)
    return torch.stack(found, dim=1)


@torch.no_grad()
def expected(model, ids, mask, target):
    logits = model.output(model.target_hidden_states(ids, mask, target))
    logits[..., list(ROLES.suppressed)] = -math.inf
    logits[:, 0, ROLES.eos] = -math.inf
    return logits.log_softmax(dim=-1)


@given(translating)
def test_graphs_of_any_member_say_what_the_model_says(config):
    model, (ids, mask) = built(config), source()
    target = torch.randint(6, V, (B, T), generator=torch.Generator().manual_seed(9))
    torch.testing.assert_close(
        stepped(model, ids, mask, target),
        expected(model, ids, mask, target),
        rtol=1e-4,
        atol=1e-4,
    )


def test_what_no_translation_contains_has_no_probability():
    model, (ids, mask) = built(MEMBERS["modern"]), source()
    probabilities = stepped(model, ids, mask, torch.full((B, 2), 7)).exp()
    assert (probabilities[..., list(ROLES.suppressed)] == 0).all()
    assert (probabilities[:, 0, ROLES.eos] == 0).all()
    assert (probabilities[:, 1, ROLES.eos] > 0).all()
    torch.testing.assert_close(probabilities.sum(dim=-1), torch.ones(B, 2))


def test_formal_model_shares_its_weights_and_leaves_the_other_as_it_was():
    model = built(MEMBERS["modern"])
    attends = [one.attend for layer in model.decoder.layers for one in layer.attentions()]
    twin = traceable(model)
    assert twin.output.weight is model.output.weight
    assert [one.attend for layer in model.decoder.layers for one in layer.attentions()] == attends
    assert not {one.attend for layer in twin.decoder.layers for one in layer.attentions()} & set(
        attends
    )


@pytest.mark.parametrize("name", ["sinusoidal", "relative-window"])
def test_rows_of_other_lengths_say_the_same_alone(name):
    model, (ids, mask) = built(MEMBERS[name]), source()
    target = torch.randint(6, V, (B, T), generator=torch.Generator().manual_seed(9))
    together = stepped(model, ids, mask, target)
    for row, length in enumerate(LENGTHS.tolist()):
        own = slice(row, row + 1)
        alone = stepped(model, ids[own, :length], mask[own, :length], target[own])
        torch.testing.assert_close(together[own], alone, rtol=1e-4, atol=1e-4)
