"""Something happens in the middle of a training."""

from collections.abc import Callable

import pytest

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
