"""Trainings of tformer and of transformers' Marian that resume, each in a process of its own.

Both have the same tokens, sizes, batches, optimizer, schedule and validations, and keep the
checkpoint of every validation in a run folder.
"""

import contextlib
import hashlib
import json
import os
import select
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from baseline_marian import (
    INIT_STD,
    build_marian,
    marian_steps,
    max_positions,
    mean_nll,
    refuse_another_size,
    translate,
)
from flops import CPU
from harness import Condition, Worker, children_cpu_seconds, log

from tformer_cli.config.load import dump_config, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.corpus.reader import read_pairs, read_texts
from tformer_cli.corpus.store_builder import evaluation_store
from tformer_cli.errors import CheckpointError, Interrupted, TrainingError
from tformer_cli.evaluation.metrics import Score, build_metric
from tformer_cli.storage.atomic import make_directory, write_json, write_text
from tformer_cli.storage.checkpoint import load_weights
from tformer_cli.storage.run_directory import CHECKSUMS_FILE, MODEL_FILE, RunDirectory
from tformer_cli.storage.state import TrainingProgress, load_progress
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers, load_tokenizers
from tformer_cli.training.logging import TrainingLogger
from tformer_cli.training.resume import locked, trajectory_settings
from tformer_cli.training.saving import restore_checkpoint, take_checkpoint
from tformer_cli.training.setup import init_model
from tformer_cli.training.shutdown import GracefulShutdown
from tformer_cli.training.step import TrainState
from tformer_cli.training.trainer import Trainer, train
from tformer_cli.training.validation import is_finished
from tformer_cli.translate.translator import Translator

if TYPE_CHECKING:
    from transformers import MarianMTModel


@dataclass(frozen=True)
class TrainingRun(ABC):
    """A training of one baseline by a config, in a run folder."""

    name: ClassVar[str]
    title: ClassVar[str]
    condition: ClassVar[Condition] = "tuned"

    config: Config
    run: RunDirectory
    init_std: float = INIT_STD  # of Marian's initial weights

    @property
    def lasting_config(self) -> Config:
        """The config, with every best checkpoint kept."""
        # No training has more validations than steps.
        training = replace(self.config.training, keep_best=self.config.training.max_steps)
        return replace(self.config, training=training)

    def check(self) -> None:  # noqa: B027 - a run may have nothing to check
        """Check the config before hours are spent."""

    @abstractmethod
    def train(self) -> None:
        """Train to the end, from the last checkpoint."""

    @abstractmethod
    def translate(self, checkpoint: Path, lines: Sequence[str]) -> list[str]:
        """Translate lines with the weights of a checkpoint, as `decoding` says."""

    def progress(self) -> TrainingProgress | None:
        """Return the progress at the last checkpoint, if that can be read."""
        checkpoint = self.run.pointed("last")
        try:
            return None if checkpoint is None else load_progress(checkpoint)
        except CheckpointError:
            # Replaced at this very moment, or damaged, which the training itself refuses.
            return None

    def is_over(self) -> bool:
        """Whether nothing is left to train."""
        progress = self.progress()
        # A signal may have come between the last step and its validation.
        return (
            progress is not None
            and is_finished(progress, self.config.training)
            and progress.score is not None
        )

    @property
    def cpu_seconds(self) -> float:
        """Processor time of all processes of the training that have ended."""
        file = self.run.path.with_suffix(".cpu.json")
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else 0.0

    def add_cpu_seconds(self, seconds: float) -> None:
        """Add the processor time of a process that has ended."""
        write_json(self.run.path.with_suffix(".cpu.json"), self.cpu_seconds + seconds)

    def best_checkpoints(self) -> Iterator[tuple[Path, TrainingProgress]]:
        """Yield each checkpoint that was the best on the validation text so far, in order."""
        for checkpoint in self.run.step_checkpoints():
            progress = load_progress(checkpoint)
            if progress.score is not None and progress.best_step == progress.step:
                yield checkpoint, progress

    def score(self, checkpoint: Path, test_set: str) -> Score:
        """Return the BLEU of a checkpoint on a test set; it is computed once, and cached."""
        text = self.config.data.test[test_set]
        lines, references = zip(*read_pairs(text.source, text.target), strict=True)
        metric = build_metric("bleu", self.config.evaluation, self.config.data.target_language)
        asked = {
            "weights": _model_checksum(checkpoint),
            "text": hashlib.sha256("\n".join((*lines, *references)).encode()).hexdigest(),
            "decoding": asdict(self.config.decoding),
            "bleu": list(metric.options),
        }
        file = self.run.eval / f"{checkpoint.name}.{test_set}.json"
        if file.is_file():
            known = json.loads(file.read_text(encoding="utf-8"))
            if known["asked"] == asked:
                return Score(**known["score"])
        translations = self.translate(checkpoint, lines)
        result = metric.score(translations, references)
        write_text(file.with_suffix(".hyp.txt"), "".join(f"{line}\n" for line in translations))
        write_json(file, {"asked": asked, "score": asdict(result)})
        return result


