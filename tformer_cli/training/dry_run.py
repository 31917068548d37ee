"""What a training will take, measured in steps on a sample of its text before it begins."""

import contextlib
import itertools
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch

from tformer_cli.config.load import check_data_files, dump_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.text import AnyTrainingText, PlainTrainingText, TrainingText
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.corpus.filters import FilterReport
from tformer_cli.corpus.store import TokenStore, build_store
from tformer_cli.corpus.store_builder import evaluation_store
from tformer_cli.corpus.training_text import training_rows
from tformer_cli.device import is_out_of_memory, peak_memory
from tformer_cli.errors import OutOfMemory, TrainingError, UsageError, quantity
from tformer_cli.process import num_processes, tune_allocator
from tformer_cli.storage.atomic import storage_errors, write_text
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.special_tokens import NUM_SPECIAL
from tformer_cli.text.subword import reservoir_sample
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.training.logging import TrainingLogger
from tformer_cli.training.recovery import memory_shortage_reported
from tformer_cli.training.resume import check_run_folder
from tformer_cli.training.setup import Phase, TrainingData, describe_parameters, run_tokenizers
from tformer_cli.training.shutdown import sigterm_raised
from tformer_cli.training.step import NonFiniteStep, StepReport, TrainState, train_steps
from tformer_cli.training.trainer import Trainer
from tformer_cli.training.validation import check_metric, check_validation

SAMPLE_PAIRS = 20_000
WORST_CASE_STEPS = 3
TYPICAL_STEPS = 10


@dataclass(frozen=True, slots=True)
class BatchShape:
    """A batch without padding: pairs, and tokens of each side with a special one."""

    rows: int
    width: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRun:
    """What a training will take."""

    device: str
    precision: str
    num_parameters: int
    num_frozen_parameters: int
    vocabulary_sizes: tuple[int, int]
    unit: str  # pair, or line of a monolingual text
    num_pairs: int
    sample: FilterReport  # what the filters left of the sample
    worst_batch: BatchShape  # the slowest of the batches that may need most memory
    worst_seconds: float
    peak_memory_bytes: int  # of a CUDA device, otherwise of RAM
    tokens_per_second: float
    seconds_per_step: float
    num_steps: int
    num_epochs: float
    num_bidirectional_epochs: float  # of these, each of twice as many pairs
    seconds: float  # of all steps, without validations
    num_checkpoints: int  # at a time, at most
    checkpoint_bytes: int
    store_bytes: int
    disk_bytes: int
    free_disk_bytes: int

    def __str__(self) -> str:
        sizes = " and ".join(f"{size:,}" for size in sorted({*self.vocabulary_sizes}))
        text = self.sample.describe(self.unit)
        if self.sample.seen < self.num_pairs:
            text = f"{quantity(self.num_pairs, self.unit)}; in a sample of {text}"
        epochs = f"{self.num_epochs:.1f} epochs"
        if self.num_bidirectional_epochs > 0:
            epochs += f", the first {self.num_bidirectional_epochs:.1f} in both directions"
        worst = self.worst_batch
        free = f"{_size(self.free_disk_bytes)} are free"
        if self.free_disk_bytes < self.disk_bytes:
            free += ", which is not enough"
        return "\n".join(
            (
                f"model: {describe_parameters(self.num_parameters, self.num_frozen_parameters)}, "
                f"vocabulary {sizes}, on {self.device} in {self.precision}",
                f"training text: {text}",
                f"largest batch: {worst.rows:,} x {worst.width:,} tokens a side, "
                f"{self.worst_seconds:.2f} seconds a step",
                f"peak memory: {_size(self.peak_memory_bytes)}, validations not counted",
                f"speed: {self.tokens_per_second:,.0f} target tokens/s, "
                f"{self.seconds_per_step:.2f} seconds a step",
                f"time: {timedelta(seconds=round(self.seconds))} for "
                f"{quantity(self.num_steps, 'step')} ({epochs}), validations not counted",
                f"disk: {_size(self.disk_bytes)} at most: {self.num_checkpoints} checkpoints "
                f"of {_size(self.checkpoint_bytes)}, encoded text of "
                f"{_size(self.store_bytes)}; {free}",
            )
        )

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def dry_run(config: Config, run: RunDirectory, *, device: torch.device) -> DryRun:
    """Read all files of a training, take some steps, and leave nothing behind."""
    with storage_errors(run.path), tempfile.TemporaryFile(dir=_nearest_folder(run)):
        pass
    with sampled_trainer(config, run, device=device) as (trainer, num_pairs):
        trainer.logger.log("taking steps at the largest batches")
        return _measure(trainer, num_pairs, run)


