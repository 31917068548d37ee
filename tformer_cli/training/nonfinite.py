"""What becomes of a training whose loss or gradient is not finite.

The batch is left out, and the weights do not move. `MOST_FAILURES` such batches in a row say that
the weights have gone astray: the training goes back to a checkpoint, leaves out the batches that
failed, and learns `SLOWER` from there on. After `MOST_ROLLBACKS` it gives up.

All of it is a function of the training's state, which checkpoints hold: a run that was killed and
goes on decides what an unbroken one does.
"""

from dataclasses import replace
from typing import Literal

from tformer_cli.corpus.bucketing import DataPosition
from tformer_cli.storage.state import TrainingProgress

MOST_FAILURES = 3
MOST_ROLLBACKS = 3
SLOWER = 0.5

Verdict = Literal["go on", "roll back", "give up"]


def failed(
    state: TrainingProgress, place: DataPosition, following: DataPosition
) -> TrainingProgress:
    """Return the state behind a batch that was not finite."""
    return replace(
        state,
        data_position=(following.epoch, following.batch),
        skipped_batches=(*state.skipped_batches, (place.epoch, place.batch)),
        num_consecutive_skips=state.num_consecutive_skips + 1,
    )


def verdict(state: TrainingProgress) -> Verdict:
    """Return what to do after a batch that was not finite."""
    if state.num_consecutive_skips < MOST_FAILURES:
        return "go on"
    return "roll back" if state.num_rollbacks < MOST_ROLLBACKS else "give up"


def rolled_back(state: TrainingProgress, saved: TrainingProgress) -> TrainingProgress:
    """Return the state from which to try again.

    Args:
        state: where the training failed.
        saved: where it goes back to.
    """
    return replace(
        saved,
        environment=state.environment,
        skipped_batches=state.skipped_batches,
        learning_rate_factor=state.learning_rate_factor * SLOWER,
        num_rollbacks=state.num_rollbacks + 1,
    )
