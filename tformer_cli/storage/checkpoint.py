"""Checkpoints and the tensors in them: saved atomically with checksums, verified, and loaded."""

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from tformer_cli.errors import CheckpointError, NewerFormatError, Problem
from tformer_cli.model.blocks.feedforward import current_weight_name
from tformer_cli.storage.atomic import atomic_directory, check_regular, file_checksum, parse_json
from tformer_cli.storage.run_directory import (
    CHECKSUMS_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    RAW_MODEL_FILE,
    STATE_FILE,
)
from tformer_cli.storage.state import TrainingProgress, load_progress, save_progress

# The files that a training resumes from, and those that inference needs.
RESUME_FILES = (MODEL_FILE, OPTIMIZER_FILE, STATE_FILE)
INFERENCE_FILES = (MODEL_FILE, STATE_FILE)
# Optimizer state of a parameter: that of Adam and AdamW, and that of a matrix under Muon.
ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")
MUON_STATE = ("momentum",)
WEIGHT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# safetensors writes metadata entries in any order, so one entry holds all notes.
NOTES = "tformer"
RESTORE_CONFIG = "restore the config.yaml that the run was trained with"
ANOTHER_CHECKPOINT = "use another checkpoint"


def save_checkpoint(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    progress: TrainingProgress,
    *,
    ema: nn.Module | None = None,
) -> None:
    """Write a checkpoint folder atomically; `ema` is the moving average of the weights.

    Without `optimizer` it is for inference alone.
    """
    with atomic_directory(directory) as folder:
        save_tensors(_weights(ema or model), folder / MODEL_FILE)
        if ema is not None:
            save_tensors(_weights(model), folder / RAW_MODEL_FILE)
        if optimizer is not None:
            save_tensors(_optimizer_tensors(model, optimizer), folder / OPTIMIZER_FILE)
        save_progress(progress, folder)
        write_checksums(folder)


def load_weights(directory: Path, model: nn.Module, file_name: str = MODEL_FILE) -> None:
    """Read the weights in a file of a checkpoint into a model; refuse those of another model."""
    file = directory / file_name
    parameters = dict(model.named_parameters())
    stored = dict(read_tensors(file))
    differing = parameters.keys() ^ stored.keys() or [
        name for name in parameters if parameters[name].shape != stored[name].shape
    ]
    if differing:
        raise CheckpointError(
            str(file),
            f"differs in {len(differing)} of its weights from the model that config.yaml describes",
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
    """Read the optimizer state of a checkpoint; refuse that of another model or optimizer."""
    file = directory / OPTIMIZER_FILE
    stored = dict(read_tensors(file))
    parameters = dict(model.named_parameters())
    for name in stored:
        if name.rpartition("/")[0] not in parameters:
            what = "belongs to another model than config.yaml describes"
            raise CheckpointError(str(file), what, got=name, remedy=RESTORE_CONFIG)
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
    content = "".join(f"{file_checksum(file)}  {file.name}\n" for file in files)
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
        check_regular(file)
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return Problem(where, f"is incomplete: {CHECKSUMS_FILE} is missing or damaged")
    checksums = {name: checksum for checksum, _, name in (line.partition("  ") for line in lines)}
    if names is None:
        present = (file.name for file in directory.glob("*.safetensors"))
        names = sorted({*RESUME_FILES, *checksums, *present})
    for name in names:
        try:
            if file_checksum(directory / name) != checksums.get(name):
                return Problem(where, f"is damaged: {name} does not match its checksum")
        except FileNotFoundError:
            return Problem(where, f"is incomplete: {name} is missing")
        except (OSError, ValueError) as error:
            return Problem(where, f"is damaged: {name} cannot be read", got=str(error))
    try:
        # Its checksum may be right and its values invalid.
        if STATE_FILE in names:
            load_progress(directory)
    except NewerFormatError:
        # Not damaged: reading the state again raises an error that says to upgrade.
        return None
    except CheckpointError as error:
        return error.problems[0]
    return None


def check_intact(directory: Path, remedy: str) -> None:
    """Refuse a checkpoint whose weights are not those that were saved."""
    problem = verify_checksums(directory, INFERENCE_FILES)
    if problem is not None:
        raise CheckpointError(problem.where, problem.what, got=problem.got, remedy=remedy)


def save_tensors(
    tensors: dict[str, Tensor], file: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors by name; with at most one entry of metadata, equal content gives equal bytes.

    Raises OSError if the system refuses to write.
    """
    file.touch()
    mode = file.stat().st_mode
    try:
        save_file(tensors, file, metadata)
    except SafetensorError as error:
        # safetensors turns the system's error into words: "... (os error 28)".
        match = re.search(r"os error (\d+)", str(error))
        if match is None:
            raise
        raise OSError(int(match[1]), os.strerror(int(match[1])), str(file)) from error
    # safetensors replaces the file by one that only its owner may read.
    file.chmod(mode)


def read_tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a file by name."""
    with _reading(file), safe_open(file, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a mapping
            yield current_weight_name(name), tensors.get_tensor(name)


def metadata_of(notes: Mapping[str, str]) -> dict[str, str]:
    """Return notes as file metadata, which `read_notes` reads back."""
    return {NOTES: json.dumps(notes, sort_keys=True)}


def read_notes(file: Path) -> dict[str, str]:
    """Return the notes in a file of tensors; none if another program wrote it."""
    with _reading(file), safe_open(file, framework="pt") as tensors:
        metadata = tensors.metadata() or {}
    try:
        notes = parse_json(metadata.get(NOTES, "{}"))
    except ValueError:
        return {}
    return {key: str(value) for key, value in notes.items()} if isinstance(notes, dict) else {}


def check_dtypes(file: Path, weights: Mapping[str, Tensor], remedy: str) -> None:
    """Refuse weights that are not floating-point numbers of a width that torch computes with."""
    others = [name for name, weight in weights.items() if weight.dtype not in WEIGHT_DTYPES]
    if others:
        what = f"holds {len(others)} of its weights in an unsupported dtype"
        dtype = str(weights[min(others)].dtype).removeprefix("torch.")
        raise CheckpointError(str(file), what, got=f"{dtype} for {min(others)}", remedy=remedy)


def check_finite(file: Path, weights: Mapping[str, Tensor], remedy: str) -> None:
    """Refuse weights with an infinity or NaN."""
    others = [name for name, weight in weights.items() if not torch.isfinite(weight).all()]
    if others:
        what = f"holds numbers that are not finite in {len(others)} of its weights"
        raise CheckpointError(str(file), what, got=min(others), remedy=remedy)


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Raise CheckpointError where a file of tensors cannot be read."""
    try:
        check_regular(file)
        yield
    except FileNotFoundError:
        raise CheckpointError(str(file), "no such file", remedy="name another checkpoint") from None
    except (SafetensorError, OSError, ValueError) as error:
        what = "is damaged or cut short"
        raise CheckpointError(str(file), what, got=str(error), remedy=ANOTHER_CHECKPOINT) from None


def _weights(model: nn.Module) -> dict[str, Tensor]:
    # named_parameters lists a shared weight once, under its first name.
    return {name: weight.detach().contiguous() for name, weight in model.named_parameters()}


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value.contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
