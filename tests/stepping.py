"""Something happens in the middle of a training."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tformer_cli.corpus.bucketing import DataPosition, training_micro_batches
from tformer_cli.training import setup
from tformer_cli.training import trainer as run_module
from tformer_cli.training.step import train_steps


def on_step(patch: pytest.MonkeyPatch, step: int, action: Callable[[], object]) -> None:
    """Do something when a step has been taken, before anybody hears of it."""

    def acting(*arguments: object, **options: object):
        for taken in train_steps(*arguments, **options):
            if taken.step == step:
                action()
            yield taken

    patch.setattr(run_module, "train_steps", acting)


def poison(patch: pytest.MonkeyPatch, is_bad: Callable[[DataPosition], bool]) -> None:
    """Let the loss be a division by zero where a position in the data is bad."""

    def poisoned(*text: Any, data_position: DataPosition, **options: Any):
        position = data_position
        for batches, following in training_micro_batches(
            *text, data_position=data_position, **options
        ):
            if is_bad(position):
                yield [replace(batch, num_target_tokens=0) for batch in batches], following
            else:
                yield batches, following
            position = following

    patch.setattr(setup, "training_micro_batches", poisoned)
