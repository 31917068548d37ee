"""What a training is set up from: the tokenizers, the encoded training text, and the model."""

import base64
import functools
import itertools
import os
import tempfile
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from tformer_cli.config.load import as_plain, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.model import MaskedEncoderConfig, ModelConfig
from tformer_cli.corpus.bucketing import (
    DataPosition,
    EpochPlans,
    epoch_plans,
    training_micro_batches,
)
from tformer_cli.corpus.filters import FilterReport
from tformer_cli.corpus.noise import ExampleNoise, Masking
from tformer_cli.corpus.prefetch import prefetch
from tformer_cli.corpus.statistics import report_lengths
from tformer_cli.corpus.store import BidirectionalStore, TokenStore
from tformer_cli.corpus.store_builder import training_store
from tformer_cli.corpus.training_text import training_checksums, training_pairs
from tformer_cli.device import can_compile
from tformer_cli.distributed import SINGLE_PROCESS, World
from tformer_cli.errors import Problem, UsageError, quantity, reject_str
from tformer_cli.model.build import build_network
from tformer_cli.model.inspection.summary import parameters_by_part
from tformer_cli.model.network import Network
from tformer_cli.storage.atomic import read_json, write_json
from tformer_cli.storage.run_directory import RunDirectory, run_of_config
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers, load_tokenizers
from tformer_cli.training.pretrained import pretrained_run, pretrained_tokenizers
from tformer_cli.training.resume import Log
from tformer_cli.training.step import StepBatch, TrainState

PREFETCHED_BATCHES = 2
# What a GPU kernel loads at once.
LOADED_BYTES = 16


@dataclass(frozen=True, slots=True)
class Phase:
    """What consecutive steps of a training take batches of."""

    store: TokenStore | BidirectionalStore
    plans: EpochPlans  # which examples share a batch, epoch by epoch

    @classmethod
    def of(cls, store: TokenStore | BidirectionalStore, config: Config) -> Self:
        batch_tokens = config.training.batch_tokens
        return cls(store, epoch_plans(store, batch_tokens=batch_tokens, seed=config.seed))


@dataclass(frozen=True)
class TrainingData:
    """The encoded training text, and its batches.

    A training has one phase, or two with `training.bidirectional_steps`. Epochs count on from one
    phase to the next, and each belongs to one phase: the second one begins a new epoch.
    """

    config: Config
    store: TokenStore
    report: FilterReport
    start_id: int  # first decoder input
    masking: Masking | None  # of a masked encoder; None for models that translate
    noise: ExampleNoise | None = None  # if the config asks for it

    @functools.cached_property
    def bidirectional(self) -> Phase:
        """The phase in both directions."""
        return Phase.of(BidirectionalStore(self.store), self.config)

    @functools.cached_property
    def unidirectional(self) -> Phase:
        """The phase in the wanted direction alone."""
        return Phase.of(self.store, self.config)

    def phase_after(self, step: int) -> Phase:
        """Return the phase of the step that comes after so many steps."""
        is_bidirectional = self.config.training.is_bidirectional(step + 1)
        return self.bidirectional if is_bidirectional else self.unidirectional

    def batches(self, state: TrainState) -> Generator[StepBatch]:
        """Yield batches forever from the progress of a state, without the skipped ones.

        A thread pads the next batches while the model computes. A batch is a function of its phase
        and position alone.
        """
        return prefetch(self._batches(state, state.progress), PREFETCHED_BATCHES)

    def _batches(self, state: TrainState, progress: TrainingProgress) -> Iterator[StepBatch]:
        """Yield the batches of steps that succeed; after one that fails, a new call continues."""
        position, skipped = DataPosition(*progress.data_position), progress.skipped_batches
        num_bidirectional = (self.config.training.bidirectional_steps or 0) - progress.step
        if num_bidirectional > 0:
            batches = self._batches_of(self.bidirectional, state, position, skipped)
            yield from itertools.islice(batches, num_bidirectional - 1)
            last = next(batches)
            # Where this step fails, another epoch in both directions begins for the one to come.
            position = last.next_position.next_epoch()
            yield replace(last, next_position=position)
        yield from self._batches_of(self.unidirectional, state, position, skipped)

    def _batches_of(
        self,
        phase: Phase,
        state: TrainState,
        position: DataPosition,
        skipped: Collection[tuple[int, int]],
    ) -> Iterator[StepBatch]:
        """Yield batches of a phase forever, without the skipped ones."""
        for micro_batches, next_position in training_micro_batches(
            phase.store,
            phase.plans,
            accumulate=self.config.training.gradient_accumulation_steps,
            data_position=position,
            start_id=self.start_id,
            rank=state.world.rank,
            num_ranks=state.world.size,
            change=None if self.noise is None else self.noise.apply,
        ):
            if (position.epoch, position.batch) not in skipped:
                if self.masking is not None:
                    micro_batches = [self.masking.apply(x, position.epoch) for x in micro_batches]
                if state.device.type == "cuda":
                    micro_batches = [batch.pin_memory() for batch in micro_batches]
                yield StepBatch(micro_batches, position, next_position)
            position = next_position


