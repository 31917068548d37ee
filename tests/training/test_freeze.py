"""Trainings that leave parts of the network as they are."""

import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from stepping import on_step
from together import together
from toy import MASKED, write_toy
from train_states import batch, train_state

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.training import MuonConfig
from tformer_cli.errors import ConfigError, Interrupted
from tformer_cli.model.inspection.summary import parameters_by_part
from tformer_cli.model.network import network_part
from tformer_cli.storage.run_directory import MODEL_FILE, OPTIMIZER_FILE, RunDirectory
from tformer_cli.training.dry_run import dry_run
from tformer_cli.training.optim import build_optimizer
from tformer_cli.training.part_norms import watch_parts
from tformer_cli.training.step import accumulate_gradients
from tformer_cli.training.trainer import train

CPU = torch.device("cpu")
SHORT = ("training.max_steps=6", "training.validate_every=6", "training.schedule.warmup_steps=2")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy"))


def trained(toy: Path, folder: Path, *overrides: str) -> RunDirectory:
    run = RunDirectory(folder)
    train(load_config(toy, overrides), run, device=CPU)
    return run


@pytest.fixture(scope="module")
def first(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("first") / "run"
    return trained(toy, folder, *SHORT, "model.tie_embeddings=none")


def weights(run: RunDirectory) -> dict[str, torch.Tensor]:
    return load_file(run.pointed("last") / MODEL_FILE)


@pytest.mark.parametrize(
    "frozen", ["[encoder]", "[embeddings, output]", "[encoder, decoder]", "[decoder, output]"]
)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_frozen_weights_stay_to_the_bit_and_all_others_move(
    toy, first, tmp_path, frozen, optimizer
):
    run = trained(
        toy,
        tmp_path / "run",
        *SHORT,
        "model.tie_embeddings=none",
        f"training.init_from={first.path}",
        f"training.freeze={frozen}",
        f"training.optimizer.kind={optimizer}",
        "training.ema_decay=0.9",
    )
    old, new = weights(first), weights(run)
    moments = load_file(run.pointed("last") / OPTIMIZER_FILE)
    for name in old:
        is_frozen = network_part(name) in frozen
        assert torch.equal(old[name], new[name]) == is_frozen, name
        assert any(key.startswith(f"{name}/") for key in moments) != is_frozen, name


def test_an_output_that_is_tied_is_frozen_with_the_embeddings():
    model = train_state().model
    model.freeze(["embeddings"])
    assert not model.output.weight.requires_grad
    assert model.num_frozen_parameters() == parameters_by_part(model)["embeddings"]
    model.freeze([])
    assert model.num_frozen_parameters() == 0


@pytest.mark.parametrize("frozen", ["embeddings", "encoder", "decoder"])
def test_gradients_of_all_other_weights_are_the_same(frozen):
    whole, partial = train_state(), train_state()
    partial.model.freeze([frozen])
    for state in (whole, partial):
        accumulate_gradients(state, [batch()], batch().num_target_tokens)
    pairs = zip(whole.model.named_parameters(), partial.model.parameters(), strict=True)
    for (name, weight), other in pairs:
        if network_part(name) == frozen:
            assert other.grad is None, name
        else:
            assert torch.equal(weight.grad, other.grad), name


def test_parts_that_are_frozen_are_not_watched():
    model = train_state().model
    model.freeze(["encoder"])
    norms = torch.ones(len(model.trained_parameters()))
    reports = watch_parts(model, norms)()
    assert "decoder.layers.0" in reports
    assert "encoder.layers.0" not in reports
    optimizer = build_optimizer(MuonConfig(), model)
    moved = {id(x) for group in optimizer.param_groups for x in group["params"]}
    assert moved == {id(x) for x in model.trained_parameters()}


def test_a_training_that_is_broken_off_resumes_exactly(toy, tmp_path, monkeypatch):
    frozen = ("training.freeze=[encoder]", *SHORT)
    whole = trained(toy, tmp_path / "whole", *frozen)
    with monkeypatch.context() as patch:
        on_step(patch, 3, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Interrupted):
            trained(toy, tmp_path / "run", *frozen)
    run = trained(toy, tmp_path / "run", *frozen)
    for file in (MODEL_FILE, OPTIMIZER_FILE):
        assert (run.pointed("last") / file).read_bytes() == (
            whole.pointed("last") / file
        ).read_bytes()


def test_two_processes_train_what_one_trains(toy, tmp_path):
    # A large epsilon, or Adam makes whole steps of rounding.
    same = (
        *SHORT,
        "training.freeze=[embeddings, decoder]",
        "model.dropout=0",
        "training.optimizer={kind: adam, epsilon: 1e-4}",
    )
    alone = trained(toy, tmp_path / "alone", *same)
    ended = together(2, lambda rank: trained(toy, tmp_path / "run", *same), tmp_path / "said")
    assert [process.code for process in ended] == [0, 0], ended
    one, two = weights(alone), weights(RunDirectory(tmp_path / "run"))
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-4)
    moments = load_file(RunDirectory(tmp_path / "run").pointed("last") / OPTIMIZER_FILE)
    assert {name.split(".")[0] for name in moments} == {"encoder"}


def test_what_is_frozen_is_said_and_takes_no_room_for_moments(toy, tmp_path, capsys):
    run = RunDirectory(tmp_path / "run")
    whole = dry_run(load_config(toy, SHORT), run, device=CPU)
    part = dry_run(load_config(toy, (*SHORT, "training.freeze=[encoder]")), run, device=CPU)
    assert whole.num_frozen_parameters == 0
    assert part.num_frozen_parameters > 0
    assert f"{part.num_parameters:,} parameters ({part.num_frozen_parameters:,} frozen)" in str(
        part
    )
    # Two moments of four bytes a weight, and the number of steps of each weight.
    saved = whole.checkpoint_bytes - part.checkpoint_bytes
    assert saved >= 8 * part.num_frozen_parameters
    assert saved < 9 * part.num_frozen_parameters


def complaint(toy: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(toy, overrides)
    return str(caught.value)


def test_parts_that_a_network_lacks_are_named(toy, tmp_path):
    assert "must be one of embeddings, encoder, decoder, stream, output (head)" in complaint(
        toy, "training.freeze=[head]"
    )
    told = complaint(toy, "training.freeze=[encoder, output]")
    assert (
        "has no weights of its own with model.kind encoder_decoder and tie_embeddings all "
        "(output); choose from: embeddings, encoder, decoder"
    ) in told
    masked = write_toy(tmp_path / "masked", config=MASKED)
    told = complaint(masked, "training.freeze=[decoder]", "model.tie_embeddings=none")
    assert (
        "has no weights of its own with model.kind masked_encoder (decoder); "
        "choose from: embeddings, encoder, output"
    ) in told


def test_something_is_left_to_train(toy):
    told = complaint(toy, "training.freeze=[decoder, encoder, embeddings]")
    assert "leaves no weight to train (decoder, encoder, embeddings); leave a part out" in told
    biased = ("training.freeze=[decoder, encoder, embeddings]", "model.output_bias=true")
    assert load_config(toy, biased).training.freeze == ("decoder", "encoder", "embeddings")
