"""Checkpoints: the weights, the optimiser and where the run stood, written whole and read back."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from tformer_cli.errors import CheckpointError
from tformer_cli.storage.atomic import atomic_directory
from tformer_cli.storage.integrity import check_intact, write_checksums
from tformer_cli.storage.run_directory import MODEL_FILE, OPTIMIZER_FILE, RAW_MODEL_FILE
from tformer_cli.storage.state import TrainingProgress, save_state
from tformer_cli.storage.tensors import check_dtypes, check_finite, read_tensors, save_tensors

# What an optimiser keeps of each parameter: Adam and AdamW, and Muon of matrices.
ADAM_SLOTS = ("step", "exp_avg", "exp_avg_sq")
MUON_SLOTS = ("momentum",)


def save_checkpoint(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: TrainingProgress,
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
    with atomic_directory(directory) as folder:
        if average is None:
            save_tensors(_weights(model), folder / MODEL_FILE)
        else:
            save_tensors(_weights(average), folder / MODEL_FILE)
            save_tensors(_weights(model), folder / RAW_MODEL_FILE)
        save_tensors(_optimizer_tensors(model, optimizer), folder / OPTIMIZER_FILE)
        save_state(state, folder)
        write_checksums(folder)


def save_average(directory: Path, model: nn.Module, state: TrainingProgress) -> None:
    """Write a checkpoint to translate with, that no training goes on from."""
    with atomic_directory(directory) as folder:
        save_tensors(_weights(model), folder / MODEL_FILE)
        save_state(state, folder)
        write_checksums(folder)


def load_weights(directory: Path, model: nn.Module, file_name: str = MODEL_FILE) -> None:
    """Read the weights of a checkpoint into a model of the same shape.

    Args:
        directory: the checkpoint.
        model: what is to have them.
        file_name: of the weights to translate with, or those that a training goes on from.

    Raises:
        CheckpointError: the file is missing or cut short, holds another model, or one whose
            weights are not all finite floating-point numbers, which translates nothing.
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
            remedy="restore the config.yaml that the run was trained with",
        )
    check_dtypes(file, stored, "use another checkpoint")
    check_finite(file, stored, "use another checkpoint")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(stored[name])


def load_average(directories: Sequence[Path], model: nn.Module) -> None:
    """Let every weight of a model be its mean over several checkpoints.

    Raises:
        CheckpointError: one of them is missing, damaged or of another model.
    """
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
    """Read the optimiser's moments.

    Raises:
        CheckpointError: the file is missing or cut short, belongs to another model, or lacks a
            moment of a parameter or has one in another shape or number format.
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
                remedy="restore the config.yaml that the run was trained with",
            )
    slots = {
        parameter: MUON_SLOTS if "momentum" in group else ADAM_SLOTS
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    learnt = {name: one for name, one in parameters.items() if one.requires_grad}
    for parameter_name, parameter in learnt.items():
        for slot in slots[parameter]:
            name = f"{parameter_name}/{slot}"
            shape = () if slot == "step" else tuple(parameter.shape)
            tensor = stored.get(name)
            if tensor is None or tensor.shape != shape or tensor.dtype != torch.float32:
                got = "nothing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
                raise CheckpointError(
                    str(file),
                    f"must hold float32 numbers of shape {shape} for {name}",
                    got=got.removeprefix("torch."),
                    remedy="use an earlier checkpoint",
                )
            optimizer.state[parameter][slot] = tensor.to(parameter.device)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    # named_parameters lists a shared weight once, under its first name.
    return {name: weight.detach().contiguous() for name, weight in model.named_parameters()}


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value.contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