def config_and_run(
    config: str | os.PathLike[str] | Config,
    run: str | os.PathLike[str] | None,
    settings: Sequence[str],
) -> tuple[Config, RunDirectory]:
    """Return what a training is of: a config or that of a file, and the run folder.

    Without `run` the folder is that of the file. `settings` override keys of the file.
    """
    reject_str(settings=settings)
    if not isinstance(config, Config):
        file = Path(config)
        directory = run_of_config(file, None if run is None else Path(run))
        return load_config(file, settings), directory
    if run is None:
        what = "is required for a config without a file"
        raise UsageError("`run`", what, remedy="name a folder")
    if settings:
        what = "have no effect on a config without a file"
        raise UsageError("`settings`", what, remedy="pass them to load_config")
    return config, RunDirectory(Path(run))


def load_data(
    config: Config, tokenizers: Tokenizers, stores: Path, log: Log, world: World = SINGLE_PROCESS
) -> TrainingData:
    """Encode and filter the training text, or open its token store in `stores`."""
    with world.main_process_first():
        store, report = training_store(config.data, tokenizers, stores)
    masking = None
    if isinstance(config.model, MaskedEncoderConfig):
        masking = Masking(config.model.mask_prob, tokenizers.source.size, config.seed)
    log(f"training text: {report.describe(config.data.unit)}")
    log(f"source: {report_lengths(store.source_lengths)}")
    if masking is None:
        log(f"target: {report_lengths(store.target_lengths)}")
    noise = ExampleNoise.from_config(config, tokenizers)
    start_id = tokenizers.start_id(config.model.kind)
    return TrainingData(config, store, report, start_id, masking, noise)


def init_model(config: Config, tokenizers: Tokenizers) -> Network:
    """Return the initialized model of a config, on the CPU."""
    return build_network(
        config.model,
        source_size=tokenizers.source.size,
        target_size=tokenizers.target.size,
        seed=config.seed,
    )


def describe(config: Config, tokenizers: Tokenizers, data: TrainingData, state: TrainState) -> str:
    """Return a line about the size of a training.

    Epochs differ by a few steps, so the line names the one that is counted: that of the next step,
    by its number in metrics.jsonl.
    """
    epoch = state.data_position.epoch
    num_steps = len(data.phase_after(state.step).plans[epoch])
    both = config.training.bidirectional_steps
    phases = "" if both is None else f" (the first {both:,} in both directions)"
    if (first := config.training.tags_first) is not None:
        phases += f" (the first {first.steps:,} train {', '.join(first.tags)} alone)"
    languages = config.data.source_language
    if data.masking is None:
        languages = ", ".join(f"{source} -> {target}" for source, target in config.data.directions)
    sizes = {tokenizers.source.size, tokenizers.target.size}
    precision = str(state.precision).removeprefix("torch.")
    kernels = ", with compiled layers" if can_compile(state.device) else ""
    processes = "" if state.world.size == 1 else f", {state.world.size} processes"
    parts = parameters_by_part(state.model)
    num_frozen = sum(parts[part] for part in set(config.training.freeze))
    return (
        f"{languages}: {describe_parameters(sum(parts.values()), num_frozen)}, "
        f"vocabulary {' and '.join(f'{size:,}' for size in sorted(sizes))}, "
        f"{quantity(num_steps, 'step')} in epoch {epoch}, "
        f"{quantity(config.training.max_steps, 'step')} in all{phases}, "
        f"on {state.device} in {precision}{kernels}{processes}"
    )