def _measure(trainer: Trainer, num_pairs: int, run: RunDirectory) -> DryRun:
    data = trainer.data
    state = trainer.state
    training = trainer.config.training
    worst = worst_case_steps(trainer, training.batch_tokens, WORST_CASE_STEPS)
    worst_batch, slowest = max(worst.items(), key=lambda item: item[1].seconds)
    started = time.perf_counter()
    typical = first_steps(trainer, data, TYPICAL_STEPS)
    elapsed = time.perf_counter() - started
    seconds_per_step = elapsed / len(typical)
    share = data.report.seen / num_pairs
    num_bidirectional_epochs = 0.0
    num_bidirectional = training.bidirectional_steps or 0
    if num_bidirectional > 0:
        num_bidirectional_epochs = _num_epochs(data.bidirectional, num_bidirectional, share)
    num_unidirectional = training.max_steps - num_bidirectional
    num_checkpoints = max_checkpoints(training)
    checkpoint_bytes = checkpoint_size(state)
    store = data.store
    arrays = store.source_ids, store.source_offsets, store.target_ids, store.target_offsets
    # A monolingual text has the same arrays on both sides.
    store_bytes = round(sum({id(array): array.nbytes for array in arrays}.values()) / share)
    return DryRun(
        device=str(state.device),
        precision=str(state.precision).removeprefix("torch."),
        num_parameters=state.model.num_parameters(),
        num_frozen_parameters=state.model.num_frozen_parameters(),
        vocabulary_sizes=(trainer.tokenizers.source.size, trainer.tokenizers.target.size),
        unit=trainer.config.data.unit,
        num_pairs=num_pairs,
        sample=data.report,
        worst_batch=worst_batch,
        worst_seconds=slowest.seconds,
        peak_memory_bytes=peak_memory(state.device),
        tokens_per_second=sum(report.num_tokens for report in typical) / elapsed,
        seconds_per_step=seconds_per_step,
        num_steps=training.max_steps,
        num_epochs=num_bidirectional_epochs
        + _num_epochs(data.unidirectional, num_unidirectional, share),
        num_bidirectional_epochs=num_bidirectional_epochs,
        seconds=training.max_steps * seconds_per_step,
        num_checkpoints=num_checkpoints,
        checkpoint_bytes=checkpoint_bytes,
        store_bytes=store_bytes,
        # A finished store is copied, without the pairs that turned out to be duplicates.
        disk_bytes=num_checkpoints * checkpoint_bytes + 2 * store_bytes,
        free_disk_bytes=shutil.disk_usage(_nearest_folder(run)).free,
    )


def _num_epochs(phase: Phase, num_steps: int, share: float) -> float:
    """Return the epochs that steps take, by the plan of a share of the text."""
    # With a weight below one an epoch may have no batch.
    return num_steps * (share / max(1, len(phase.plans[0])))


