"""The same training in several processes: begun with what the first one has, and compared."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict

import torch

from tformer_cli.config.schema.config import Config, leaves
from tformer_cli.distributed import World
from tformer_cli.errors import TrainingError
from tformer_cli.model.network import Network
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.training.ema import MovingAverage
from tformer_cli.training.step import TrainState

# Of a hash, for messages.
HASH_DIGITS = 16


class Replicas:
    """The weights, their average and the moments of a training, in each of its processes."""

    def __init__(self, train_state: TrainState, average: MovingAverage | None) -> None:
        """Serve one of the processes.

        Args:
            train_state: the model and its optimizer, and the processes.
            average: of the model, where there is one.
        """
        self.world = train_state.world
        self.model = train_state.model
        self.optimizer = train_state.optimizer
        self.average = average

    def share(self, state: TrainingProgress) -> TrainingProgress:
        """Give every process what the first one has.

        Args:
            state: where the training stands, which the first process decides.

        Returns:
            The state of the first process.
        """
        if self.world.size == 1:
            return state
        models = [self.model] if self.average is None else [self.model, self.average.model]
        for model in models:
            self.world.broadcast(weight.detach() for weight in model.parameters())
        self._share_moments()
        return TrainingProgress.from_dict(self.world.broadcast_object(asdict(state)))

    def _share_moments(self) -> None:
        moments = self.optimizer.state
        if not self.world.is_main_process:
            moments.clear()
        parameters = list(self.model.parameters())
        # Before the first step there are none, and matrices may have others than the rest.
        layout = self.world.broadcast_object(
            [
                [place, key, str(moment.dtype).removeprefix("torch."), list(moment.shape)]
                for place, parameter in enumerate(parameters)
                for key, moment in moments.get(parameter, {}).items()
            ]
        )
        for place, key, dtype, shape in layout:
            parameter = parameters[place]
            if not self.world.is_main_process:
                moments[parameter][key] = torch.empty(
                    shape, dtype=getattr(torch, dtype), device=parameter.device
                )
            self.world.broadcast([moments[parameter][key]])

    def check(self, state: TrainingProgress) -> None:
        """Make sure that all processes have come to the same step with the same weights.

        Raises:
            TrainingError: they have not.
        """
        if self.world.size == 1:
            return
        facts = {
            "the step": str(state.step),
            "the epoch": str(state.data_position[0]),
            "the batch": str(state.data_position[1]),
            "the checksum of the weights": checksum(self.model),
        }
        remedy = (
            "give all machines the same program and kind of processor, and run the same command "
            "again: it goes on from the last checkpoint"
        )
        _check_agreement(self.world, facts, remedy)


def check_alike(world: World, config: Config, beginning: TrainingProgress) -> None:
    """Make sure that all processes were given the same config and text.

    Args:
        world: the processes.
        config: of this one.
        beginning: where its training would begin.

    Raises:
        TrainingError: they were not.
    """
    facts = {
        # Paths may differ from machine to machine; of the text, what became of it is compared.
        **{
            key: str(value)
            for key, value in leaves(config)
            if not key.startswith("data.") and key != "training.init_from"
        },
        "the number format": beginning.environment["precision"],
        "the training text": beginning.data_fingerprint[:HASH_DIGITS],
        "the validation text": beginning.validation_fingerprint[:HASH_DIGITS],
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
    """Make sure that all processes say the same; where one does not, all of them raise it.

    Args:
        world: the processes.
        facts: what this one says, by name.
        remedy: for messages.

    Raises:
        TrainingError: one says something else than the first.
    """
    first, *others = (json.loads(line) for (line,) in world.gather([json.dumps(dict(facts))]))
    for rank, own in enumerate(others, start=1):
        for name in {**first, **own}:
            known, got = first.get(name, "nothing"), own.get(name, "nothing")
            if got != known:
                raise TrainingError(
                    f"rank {rank}",
                    f"{name} differs from that of rank 0 ({known})",
                    got=got,
                    remedy=remedy,
                )
