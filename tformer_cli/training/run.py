"""A training run, from its config to its best checkpoint: begin or go on, step, validate, save."""

import hashlib
import shutil
from dataclasses import replace

import torch

from tformer_cli.checkpoint import (
    TRAINED_FILE,
    TrainingState,
    best_checkpoints,
    load_optimizer,
    load_state,
    load_weights,
    save_checkpoint,
)
from tformer_cli.config.load import check_data_files, dump_config, load_config
from tformer_cli.config.schema import Config, TrainingConfig
from tformer_cli.corpus.bucketing import Position
from tformer_cli.corpus.lengths import report_lengths
from tformer_cli.corpus.pipeline import (
    batches_per_epoch,
    evaluation_store,
    training_groups,
    training_pairs,
    training_store,
)
from tformer_cli.corpus.reader import read_pairs
from tformer_cli.corpus.store import TokenStore
from tformer_cli.device import (
    hardware_name,
    keep_freed_memory,
    peak_memory_mib,
    resolve_precision,
)
from tformer_cli.errors import CheckpointError, Interrupted
from tformer_cli.evaluation.evaluate import Evaluation
from tformer_cli.evaluation.metrics import build_metric
from tformer_cli.model.seq2seq import Seq2Seq, build_model
from tformer_cli.run_directory import RunDirectory, write_text
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers, load_tokenizers
from tformer_cli.training.interruption import Interruption
from tformer_cli.training.loop import Learner, StepReport, train_steps
from tformer_cli.training.moving_average import MovingAverage
from tformer_cli.training.optim import build_optimizer
from tformer_cli.training.reporting import Reporter
from tformer_cli.training.resume import accepted_changes
from tformer_cli.training.schedules import build_schedule
from tformer_cli.training.validation import selection_score, validate


def train(
    config: Config, run: RunDirectory, *, device: torch.device, fresh: bool = False
) -> TrainingState:
    """Train to the end, in a new run folder or from the last checkpoint of a begun one.

    The end is `max_steps`, or `patience` validations without a better one.

    Args:
        config: everything that decides the run.
        run: its folder.
        device: where to train.
        fresh: forget what the folder holds and begin again.

    Returns:
        Where the run stands at the end.

    Raises:
        TformerError: a file cannot be used, the config changed since the run began, or the
            training diverged.
        Interrupted: SIGINT or SIGTERM came; the run is saved and can go on.
    """
    check_data_files(config.data)
    keep_freed_memory()
    training = config.training
    with Reporter(
        run, max_steps=training.max_steps, report_every=training.report_every
    ) as reporter:
        sitting = _Sitting(config, run, device, reporter, fresh=fresh)
        if is_finished(sitting.state, training):
            reporter.say(f"{run.path}: finished at step {sitting.state.step}")
        else:
            with Interruption() as interruption:
                sitting.train(interruption)
        return sitting.state


def is_finished(state: TrainingState, training: TrainingConfig) -> bool:
    """Return whether a run has taken all its steps, or stopped getting better."""
    out_of_patience = training.patience is not None and state.num_stale >= training.patience
    return state.step >= training.max_steps or out_of_patience


def clear(run: RunDirectory) -> None:
    """Remove what a training wrote into a run folder but for its log, and nothing else."""
    for folder in (run.checkpoints, run.tokenizer, run.samples, run.eval):
        shutil.rmtree(folder, ignore_errors=True)
    for file in (run.path / "best", run.path / "last", run.config_file):
        file.unlink(missing_ok=True)
    run.metrics_file.unlink(missing_ok=True)