def describe_parameters(count: int, num_frozen: int) -> str:
    """Return how many parameters a model has, and how many of them are frozen, if any."""
    return f"{count:,} parameters" + (f" ({num_frozen:,} frozen)" if num_frozen else "")


def slow_attention(
    model: ModelConfig, device: torch.device, precision: torch.dtype
) -> Iterator[Problem]:
    """Yield each width of a model that torch's fast attention kernels do not support on CUDA.

    Torch silently falls back to a kernel that materializes all attention weights.
    """
    widths = {}
    if model.latent is None or model.kind == "encoder_decoder":
        widths["num_heads"] = "the width of a head, dim / num_heads,", model.head_dim
    if model.latent is not None:
        widths["latent.kv_lora_rank"] = "this width", model.latent.kv_lora_rank
        widths["latent.rope_head_dim"] = "this width", model.latent.rope_head_dim
    name = str(precision).removeprefix("torch.")
    multiple = LOADED_BYTES // precision.itemsize
    for key, (subject, width) in widths.items():
        if device.type == "cuda" and width % multiple:
            what = f"{subject} makes attention slow on CUDA in {name}"
            yield Problem(f"model.{key}", what, str(width), f"choose a multiple of {multiple}")


def run_tokenizers(config: Config, run: RunDirectory, log: Log, *, stores: Path) -> Tokenizers:
    """Load the tokenizers of a run if its config builds the same; build new ones otherwise.

    `stores` caches checksums of text.
    """
    pretrained = pretrained_run(config, run)
    if _has_tokenizers(config, run, pretrained, stores):
        return load_tokenizers(run.tokenizer)
    return new_tokenizers(config, pretrained, log)


def broadcast_tokenizers(tokenizers: Tokenizers | None, world: World) -> Tokenizers:
    """Return the tokenizers that rank 0 passes; the others pass None, and need no file of a run."""
    if tokenizers is None:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in world.broadcast_object().items():
                (Path(folder) / name).write_bytes(base64.b64decode(content))
            return load_tokenizers(Path(folder))
    files = tokenizers.files().items()
    world.broadcast_object({name: base64.b64encode(file).decode() for name, file in files})
    return tokenizers


def _has_tokenizers(
    config: Config, run: RunDirectory, pretrained: RunDirectory | None, stores: Path
) -> bool:
    """Return whether the tokenizers of a run are those that its config builds."""
    try:
        origin = read_json(run.origin_file)
    except (OSError, ValueError):
        return False
    # The origin to compare with takes reading the whole text.
    return bool(origin == origin_of(config, pretrained, stores))


def new_tokenizers(config: Config, pretrained: RunDirectory | None, log: Log) -> Tokenizers:
    """Return the tokenizers of a pretrained run, or build them from the training text."""
    if pretrained is not None:
        return pretrained_tokenizers(pretrained, config, log)
    log("building the vocabulary")
    return build_tokenizers(config.tokenizer, training_pairs(config.data), config.seed)


def origin_of(config: Config, pretrained: RunDirectory | None, stores: Path) -> dict[str, Any]:
    """Return what decides the tokenizers that a config builds, as plain data."""
    data = config.data
    return {
        "tokenizer": as_plain(config.tokenizer),
        "seed": config.seed,
        "texts": [
            training_checksums(text, data.direction_of(text), data.held_out, stores)
            for text in data.train
        ],
        "pretrained": pretrained and load_tokenizers(pretrained.tokenizer).fingerprint,
    }


def save_tokenizers(tokenizers: Tokenizers, origin: dict[str, Any], run: RunDirectory) -> None:
    """Save the tokenizers of a run, and what they were made from."""
    tokenizers.save(run.tokenizer)
    write_json(run.origin_file, origin)
