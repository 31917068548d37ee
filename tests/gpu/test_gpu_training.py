"""Whole runs on a GPU: going on, checkpoints for the CPU, translations."""

import itertools
import json
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accelerator import CPU, DEVICE, on_gpu
from safetensors.torch import load_file
from toy import CONFIG, sentence, write_toy

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.errors import Interrupted
from tformer_cli.storage.checkpoint import load_optimizer
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import load_progress
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.training import trainer as run_module
from tformer_cli.training.optim import build_optimizer
from tformer_cli.training.step import train_steps
from tformer_cli.training.trainer import train
from tformer_cli.translate.postprocess import Translation
from tformer_cli.translate.translator import Translator

pytestmark = on_gpu

# Two translations whose scores are nearer than this are equally good.
NEAR_TIE = 1e-3
TIMINGS = ("seconds", "tokens_per_second")


def trained(
    config_file: Path, folder: Path, *overrides: str, device: torch.device = DEVICE
) -> RunDirectory:
    run = RunDirectory(folder)
    train(load_config(config_file, overrides), run, device=device)
    return run


def reported(run: RunDirectory, kind: str) -> list[dict[str, object]]:
    lines = map(json.loads, run.metrics_file.read_text().splitlines())
    return [
        {key: line[key] for key in line if key not in TIMINGS}
        for line in lines
        if line["kind"] == kind
    ]


def assert_same_end(run: RunDirectory, other: RunDirectory) -> None:
    """The last checkpoints are equal to the bit, and so are the validations.

    Sentences of the toy are too short for kernels to add up in another order each time.
    """
    for name in ("model.safetensors", "optimizer.safetensors"):
        one, two = (load_file(folder.pointed("last") / name) for folder in (run, other))
        assert one.keys() == two.keys()
        differing = {key: float((one[key] - two[key]).abs().max()) for key in one}
        assert {key: most for key, most in differing.items() if most} == {}
    assert reported(run, "valid") == reported(other, "valid")


def interrupted_after(patch: pytest.MonkeyPatch, step: int) -> None:
    """Let a signal come when a step has been taken."""

    def signalled(*arguments: object, **options: object):
        for taken in train_steps(*arguments, **options):
            if taken.step == step:
                signal.raise_signal(signal.SIGTERM)
            yield taken

    patch.setattr(run_module, "train_steps", signalled)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def unbroken(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunDirectory]:
    """Runs that nobody may change, one for each precision."""
    runs: dict[str, RunDirectory] = {}

    def run(precision: str) -> RunDirectory:
        if precision not in runs:
            folder = tmp_path_factory.mktemp(precision) / "run"
            runs[precision] = trained(toy, folder, f"training.precision={precision}")
        return runs[precision]

    return run


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_two_runs_of_one_config_are_equal(toy, unbroken, tmp_path, precision):
    again = trained(toy, tmp_path / "run", f"training.precision={precision}")
    assert_same_end(again, unbroken(precision))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("step", [7, 18])
def test_going_on_after_an_interruption_ends_like_an_unbroken_run(
    toy, unbroken, tmp_path, monkeypatch, precision, step
):
    setting = f"training.precision={precision}"
    with monkeypatch.context() as patch:
        interrupted_after(patch, step)
        with pytest.raises(Interrupted):
            trained(toy, tmp_path / "run", setting)
    assert load_progress(RunDirectory(tmp_path / "run").pointed("last")).step == step
    assert_same_end(trained(toy, tmp_path / "run", setting), unbroken(precision))


def test_a_checkpoint_of_the_gpu_loads_on_the_cpu(unbroken):
    run = unbroken("float32")
    checkpoint = run.pointed("last")
    there = load_trained_model(run, "last")
    weights = load_file(checkpoint / "model.safetensors", device=str(DEVICE))
    for name, weight in there.model.named_parameters():
        assert weight.device == CPU
        assert torch.equal(weight, weights[name].cpu()), name
    optimizer = build_optimizer(there.config.training.optimizer, there.model)
    load_optimizer(checkpoint, there.model, optimizer)
    moments = load_file(checkpoint / "optimizer.safetensors")
    for name, parameter in there.model.named_parameters():
        for key, moment in optimizer.state[parameter].items():
            assert moment.device == CPU
            assert torch.equal(moment, moments[f"{name}/{key}"])


def test_a_run_of_the_gpu_goes_on_on_the_cpu(toy, unbroken, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupted_after(patch, 12)
        with pytest.raises(Interrupted):
            trained(toy, tmp_path / "run", "training.precision=float32")
    run = trained(toy, tmp_path / "run", "training.precision=float32", device=CPU)
    (one, two) = (
        [line["loss"] for line in reported(x, "train")] for x in (run, unbroken("float32"))
    )
    # Another device draws other dropout.
    assert one == pytest.approx(two, rel=0.2)
    assert load_progress(run.pointed("last")).step == 24


@pytest.fixture(scope="module")
def translators(tmp_path_factory: pytest.TempPathFactory) -> tuple[Translator, Translator]:
    """A model that has learned a little, on the GPU and on the CPU."""
    folder = tmp_path_factory.mktemp("learned")
    config = CONFIG.replace("max_steps: 24", "max_steps: 150")
    config = config.replace("validate_every: 12", "validate_every: 150")
    run = trained(write_toy(folder / "data", config=config), folder / "run", device=CPU)

    def on(device: torch.device) -> Translator:
        # Each has a copy of its own, for a model is on one device at a time.
        learned = load_trained_model(run)
        return Translator.from_model(
            learned.model, learned.tokenizers, learned.config, device, torch.float32
        )

    return on(DEVICE), on(CPU)


@pytest.mark.parametrize(
    "search",
    [
        GreedyConfig(max_length=20),
        BeamConfig(beam_size=2, max_length=20),
        BeamConfig(beam_size=5, max_length=20, length_penalty=0.6),
        BeamConfig(beam_size=5, max_length=20, length_penalty=0.0),
    ],
    ids=["greedy", "beam 2", "beam 5", "beam 5 without penalty"],
)
def test_translations_are_those_of_the_cpu(translators, search, record_property):
    chooser = random.Random(7)
    lines = [sentence(chooser) for _ in range(200)]
    ours, theirs = (best_of(translator, lines, search) for translator in translators)
    differing = [
        (one, other) for one, other in zip(ours, theirs, strict=True) if one.text != other.text
    ]
    record_property("near_ties", len(differing))
    for one, other in differing:
        assert abs(one.score - other.score) < NEAR_TIE, (one, other)
    assert len(differing) <= len(lines) // 50
    assert len({translation.text for translation in ours}) > 50
    for one, other in itertools.islice(zip(ours, theirs, strict=True), 50):
        if one.text == other.text:
            assert one.score == pytest.approx(other.score, abs=1e-3)


def best_of(translator: Translator, lines: list[str], search: DecodingConfig) -> list[Translation]:
    return [best for best, *_ in translator.nbest(lines, 1, decoding=search)]
