import math

import pytest
from train_states import batch, train_state

from tformer_cli.distributed import World
from tformer_cli.training.diagnosis import first_not_finite


@pytest.mark.parametrize(
    ("weight", "module"),
    [
        ("encoder.layers.0.self_attention.value.weight", "encoder.layers.0.self_attention.value"),
        ("decoder.layers.0.feedforward.outer.bias", "decoder.layers.0.feedforward.outer"),
        # The output is tied to the embeddings, where it shows first.
        ("output.weight", "encoder.embeddings.tokens"),
    ],
)
def test_the_first_module_whose_output_is_not_finite_is_named(weight, module):
    subject = train_state()
    subject.model.get_parameter(weight).data.fill_(math.inf)
    assert first_not_finite(subject, [batch()], step=3) == module


def test_a_gradient_that_is_not_finite_is_named():
    subject = train_state()
    weight = "decoder.layers.0.cross_attention.key.weight"
    subject.model.get_parameter(weight).register_hook(lambda gradient: gradient * math.inf)
    assert first_not_finite(subject, [batch()], step=3) == f"the gradient of {weight}"


@pytest.mark.parametrize("is_well", [True, False])
def test_processes_agree_on_what_the_first_that_fails_has_found(monkeypatch, is_well):
    subject, others, told = train_state(), [[], ["decoder.norm"], ["encoder.norm"]], []
    if not is_well:
        subject.model.get_parameter("output.weight").data.fill_(math.inf)

    def gather(world: World, lines: list[str]) -> list[list[str]]:
        told.extend(lines)
        return [lines, *others]

    monkeypatch.setattr(World, "gather", gather)
    own = [] if is_well else ["encoder.embeddings.tokens"]
    assert first_not_finite(subject, [batch()], step=3) == [*own, "decoder.norm"][0]
    assert told == own


def test_a_diagnosis_leaves_no_trace():
    subject = train_state()
    assert first_not_finite(subject, [batch()], step=3) == "the loss"
    assert all(parameter.grad is None for parameter in subject.model.parameters())
    assert not any(module._forward_hooks for module in subject.model.modules())
