"""Layer drop: a pass is that of a network of the kept layers, whatever else a training does."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import pytest
import torch
from family import masked_encoders, translating
from hypothesis import given, settings
from hypothesis import strategies as st
from together import together
from torch import Tensor, nn
from train_states import INITIAL, batch, step_batches, train_state

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.training import AdamConfig, AdamWConfig, MuonConfig, RDropConfig
from tformer_cli.distributed import World, process_group
from tformer_cli.model.build import build_model, build_network
from tformer_cli.model.network import Network
from tformer_cli.training.optim import build_optimizer
from tformer_cli.training.step import TrainState, accumulate_gradients, train_steps

V = 29
DEEP = EncoderDecoderConfig(
    dim=12,
    num_heads=3,
    feedforward_dim=16,
    num_encoder_layers=4,
    num_decoder_layers=3,
    dropout=0.0,
    tie_embeddings="none",
)


def hidden_states(model: Network) -> Tensor:
    one = batch()
    target = one.source if len(model.stacks()) == 1 else one.target_in
    return model.hidden_states(one.source, one.source_mask, target, torch.arange(len(target)))


def record_layers(model: Network) -> list[nn.Module]:
    """Return a list of the layers that run in training, as they do."""
    run: list[nn.Module] = []

    def recorded(run_layer: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def record(layer: nn.Module, *inputs: object) -> Tensor:
            run.append(layer)
            return run_layer(layer, *inputs)

        return record

    for stack in model.stacks():
        stack.run_layer = recorded(stack.run_layer)
    return run


def deep_model(layer_drop: float, **changes: object) -> Network:
    model = build_model(replace(DEEP, **changes), source_size=V, target_size=V, seed=2).train()
    model.set_layer_drop(layer_drop)
    return model


@settings(max_examples=20)
@given(st.one_of(translating, masked_encoders), st.integers(0, 99))
def test_a_pass_is_that_of_a_network_of_the_kept_layers(config, seed):
    config = replace(config, dropout=0.0)
    model = build_network(config, source_size=V, target_size=V, seed=7).double().train()
    shallow = copy.deepcopy(model)
    model.set_layer_drop(0.5)
    run = record_layers(model)
    torch.manual_seed(seed)
    states = hidden_states(model)
    for stack, other in zip(model.stacks(), shallow.stacks(), strict=True):
        is_kept = [layer in run for layer in stack.layers]
        pairs = zip(other.layers, is_kept, strict=True)
        other.layers = nn.ModuleList(layer for layer, kept in pairs if kept)
    expected = hidden_states(shallow)
    assert torch.equal(states, expected)
    # Dropped layers have no gradient, and the order of the others is that of the shallow network.
    gradients = []
    for network, result in ((model, states), (shallow, expected)):
        result.logsumexp(dim=-1).sum().backward()
        gradients.append([x.grad for x in network.parameters() if x.grad is not None])
    assert len(gradients[0]) == len(gradients[1])
    assert all(map(torch.equal, *gradients))


def test_each_layer_is_dropped_with_its_probability_and_alone():
    model = deep_model(0.3)
    torch.manual_seed(1)
    stack, count = model.stacks()[0], 4000
    kept = [stack.kept_layers() for _ in range(count)]
    is_kept = torch.tensor([[layer in some for layer in stack.layers] for some in kept]).double()
    # Four standard deviations.
    assert (is_kept.mean(dim=0) - 0.7).abs().max() < 4 * (0.3 * 0.7 / count) ** 0.5
    correlation = torch.corrcoef(is_kept.T) - torch.eye(4)
    assert correlation.abs().max() < 4 / count**0.5


@pytest.mark.parametrize(("layer_drop", "is_training"), [(0.9, False), (0.0, True)])
def test_without_layer_drop_all_layers_run_and_nothing_is_drawn(layer_drop, is_training):
    model = deep_model(layer_drop).train(is_training)
    state = torch.get_rng_state()
    found = hidden_states(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(found, hidden_states(deep_model(0.0)))


def test_recomputed_layers_are_those_that_were_kept():
    found = []
    for is_recomputing in (False, True):
        model = deep_model(0.5, dropout=0.3)
        if is_recomputing:
            model.enable_gradient_checkpointing()
        torch.manual_seed(11)
        # The draws of the second pass do not depend on what the first drew again.
        for _ in range(2):
            hidden_states(model).logsumexp(dim=-1).sum().backward()
        found.append([weight.grad for weight in model.parameters()])
    for one, other in zip(*found, strict=True):
        assert one is other is None or torch.equal(one, other)


def state_of(model: Network, **changes: object) -> TrainState:
    """Return the state of a training of a model, with Adam."""
    optimizer = build_optimizer(AdamConfig(), model)
    return replace(train_state(), model=model, optimizer=optimizer, **changes)


@pytest.mark.parametrize(
    "optimizer", [AdamWConfig(weight_decay=0.2), MuonConfig(weight_decay=0.2)], ids=lambda x: x.kind
)
def test_a_dropped_layer_has_a_gradient_of_zero_and_its_weights_decay(optimizer):
    model = deep_model(0.5)
    run = record_layers(model)
    state = state_of(model)
    state.optimizer = build_optimizer(optimizer, model)
    before = copy.deepcopy(model)
    report = next(train_steps(state, step_batches(batch())))
    layers = [layer for stack in model.stacks() for layer in stack.layers]
    others = [layer for stack in before.stacks() for layer in stack.layers]
    assert 0 < len(run) < len(layers)
    for layer, old in zip(layers, others, strict=True):
        for weight, was in zip(layer.parameters(), old.parameters(), strict=True):
            decay = 0.2 * report.learning_rate * (weight.dim() == 2)
            is_still = torch.allclose(weight, was * (1 - decay), rtol=1e-6, atol=0)
            assert is_still == (layer not in run)


def test_a_step_that_drops_all_layers_that_are_trained_has_a_gradient_of_zero():
    model = deep_model(0.999)
    model.freeze(["embeddings", "decoder", "output"])
    run = record_layers(model)
    before = copy.deepcopy(model)
    (report,) = islice(train_steps(state_of(model), step_batches(batch())), 1)
    assert not run
    assert report.grad_norm == 0.0
    assert report.loss == pytest.approx(math.log(V), rel=0.5)
    assert all(map(torch.equal, model.parameters(), before.parameters()))


def test_layers_are_a_function_of_the_step_and_the_process():
    def kept(step: int, rank: int) -> list[int]:
        model = deep_model(0.5)
        layers = [layer for stack in model.stacks() for layer in stack.layers]
        run = record_layers(model)
        progress = replace(INITIAL, step=step)
        state = state_of(model, progress=progress, world=World(rank, 2))
        # A draw for each of the micro-batches.
        accumulate_gradients(state, [batch(), batch()], num_tokens=12)
        return [layers.index(layer) for layer in run]

    draws = [kept(step, rank) for step in (0, 1) for rank in (0, 1)]
    assert draws == [kept(step, rank) for step in (0, 1) for rank in (0, 1)]
    assert len(set(map(tuple, draws))) == 4


def test_processes_sum_their_gradients_and_keep_equal_weights(tmp_path):
    def gradients(rank: int) -> list[Tensor]:
        state = state_of(deep_model(0.5), world=World(rank, 2))
        accumulate_gradients(state, [batch()], num_tokens=12)
        weights = state.model.parameters()
        return [torch.zeros_like(x) if x.grad is None else x.grad for x in weights]

    pairs = list(zip(gradients(0), gradients(1), strict=True))
    assert any((one == 0).all() != (other == 0).all() for one, other in pairs)
    sums = [one + other for one, other in pairs]

    def step(rank: int) -> None:
        with process_group("cpu") as world:
            state = state_of(deep_model(0.5), world=world)
            state.config = replace(state.config, clip_norm=None)
            next(train_steps(state, step_batches(batch())))
            for weight, expected in zip(state.model.parameters(), sums, strict=True):
                if weight in state.optimizer.state:
                    average = state.optimizer.state[weight]["exp_avg"]
                    torch.testing.assert_close(average, 0.1 * expected, rtol=1e-4, atol=1e-7)
            weights = [repr(weight.tolist()) for weight in state.model.parameters()]
            first, second = world.gather(weights)
            assert first == second

    ended = together(2, step, tmp_path)
    assert [process.code for process in ended] == [0, 0], ended


def test_both_passes_of_a_consistency_loss_keep_the_same_layers():
    state = state_of(deep_model(0.5))
    state.config = replace(state.config, consistency=RDropConfig())
    for report in islice(train_steps(state, step_batches(batch())), 3):
        assert report.divergence == pytest.approx(0.0, abs=1e-6)
