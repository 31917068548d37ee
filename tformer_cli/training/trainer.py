"""A training run, from its config to its best checkpoint: begin or go on, step, validate, save.

Of several processes the first alone reads and writes the run folder; it gives the others the
state, the tokenizers and the weights.
"""

import contextlib
from dataclasses import replace
from pathlib import Path

import torch

from tformer_cli.config.load import check_data_files, dump_config, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.corpus.pipeline import source_sentences
from tformer_cli.distributed import World, local_device, process_group
from tformer_cli.errors import CheckpointError, Interrupted, TrainingError
from tformer_cli.process import tune_allocator
from tformer_cli.storage.atomic import (
    empty_directory,
    recover_interrupted_writes,
    storage_errors,
    write_text,
)
from tformer_cli.storage.run_directory import STATE_FILE, RunDirectory
from tformer_cli.storage.state import TrainingProgress, load_state
from tformer_cli.training.amp import LossScale
from tformer_cli.training.checkpoints import Checkpoints, checkpoint_before, last_checkpoint
from tformer_cli.training.diagnosis import first_not_finite
from tformer_cli.training.lock import check_ours, locked
from tformer_cli.training.logging import NullLogger, TrainingLogger
from tformer_cli.training.nonfinite import MOST_ROLLBACKS, failed, rolled_back, verdict
from tformer_cli.training.out_of_memory import memory_shortage_reported
from tformer_cli.training.preparation import init_model, prepare
from tformer_cli.training.pretrained import PretrainedRun, check_pretrained
from tformer_cli.training.replicas import Replicas, check_alike
from tformer_cli.training.resume import (
    ELSEWHERE,
    accepted_changes,
    environment_changes,
    taken_up,
    trajectory_settings,
)
from tformer_cli.training.shutdown import GracefulShutdown, ShutdownRequested
from tformer_cli.training.step import NonFiniteStep, StepReport, train_steps
from tformer_cli.training.tokenizers import origin_of, run_tokenizers, save_tokenizers
from tformer_cli.training.validation import (
    check_metric,
    check_validation,
    sample_translations,
    selection_score,
    validate,
    validation_fingerprint,
)


def train(
    config: Config, run: RunDirectory, *, device: torch.device, fresh: bool = False
) -> TrainingProgress:
    """Train to the end, in a new run folder or from the last checkpoint of a begun one.

    The end is `max_steps`, or `patience` validations without a better one. Where the last
    checkpoint is damaged, the one before it is gone on from. Where torchrun has started several
    processes they share the work; the first one has the run folder, and speaks.

    Args:
        config: everything that decides the run.
        run: its folder.
        device: where to train.
        fresh: forget what the folder holds and begin again.

    Returns:
        Where the run stands at the end.

    Raises:
        TformerError: a file cannot be used, the config changed since the run began, another
            process trains there, processes disagree, the training diverged, or memory ran out.
        Interrupted: SIGINT, SIGTERM or SIGHUP came; the run is saved and can go on.
    """
    device = local_device(device)
    tune_allocator()
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(process_group(device))
        check_data_files(config.data)
        check_metric(config)
        if world.is_main_process:
            check_ours(run)
            check_pretrained(config, run)
        told = TrainingLogger if world.is_main_process else NullLogger
        logger = stack.enter_context(told(run, config.training))
        stack.enter_context(memory_shortage_reported(str(run.path)))
        if world.is_main_process:
            stack.enter_context(locked(run))
            recover_interrupted_writes(run.checkpoints)
        sitting = _Sitting(config, run, device, logger, world, fresh=fresh)
        if sitting.is_over:
            logger.log(f"{run.path}: finished at step {sitting.state.step}")
        else:
            with GracefulShutdown(str(run.path), world) as shutdown:
                sitting.train(shutdown)
        return sitting.state


def is_finished(state: TrainingProgress, training: TrainingConfig) -> bool:
    """Return whether a run has taken all its steps, or stopped getting better."""
    out_of_patience = (
        training.patience is not None and state.num_bad_validations >= training.patience
    )
    return state.step >= training.max_steps or out_of_patience


def clear(run: RunDirectory) -> None:
    """Remove what a training wrote into a run folder but for its log and its config.

    Raises:
        StorageError: something cannot be removed.
    """
    with storage_errors(run.path):
        for file in (*run.pointers, run.metrics_file):
            file.unlink(missing_ok=True)
    for folder in run.folders:
        empty_directory(folder)


