"""A training run, from its config to its best checkpoint: set up, start or resume, step, validate.

Of several processes the first alone reads and writes the run folder; it tells the others.
"""

import contextlib
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch

from tformer_cli.config.load import check_data_files, dump_config
from tformer_cli.config.schema.config import Config
from tformer_cli.corpus.batch import Batch
from tformer_cli.corpus.statistics import source_sentences
from tformer_cli.device import can_compile, resolve_precision
from tformer_cli.distributed import SINGLE_PROCESS, World, local_device, process_group
from tformer_cli.errors import Interrupted, TrainingError
from tformer_cli.model.network import Network
from tformer_cli.process import tune_allocator
from tformer_cli.storage.atomic import empty_directory, storage_errors, write_text
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import TrainingProgress, load_progress
from tformer_cli.text.special_tokens import tag_ids
from tformer_cli.text.tokenizer import Tokenizers, load_tokenizers
from tformer_cli.training.average import averaged_model
from tformer_cli.training.logging import TrainingLogger
from tformer_cli.training.pretrained import (
    load_pretrained,
    pretrained_checkpoint,
    pretrained_run,
)
from tformer_cli.training.recovery import (
    MAX_ROLLBACKS,
    first_not_finite,
    memory_shortage_reported,
    next_action,
    rolled_back,
)
from tformer_cli.training.replicas import broadcast_state, check_inputs_agree, check_replicas
from tformer_cli.training.resume import (
    check_data_position,
    check_run_folder,
    check_same_data,
    checkpoint_before,
    checkpoint_to_resume,
    environment_changes,
    environment_of,
    locked,
    resumed,
    trajectory_settings,
)
from tformer_cli.training.saving import restart, restore_checkpoint, take_checkpoint
from tformer_cli.training.setup import (
    TrainingData,
    broadcast_tokenizers,
    describe,
    init_model,
    load_data,
    new_tokenizers,
    origin_of,
    run_tokenizers,
    save_tokenizers,
    slow_attention,
)
from tformer_cli.training.shutdown import GracefulShutdown, ShutdownRequested
from tformer_cli.training.step import (
    NonFiniteStep,
    StepReport,
    TrainState,
    accumulate_gradients,
    train_steps,
)
from tformer_cli.training.validation import (
    check_metric,
    check_validation,
    is_finished,
    sample_translations,
    scored,
    selection_score,
    validate,
    validation_fingerprint,
)


def train(
    config: Config,
    run: RunDirectory,
    *,
    device: torch.device,
    fresh: bool = False,
    live: bool = False,
) -> TrainingProgress:
    """Train a new run to the end, or resume it from its last intact checkpoint.

    The end is `max_steps`, or early stopping after `patience` validations no better than the best.
    Processes of torchrun share the work. `fresh` discards the training in the folder, but neither
    its log nor foreign files; `live` draws curves.

    Raises:
        TformerError: a file cannot be used, the config changed since the run began, another
            process trains there, processes disagree, the training diverged, or memory ran out.
        Interrupted: SIGINT, SIGTERM or SIGHUP came; the run is saved and can be resumed.
    """
    device = local_device(device)
    tune_allocator()
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(process_group(str(device)))
        check_data_files(config.data)
        check_metric(config)
        if world.is_main_process:
            check_run_folder(run)
            # Once begun, a run needs its pretrained run no more.
            if not run.path.exists() and (pretrained := pretrained_run(config, run)) is not None:
                pretrained_checkpoint(pretrained, log=lambda line: None)
        reported = run if world.is_main_process else None
        logger = stack.enter_context(TrainingLogger(reported, config.training, is_live=live))
        stack.enter_context(memory_shortage_reported(str(run.path)))
        checkpoint = own_tokenizers = None
        if world.is_main_process:
            stack.enter_context(locked(run))
            checkpoint = checkpoint_to_resume(run, config, logger.log, fresh=fresh)
            if checkpoint is not None:
                own_tokenizers = load_tokenizers(run.tokenizer)
            elif fresh:
                own_tokenizers = new_tokenizers(config, pretrained_run(config, run), logger.log)
            else:
                own_tokenizers = run_tokenizers(config, run, logger.log, stores=run.stores)
        tokenizers = broadcast_tokenizers(own_tokenizers, world)
        trainer = Trainer.setup(config, run, tokenizers, device=device, logger=logger, world=world)
        trainer.start(checkpoint)
        with GracefulShutdown(str(run.path), world) as shutdown:
            trainer.run(shutdown)
        return trainer.state.progress


