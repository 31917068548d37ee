"""Checkpoints: the weights, the optimiser, and where the run stood, written whole.

A checkpoint is a folder of safetensors and JSON; nothing in it is ever unpickled.
"""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from tformer_cli.config.load import load_config
from tformer_cli.config.schema import Config
from tformer_cli.errors import CheckpointError
from tformer_cli.model.seq2seq import Seq2Seq, build_model
from tformer_cli.run_directory import RunDirectory, whole_directory
from tformer_cli.text.tokenizer import Tokenizers, load_tokenizers

FORMAT_VERSION = 1
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingState:
    """Where a run stood when a checkpoint was taken.

    Attributes:
        step: optimiser steps taken.
        epoch: epoch of the next batch.
        batch: place of the next batch in that epoch.
        best_step: step of the best checkpoint so far, or None before the first validation.
        best_score: its validation BLEU or negative validation loss.
        num_tokens: target tokens trained on.
        seconds: time spent in optimiser steps.
        data_fingerprint: hash of the training examples and of the tokenizers that made them.
        environment: torch version, threads and device; a resumed run is exact when they agree.
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
    format_version: int = FORMAT_VERSION


def save_checkpoint(
    directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: TrainingState
) -> None:
    """Write a checkpoint folder: it is there as a whole, or not at all."""
    with whole_directory(directory) as folder:
        save_file(_weights(model), folder / MODEL_FILE)
        save_file(_optimizer_tensors(model, optimizer), folder / OPTIMIZER_FILE)
        content = json.dumps(dataclasses.asdict(state), indent=2) + "\n"
        (folder / STATE_FILE).write_text(content, encoding="utf-8")


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
        return TrainingState(**content)
    except FileNotFoundError:
        raise CheckpointError(
            str(file), "no such file", remedy="name another checkpoint, or train with --fresh"
        ) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(
            str(file), "is damaged", got=str(error), remedy="use an earlier checkpoint"
        ) from None


def load_weights(directory: Path, model: nn.Module) -> None:
    """Read the weights of a checkpoint into a model of the same shape.

    Raises:
        CheckpointError: the file is missing or cut short, or holds another model.
    """
    file = directory / MODEL_FILE
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
        CheckpointError: the file is missing or cut short.
    """
    parameters = dict(model.named_parameters())
    for name, tensor in _read_tensors(directory / OPTIMIZER_FILE):
        parameter_name, _, key = name.rpartition("/")
        parameter = parameters[parameter_name]
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


def _weights(model: nn.Module) -> dict[str, Tensor]:
    # named_parameters lists a shared weight once, under its first name.
    return {name: weight.detach().contiguous() for name, weight in model.named_parameters()}


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value.contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


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