class _Sitting:
    """One sitting of a run: from where it stands to its end or to an interruption."""

    def __init__(
        self,
        config: Config,
        run: RunDirectory,
        device: torch.device,
        logger: TrainingLogger,
        world: World,
        *,
        fresh: bool,
    ) -> None:
        self.config = config
        self.run = run
        self.logger = logger
        self.world = world
        checkpoint = None
        if world.is_main_process:
            checkpoint = None if fresh else last_checkpoint(run, logger.log)
            if checkpoint is not None:
                for change in accepted_changes(run, load_config(run.config_file), config):
                    logger.log(f"{run.path}: {change}")
        tokenizers = run_tokenizers(
            config,
            run,
            logger,
            stores=run.stores,
            has_begun=checkpoint is not None,
            fresh=fresh,
            world=world,
        )
        self.prepared = prepare(
            config, tokenizers, stores=run.stores, device=device, log=logger.log, world=world
        )
        self.train_state = self.prepared.train_state
        self.replicas = Replicas(self.train_state, self.prepared.average)
        self.checkpoints = Checkpoints(
            run,
            config.training,
            self.prepared.model,
            self.train_state.optimizer,
            self.prepared.average,
            world,
        )
        check_validation(self.prepared.model, tokenizers, config, logger.log)
        sentences = None
        if checkpoint is not None:
            sentences = load_state(checkpoint).max_source_sentences  # Stays in force.
        elif world.is_main_process:
            sentences = source_sentences(config.data)
        self.beginning = replace(
            self.prepared.beginning(),
            settings=trajectory_settings(config),
            validation_fingerprint=validation_fingerprint(config),
            max_source_sentences=sentences,
        )
        self.state = self.beginning
        check_alike(world, config, self.beginning)
        if world.is_main_process:
            if checkpoint is None and config.training.init_from is not None:
                self._begin()
            # Everything that can be wrong with config and text has shown by now.
            if checkpoint is not None:
                self._go_on(checkpoint)
            else:
                clear(run)
                origin = origin_of(config, PretrainedRun.of(config, run), run.stores)
                save_tokenizers(tokenizers, origin, run)
            write_text(run.config_file, dump_config(config))
        self.state = self.replicas.share(self.state)
        self.replicas.check(self.state)
        logger.log(self.prepared.describe(self.state.data_position[0]))

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to do."""
        return is_finished(self.state, self.config.training) and not self._is_validation_missing

    def train(self, shutdown: GracefulShutdown) -> None:
        """Take steps, validate and save when it is time, until the end or a signal."""
        self.logger.start(self.state.step)
        if self._is_validation_missing:
            self._validate(shutdown)
            shutdown.poll()
            self._save(shutdown)
        while not is_finished(self.state, self.config.training):
            self._take_steps(shutdown)
        self.logger.log_end(self.state, self.train_state.device)

    def _take_steps(self, shutdown: GracefulShutdown) -> None:
        """Take steps from where the run stands until the end, or until one cannot be taken."""
        with contextlib.closing(self.prepared.groups(self.state)) as groups:
            for taken in train_steps(
                self.train_state,
                groups,
                self.state.step + 1,
                learning_rate_factor=self.state.learning_rate_factor,
                loss_scale=self._loss_scale,
            ):
                if isinstance(taken, NonFiniteStep):
                    self._leave_out(taken)
                    return
                self._follow(taken, shutdown)
                if is_finished(self.state, self.config.training):
                    return

    def _follow(self, report: StepReport, shutdown: GracefulShutdown) -> None:
        """Do what is due after a step.

        Raises:
            Interrupted: a signal came; the run is saved.
        """
        self._count(report)
        if self.prepared.average is not None:
            self.prepared.average.update(self.prepared.model, report.step)
        self.logger.log_step(report)
        is_validation = self.config.training.validates_at(report.step)
        is_save = self.config.training.saves_at(report.step)
        shutdown.poll()
        if shutdown.signal is not None or is_validation or is_save:
            self.replicas.check(self.state)
        if shutdown.signal is None and is_validation:
            self.logger.flush()
            self._validate(shutdown)
            shutdown.poll()
        if shutdown.signal is not None or is_save:
            self._save(shutdown)

    def _save(self, shutdown: GracefulShutdown) -> None:
        """Take a checkpoint, and leave if a signal came.

        Raises:
            Interrupted: a signal came.
        """
        self.logger.flush()
        self.checkpoints.save(self.state)
        if shutdown.signal is not None:
            # When one process leaves, torchrun soon ends the others, whatever they write.
            self.world.barrier()
            raise Interrupted(
                str(self.run.path),
                f"interrupted; saved at step {self.state.step}",
                signal=shutdown.signal,
                remedy="the same command goes on from there",
            )

    def _leave_out(self, bad: NonFiniteStep) -> None:
        """Do what the guard says about a batch that was not finite.

        Raises:
            TrainingError: going back has not helped.
        """
        self.logger.log_skipped(bad)
        self.state = failed(self.state, bad.group.position, bad.group.next_position)
        match verdict(self.state):
            case "roll back":
                self._roll_back()
            case "give up":
                source = first_not_finite(self.train_state, bad.group.micro_batches, bad.step)
                raise TrainingError(
                    f"step {bad.step}",
                    f"the training diverged, and going back {MOST_ROLLBACKS} times did not help",
                    got=f"loss {bad.loss}, gradient norm {bad.grad_norm}, first in {source}",
                    remedy="lower training.optimizer.learning_rate or lengthen the warm-up",
                )

    def _roll_back(self) -> None:
        """Begin again from a checkpoint, or from the beginning where there is none."""
        was, saved = self.state, self.beginning
        if self.world.is_main_process:
            checkpoint = checkpoint_before(
                self.run, was.step, self.config.training, self.logger.log
            )
            if checkpoint is None:
                self._begin()
            else:
                saved = taken_up(self.checkpoints.go_back(checkpoint), self.beginning)
        saved = self.replicas.share(saved)
        self.logger.truncate(replace(saved, num_rollbacks=was.num_rollbacks))
        self.state = rolled_back(was, saved)
        self.logger.log_rollback(self.state, was.step + 1)

    @property
    def _is_validation_missing(self) -> bool:
        """Whether a signal came before the validation that was due where the run stands."""
        state, training = self.state, self.config.training
        return state.step > 0 and state.score is None and training.validates_at(state.step)

    def _begin(self) -> None:
        """Let the model be what it is before the first step."""
        model = init_model(self.config, self.prepared.tokenizers)
        pretrained = PretrainedRun.of(self.config, self.run)
        if pretrained is not None:
            pretrained.load_into(model, self.config, self.logger.log)
        self.checkpoints.begin_again(model)

    def _go_on(self, checkpoint: Path) -> None:
        """Take up the weights, the optimiser and the position of a checkpoint."""
        saved = load_state(checkpoint)
        if saved.data_fingerprint != self.beginning.data_fingerprint:
            raise CheckpointError(
                str(self.run.path),
                "the training text or its tokenizer has changed since this run began",
                remedy=f"restore it, {ELSEWHERE}",
            )
        epoch, batch = saved.data_position
        num_batches = len(self.prepared.plans[epoch])
        # Where weights are small there may be none at all.
        if batch >= max(1, num_batches):
            raise CheckpointError(
                str(checkpoint / STATE_FILE),
                "is damaged",
                got=f"batch {batch} of an epoch of {num_batches}",
                remedy="use an earlier checkpoint",
            )
        for change in environment_changes(saved.environment, self.beginning.environment):
            self.logger.log(f"{self.run.path}: {change}")
        self.checkpoints.go_back(checkpoint)
        self.logger.truncate(saved)
        self.state = taken_up(saved, self.beginning)
        if saved.validation_fingerprint != self.beginning.validation_fingerprint:
            self.logger.log(
                f"{self.run.path}: validations so far do not compare with those to come, among "
                "which the best checkpoint is sought"
            )
        self.logger.log(f"{self.run.path}: going on after step {saved.step}")

    @property
    def _loss_scale(self) -> LossScale | None:
        factor = self.state.loss_scale
        return None if factor is None else LossScale(factor, self.state.num_loss_scale_steps)

    def _count(self, report: StepReport) -> None:
        self.state = replace(
            self.state,
            score=None,
            num_consecutive_skips=0,
            step=report.step,
            data_position=(report.position.epoch, report.position.batch),
            num_tokens=self.state.num_tokens + report.num_tokens,
            seconds=self.state.seconds + report.seconds,
            loss_scale=report.loss_scale.factor,
            num_loss_scale_steps=report.loss_scale.num_steps,
        )

    def _validate(self, shutdown: GracefulShutdown) -> None:
        """Look at the validation text; where a signal comes meanwhile, the next sitting does it."""
        try:
            validation = validate(
                self.prepared.translating_model,
                self.prepared.tokenizers,
                self.config,
                self.train_state.device,
                self.train_state.precision,
                max_source_sentences=self.state.max_source_sentences,
                world=self.world,
                on_done=shutdown.raise_if_requested,
            )
        except ShutdownRequested:
            return
        score = selection_score(validation, self.config)
        is_best = self.state.best_score is None or score >= self.state.best_score
        if is_best:
            self.state = replace(
                self.state,
                score=score,
                best_step=self.state.step,
                best_score=score,
                num_bad_validations=0,
            )
        else:
            self.state = replace(
                self.state, score=score, num_bad_validations=self.state.num_bad_validations + 1
            )
        self.logger.log_validation(
            self.state.step, validation, sample_translations(validation, self.config), best=is_best
        )
