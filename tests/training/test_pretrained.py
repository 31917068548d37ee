"""Trainings that begin with the weights of another run, or with its encoder."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from stepping import on_step
from toy import CONFIG, MASKED, write_toy

from tformer_cli.config.load import load_config
from tformer_cli.errors import CheckpointError, ConfigError, Interrupted
from tformer_cli.model.encoder_decoder import EncoderDecoder
from tformer_cli.storage.run_directory import MODEL_FILE, RAW_MODEL_FILE, RunDirectory
from tformer_cli.storage.state import load_progress
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.text.tokenizer import Tokenizers, load_tokenizers
from tformer_cli.training.pretrained import (
    load_pretrained,
    pretrained_run,
    pretrained_tokenizers,
)
from tformer_cli.training.setup import init_model
from tformer_cli.training.trainer import train

# Steps so small that the weights stay what they are in float32.
STILL = ("training.optimizer.learning_rate=1e-12", "training.optimizer.weight_decay=0")
SHORT = ("training.max_steps=6", "training.validate_every=6", "training.schedule.warmup_steps=2")


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "data")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("first")
    return trained(write_toy(folder / "data"), folder / "run", *SHORT, "training.ema_decay=0.9")


def trained(config_file: Path, folder: Path, *overrides: str) -> RunDirectory:
    run = RunDirectory(folder)
    train(load_config(config_file, overrides), run, device=torch.device("cpu"))
    return run


def after(first: RunDirectory) -> str:
    return f"training.init_from={first.path}"


def test_the_weights_and_the_tokenizers_are_those_of_the_run_before(first, toy, tmp_path, capsys):
    run = trained(toy, tmp_path / "run", *SHORT, *STILL, after(first))
    # What the optimizer moved, not its EMA, is what goes on.
    old = load_file(first.pointed("last") / RAW_MODEL_FILE)
    new = load_file(run.pointed("last") / MODEL_FILE)
    for name in old:
        torch.testing.assert_close(new[name], old[name], rtol=0, atol=1e-9)
    assert (
        load_tokenizers(run.tokenizer).fingerprint == load_tokenizers(first.tokenizer).fingerprint
    )
    assert load_progress(run.pointed("last")).step == 6
    assert f"initializing from the weights of {first.pointed('last')}\n" in capsys.readouterr().err


def test_other_text_and_another_schedule_are_welcome(first, tmp_path):
    more = write_toy(tmp_path / "more", pairs=200)
    run = trained(more, tmp_path / "run", *SHORT, after(first), "training.max_steps=8")
    assert load_progress(run.pointed("last")).step == 8


def test_once_begun_a_run_needs_no_run_before_it(first, toy, tmp_path, monkeypatch):
    before = RunDirectory(tmp_path / "before")
    shutil.copytree(first.path, before.path)
    unbroken = trained(toy, tmp_path / "unbroken", *SHORT, after(before))

    with monkeypatch.context() as patch:
        on_step(patch, 3, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted):
            trained(toy, tmp_path / "run", *SHORT, after(before))
    shutil.rmtree(before.path)
    run = trained(toy, tmp_path / "run", *SHORT, after(before))
    one, two = (load_file(r.pointed("last") / MODEL_FILE) for r in (unbroken, run))
    for name in one:
        assert torch.equal(one[name], two[name])


def test_a_run_goes_on_after_the_run_before_it_was_moved(first, toy, tmp_path, monkeypatch, capsys):
    before, moved = RunDirectory(tmp_path / "before"), RunDirectory(tmp_path / "moved")
    shutil.copytree(first.path, before.path)

    def interrupted_at(step: int, pretrained: RunDirectory) -> None:
        with monkeypatch.context() as patch:
            on_step(patch, step, lambda: signal.raise_signal(signal.SIGTERM))
            with pytest.raises(Interrupted):
                trained(toy, tmp_path / "run", *SHORT, after(pretrained))

    interrupted_at(2, before)
    assert refusal(toy, tmp_path / "run", *SHORT, after(first)).startswith(
        f"{tmp_path / 'run'}: training.init_from was {before.path} when this run began"
    )
    before.path.rename(moved.path)
    checkpoints = tmp_path / "run" / "checkpoints"
    shutil.copytree(checkpoints, tmp_path / "saved")
    interrupted_at(3, moved)
    # A kill before the first checkpoint that knows the new path.
    shutil.rmtree(checkpoints)
    shutil.copytree(tmp_path / "saved", checkpoints)
    run = trained(toy, tmp_path / "run", *SHORT, after(moved))
    accepted = f"accepted a changed setting: training.init_from: {before.path} -> {moved.path}"
    assert accepted in capsys.readouterr().err
    unbroken = trained(toy, tmp_path / "unbroken", *SHORT, after(moved))
    one, two = (load_file(r.pointed("last") / MODEL_FILE) for r in (unbroken, run))
    assert all(torch.equal(one[name], two[name]) for name in one)


def refusal(*arguments: object) -> str:
    with pytest.raises(CheckpointError) as caught:
        trained(*arguments)
    return str(caught.value)


def test_a_run_cannot_go_on_from_itself(toy, tmp_path):
    assert refusal(toy, tmp_path / "a", f"training.init_from={tmp_path}/x/../a") == (
        f"{tmp_path}/a: a run cannot be initialized from itself; name another folder with `run`"
    )


def test_a_run_that_has_no_run_before_it_leaves_no_folder(toy, tmp_path):
    said = refusal(toy, tmp_path / "run", f"training.init_from={tmp_path}/none")
    assert said == f"{tmp_path}/none: no such run folder; name the folder of a run"
    said = refusal(toy, tmp_path / "run", f"training.init_from={toy.parent}")
    assert said == f"{toy.parent}: no such run folder; name the folder of a run"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "model.bin"])
def test_an_export_is_refused_before_anything_is_read(first, toy, tmp_path, name):
    export = tmp_path / "export"
    export.mkdir()
    shutil.copy(first.config_file, export)
    shutil.copytree(first.tokenizer, export / "tokenizer")
    (export / name).touch()
    assert refusal(toy, tmp_path / "run", f"training.init_from={export}") == (
        f"{export}: holds an exported model, which a training cannot begin with; "
        "name the run that was exported, or one that `tformer import` makes of the folder"
    )
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_gone_on_from_is_named(first, toy, tmp_path):
    run = tmp_path / "run"
    assert refusal(toy, run, after(first), "tokenizer={kind: char, min_frequency: 2}") == (
        f"{first.path}: was trained with another tokenizer than the config asks for; "
        f"take over `tokenizer` from {first.config_file}"
    )
    bare = RunDirectory(tmp_path / "bare")
    bare.path.mkdir()
    shutil.copy(first.config_file, bare.config_file)
    shutil.copytree(first.tokenizer, bare.tokenizer)
    assert refusal(toy, run, after(bare)) == f"{bare.path}: has no checkpoint yet; train it first"
    assert not run.exists()


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (("model.feedforward_dim=32",), "model.feedforward_dim: must be 64, as in RUN (32)"),
        # The same weights, and another function of them.
        (("model.num_heads=4",), "model.num_heads: must be 2, as in RUN (4)"),
        (
            ("model.positions={kind: alibi}",),
            'model.positions: must be {"kind": "sinusoidal", "frequencies": "paper", "offset": 0}, '
            "as in RUN "
            '({"kind": "alibi"})',
        ),
        (
            ("model={kind: decoder_only, dim: 32}",),
            "model.kind: must be encoder_decoder, as in RUN (decoder_only)",
        ),
    ],
)
def test_another_function_of_the_weights_is_named(first, toy, tmp_path, overrides, complaint):
    with pytest.raises(ConfigError) as caught:
        trained(toy, tmp_path / "run", after(first), *overrides)
    assert str(caught.value) == complaint.replace("RUN", str(first.path))
    assert not (tmp_path / "run").exists()


def test_dropout_and_how_far_a_model_sees_may_change(first, toy, tmp_path):
    changed = ("model.dropout=0.3", "model.sliding_window=4", "model.initialization=normal")
    run = trained(toy, tmp_path / "run", *SHORT, *STILL, after(first), *changed)
    old, new = (load_file(first.pointed("last") / RAW_MODEL_FILE), run.pointed("last") / MODEL_FILE)
    for name, weight in load_file(new).items():
        torch.testing.assert_close(weight, old[name], rtol=0, atol=1e-9)


def test_other_tokenizers_beside_the_weights_are_refused(first, toy, tmp_path):
    """Of the same size and settings, and each id is another token."""
    changed = RunDirectory(tmp_path / "changed")
    shutil.copytree(first.path, changed.path)
    (file,) = changed.tokenizer.glob("shared.*")
    *tokens, last_but_one, last = json.loads(file.read_text())
    file.write_text(json.dumps([*tokens, last, last_but_one]))
    assert refusal(toy, tmp_path / "run", after(changed)) == (
        f"{changed.tokenizer}: does not hold the tokenizers that the model was trained with; "
        "restore the folder, or train again"
    )
    assert not (tmp_path / "run").exists()


EIGHT_STEPS = ("training.max_steps=8", "training.validate_every=8")


@pytest.fixture
def masked(masked_run: Path) -> RunDirectory:
    return RunDirectory(masked_run)


@pytest.fixture
def translation(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "pairs", config=CONFIG)


def weights(run: RunDirectory) -> dict[str, torch.Tensor]:
    return load_file(run.pointed("last") / MODEL_FILE)


def begun(
    translation: Path, masked: RunDirectory, *overrides: str
) -> tuple[EncoderDecoder, EncoderDecoder, Tokenizers, list[str]]:
    """Return a model that begins with a run, and without it, its tokenizers and what was said."""
    setting = f"training.init_from={masked.path}"
    config = load_config(translation, [setting, *overrides])
    pretrained = pretrained_run(config, RunDirectory(translation.parent / "run"))
    said: list[str] = []
    tokenizers = pretrained_tokenizers(pretrained, config, said.append)
    model, without = (init_model(config, tokenizers) for _ in range(2))
    load_pretrained(pretrained, model, config, said.append)
    return model, without, tokenizers, said


@pytest.mark.parametrize(
    ("overrides", "anew"),
    [
        ((), "decoder.layers, decoder.norm"),
        (("model.tie_embeddings=output",), "decoder.embeddings, decoder.layers, decoder.norm"),
        (
            ("model.tie_embeddings=none",),
            "decoder.embeddings, decoder.layers, decoder.norm, output",
        ),
    ],
)
def test_a_translation_model_takes_over_the_encoder_to_the_bit(
    translation, masked, overrides, anew
):
    model, without, tokenizers, said = begun(translation, masked, *overrides)
    taken = {
        name: weight for name, weight in weights(masked).items() if name.startswith("encoder.")
    }
    assert taken.keys() == {f"encoder.{name}" for name, _ in model.encoder.named_parameters()}
    for name, weight in model.named_parameters():
        expected = taken.get(name, without.state_dict()[name])
        assert torch.equal(weight, expected), name
    shared = model.decoder.embeddings.tokens.weight is model.encoder.embeddings.tokens.weight
    assert shared == (not overrides)
    assert tokenizers.fingerprint == load_tokenizers(masked.tokenizer).fingerprint
    num_taken = sum(weight.numel() for weight in taken.values())
    assert said == [
        f"initializing from the encoder of {masked.pointed('last')}: {num_taken:,} of "
        f"{model.num_parameters():,} weights; {anew} are newly initialized"
    ]


def test_a_target_may_have_a_vocabulary_of_its_own(translation, masked):
    separate = ("tokenizer.shared=false", "model.tie_embeddings=output")
    model, _, tokenizers, said = begun(translation, masked, *separate)
    assert said[0] == "building the vocabulary of the target"
    known = load_tokenizers(masked.tokenizer)
    assert tokenizers.source.content == known.source.content
    assert tokenizers.target.decode(tokenizers.target.encode("FED CBA")) == "FED CBA"
    assert not tokenizers.shared
    taken = weights(masked)["encoder.embeddings.tokens.weight"]
    assert torch.equal(model.encoder.embeddings.tokens.weight, taken)


def test_a_translation_begins_with_it(translation, masked, tmp_path, capsys):
    setting = f"training.init_from={masked.path}"
    run = trained(translation, tmp_path / "run", *EIGHT_STEPS, setting)
    assert isinstance(load_trained_model(run).model, EncoderDecoder)
    assert f"initializing from the encoder of {masked.pointed('last')}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "complaints"),
    [
        (("model.dim=16",), ["model.dim: must be 32, as in the encoder of {run} (16)"]),
        (
            ("model.num_encoder_layers=3", "model.norm=rms"),
            [
                "model.norm: must be layer, as in the encoder of {run} (rms)",
                "model.num_encoder_layers: must be 1, as in the encoder of {run} (3)",
            ],
        ),
        (
            ("model.positions={kind: learned, max_length: 300}",),
            [
                'model.positions: must be {{"kind": "sinusoidal", "frequencies": "paper", '
                '"offset": 0}}, as in the encoder of {run} '
                '({{"kind": "learned", "max_length": 300, "offset": 0}})'
            ],
        ),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused_by_its_keys(
    translation, masked, overrides, complaints
):
    with pytest.raises(ConfigError) as caught:
        begun(translation, masked, *overrides)
    wanted = [complaint.format(run=masked.path) for complaint in complaints]
    assert str(caught.value).split("\n") == wanted


def test_an_encoder_whose_residuals_weigh_by_depth_is_refused(translation, tmp_path):
    toy = write_toy(tmp_path / "data", config=MASKED)
    deep = trained(toy, tmp_path / "deep", *EIGHT_STEPS, "model.norm_position=deep")
    with pytest.raises(ConfigError) as caught:
        begun(translation, deep, "model.norm_position=deep")
    assert str(caught.value) == (
        f"model.norm_position: must not be deep with the encoder of {deep.path}, "
        "whose residuals weigh otherwise (deep)"
    )


def test_another_tokenizer_is_refused(translation, masked):
    with pytest.raises(CheckpointError) as caught:
        begun(translation, masked, "tokenizer={kind: char, min_frequency: 2}")
    assert str(caught.value) == (
        f"{masked.path}: was trained with another tokenizer than the config asks for; "
        f"take over `tokenizer` from {masked.config_file}"
    )