class _Sitting:
    """One sitting of a run: from where it stands to its end or to an interruption."""

    def __init__(
        self,
        config: Config,
        run: RunDirectory,
        device: torch.device,
        reporter: Reporter,
        *,
        fresh: bool,
    ) -> None:
        self.config = config
        self.run = run
        self.device = device
        self.reporter = reporter
        self.precision = resolve_precision(config.training.precision, device)
        checkpoint = None if fresh else run.pointed("last")
        if checkpoint is not None:
            for change in accepted_changes(run, load_config(run.config_file), config):
                reporter.say(f"{run.path}: accepted a changed setting: {change}")
        self.tokenizers = self._build_tokenizers() if fresh else self._tokenizers()
        self.store = self._store()
        self.model = build_model(
            config.model,
            source_size=self.tokenizers.source.size,
            target_size=self.tokenizers.target.size,
            seed=config.seed,
        )
        self.model.to(device)
        decay = config.training.ema_decay
        self.average = None if decay is None else MovingAverage(self.model, decay)
        self.optimizer = build_optimizer(config.training.optimizer, self.model)
        self.state = TrainingState(
            step=0,
            epoch=0,
            batch=0,
            best_step=None,
            best_score=None,
            num_tokens=0,
            seconds=0.0,
            data_fingerprint=_fingerprint(self.store, self.tokenizers),
            environment=_environment(device),
        )
        evaluation_store(config.data.valid, self.tokenizers, max_length=self.model.max_length)
        build_metric("bleu", config.evaluation, config.data.target_language)
        # Everything that can be wrong with config and text has shown by now.
        if checkpoint is None:
            clear(run)
            self.tokenizers.save(run.tokenizer)
        else:
            self._go_on(load_state(checkpoint))
        write_text(run.config_file, dump_config(config))
        self._describe()

    def train(self, interruption: Interruption) -> None:
        """Take steps, validate and save when it is time, until the end or a signal."""
        training = self.config.training
        learner = Learner(
            model=self.model,
            optimizer=self.optimizer,
            schedule=build_schedule(
                training.schedule,
                peak=training.optimizer.learning_rate,
                max_steps=training.max_steps,
            ),
            config=training,
            device=self.device,
            precision=self.precision,
            seed=self.config.seed,
        )
        groups = training_groups(
            self.store,
            batch_tokens=training.batch_tokens,
            accumulate=training.accumulate,
            seed=self.config.seed,
            position=Position(self.state.epoch, self.state.batch),
        )
        self.reporter.begin(self.state.step)
        for report in train_steps(learner, groups, first_step=self.state.step + 1):
            self._count(report)
            if self.average is not None:
                self.average.update(self.model, report.step)
            self.reporter.stepped(report)
            is_last = report.step == training.max_steps
            is_validation = is_last or report.step % training.validate_every == 0
            if interruption.signal is None and is_validation:
                self.reporter.flush()
                self._validate()
            if interruption.signal or is_validation or report.step % training.save_every == 0:
                self.reporter.flush()
                self._save()
            if interruption.signal is not None:
                raise Interrupted(
                    str(self.run.path),
                    f"interrupted; saved at step {report.step}",
                    signal=interruption.signal,
                    remedy="the same command goes on from there",
                )
            if is_finished(self.state, training):
                break
        self._conclude()

    @property
    def _translating_model(self) -> Seq2Seq:
        """The model to validate and to translate with."""
        return self.model if self.average is None else self.average.model

    def _tokenizers(self) -> Tokenizers:
        if self._has_vocabulary():
            return load_tokenizers(self.run.tokenizer)
        return self._build_tokenizers()

    def _build_tokenizers(self) -> Tokenizers:
        self.reporter.say("building the vocabulary")
        data = self.config.data
        return build_tokenizers(
            self.config.tokenizer, lambda: training_pairs(data), self.config.seed
        )

    def _has_vocabulary(self) -> bool:
        """Whether the run folder has a vocabulary, and it is the one that this config builds."""
        if not (self.run.tokenizer.is_dir() and self.run.config_file.is_file()):
            return False
        saved = load_config(self.run.config_file)
        return (saved.tokenizer, saved.data.train, saved.seed) == (
            self.config.tokenizer,
            self.config.data.train,
            self.config.seed,
        ) or self.run.pointed("last") is not None

    def _store(self) -> TokenStore:
        store, report = training_store(self.config.data, self.tokenizers)
        self.reporter.say(f"training text: {report}")
        self.reporter.say(f"source: {report_lengths(store.source_lengths)}")
        self.reporter.say(f"target: {report_lengths(store.target_lengths)}")
        return store

    def _go_on(self, saved: TrainingState) -> None:
        """Take up the weights, the optimiser and the position of a saved state."""
        if saved.data_fingerprint != self.state.data_fingerprint:
            raise CheckpointError(
                str(self.run.path),
                "the training text or its tokenizer has changed since this run began",
                remedy="restore it, or train elsewhere with --run, or anew with --fresh",
            )
        for name, value in self.state.environment.items():
            was = saved.environment.get(name)
            if was != value:
                self.reporter.say(
                    f"{self.run.path}: {name} was {was} and is {value} now, "
                    "so the numbers may differ in their last digits"
                )
        checkpoint = self.run.checkpoint(saved.step)
        load_weights(checkpoint, self._translating_model)
        if self.average is not None:
            load_weights(checkpoint, self.model, TRAINED_FILE)
        load_optimizer(checkpoint, self.model, self.optimizer)
        self.reporter.cut_back(saved.step)
        self.state = replace(saved, environment=self.state.environment)
        self.reporter.say(f"{self.run.path}: going on after step {saved.step}")

    def _describe(self) -> None:
        data, training = self.config.data, self.config.training
        steps = batches_per_epoch(
            self.store, batch_tokens=training.batch_tokens, seed=self.config.seed
        )
        sizes = {self.tokenizers.source.size, self.tokenizers.target.size}
        self.reporter.say(
            f"{data.source_language} -> {data.target_language}: "
            f"{self.model.num_parameters():,} parameters, "
            f"vocabulary {' and '.join(f'{size:,}' for size in sorted(sizes))}, "
            f"{steps:,} steps an epoch, {training.max_steps:,} steps in all, "
            f"on {self.device} in {str(self.precision).removeprefix('torch.')}"
        )

    def _conclude(self) -> None:
        state = self.state
        speed = state.num_tokens / state.seconds
        if state.step < self.config.training.max_steps:
            self.reporter.say(f"no better validation in the last {state.num_stale}: stopping early")
        self.reporter.say(
            f"{self.run.path}: finished; the best checkpoint is step {state.best_step}\n"
            f"{state.step:,} steps in {state.seconds / 60:.1f} minutes, "
            f"{speed:,.0f} target tokens/s, peak memory {peak_memory_mib():,.0f} MiB"
        )

    def _count(self, report: StepReport) -> None:
        self.state = replace(
            self.state,
            score=None,
            step=report.step,
            epoch=report.position.epoch,
            batch=report.position.batch,
            num_tokens=self.state.num_tokens + report.num_tokens,
            seconds=self.state.seconds + report.seconds,
        )

    def _validate(self) -> None:
        evaluation = validate(
            self._translating_model, self.tokenizers, self.config, self.device, self.precision
        )
        score = selection_score(evaluation, self.config)
        is_best = self.state.best_score is None or score >= self.state.best_score
        if is_best:
            self.state = replace(
                self.state, score=score, best_step=self.state.step, best_score=score, num_stale=0
            )
        else:
            self.state = replace(self.state, score=score, num_stale=self.state.num_stale + 1)
        self.reporter.validated(
            self.state.step, evaluation, self._samples(evaluation), best=is_best
        )

    def _samples(self, evaluation: Evaluation) -> list[tuple[str, str, str]]:
        """Pick a few validation sentences, spread evenly and always the same."""
        valid = self.config.data.valid
        pairs = list(read_pairs(valid.source, valid.target))
        count = min(self.config.training.sample_translations, len(pairs))
        places = [i * len(pairs) // count for i in range(count)]
        return [(*pairs[place], evaluation.hypotheses[place]) for place in places]

    def _save(self) -> None:
        checkpoint = self.run.checkpoint(self.state.step)
        average = None if self.average is None else self.average.model
        save_checkpoint(checkpoint, self.model, self.optimizer, self.state, average=average)
        if self.state.best_step == self.state.step:
            self.run.point("best", checkpoint)
        self.run.point("last", checkpoint)
        self._drop_old_checkpoints()

    def _drop_old_checkpoints(self) -> None:
        """Keep the newest checkpoints and the best ones."""
        training = self.config.training
        steps = self.run.step_checkpoints()
        kept = steps[-training.keep_checkpoints :] + best_checkpoints(steps)[: training.keep_best]
        for folder in steps:
            if folder not in kept:
                shutil.rmtree(folder)


def _fingerprint(store: TokenStore, tokenizers: Tokenizers) -> str:
    return hashlib.sha256(f"{store.fingerprint()} {tokenizers.fingerprint}".encode()).hexdigest()


def _environment(device: torch.device) -> dict[str, str]:
    """Return what bit-identical numbers depend on besides the code."""
    return {
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "device": hardware_name(device),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
