"""Trainings of tformer and of transformers' Marian that resume, each in a process of its own.

Both have the same tokens, sizes, batches, optimizer, schedule and validations, and keep the
checkpoint of every validation in a run folder. A process trains until it has finished, its
optimizer steps have taken their time, or the pipe on its standard input is closed: it saves and
ends with the process that started it, however that ended.
"""

import contextlib
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from baseline_marian import (
    INIT_STD,
    build_marian,
    count_parameters,
    max_positions,
    mean_nll,
    refuse_another_size,
    score,
    translate,
)
from cli import CPU
from harness import Condition, command, environment, process_report
from marian_training import POINTER, train_marian

from tformer_cli.config.load import dump_config, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.corpus.reader import read_pairs, read_texts
from tformer_cli.corpus.store_builder import evaluation_store
from tformer_cli.errors import CheckpointError, Interrupted, TrainingError
from tformer_cli.evaluation.metrics import Score, build_metric
from tformer_cli.storage.atomic import write_text
from tformer_cli.storage.checkpoint import load_weights
from tformer_cli.storage.run_directory import CHECKSUMS_FILE, MODEL_FILE, RunDirectory
from tformer_cli.storage.state import TrainingProgress, load_progress
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers, load_tokenizers
from tformer_cli.training.logging import TrainingLogger
from tformer_cli.training.setup import init_model
from tformer_cli.training.trainer import Trainer, train
from tformer_cli.training.validation import is_finished
from tformer_cli.translate.translator import Translator

if TYPE_CHECKING:
    from transformers import MarianMTModel

# How often the clock is saved, and the time of the steps checked.
TICK_SECONDS = 5.0


@dataclass(frozen=True)
class TrainingRun(ABC):
    """A training of one baseline by a config, in a run folder."""

    name: ClassVar[str]
    title: ClassVar[str]
    pointer: ClassVar[str]
    condition: ClassVar[Condition] = "tuned"

    config: Config
    run: RunDirectory

    @property
    def words(self) -> list[str]:
        """What determines the training besides its config."""
        return []

    def check(self) -> None:  # noqa: B027 - a run may have nothing to check
        """Check the config before hours are spent.

        Raises:
            UsageError: this config or this machine does not do.
        """

    @abstractmethod
    def train(self) -> None:
        """Train to the end, from the last checkpoint."""

    @abstractmethod
    def translate(self, checkpoint: Path, lines: Sequence[str]) -> list[str]:
        """Translate lines with the weights of a checkpoint, as `decoding` says."""

    @abstractmethod
    def num_parameters(self) -> int:
        """Count the trained parameters."""

    def progress(self) -> TrainingProgress | None:
        """Return the progress at the last checkpoint, if that can be read."""
        checkpoint = self.run.pointed(self.pointer)
        try:
            return None if checkpoint is None else load_progress(checkpoint)
        except CheckpointError:
            # Replaced at this very moment, or damaged, which the training itself refuses.
            return None

    def is_over(self, seconds: float = float("inf")) -> bool:
        """Whether nothing is left to train in so many seconds of optimizer steps."""
        progress = self.progress()
        if progress is None:
            return False
        # A signal may have come between the last step and its validation.
        is_done = is_finished(progress, self.config.training) and progress.score is not None
        return is_done or progress.seconds >= seconds

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
        write_text(file, json.dumps({"asked": asked, "score": asdict(result)}, indent=2) + "\n")
        return result


class Ours(TrainingRun):
    """tformer, as its users train it."""

    name = "ours"
    title = "tformer"
    pointer = "last"

    def train(self) -> None:
        # No training has more validations than steps.
        training = replace(self.config.training, keep_best=self.config.training.max_steps)
        train(replace(self.config, training=training), self.run, device=CPU)

    def translate(self, checkpoint: Path, lines: Sequence[str]) -> list[str]:
        trained = load_trained_model(self.run, checkpoint.name)
        translator = Translator.from_model(trained.model, trained.tokenizers, trained.config, CPU)
        return translator.translate(lines, decoding=self.config.decoding)

    def num_parameters(self) -> int:
        return init_model(self.config, load_tokenizers(self.run.tokenizer)).num_parameters()


