"""A rehearsal: a training prepared on a sample of its text, in a folder that goes with it."""

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tformer_cli.config.load import check_data_files, dump_config, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.corpus.pipeline import evaluation_store
from tformer_cli.corpus.reader import read_rows
from tformer_cli.device import is_out_of_memory
from tformer_cli.distributed import num_processes
from tformer_cli.errors import TrainingError, UsageError
from tformer_cli.process import tune_allocator
from tformer_cli.storage.atomic import write_text
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.subword import reservoir_sample
from tformer_cli.text.tokenizer import load_tokenizers
from tformer_cli.training.lock import check_ours
from tformer_cli.training.logging import TrainingLogger
from tformer_cli.training.out_of_memory import memory_shortage_reported
from tformer_cli.training.preparation import Preparation, prepare
from tformer_cli.training.pretrained import PretrainedRun
from tformer_cli.training.step import NonFiniteStep, StepBatch, StepReport, train_steps
from tformer_cli.training.termination import clearing_up
from tformer_cli.training.tokenizers import run_tokenizers
from tformer_cli.training.validation import check_metric, check_validation
from tformer_cli.training.worst_batch import Shape, worst_case_shapes, worst_case_store

SAMPLE_PAIRS = 20_000


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A training prepared on a sample of its text.

    Attributes:
        run: its run folder, with the config and the tokenizers; there is no other trace of it.
        prepared: the training.
        num_pairs: of the whole training text.
        log: tells the user something.
    """

    run: RunDirectory
    prepared: Preparation
    num_pairs: int
    log: Callable[[str], object]

    @property
    def share(self) -> float:
        """How much of the training text is in the sample."""
        return self.prepared.report.seen / self.num_pairs


class OutOfMemory(Exception):
    """A step needs more memory than there is."""


@contextlib.contextmanager
def rehearsal(config: Config, run: RunDirectory, *, device: torch.device) -> Iterator[Rehearsal]:
    """Read all files of a training, and prepare it without a trace in its run folder.

    The tokenizers are those that the run has, where they are the ones that the config builds.

    Args:
        config: of the training.
        run: where it would take place.
        device: likewise.

    Raises:
        TformerError: what would keep the training from beginning.
        Interrupted: SIGTERM came.
    """
    _check_alone(config)
    check_data_files(config.data)
    check_metric(config)
    check_ours(run)
    tune_allocator()
    with (
        clearing_up(str(run.path)),
        tempfile.TemporaryDirectory(prefix="tformer-") as folder,
    ):
        temporary = RunDirectory(Path(folder) / "run")
        with TrainingLogger(temporary, config.training) as logger:
            sampled, num_pairs = _sampled(config, Path(folder) / "sample")
            tokenizers = run_tokenizers(
                config, run, logger, stores=temporary.stores, has_begun=False, fresh=False
            )
            tokenizers.save(temporary.tokenizer)
            write_text(temporary.config_file, dump_config(sampled))
            if sampled != config:
                logger.log(f"{num_pairs:,} {config.data.unit}s in all; this is a sample of them:")
            with memory_shortage_reported(str(device)):
                prepared = prepare(
                    sampled, tokenizers, stores=temporary.stores, device=device, log=logger.log
                )
            pretrained = PretrainedRun.of(config, run)
            if pretrained is not None:
                pretrained.load_into(prepared.model, config, logger.log)
            check_validation(prepared.model, tokenizers, config, logger.log)
            for text in config.data.test.values():
                evaluation_store(text, tokenizers, max_length=prepared.model.max_length)
            yield Rehearsal(temporary, prepared, num_pairs, logger.log)


def prepared_again(run: RunDirectory, device: torch.device) -> Preparation:
    """Return what a rehearsal has prepared in its run folder, in another process."""
    return prepare(
        load_config(run.config_file),
        load_tokenizers(run.tokenizer),
        stores=run.stores,
        device=device,
        log=lambda line: None,
    )


def take_worst_case_steps(
    prepared: Preparation, batch_tokens: int, count: int
) -> dict[Shape, StepReport]:
    """Take some steps at each of the batches that may cost most memory.

    Args:
        prepared: what takes them; it has learnt from random tokens afterwards.
        batch_tokens: the budget, in place of that of the config.
        count: steps at each of them.

    Returns:
        What the last step at each of them did.

    Raises:
        OutOfMemory: a batch has to be cut.
        TrainingError: loss or gradient is no number.
    """
    config = prepared.config
    training = replace(config.training, batch_tokens=batch_tokens)
    last = {}
    for shape in worst_case_shapes(training, config.data.filters.max_length):
        text = worst_case_store(shape, prepared.tokenizers, config.seed)
        worst = replace(prepared, config=replace(config, training=training), store=text)
        *_, last[shape] = take_steps(worst, count)
    return last


def take_steps(prepared: Preparation, count: int) -> Iterator[StepReport]:
    """Take the first steps of a training.

    Raises:
        OutOfMemory: a batch has to be cut.
        TrainingError: loss or gradient is no number.
    """
    with contextlib.closing(prepared.groups(prepared.beginning())) as groups:
        for taken in _sufficing(prepared, itertools.islice(groups, count)):
            if isinstance(taken, NonFiniteStep):
                raise TrainingError(
                    f"step {taken.step}",
                    "loss or gradient is no number at the very beginning",
                    got=f"loss {taken.loss}, gradient norm {taken.grad_norm}",
                    remedy="lower training.optimizer.learning_rate, "
                    "or use training.precision: float32",
                )
            if taken.num_pieces > 0:
                raise OutOfMemory
            if prepared.average is not None:
                prepared.average.update(prepared.model, taken.step)
            yield taken


def _check_alone(config: Config) -> None:
    """See to it that torchrun has not started several processes.

    Raises:
        UsageError: it has.
    """
    size = num_processes()
    if size > 1:
        raise UsageError(
            "torchrun",
            "trainings are rehearsed by one process",
            got=f"{size} processes",
            remedy="without torchrun, a process takes as much memory as each of them with "
            "training.gradient_accumulation_steps="
            f"{size * config.training.gradient_accumulation_steps}",
        )


def _sufficing(
    prepared: Preparation, groups: Iterable[StepBatch]
) -> Iterator[StepReport | NonFiniteStep]:
    """Take steps as a training does, but for what it does when memory runs out."""
    try:
        yield from train_steps(prepared.train_state, groups, 1)
    except (RuntimeError, MemoryError, TrainingError) as error:
        # The loop's own error: not even one pair fits.
        if not (isinstance(error, TrainingError) or is_out_of_memory(error)):
            raise
    else:
        return
    # Out here the error has gone, and with it the tensors that its traceback kept alive.
    prepared.train_state.optimizer.zero_grad(set_to_none=True)
    raise OutOfMemory


def _sampled(config: Config, folder: Path) -> tuple[Config, int]:
    """Return the config with a sample of its training text, and the number of all pairs.

    A text that is no larger than a sample stays what it is. All lines are read, and so checked.
    """
    data, num_pairs = config.data, 0

    def pairs() -> Iterator[tuple[int, tuple[str, ...]]]:
        nonlocal num_pairs
        for number, text in enumerate(data.train):
            for pair in read_rows(text):
                num_pairs += 1
                yield number, pair

    sample = reservoir_sample(pairs(), SAMPLE_PAIRS, config.seed)
    if num_pairs <= SAMPLE_PAIRS:
        return config, num_pairs
    texts = []
    for number, text in enumerate(data.train):
        chosen = [pair for place, pair in sample if place == number]
        files: dict[str, Any] = {side: folder / f"{number}.{side}" for side in text.files}
        for place, file in enumerate(files.values()):
            write_text(file, "".join(f"{pair[place]}\n" for pair in chosen))
        texts.append(replace(text, **files))
    return replace(config, data=replace(data, train=tuple(texts))), num_pairs