@contextlib.contextmanager
def sampled_trainer(
    config: Config, run: RunDirectory, *, device: torch.device
) -> Iterator[tuple[Trainer, int]]:
    """Yield a trainer on a sample of the training text, and the number of all pairs.

    All files of the training are read. The trainer's run folder is temporary; `run` stays as it is.
    Its tokenizers are used if the config builds the same.
    """
    size = num_processes()
    if size > 1:
        num_micro_batches = size * config.training.gradient_accumulation_steps
        raise UsageError(
            "torchrun",
            "a dry run is for one process",
            got=f"{size} processes",
            remedy="without torchrun, a process takes as much memory as each of them with "
            f"training.gradient_accumulation_steps={num_micro_batches}",
        )
    # Steps that train tags alone take less memory and time than those after them.
    config = replace(config, training=replace(config.training, tags_first=None))
    check_data_files(config.data)
    check_metric(config)
    check_run_folder(run)
    tune_allocator()
    with (
        sigterm_raised(str(run.path)),
        tempfile.TemporaryDirectory(prefix="tformer-") as folder,
    ):
        temporary = RunDirectory(Path(folder) / "run")
        with TrainingLogger(temporary, config.training) as logger:
            sampled, num_pairs = _sample(config, Path(folder) / "sample")
            tokenizers = run_tokenizers(config, run, logger.log, stores=temporary.stores)
            tokenizers.save(temporary.tokenizer)
            write_text(temporary.config_file, dump_config(sampled))
            if sampled != config:
                logger.log(
                    f"{quantity(num_pairs, config.data.unit)} in all; this is a sample of them:"
                )
            with memory_shortage_reported(str(device)):
                trainer = Trainer.setup(
                    sampled, temporary, tokenizers, device=device, logger=logger
                )
            if config.training.init_from is not None:
                trainer.initialize()
            model = trainer.state.model
            check_validation(model, tokenizers, config, logger.log)
            for text in config.data.test.values():
                tags, target_tags = tokenizers.first_ids(config.data, text)
                evaluation_store(
                    text,
                    tokenizers,
                    max_length=model.max_length,
                    tags=tags,
                    target_tags=target_tags,
                )
            yield trainer, num_pairs


def _sample(config: Config, folder: Path) -> tuple[Config, int]:
    """Return the config with a sample of its training text, and the number of all pairs.

    A text no larger than a sample stays as it is. All lines are read, and so checked.
    """
    data = config.data
    pairs = (
        (number, pair)
        for number, text in enumerate(data.train)
        for pair in training_rows(text, data.direction_of(text), data.held_out)
    )
    sample, num_pairs = reservoir_sample(pairs, SAMPLE_PAIRS, config.seed)
    if num_pairs <= SAMPLE_PAIRS:
        return config, num_pairs
    texts = []
    for number, text in enumerate(data.train):
        chosen = [pair for text_number, pair in sample if text_number == number]
        files = [folder / f"{number}.{side}" for side in range(text.num_sides)]
        for side, file in enumerate(files):
            write_text(file, "".join(f"{pair[side]}\n" for pair in chosen))
        texts.append(_with_lines_of(text, files))
    return replace(config, data=replace(data, train=tuple(texts))), num_pairs


def _with_lines_of(text: AnyTrainingText, files: Sequence[Path]) -> AnyTrainingText:
    """Return a training text with plain files, one a side."""
    if isinstance(text, PlainTrainingText):
        return replace(text, text=files[0])
    return TrainingText(
        source=files[0],
        target=files[1],
        source_language=text.source_language,
        target_language=text.target_language,
        weight=text.weight,
        tags=text.tags,
    )


def worst_case_steps(
    trainer: Trainer, batch_tokens: int, count: int
) -> dict[BatchShape, StepReport]:
    """Take steps of random tokens at each batch that may need most memory; return the last."""
    config = trainer.config
    config = replace(config, training=replace(config.training, batch_tokens=batch_tokens))
    model, last = trainer.state.model, {}
    # A pass with all layers needs most memory.
    model.set_layer_drop(0.0)
    for shape in worst_case_shapes(config.training, config.data.max_length):
        store = worst_case_store(shape, trainer.tokenizers, config.seed)
        data = replace(trainer.data, config=config, store=store)
        last[shape] = first_steps(trainer, data, count)[-1]
    model.set_layer_drop(config.training.layer_drop)
    return last