class Ours(TrainingRun):
    """tformer, as its users train it."""

    name = "ours"
    title = "tformer"

    def train(self) -> None:
        train(self.lasting_config, self.run, device=CPU)

    def translate(self, checkpoint: Path, lines: Sequence[str]) -> list[str]:
        trained = load_trained_model(self.run, checkpoint.name)
        translator = Translator.from_model(trained.model, trained.tokenizers, trained.config, CPU)
        return translator.translate(lines, decoding=self.config.decoding)


class Marian(TrainingRun):
    """transformers' Marian, with the environment and the allocator of ours."""

    name = "hf"
    title = "Marian"

    def check(self) -> None:
        tokenizers = self._tokenizers()
        refuse_another_size(init_model(self.config, tokenizers), self._model(tokenizers))

    def train(self) -> None:
        config, tokenizers, path = self.lasting_config, self._tokenizers(), self.run.path
        training = config.training
        logger = TrainingLogger(None, training)
        ours = Trainer.setup(config, self.run, tokenizers, device=CPU, logger=logger)
        marian, precision = self._model(tokenizers), ours.state.precision
        state = TrainState.of(marian, training, device=CPU, precision=precision, seed=config.seed)
        state.ema = None
        settings = trajectory_settings(config) | {"init_std": str(self.init_std)}
        state.progress = replace(ours.initial, settings=settings)
        make_directory(path)
        with contextlib.ExitStack() as stack:
            stack.enter_context(locked(self.run))
            self._resume(state)
            shutdown = stack.enter_context(GracefulShutdown(str(path)))
            batches = stack.enter_context(contextlib.closing(ours.data.batches(state)))
            steps = marian_steps(state, batches)
            while not is_finished(state.progress, training):
                loss = next(steps)
                if state.step % training.report_every == 0 or state.step == training.max_steps:
                    log_step(state, loss)
                if training.validates_at(state.step):
                    state.progress = self._validated(state.progress, marian, tokenizers)
                shutdown.poll()
                if shutdown.signal is not None or training.saves_at(state.step):
                    take_checkpoint(self.run, state)
                if shutdown.signal is not None:
                    raise Interrupted(
                        str(path),
                        f"interrupted; saved at step {state.step}",
                        signal=shutdown.signal,
                        remedy="re-run the command to resume",
                    )

    def _resume(self, state: TrainState) -> None:
        """Restore the last checkpoint, if there is one."""
        checkpoint, initial = self.run.pointed("last"), state.progress
        saved = None if checkpoint is None else load_progress(checkpoint)
        if saved is None and not self.run.step_checkpoints():
            return
        if (
            saved is None
            or saved.settings != initial.settings
            or saved.data_fingerprint != initial.data_fingerprint
        ):
            raise CheckpointError(
                str(self.run.path),
                "holds a Marian that was trained otherwise",
                remedy="remove it, or name another --folder",
            )
        restore_checkpoint(self.run, state, checkpoint)
        state.progress = replace(saved, environment=initial.environment)

    def translate(self, checkpoint: Path, lines: Sequence[str]) -> list[str]:
        tokenizers = self._tokenizers()
        marian = self._model(tokenizers)
        load_weights(checkpoint, marian)
        return translate(marian, tokenizers, lines, self.config.decoding)

    def _tokenizers(self) -> Tokenizers:
        """Return the tokenizers that tformer builds from the same config."""
        config = self.config
        if not self.run.tokenizer.is_dir():
            pairs = lambda: read_texts(config.data.train)  # noqa: E731 - read twice
            build_tokenizers(config.tokenizer, pairs, config.seed).save(self.run.tokenizer)
        return load_tokenizers(self.run.tokenizer)

    def _model(self, tokenizers: Tokenizers) -> "MarianMTModel":
        num_positions = max_positions(self.config, tokenizers)
        return build_marian(
            self.config, tokenizers, num_positions=num_positions, init_std=self.init_std
        )

    def _validated(
        self, progress: TrainingProgress, marian: "MarianMTModel", tokenizers: Tokenizers
    ) -> TrainingProgress:
        """Return the progress with a score; of equal scores the later one is the best, as ours."""
        score = self._validation_score(marian, tokenizers)
        is_best = progress.best_score is None or score >= progress.best_score
        log(f"marian valid {progress.step}  {score:.3f}{'  (best so far)' if is_best else ''}")
        if is_best:
            best = {"best_step": progress.step, "best_score": score, "num_bad_validations": 0}
            return replace(progress, score=score, **best)
        return replace(progress, score=score, num_bad_validations=progress.num_bad_validations + 1)

    def _validation_score(self, marian: "MarianMTModel", tokenizers: Tokenizers) -> float:
        """Return BLEU or negative loss: the higher the better."""
        config, text = self.config, self.config.data.valid
        if config.training.selection_metric == "loss":
            return -mean_nll(marian, evaluation_store(text, tokenizers))
        metric = build_metric("bleu", config.evaluation, config.data.target_language)
        lines, references = zip(*read_pairs(text.source, text.target), strict=True)
        search = config.training.validation_decoding
        return metric.score(translate(marian, tokenizers, lines, search), references).score