@dataclass(frozen=True)
class Marian(TrainingRun):
    """transformers' Marian, with the environment and the allocator of ours."""

    name = "hf"
    title = "Marian"
    pointer = POINTER

    init_std: float = INIT_STD

    @property
    def words(self) -> list[str]:
        return [str(self.init_std)]

    def check(self) -> None:
        ours = init_model(self.config, self._tokenizers())
        refuse_another_size(ours.num_parameters(), self.num_parameters())

    def train(self) -> None:
        tokenizers = self._tokenizers()
        logger = TrainingLogger(None, self.config.training)
        trainer = Trainer.setup(self.config, self.run, tokenizers, device=CPU, logger=logger)
        marian = self._model(tokenizers)
        train_marian(
            marian,
            self.config,
            trainer.data.store,
            self.run,
            initial=trainer.initial,
            steps=self.config.training.max_steps,
            device=CPU,
            precision=trainer.state.precision,
            validate=lambda: self._validation_score(marian, tokenizers),
        )

    def translate(self, checkpoint: Path, lines: Sequence[str]) -> list[str]:
        tokenizers = self._tokenizers()
        marian = self._model(tokenizers)
        load_weights(checkpoint, marian)
        return translate(marian, tokenizers, lines, self.config.decoding, CPU)

    def num_parameters(self) -> int:
        return count_parameters(self._model(self._tokenizers()))

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

    def _validation_score(self, marian: "MarianMTModel", tokenizers: Tokenizers) -> float:
        """Return BLEU or negative loss: the higher the better."""
        config = self.config
        if config.training.selection_metric == "loss":
            return -mean_nll(marian, evaluation_store(config.data.valid, tokenizers), CPU)
        metric = build_metric("bleu", config.evaluation, config.data.target_language)
        search = config.training.validation_decoding
        return score(marian, tokenizers, config.data.valid, search, metric, CPU).score


class DefaultMarian(Marian):
    """Marian without those settings: the same training, on another clock."""

    name = "hf_default"
    title = "Marian, default"
    condition = "default"


RUNS: dict[str, type[TrainingRun]] = {kind.name: kind for kind in (Ours, Marian, DefaultMarian)}


def build_run(name: str, config: Config, run: RunDirectory, init_std: float) -> TrainingRun:
    """Return a training of the baseline of a name, a key of RUNS."""
    kind = RUNS[name]
    return kind(config, run, init_std) if issubclass(kind, Marian) else kind(config, run)


def _model_checksum(checkpoint: Path) -> str:
    lines = (checkpoint / CHECKSUMS_FILE).read_text(encoding="utf-8").splitlines()
    return next(line.split()[0] for line in lines if line.endswith(f"  {MODEL_FILE}"))


class Clock:
    """Wall-clock time of a training over all its processes, steps lost by a kill included.

    Attributes:
        seconds: so far.
        checkpoints: when each was there, by name, to a tick.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.file = run.path / "clock.json"
        known = {"seconds": 0.0, "checkpoints": {}}
        if self.file.is_file():
            known = json.loads(self.file.read_text(encoding="utf-8"))
        self.seconds: float = known["seconds"]
        self.checkpoints: dict[str, float] = known["checkpoints"]
        self._zero = time.monotonic() - self.seconds

    def tick(self) -> None:
        """Save the time and the checkpoints that exist."""
        self.seconds = time.monotonic() - self._zero
        self.checkpoints = {
            checkpoint.name: self.at(checkpoint) for checkpoint in self.run.step_checkpoints()
        }
        content = {"seconds": self.seconds, "checkpoints": self.checkpoints}
        write_text(self.file, json.dumps(content, indent=2) + "\n")

    def at(self, checkpoint: Path) -> float:
        """Return when a checkpoint was there; the latest time for one that no tick saw."""
        return self.checkpoints.get(checkpoint.name, self.seconds)


def train_in_subprocess(
    training: TrainingRun, *, threads: int, seconds: float = float("inf")
) -> None:
    """Train in a process of its own until `seconds` of optimizer steps are over; it always saves.

    Raises:
        TrainingError: the training has failed.
    """
    config_file = training.run.path.with_suffix(".yaml")
    write_text(config_file, dump_config(training.config))
    words = [training.name, str(config_file), str(seconds), str(threads), *training.words]
    clock = Clock(training.run)
    process = subprocess.Popen(
        command("training_runs.serve_run", *words),
        stdin=subprocess.PIPE,
        env=environment(training.condition),
        # Ctrl-C comes to this process alone, which passes it on.
        start_new_session=True,
    )
    try:
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TICK_SECONDS)
            clock.tick()
    finally:
        process.stdin.close()
        process.wait()
        clock.tick()
    if not training.is_over(seconds):
        raise TrainingError(
            str(training.run.path),
            "the training ended early",
            got=f"exit code {process.returncode}",
            remedy="fix what is reported above; re-run the command to resume",
        )


def serve_run(name: str, config_file: str, seconds: str, threads: str, *words: str) -> None:
    """Train in this process."""
    torch.set_num_threads(int(threads))
    run = RunDirectory(Path(config_file).with_suffix(""))
    training = RUNS[name](load_config(Path(config_file)), run, *map(float, words))
    settings = json.dumps(process_report(), indent=2)
    write_text(Path(config_file).with_suffix(".settings.json"), f"{settings}\n")
    watch = threading.Thread(target=end_in_time, args=(training, float(seconds)), daemon=True)
    watch.start()
    with contextlib.suppress(Interrupted):
        training.train()


def end_in_time(training: TrainingRun, seconds: float) -> None:
    """Send SIGTERM to this process when standard input has ended, or the time is over."""
    while not select.select([sys.stdin], [], [], TICK_SECONDS)[0]:
        progress = training.progress()
        if progress is not None and progress.seconds >= seconds:
            break
    os.kill(os.getpid(), signal.SIGTERM)