def worst_case_shapes(training: TrainingConfig, max_length: int) -> list[BatchShape]:
    """Return the batch shapes one of which needs most memory: one or two.

    Memory is a sum of a part that grows with the tokens of a micro-batch and a part that grows with
    the pairs of tokens in attention. Rows are whole, so the widest sentences may leave much of the
    budget unused: the shape of most tokens and that of most pairs can be two. `max_length` does not
    count special tokens.
    """
    # No sentence is empty, so the shortest has two tokens.
    rows = np.arange(1, training.batch_tokens // 2 + 1)
    widths = np.minimum(training.batch_tokens // rows, max_length + 1)
    # The largest micro-batch, as numpy.array_split cuts them.
    tokens = -(-rows // training.gradient_accumulation_steps) * widths
    pairs = tokens * widths
    most = {
        int(np.lexsort((rows, second, first))[-1])
        for first, second in ((tokens, pairs), (pairs, tokens))
    }
    return [BatchShape(int(rows[index]), int(widths[index])) for index in sorted(most)]


def worst_case_store(shape: BatchShape, tokenizers: Tokenizers, seed: int) -> TokenStore:
    """Return random tokens that form one batch of a shape."""
    random = np.random.default_rng(seed)
    size = shape.rows, shape.width - 1
    sources, targets = (
        random.integers(NUM_SPECIAL, side.size, size).tolist()
        for side in (tokenizers.source, tokenizers.target)
    )
    return build_store(zip(sources, targets, strict=True))


def first_steps(trainer: Trainer, data: TrainingData, count: int) -> list[StepReport]:
    """Take the first steps of a training.

    Raises:
        OutOfMemory: a batch had to be cut.
        TrainingError: loss or gradient is not finite.
    """
    state = trainer.state
    steps: list[StepReport | NonFiniteStep] = []
    state.progress = trainer.initial
    is_out = False
    try:
        with contextlib.closing(data.batches(state)) as batches:
            steps += train_steps(state, itertools.islice(batches, count))
    except (RuntimeError, MemoryError, OutOfMemory) as error:
        # The loop raises the last if not even one pair fits.
        is_out = isinstance(error, OutOfMemory) or is_out_of_memory(error)
        if not is_out:
            raise
    reports = []
    for step in steps:
        if isinstance(step, NonFiniteStep):
            raise TrainingError(
                f"step {step.step}",
                "loss or gradient is no number at the very beginning",
                got=f"loss {step.loss}, gradient norm {step.grad_norm}",
                remedy="lower training.optimizer.learning_rate, or use training.precision: float32",
            )
        reports.append(step)
    if is_out or any(report.num_oom_micro_batches > 0 for report in reports):
        # Outside of `except`, where the error and the tensors of its traceback are freed.
        state.optimizer.zero_grad(set_to_none=True)
        raise OutOfMemory(
            "training.batch_tokens",
            "the largest batch does not fit into memory",
            got=str(data.config.training.batch_tokens),
            remedy="lower it (`tformer train --find-batch` says how far), or set "
            "training.gradient_checkpointing: true",
        )
    return reports


def max_checkpoints(training: TrainingConfig) -> int:
    """Return how many checkpoints exist at a time, at most.

    The oldest one is removed after the newest is saved; an interruption may save one more.
    """
    saves = filter(training.saves_at, range(1, training.max_steps + 1))
    # All steps of a long training would take minutes to count.
    num_kept = len(
        list(itertools.islice(saves, training.keep_checkpoints + training.keep_best + 1))
    )
    return num_kept + 1


def checkpoint_size(state: TrainState) -> int:
    """Return the bytes of the tensors in a checkpoint, after at least one step."""
    weights = sum(weight.nbytes for weight in state.model.parameters())
    moments = sum(x.nbytes for slots in state.optimizer.state.values() for x in slots.values())
    has_average = state.ema is not None or state.config.average_checkpoints is not None
    return weights * (2 if has_average else 1) + int(moments)


def _nearest_folder(run: RunDirectory) -> Path:
    """Return the run folder, or the nearest folder above it that exists."""
    path = run.path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _size(num_bytes: int) -> str:
    if num_bytes < 2**30:
        return f"{num_bytes / 2**20:,.1f} MiB"
    return f"{num_bytes / 2**30:,.1f} GiB"