@dataclass(slots=True)
class Trainer:
    """Trains a model: `setup`, `start`, `run`."""

    config: Config
    run_directory: RunDirectory
    tokenizers: Tokenizers
    data: TrainingData
    state: TrainState
    logger: TrainingLogger
    initial: TrainingProgress  # before the first step

    @classmethod
    def setup(
        cls,
        config: Config,
        run_directory: RunDirectory,
        tokenizers: Tokenizers,
        *,
        device: torch.device,
        logger: TrainingLogger,
        world: World = SINGLE_PROCESS,
    ) -> Self:
        """Encode the training text, and build the model, its optimizer and its scheduler.

        Nothing is written into the run folder; the token store lies beside it.
        """
        precision = resolve_precision(config.training.precision, device)
        data = load_data(config, tokenizers, run_directory.stores, logger.log, world)
        for problem in slow_attention(config.model, device, precision):
            logger.log(str(problem))
        model = init_model(config, tokenizers).to(device)
        model.freeze(config.training.freeze)
        if config.training.gradient_checkpointing:
            model.enable_gradient_checkpointing()
        model.set_layer_drop(config.training.layer_drop)
        if can_compile(device):
            model.compile_layers()
        first = config.training.tags_first
        state = TrainState.of(
            model,
            config.training,
            device=device,
            precision=precision,
            seed=config.seed,
            world=world,
            first_ids=() if first is None else tag_ids(first.tags, config.data.tags),
        )
        examples = f"{data.store.fingerprint()} {tokenizers.fingerprint}"
        state.progress = TrainingProgress(
            data_fingerprint=hashlib.sha256(examples.encode()).hexdigest(),
            environment=environment_of(device, precision, world.size),
            tokenizer_fingerprint=tokenizers.fingerprint,
        )
        return cls(config, run_directory, tokenizers, data, state, logger, state.progress)

    def start(self, checkpoint: Path | None) -> None:
        """Begin the run, or resume it from a checkpoint, in all processes.

        What is wrong with the config or a text is found before anything is written.
        """
        config, state = self.config, self.state
        check_validation(state.model, self.tokenizers, config, self.logger.log)
        sentences = None
        if checkpoint is not None:
            sentences = load_progress(checkpoint).max_source_sentences
        elif state.world.is_main_process:
            sentences = source_sentences(config.data)
        self.initial = state.progress = replace(
            state.progress,
            settings=trajectory_settings(config),
            validation_fingerprint=validation_fingerprint(config),
            max_source_sentences=sentences,
        )
        check_inputs_agree(state.world, config, self.initial)
        if state.world.is_main_process:
            if checkpoint is None:
                self._begin()
            else:
                self._resume(checkpoint)
            write_text(self.run_directory.config_file, dump_config(config))
        broadcast_state(state)
        check_replicas(state)
        self.logger.log(describe(config, self.tokenizers, self.data, state))

    def _begin(self) -> None:
        """Load pretrained weights, and clear the run folder, except for its log and its config."""
        config, run = self.config, self.run_directory
        if config.training.init_from is not None:
            self.initialize()
        # After a kill in between, a former training resumes with its metrics, or is gone. Without
        # their origin, tokenizers of which some files are left are built anew.
        with storage_errors(run.path):
            for file in (*run.pointers, run.origin_file):
                file.unlink(missing_ok=True)
        for folder in run.folders:
            empty_directory(folder)
        with storage_errors(run.path):
            run.metrics_file.unlink(missing_ok=True)
        origin = origin_of(config, pretrained_run(config, run), run.stores)
        save_tokenizers(self.tokenizers, origin, run)

    def initialize(self) -> None:
        """Give the model its initial weights: random, or those of the pretrained run."""
        model = init_model(self.config, self.tokenizers)
        pretrained = pretrained_run(self.config, self.run_directory)
        if pretrained is not None:
            load_pretrained(pretrained, model, self.config, self.logger.log)
        restart(self.state, model)

    def _resume(self, checkpoint: Path) -> None:
        where = str(self.run_directory.path)
        saved = load_progress(checkpoint)
        check_same_data(self.run_directory, saved, self.initial)
        epoch, batch = saved.data_position
        num_batches = len(self.data.phase_after(saved.step).plans[epoch])
        check_data_position(checkpoint, batch, num_batches)
        for change in environment_changes(saved.environment, self.initial.environment):
            self.logger.log(f"{where}: {change}")
        saved = restore_checkpoint(self.run_directory, self.state, checkpoint)
        self.logger.truncate(saved)
        self.state.progress = resumed(saved, self.initial)
        if saved.validation_fingerprint != self.initial.validation_fingerprint:
            self.logger.log(
                f"{where}: validation data or metric changed: best-checkpoint tracking restarts"
            )
        self.logger.log(f"{where}: resuming after step {saved.step}")

    def run(self, shutdown: GracefulShutdown) -> None:
        """Take steps, validate and save on schedule, until the end or a signal."""
        progress = self.state.progress
        training = self.config.training
        # A signal may have come before it.
        is_validation_missing = (
            progress.step > 0 and training.validates_at(progress.step) and progress.score is None
        )
        if is_finished(progress, training) and not is_validation_missing:
            self.logger.log(f"{self.run_directory.path}: finished at step {progress.step}")
            return
        self.logger.start(progress.step)
        if is_validation_missing:
            self._validate_and_save(shutdown)
        while not is_finished(self.state.progress, training):
            with contextlib.closing(self.data.batches(self.state)) as batches:
                for step in train_steps(self.state, batches):
                    if isinstance(step, NonFiniteStep):
                        self._handle_nonfinite(step)
                        break
                    self._after_step(step, shutdown)
                    if is_finished(self.state.progress, training):
                        break
        self.logger.log_end(self.state.progress, self.state.device)

    def _after_step(self, report: StepReport, shutdown: GracefulShutdown) -> None:
        self.logger.log_step(report)
        shutdown.poll()
        # A checkpoint is due at each validation.
        if shutdown.signal is not None or self.config.training.saves_at(report.step):
            check_replicas(self.state)
            self._validate_and_save(shutdown)

    def _validate_and_save(self, shutdown: GracefulShutdown) -> None:
        """Validate if that is due and no signal came, save, and end the training if one came."""
        average = averaged_model(self.run_directory, self.state, self.logger.log)
        if shutdown.signal is None and self.config.training.validates_at(self.state.step):
            self.logger.flush()
            self._validate(average or self.state.model, shutdown)
            shutdown.poll()
        self._save(average, shutdown)

    def _validate(self, model: Network, shutdown: GracefulShutdown) -> None:
        """Validate, and track the best score; a signal leaves the validation to the resumed run."""
        state = self.state
        try:
            validation = validate(
                model,
                self.tokenizers,
                self.config,
                state.device,
                state.precision,
                max_source_sentences=state.progress.max_source_sentences,
                world=state.world,
                on_start=self.logger.start_validation,
                on_done=shutdown.interrupting(self.logger.advance_validation),
            )
        except ShutdownRequested:
            return
        score = selection_score(validation, self.config)
        state.progress = scored(state.progress, score, self.config.training)
        samples = sample_translations(validation, self.config)
        is_best = state.progress.best_step == state.step
        self.logger.log_validation(state.step, validation, samples, best=is_best)

    def _save(self, average: Network | None, shutdown: GracefulShutdown) -> None:
        """Save a checkpoint, and end the training if a signal came."""
        self.logger.flush()
        take_checkpoint(self.run_directory, self.state, average)
        if shutdown.signal is not None:
            # When one process ends, torchrun soon ends the others, even while they write.
            self.state.world.barrier()
            raise Interrupted(
                str(self.run_directory.path),
                f"interrupted; saved at step {self.state.step}",
                signal=shutdown.signal,
                remedy="re-run the command to resume",
            )

    def _handle_nonfinite(self, step: NonFiniteStep) -> None:
        self.logger.log_skipped(step)
        match next_action(self.state.progress):
            case "roll back":
                self._roll_back()
            case "give up":
                source = self._first_not_finite(step.batch.micro_batches)
                raise TrainingError(
                    f"step {step.step}",
                    f"the training diverged again after {MAX_ROLLBACKS} rollbacks",
                    got=f"loss {step.loss}, gradient norm {step.grad_norm}, first in {source}",
                    remedy="lower training.optimizer.learning_rate or lengthen the warm-up",
                )

    def _first_not_finite(self, micro_batches: Sequence[Batch]) -> str:
        """Return what is not finite first in a step, by the first process that finds something."""
        state = self.state
        num_tokens = sum(batch.num_target_tokens for batch in micro_batches)
        name = first_not_finite(
            state.model, lambda: accumulate_gradients(state, micro_batches, num_tokens)
        )
        gathered = state.world.gather([] if name is None else [name])
        return next(itertools.chain.from_iterable(gathered), "the loss")

    def _roll_back(self) -> None:
        """Roll back to a checkpoint, or to the initial weights if there is none."""
        state, failed = self.state, self.state.progress
        state.progress = self.initial
        if state.world.is_main_process:
            checkpoint = checkpoint_before(
                self.run_directory, failed.step, self.config.training, self.logger.log
            )
            if checkpoint is None:
                self.initialize()
            else:
                saved = restore_checkpoint(self.run_directory, state, checkpoint)
                state.progress = resumed(saved, self.initial)
        broadcast_state(state)
        self.logger.truncate(replace(state.progress, num_rollbacks=failed.num_rollbacks))
        state.progress = rolled_back(failed, state.progress)
        self.logger.log_rollback(state.progress, failed.step + 1)
