"""Processes that train together: they get the state of rank 0, and check that they agree."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict

import torch

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.fields import leaves
from tformer_cli.distributed import World
from tformer_cli.errors import TrainingError
from tformer_cli.model.network import Network
from tformer_cli.storage.checkpoint import optimizer_moments
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.training.step import TrainState

# Of a hash, in messages.
HASH_DIGITS = 16


def broadcast_state(state: TrainState) -> None:
    """Give every process the weights, EMA and progress of rank 0, and the moments that it owns."""
    world = state.world
    # It waits longer than NCCL for rank 0, which may read a large checkpoint.
    world.barrier()
    models = [state.model] if state.ema is None else [state.model, state.ema.model]
    for model in models:
        world.broadcast(weight.detach() for weight in model.parameters())
    state.progress = TrainingProgress.from_dict(world.broadcast_object(asdict(state.progress)))
    state.start_phase(state.step)
    optimizer = state.optimizer
    moments = optimizer_moments(state.model, optimizer, world) if state.step > 0 else []
    optimizer.state.clear()
    for moment in moments:
        tensor = moment.broadcast(world, 0)
        if moment.owner == world.rank:
            optimizer.state[moment.parameter][moment.key] = tensor


def check_replicas(state: TrainState) -> None:
    """Refuse processes that are at another step or have other weights than rank 0."""
    if state.world.size == 1:
        return
    facts = {
        "the step": str(state.step),
        "the epoch": str(state.data_position.epoch),
        "the batch": str(state.data_position.batch),
        "the checksum of the weights": checksum(state.model),
    }
    remedy = (
        "give all machines the same program and kind of processor, and re-run the command to "
        "resume from the last checkpoint"
    )
    _check_agreement(state.world, facts, remedy)


def check_inputs_agree(world: World, config: Config, initial: TrainingProgress) -> None:
    """Refuse processes that have another config or text than rank 0.

    Paths may differ from machine to machine; the hashes of text are compared.
    """
    facts = {
        key: str(value)
        for key, value in leaves(config)
        if not key.startswith("data.") and key != "training.init_from"
    } | {
        "the number format": initial.environment["precision"],
        "the training text": initial.data_fingerprint[:HASH_DIGITS],
        "the validation text": initial.validation_fingerprint[:HASH_DIGITS],
    }
    _check_agreement(world, facts, "give all machines the same config and text")


def checksum(model: Network) -> str:
    """Return a checksum of the bytes of all weights."""
    total = 0
    for weight in model.parameters():
        content = weight.detach().cpu().contiguous().flatten().view(torch.uint8)
        total = zlib.crc32(content.numpy().data, total)
    return f"{total:08x}"


def _check_agreement(world: World, facts: Mapping[str, str], remedy: str) -> None:
    """Raise in all processes the first fact in which one of them differs from rank 0."""
    first, *others = (json.loads(line) for (line,) in world.gather([json.dumps(dict(facts))]))
    for rank, own in enumerate(others, start=1):
        for name in {**first, **own}:
            expected, got = first.get(name, "nothing"), own.get(name, "nothing")
            if got != expected:
                raise TrainingError(
                    f"rank {rank}",
                    f"{name} differs from rank 0, which has {expected}",
                    got=got,
                    remedy=remedy,
                )