class DefaultMarian(Marian):
    """Marian without those settings: the same training, on another clock."""

    name = "hf_default"
    title = "Marian, default"
    condition = "default"


RUNS: dict[str, type[TrainingRun]] = {kind.name: kind for kind in (Ours, Marian, DefaultMarian)}


def train_in_process(training: TrainingRun, *, threads: int) -> None:
    """Train to the end in a process of its own; it saves and ends with this one, whatever ends it.

    Raises:
        TrainingError: it has failed, or was stopped; it resumes.
    """
    config_file = training.run.path.with_suffix(".yaml")
    write_text(config_file, dump_config(training.config))
    before = children_cpu_seconds()
    with Worker(
        "training_runs.serve_run",
        condition=training.condition,
        name=training.name,
        config_file=str(config_file),
        init_std=training.init_std,
        threads=threads,
    ) as worker:
        try:
            worker.result()
        finally:
            # It saves and ends when its standard input does.
            worker.process.stdin.close()
            worker.process.wait()
            training.add_cpu_seconds(children_cpu_seconds() - before)
    if not training.is_over():
        raise TrainingError(
            str(training.run.path),
            "the training ended early",
            remedy="re-run the command to resume",
        )


def serve_run(name: str, config_file: str, init_std: float, threads: int) -> None:
    """Train in this process."""
    torch.set_num_threads(threads)
    file = Path(config_file)
    training = RUNS[name](load_config(file), RunDirectory(file.with_suffix("")), init_std)
    threading.Thread(target=end_with_parent, daemon=True).start()
    with contextlib.suppress(Interrupted):
        training.train()


def end_with_parent() -> None:
    """Send SIGTERM to this process when its standard input has ended."""
    select.select([sys.stdin], [], [])
    os.kill(os.getpid(), signal.SIGTERM)


def log_step(state: TrainState, loss: float) -> None:
    """Print the progress of Marian."""
    progress, steps = state.progress, state.config.max_steps
    speed = progress.num_tokens / progress.seconds
    minutes = (steps - progress.step) * progress.seconds / progress.step / 60
    line = f"marian step {progress.step}/{steps}  loss {loss:.3f}  {speed:,.0f} tok/s"
    log(f"{line}  {minutes:.1f} min left")


def _model_checksum(checkpoint: Path) -> str:
    lines = (checkpoint / CHECKSUMS_FILE).read_text(encoding="utf-8").splitlines()
    return next(line.split()[0] for line in lines if line.endswith(f"  {MODEL_FILE}"))
