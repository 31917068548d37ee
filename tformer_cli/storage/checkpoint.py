"""Checkpoints: saved atomically with checksums, verified, and loaded."""

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from tformer_cli.errors import CheckpointError, NewerFormatError, Problem
from tformer_cli.storage.atomic import atomic_directory
from tformer_cli.storage.run_directory import (
    CHECKSUMS_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    RAW_MODEL_FILE,
    STATE_FILE,
)
from tformer_cli.storage.state import TrainingProgress, load_progress, save_progress
from tformer_cli.storage.tensors import (
    ANOTHER_CHECKPOINT,
    check_dtypes,
    check_finite,
    read_tensors,
    save_tensors,
)

# The files that a training resumes from, and those that inference needs.
RESUME_FILES = (MODEL_FILE, OPTIMIZER_FILE, STATE_FILE)
INFERENCE_FILES = (MODEL_FILE, STATE_FILE)
# Optimizer state of a parameter: that of Adam and AdamW, and that of a matrix under Muon.
ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")
MUON_STATE = ("momentum",)
RESTORE_CONFIG = "restore the config.yaml that the run was trained with"


def save_checkpoint(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: TrainingProgress,
    *,
    average: nn.Module | None = None,
) -> None:
    """Write a checkpoint folder atomically; `average` is the moving average of the weights."""
    with atomic_directory(directory) as folder:
        if average is None:
            save_tensors(_weights(model), folder / MODEL_FILE)
        else:
            save_tensors(_weights(average), folder / MODEL_FILE)
            save_tensors(_weights(model), folder / RAW_MODEL_FILE)
        save_tensors(_optimizer_tensors(model, optimizer), folder / OPTIMIZER_FILE)
        save_progress(state, folder)
        write_checksums(folder)


def save_average(directory: Path, model: nn.Module, state: TrainingProgress) -> None:
    """Write a checkpoint for inference alone, without optimizer state."""
    with atomic_directory(directory) as folder:
        save_tensors(_weights(model), folder / MODEL_FILE)
        save_progress(state, folder)
        write_checksums(folder)


def load_weights(directory: Path, model: nn.Module, file_name: str = MODEL_FILE) -> None:
    """Read the weights in a file of a checkpoint into a model.

    Raises:
        CheckpointError: the file is missing or damaged, is of another model, or has weights that
            are not finite floating-point numbers.
    """
    file = directory / file_name
    parameters = dict(model.named_parameters())
    stored = dict(read_tensors(file))
    differing = parameters.keys() ^ stored.keys() or [
        name for name in parameters if parameters[name].shape != stored[name].shape
    ]
    if differing:
        raise CheckpointError(
            str(file),
            f"holds another model than config.yaml describes ({len(differing)} weights differ)",
            got=min(differing),
            remedy=RESTORE_CONFIG,
        )
    check_dtypes(file, stored, ANOTHER_CHECKPOINT)
    check_finite(file, stored, ANOTHER_CHECKPOINT)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(stored[name])


def load_average(directories: Sequence[Path], model: nn.Module) -> None:
    """Set each weight of a model to its mean over several checkpoints."""
    sums = [torch.zeros_like(weight, dtype=torch.float64) for weight in model.parameters()]
    with torch.no_grad():
        for directory in directories:
            check_intact(directory, "train on for another one, or average fewer")
            load_weights(directory, model)
            for total, weight in zip(sums, model.parameters(), strict=True):
                total += weight
        for total, weight in zip(sums, model.parameters(), strict=True):
            weight.copy_(total / len(directories))


def load_optimizer(directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Read the optimizer state of a checkpoint.

    Raises:
        CheckpointError: the file is missing or damaged, is of another model, or lacks a tensor of
            the right shape and dtype.
    """
    file = directory / OPTIMIZER_FILE
    stored = dict(read_tensors(file))
    parameters = dict(model.named_parameters())
    for name in stored:
        if name.rpartition("/")[0] not in parameters:
            raise CheckpointError(
                str(file),
                "belongs to another model than config.yaml describes",
                got=name,
                remedy=RESTORE_CONFIG,
            )
    keys = {
        parameter: MUON_STATE if "momentum" in group else ADAM_STATE
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for parameter_name, parameter in parameters.items():
        for key in keys[parameter] if parameter.requires_grad else ():
            name = f"{parameter_name}/{key}"
            shape = () if key == "step" else tuple(parameter.shape)
            tensor = stored.get(name)
            if tensor is None or tensor.shape != shape or tensor.dtype != torch.float32:
                got = "nothing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
                raise CheckpointError(
                    str(file),
                    f"must hold float32 numbers of shape {shape} for {name}",
                    got=got.removeprefix("torch."),
                    remedy="use an earlier checkpoint",
                )
            optimizer.state[parameter][key] = tensor.to(parameter.device)


def write_checksums(directory: Path) -> None:
    """Write the checksums of all files of a checkpoint."""
    files = sorted(directory.iterdir())
    content = "".join(f"{_sha256(file)}  {file.name}\n" for file in files)
    (directory / CHECKSUMS_FILE).write_text(content, encoding="utf-8")


def verify_checksums(directory: Path, names: Collection[str] | None = None) -> Problem | None:
    """Return what is wrong with files of a checkpoint, or None if they are as they were saved.

    Without `names`, verify all files that a training resumes from.
    """
    where = str(directory)
    if not directory.is_dir():
        return Problem(where, "does not exist")
    file = directory / CHECKSUMS_FILE
    try:
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else None
    except (OSError, ValueError):
        lines = None
    if lines is None:
        return Problem(where, f"is incomplete: {CHECKSUMS_FILE} is missing or damaged")
    checksums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    if names is None:
        present = (file.name for file in directory.glob("*.safetensors"))
        names = sorted({*RESUME_FILES, *checksums, *present})
    for name in names:
        try:
            if _sha256(directory / name) != checksums.get(name):
                return Problem(where, f"is damaged: {name} does not match its checksum")
        except FileNotFoundError:
            return Problem(where, f"is incomplete: {name} is missing")
        except (OSError, ValueError) as error:
            return Problem(where, f"is damaged: {name} cannot be read", got=str(error))
    return _invalid_state(directory) if STATE_FILE in names else None


def check_intact(directory: Path, remedy: str) -> None:
    """Refuse a checkpoint whose weights are not those that were saved."""
    problem = verify_checksums(directory, INFERENCE_FILES)
    if problem is not None:
        where, what = problem.where, problem.what
        raise CheckpointError(where, what, got=problem.got, remedy=remedy)


def _invalid_state(directory: Path) -> Problem | None:
    """Return what is wrong with the values of a state.json whose checksum is right."""
    try:
        load_progress(directory)
    except NewerFormatError:
        # Not damaged: reading the state raises an error that says to upgrade.
        return None
    except CheckpointError as error:
        return error.problems[0]
    return None


def _sha256(file: Path) -> str:
    if file.exists() and not file.is_file():
        # A pipe or a device may never end.
        raise ValueError("no regular file")
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _weights(model: nn.Module) -> dict[str, Tensor]:
    # named_parameters lists a shared weight once, under its first name.
    return {name: weight.detach().contiguous() for name, weight in model.named_parameters()}


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value.contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
