"""Checkpoints: the weights, the optimiser, and where the run stood, written whole.

A checkpoint is a folder of safetensors and JSON; nothing in it is ever unpickled. Its
model.safetensors are the weights to translate with. Where those are a moving average, the weights
that the optimiser moves stand beside them in trained.safetensors. An average of checkpoints is
one too, without an optimiser: it translates, but no training goes on from it. SHA256SUMS, written
last, says what every file was when it was saved; `sha256sum --check SHA256SUMS` reads it too.
"""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from tformer_cli.config.load import load_config
from tformer_cli.config.schema import Config
from tformer_cli.errors import CheckpointError, Problem
from tformer_cli.model.seq2seq import Seq2Seq, build_model
from tformer_cli.run_directory import RunDirectory, whole_directory
from tformer_cli.text.tokenizer import Tokenizers, load_tokenizers

FORMAT_VERSION = 2
MODEL_FILE = "model.safetensors"
TRAINED_FILE = "trained.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
SUMS_FILE = "SHA256SUMS"
# What a training goes on from, and what it takes to translate.
GOING_ON = (MODEL_FILE, OPTIMIZER_FILE, STATE_FILE)
TRANSLATING = (MODEL_FILE, STATE_FILE)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingState:
    """Where a run stood when a checkpoint was taken.

    Attributes:
        step: optimiser steps taken.
        epoch: epoch of the next batch.
        batch: place of the next batch in that epoch.
        best_step: step of the best checkpoint so far, or None before the first validation.
        best_score: its score.
        num_tokens: target tokens trained on.
        seconds: time spent in optimiser steps.
        data_fingerprint: hash of the training examples and of the tokenizers that made them.
        environment: torch version, threads and device; a resumed run is exact when they agree.
        score: of the validation at this very step, BLEU or negative loss; None if there was none.
        num_stale: validations since the best one.
        left_out: (epoch, batch) of each batch whose loss or gradient was not finite.
        num_failed: how many of them in a row came just now; a step begins the count again.
        learning_rate_factor: of all steps to come; each rollback lowers it.
        num_rollbacks: how often the training went back to a checkpoint.
        loss_scale: factor of the loss in the next step; None before the first.
        num_scaled: steps since that factor changed.
        format_version: of these files.
    """

    step: int
    epoch: int
    batch: int
    best_step: int | None
    best_score: float | None
    num_tokens: int
    seconds: float
    data_fingerprint: str
    environment: dict[str, str]
    score: float | None = None
    num_stale: int = 0
    left_out: tuple[tuple[int, int], ...] = ()
    num_failed: int = 0
    learning_rate_factor: float = 1.0
    num_rollbacks: int = 0
    loss_scale: float | None = None
    num_scaled: int = 0
    format_version: int = FORMAT_VERSION


def save_checkpoint(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: TrainingState,
    *,
    average: nn.Module | None = None,
) -> None:
    """Write a checkpoint folder: it is there as a whole, or not at all.

    Args:
        directory: the folder.
        model: what the optimiser moves.
        optimizer: its moments.
        state: where the run stands.
        average: the moving average of the model, if there is one, to translate with.
    """
    with whole_directory(directory) as folder:
        if average is None:
            _save_tensors(_weights(model), folder / MODEL_FILE)
        else:
            _save_tensors(_weights(average), folder / MODEL_FILE)
            _save_tensors(_weights(model), folder / TRAINED_FILE)
        _save_tensors(_optimizer_tensors(model, optimizer), folder / OPTIMIZER_FILE)
        _save_state(state, folder / STATE_FILE)
        _save_sums(folder)


