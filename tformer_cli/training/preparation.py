"""What a training works with: its text in tokens, its model, and what moves the model's weights."""

import functools
import hashlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.model import MaskedEncoderConfig, ModelConfig
from tformer_cli.corpus.batch import Masking
from tformer_cli.corpus.bucketing import DataPosition, EpochPlans
from tformer_cli.corpus.filters import FilterReport
from tformer_cli.corpus.pipeline import epoch_plans, training_micro_batches, training_store
from tformer_cli.corpus.prefetch import prefetch
from tformer_cli.corpus.statistics import report_lengths
from tformer_cli.corpus.store import TokenStore
from tformer_cli.device import resolve_precision
from tformer_cli.distributed import SINGLE_PROCESS, World
from tformer_cli.errors import Problem
from tformer_cli.model.build import build_network
from tformer_cli.model.network import Network
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.text.vocabulary import DECODER_START_IDS
from tformer_cli.training.ema import MovingAverage
from tformer_cli.training.resume import environment_of
from tformer_cli.training.step import StepBatch, TrainState

GROUPS_AHEAD = 2
# What a kernel of a GPU loads at once.
LOADED_BYTES = 16


@dataclass(frozen=True)
class Preparation:
    """Everything that a training reads or changes, before its first step.

    Attributes:
        config: of the run.
        tokenizers: of both sides.
        store: the training text.
        report: what the filters left of it.
        model: with its first weights.
        average: of the model, where one is asked for.
        train_state: the model with its optimiser and schedule.
        masking: of what is learnt from, where the model says what masks hide.
    """

    config: Config
    tokenizers: Tokenizers
    store: TokenStore
    report: FilterReport
    model: Network
    average: MovingAverage | None
    train_state: TrainState
    masking: Masking | None

    @functools.cached_property
    def plans(self) -> EpochPlans:
        """Which examples share a batch, epoch by epoch."""
        training = self.config.training
        return epoch_plans(self.store, batch_tokens=training.batch_tokens, seed=self.config.seed)

    @property
    def translating_model(self) -> Network:
        """The model to validate and to translate with."""
        return self.model if self.average is None else self.average.model

    def beginning(self) -> TrainingProgress:
        """Return where a run stands before its first step."""
        tokenizers = self.tokenizers.fingerprint
        fingerprint = f"{self.store.fingerprint()} {tokenizers}"
        train_state = self.train_state
        return TrainingProgress.initial(
            hashlib.sha256(fingerprint.encode()).hexdigest(),
            environment_of(train_state.device, train_state.precision, train_state.world.size),
            tokenizers,
        )

    def groups(self, state: TrainingProgress) -> Generator[StepBatch]:
        """Yield what is to be learnt from, from where a run stands, but for what failed.

        What comes next is padded while the model computes. It is a function of the place in the
        text alone, whatever was made ready before an interruption.
        """
        return prefetch(self._groups(state), GROUPS_AHEAD)

    def _groups(self, state: TrainingProgress) -> Iterator[StepBatch]:
        training = self.config.training
        place = DataPosition(*state.data_position)
        left_out = set(state.skipped_batches)
        for batches, following in training_micro_batches(
            self.store,
            self.plans,
            accumulate=training.gradient_accumulation_steps,
            data_position=place,
            start_id=DECODER_START_IDS[self.config.model.kind],
            rank=self.train_state.world.rank,
            num_ranks=self.train_state.world.size,
        ):
            if (place.epoch, place.batch) not in left_out:
                if self.masking is not None:
                    batches = [self.masking.apply(batch, place.epoch) for batch in batches]
                if self.train_state.device.type == "cuda":
                    batches = [batch.pin_memory() for batch in batches]
                yield StepBatch(batches, place, following)
            place = following

    def describe(self, epoch: int) -> str:
        """Return a line about the size of it all.

        Args:
            epoch: whose steps are counted; others differ by a few.
        """
        data, training = self.config.data, self.config.training
        steps = len(self.plans[epoch])
        sizes = {self.tokenizers.source.size, self.tokenizers.target.size}
        precision = str(self.train_state.precision).removeprefix("torch.")
        world = self.train_state.world
        processes = "" if world.size == 1 else f", {world.size} processes"
        languages = data.source_language
        if self.masking is None:
            languages += f" -> {data.target_language}"
        return (
            f"{languages}: "
            f"{self.model.num_parameters():,} parameters, "
            f"vocabulary {' and '.join(f'{size:,}' for size in sorted(sizes))}, "
            f"{steps:,} steps an epoch, {training.max_steps:,} steps in all, "
            f"on {self.train_state.device} in {precision}{processes}"
        )


def prepare(
    config: Config,
    tokenizers: Tokenizers,
    *,
    stores: Path | None,
    device: torch.device,
    log: Callable[[str], object],
    world: World = SINGLE_PROCESS,
) -> Preparation:
    """Encode the training text, and build the model and its optimiser.

    Args:
        config: of the run.
        tokenizers: of both sides.
        stores: a folder that keeps encoded text for the next time; None keeps nothing.
        device: where to train.
        log: hears what the text is like.
        world: the processes that train together.

    Raises:
        TformerError: the text cannot be used, or the device lacks the precision asked for.
    """
    training = config.training
    precision = resolve_precision(training.precision, device)
    with world.main_process_first():
        store, report = training_store(config.data, tokenizers, stores)
    masking = None
    if isinstance(config.model, MaskedEncoderConfig):
        masking = Masking.from_config(config.model, tokenizers.source.size, config.seed)
    if world.is_main_process:
        log(f"training text: {report.describe(config.data.unit)}")
        log(f"source: {report_lengths(store.source_lengths)}")
        if masking is None:
            log(f"target: {report_lengths(store.target_lengths)}")
        for problem in slow_attention(config.model, device, precision):
            log(str(problem))
    model = init_model(config, tokenizers).to(device)
    if training.gradient_checkpointing:
        model.recompute_layers()
    train_state = TrainState.of(
        model, training, device=device, precision=precision, seed=config.seed, world=world
    )
    decay = training.ema_decay
    average = None if decay is None else MovingAverage(model, decay)
    return Preparation(config, tokenizers, store, report, model, average, train_state, masking)


def init_model(config: Config, tokenizers: Tokenizers) -> Network:
    """Return the model that a run begins with, on the CPU."""
    return build_network(
        config.model,
        source_size=tokenizers.source.size,
        target_size=tokenizers.target.size,
        seed=config.seed,
    )


def slow_attention(
    model: ModelConfig, device: torch.device, precision: torch.dtype
) -> Iterator[Problem]:
    """Yield each width of a model that torch's fast attention does not take on CUDA.

    What it does not take goes through one that holds all attention weights, which torch does not
    mention.
    """
    if device.type != "cuda":
        return
    widths = {}
    if model.latent is None or model.kind == "encoder_decoder":
        widths["num_heads"] = "the width of a head, dim / num_heads,", model.head_dim
    if model.latent is not None:
        widths["latent.kv_lora_rank"] = "this width", model.latent.kv_lora_rank
        widths["latent.rope_head_dim"] = "this width", model.latent.rope_head_dim
    name, multiple = str(precision).removeprefix("torch."), LOADED_BYTES // precision.itemsize
    for key, (subject, width) in widths.items():
        if width % multiple:
            yield Problem(
                f"model.{key}",
                f"{subject} makes attention slow on CUDA in {name}",
                str(width),
                f"choose a multiple of {multiple}",
            )
