"""Checkpoints and the tensors in them: saved atomically with checksums, and loaded."""

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from tformer_cli.distributed import SINGLE_PROCESS, World
from tformer_cli.errors import CheckpointError
from tformer_cli.model.blocks.feedforward import current_weight_name
from tformer_cli.storage.atomic import atomic_directory
from tformer_cli.storage.integrity import (
    ANOTHER_CHECKPOINT,
    RESTORE_CONFIG,
    trained_weights,
    verify_trained_weights,
    write_checksums,
)
from tformer_cli.storage.notes import tensor_file_errors
from tformer_cli.storage.run_directory import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    RAW_MODEL_FILE,
)
from tformer_cli.storage.state import TrainingProgress, save_progress

# Optimizer state of a parameter: that of Adam and AdamW, and that of a matrix under Muon.
ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")
MUON_STATE = ("momentum",)
WEIGHT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Moment(NamedTuple):
    """A float32 tensor of optimizer state."""

    name: str  # in a checkpoint
    parameter: nn.Parameter
    key: str  # in the state of the parameter
    shape: torch.Size
    owner: int  # rank of the process that keeps it
    tensor: Tensor | None  # None where it is not kept

    def broadcast(self, world: World, source: int) -> Tensor:
        """Return the tensor of one rank, on the device of the parameter, to all processes."""
        device = self.parameter.device
        if self.tensor is None:
            assert world.rank != source, self.name
            tensor = torch.empty(self.shape, device=device)
        else:
            tensor = self.tensor.to(device).contiguous()
        # It waits longer than NCCL for a process that reads or writes a file between two tensors.
        world.barrier()
        world.broadcast([tensor], source)
        return tensor


def optimizer_moments(
    model: nn.Module, optimizer: torch.optim.Optimizer, world: World = SINGLE_PROCESS
) -> list[Moment]:
    """Return the state that an optimizer has after a step, of all processes, in order of names.

    Frozen parameters have none, and no owner.
    """
    keys = {
        parameter: MUON_STATE if "momentum" in group else ADAM_STATE
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    names, parameters = zip(*trained, strict=True)
    moments = [
        Moment(
            f"{name}/{key}",
            parameter,
            key,
            torch.Size() if key == "step" else parameter.shape,
            owner,
            optimizer.state.get(parameter, {}).get(key),
        )
        for name, parameter, owner in zip(names, parameters, world.owners(parameters), strict=True)
        for key in keys[parameter]
    ]
    return sorted(moments, key=lambda moment: moment.name)


def save_checkpoint(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    progress: TrainingProgress,
    *,
    average: nn.Module | None = None,
    world: World = SINGLE_PROCESS,
) -> None:
    """Write a checkpoint folder atomically; `average` is one of the weights, to translate with.

    Without `optimizer` it is for inference alone. Of several processes the first writes, and the
    others send it the optimizer state that they own, a tensor at a time.
    """
    moments = []
    # Before the first step there is no optimizer state.
    if optimizer is not None and progress.step > 0:
        moments = optimizer_moments(model, optimizer, world)
    tensors = (moment.broadcast(world, moment.owner) for moment in moments)
    if not world.is_main_process:
        for _ in tensors:
            pass
        return
    with atomic_directory(directory) as folder:
        save_tensors(_weights(average or model), folder / MODEL_FILE)
        if average is not None:
            save_tensors(_weights(model), folder / RAW_MODEL_FILE)
        if optimizer is not None:
            shapes = {moment.name: moment.shape for moment in moments}
            stream_tensors(shapes, tensors, folder / OPTIMIZER_FILE)
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
    """Set each weight of a model to its mean over several checkpoints.

    It is a mean of the weights that were trained, whatever averages lie beside them.
    """
    for directory in directories:
        problem = verify_trained_weights(directory)
        if problem is not None:
            remedy = "train on for another one, or average fewer"
            raise CheckpointError(problem.where, problem.what, got=problem.got, remedy=remedy)
    first, *others = map(trained_weights, directories)
    load_weights(first.parent, model, first.name)
    average_with(others, model)


@torch.no_grad()
def average_with(files: Sequence[Path], model: nn.Module) -> None:
    """Set each weight of a model on the CPU to the mean of itself and of those in some files."""
    sums = [weight.to(torch.float64, copy=True) for weight in model.parameters()]
    for file in files:
        load_weights(file.parent, model, file.name)
        for total, weight in zip(sums, model.parameters(), strict=True):
            total += weight
    for total, weight in zip(sums, model.parameters(), strict=True):
        weight.copy_(total / (1 + len(files)))


def load_optimizer(directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Read the optimizer state of a checkpoint; refuse that of another model or optimizer.

    That of all processes is mapped into main memory, where it takes no room before it is used.
    """
    file = directory / OPTIMIZER_FILE
    stored = dict(read_tensors(file))
    parameters = dict(model.named_parameters())
    for name in stored:
        if name.rpartition("/")[0] not in parameters:
            what = "belongs to another model than config.yaml describes"
            raise CheckpointError(str(file), what, got=name, remedy=RESTORE_CONFIG)
    for moment in optimizer_moments(model, optimizer):
        tensor = stored.get(moment.name)
        if tensor is None or tensor.shape != moment.shape or tensor.dtype != torch.float32:
            got = "nothing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
            raise CheckpointError(
                str(file),
                f"must hold float32 numbers of shape {tuple(moment.shape)} for {moment.name}",
                got=got.removeprefix("torch."),
                remedy="use an earlier checkpoint",
            )
        optimizer.state[moment.parameter][moment.key] = tensor


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


def stream_tensors(
    shapes: Mapping[str, Sequence[int]], tensors: Iterable[Tensor], file: Path
) -> None:
    """Write float32 tensors one by one, by names in order, to the bytes that `save_tensors` writes.

    Raises OSError if the system refuses to write.
    """
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * torch.float32.itemsize
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            stream.write(tensor.cpu().numpy().data)


def read_tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a file by name."""
    with tensor_file_errors(file), safe_open(file, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a mapping
            yield current_weight_name(name), tensors.get_tensor(name)


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


def _weights(model: nn.Module) -> dict[str, Tensor]:
    # named_parameters lists a shared weight once, under its first name.
    return {name: weight.detach().contiguous() for name, weight in model.named_parameters()}