def damage(directory: Path, names: Collection[str] | None = None) -> Problem | None:
    """Return what is wrong with a checkpoint, or None if it is as it was saved.

    Args:
        directory: the checkpoint.
        names: the files that matter, or None for all that a training goes on from.
    """
    where = str(directory)
    if not directory.is_dir():
        return Problem(where, "is not there")
    try:
        lines = (directory / SUMS_FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return Problem(where, f"is not whole: {SUMS_FILE} is missing or damaged")
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    if names is None:
        there = (file.name for file in directory.glob("*.safetensors"))
        names = sorted({*GOING_ON, *sums, *there})
    for name in names:
        try:
            if _sha256(directory / name) != sums.get(name):
                return Problem(where, f"is damaged: {name} is not what was saved")
        except FileNotFoundError:
            return Problem(where, f"is not whole: {name} is missing")
        except (OSError, ValueError) as error:
            return Problem(where, f"is damaged: {name} cannot be read", got=str(error))
    return None


def load_state(directory: Path) -> TrainingState:
    """Read where a run stood.

    Raises:
        CheckpointError: the file is missing, damaged or of a newer version.
    """
    file = directory / STATE_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.get("format_version", 0) > FORMAT_VERSION:
            raise CheckpointError(
                str(file),
                f"was written by a newer tformer; this one reads format {FORMAT_VERSION}",
                got=f"format {content['format_version']}",
                remedy="upgrade tformer",
            )
        content["left_out"] = tuple(map(tuple, content.get("left_out", ())))
        return TrainingState(**content)
    except FileNotFoundError:
        raise CheckpointError(
            str(file), "no such file", remedy="name another checkpoint, or train with --fresh"
        ) from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(
            str(file), "is damaged", got=str(error), remedy="use an earlier checkpoint"
        ) from None


def save_average(directory: Path, model: nn.Module, state: TrainingState) -> None:
    """Write a checkpoint to translate with, that no training goes on from."""
    with whole_directory(directory) as folder:
        _save_tensors(_weights(model), folder / MODEL_FILE)
        _save_state(state, folder / STATE_FILE)
        _save_sums(folder)


def load_average(directories: Sequence[Path], model: nn.Module) -> None:
    """Let every weight of a model be its mean over several checkpoints.

    Raises:
        CheckpointError: one of them is missing, damaged or of another model.
    """
    sums = [torch.zeros_like(weight, dtype=torch.float64) for weight in model.parameters()]
    with torch.no_grad():
        for directory in directories:
            _check(directory, "train on for another one, or average fewer")
            load_weights(directory, model)
            for total, weight in zip(sums, model.parameters(), strict=True):
                total += weight
        for total, weight in zip(sums, model.parameters(), strict=True):
            weight.copy_(total / len(directories))


def best_checkpoints(checkpoints: Sequence[Path]) -> list[Path]:
    """Return the validated ones among some checkpoints, the best first; of equal ones the later.

    Raises:
        CheckpointError: one of them is damaged.
    """
    states = [(load_state(checkpoint), checkpoint) for checkpoint in checkpoints]
    scored = [(s.score, s.step, checkpoint) for s, checkpoint in states if s.score is not None]
    return [checkpoint for *_, checkpoint in sorted(scored, reverse=True)]


def load_weights(directory: Path, model: nn.Module, file_name: str = MODEL_FILE) -> None:
    """Read the weights of a checkpoint into a model of the same shape.

    Args:
        directory: the checkpoint.
        model: what is to have them.
        file_name: of the weights to translate with, or those that a training goes on from.

    Raises:
        CheckpointError: the file is missing or cut short, or holds another model.
    """
    file = directory / file_name
    parameters = dict(model.named_parameters())
    stored = dict(_read_tensors(file))
    differing = parameters.keys() ^ stored.keys() or [
        name for name in parameters if parameters[name].shape != stored[name].shape
    ]
    if differing:
        raise CheckpointError(
            str(file),
            f"holds another model than config.yaml describes ({len(differing)} weights differ)",
            got=min(differing),
            remedy="restore the config.yaml that the run was trained with",
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(stored[name])


def load_optimizer(directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Read the optimiser's moments.

    Raises:
        CheckpointError: the file is missing or cut short, or belongs to another model.
    """
    file = directory / OPTIMIZER_FILE
    parameters = dict(model.named_parameters())
    for name, tensor in _read_tensors(file):
        parameter_name, _, key = name.rpartition("/")
        parameter = parameters.get(parameter_name)
        if parameter is None:
            raise CheckpointError(
                str(file),
                "belongs to another model than config.yaml describes",
                got=name,
                remedy="restore the config.yaml that the run was trained with",
            )
        optimizer.state[parameter][key] = tensor.to(parameter.device)


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """What it takes to translate: a model with its weights, its tokenizers and its config."""

    config: Config
    tokenizers: Tokenizers
    model: Seq2Seq
    step: int


def load_trained_model(run: RunDirectory, name: str = "best") -> TrainedModel:
    """Load the model of a run on the CPU, ready to evaluate.

    Args:
        run: the run folder.
        name: `best`, `last` or the name of a checkpoint such as `step-000400`. The last one
            stands in for a best one that there is not yet.

    Raises:
        CheckpointError: there is no such run or checkpoint, or it is damaged.
    """
    if not run.path.is_dir():
        raise CheckpointError(str(run.path), "no such run folder", remedy=_sentence_hint(run.path))
    if name in ("best", "last"):
        directory = run.pointed(name) or run.pointed("last")
    else:
        directory = run.checkpoints / name
    if directory is None or not directory.is_dir():
        raise CheckpointError(
            str(run.path),
            "has no such checkpoint",
            got=name,
            remedy="train first, or look into its folder checkpoints/",
        )
    if damage(directory, TRANSLATING) is not None:
        # Only now is it worth reading the others.
        _check(directory, _another_checkpoint(run))
    config = load_config(run.config_file)
    tokenizers = load_tokenizers(run.tokenizer)
    state = load_state(directory)
    model = build_model(
        config.model,
        source_size=tokenizers.source.size,
        target_size=tokenizers.target.size,
        seed=config.seed,
    )
    load_weights(directory, model)
    return TrainedModel(config, tokenizers, model.eval(), state.step)


def _sentence_hint(path: Path) -> str:
    text = str(path)
    if " " in text.strip():
        return f"to translate a sentence, pipe it in: echo '{text}' | tformer translate"
    return "name the folder of a run, such as runs/demo"


def _check(directory: Path, remedy: str) -> None:
    """Refuse a checkpoint that does not hold the weights that were saved.

    Raises:
        CheckpointError: with that remedy.
    """
    problem = damage(directory, TRANSLATING)
    if problem is not None:
        where, what = problem.where, problem.what
        raise CheckpointError(where, what, got=problem.got, remedy=remedy)


def _another_checkpoint(run: RunDirectory) -> str:
    """Return the remedy for a checkpoint that cannot translate."""
    for checkpoint in reversed(run.step_checkpoints()):
        if damage(checkpoint, TRANSLATING) is None:
            return f"use --checkpoint {checkpoint.name}"
    return "no other one is whole: train anew with --fresh"


def _weights(model: nn.Module) -> dict[str, Tensor]:
    # named_parameters lists a shared weight once, under its first name.
    return {name: weight.detach().contiguous() for name, weight in model.named_parameters()}


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value.contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


def _save_state(state: TrainingState, file: Path) -> None:
    content = json.dumps(dataclasses.asdict(state), indent=2) + "\n"
    file.write_text(content, encoding="utf-8")


def _save_sums(folder: Path) -> None:
    files = sorted(folder.iterdir())
    content = "".join(f"{_sha256(file)}  {file.name}\n" for file in files)
    (folder / SUMS_FILE).write_text(content, encoding="utf-8")


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _save_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    try:
        save_file(tensors, file)
    except SafetensorError as error:
        # The library keeps the system's error as words alone: "... (os error 28)".
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(file)) from error


def _read_tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                yield name, tensors.get_tensor(name)
    except FileNotFoundError:
        raise CheckpointError(str(file), "no such file", remedy="name another checkpoint") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            str(file), "is damaged or cut short", got=str(error), remedy="use another checkpoint"
        ) from None
