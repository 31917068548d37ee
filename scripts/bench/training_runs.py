"""Trainings of tformer and of networks of transformers that resume, each in its own process.

Both have the same tokens, sizes, batches, optimizer, schedule and validations.
"""

import contextlib
import json
import os
import select
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from baseline_marian import MarianEngine, build_m2m100, build_marian, marian_steps, mean_nll
from flops import CPU
from harness import Worker, children_cpu_seconds, log
from train_baselines import prepared

from tformer_cli.config.load import changed_decoding, dump_config, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.config.schema.text import Bitext
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.corpus.checksums import reading_checksums
from tformer_cli.corpus.reader import read_texts
from tformer_cli.corpus.store_builder import evaluation_store
from tformer_cli.errors import CheckpointError, Interrupted, TrainingError, UsageError
from tformer_cli.evaluation.metrics import Score, build_metric
from tformer_cli.evaluation.tuning import tune_search
from tformer_cli.storage.atomic import make_directory, read_json, write_json, write_text
from tformer_cli.storage.checkpoint import load_weights
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import TrainingProgress, load_progress
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.text.tokenizer import Tokenizers, load_tokenizers
from tformer_cli.training.average import averaged_model
from tformer_cli.training.logging import TrainingLogger
from tformer_cli.training.resume import locked, trajectory_settings
from tformer_cli.training.saving import restore_checkpoint, take_checkpoint
from tformer_cli.training.shutdown import GracefulShutdown
from tformer_cli.training.step import TrainState
from tformer_cli.training.trainer import Trainer, train
from tformer_cli.training.validation import is_finished, scored
from tformer_cli.translate.translator import Translator

if TYPE_CHECKING:
    from baseline_marian import TransformersModel

# Keys of `training` that Marian's loop does not know.
OURS_ALONE = ("consistency", "layer_drop", "ema_decay", "freeze", "tags_first", "init_from")
# Sentences of a batch of Marian's search.
SEARCH_BATCH = 64


@dataclass(frozen=True)
class TrainingRun(ABC):
    """A training of one baseline by a config, in a run folder."""

    name: ClassVar[str]
    title: ClassVar[str]
    config: Config
    run: RunDirectory

    def check(self) -> None:
        """Check the config before hours are spent, also against a training that is there."""
        progress = self.progress()
        if progress is not None and progress.settings != trajectory_settings(self.config):
            what = "holds a training with other settings"
            remedy = "change them back, remove it, or name another --folder"
            raise CheckpointError(str(self.run.path), what, remedy=remedy)

    @abstractmethod
    def train(self) -> None:
        """Train from the last checkpoint, to the end or until a signal."""

    @abstractmethod
    def translator(self, checkpoint: Path) -> Translator:
        """Load the weights of a checkpoint."""

    def progress(self) -> TrainingProgress | None:
        """Return the progress at the last checkpoint, if there is one."""
        checkpoint = self.run.pointed("last")
        return None if checkpoint is None else load_progress(checkpoint)

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
        file = self.beside("cpu.json")
        return read_json(file) if file.is_file() else 0.0

    def add_cpu_seconds(self, seconds: float) -> None:
        """Add the processor time of a process that has ended."""
        write_json(self.beside("cpu.json"), self.cpu_seconds + seconds)

    def beside(self, ending: str) -> Path:
        """Return a file beside the run folder, whose name may have dots."""
        return self.run.path.with_name(f"{self.run.path.name}.{ending}")

    def best_checkpoints(self) -> Iterator[tuple[Path, TrainingProgress]]:
        """Yield each checkpoint that was the best on the validation text so far, in order."""
        for checkpoint in self.run.step_checkpoints():
            progress = load_progress(checkpoint)
            if progress.score is not None and progress.best_step == progress.step:
                yield checkpoint, progress

    def score(self, checkpoint: Path, test_set: str, tuned: DecodingConfig | None = None) -> Score:
        """Return the BLEU of a checkpoint on a test set; it is computed once for each search.

        Another text or another BLEU is scored anew too. The translations lie beside it, for
        `tformer compare`, those by a tuned search with a name of their own.
        """
        text, search = self.config.data.test[test_set], tuned or self.config.decoding
        made_from = self._made_from(text, search)
        name = test_set if tuned is None else f"{test_set}.tuned"
        file = self.run.eval / f"{checkpoint.name}.{name}.json"
        known = _content_of(file)
        if made_from.items() <= known.items():
            return Score(**known["score"])
        translations, score = self.bleu(self.translator(checkpoint), text, search)
        write_text(file.with_suffix(".txt"), "".join(f"{line}\n" for line in translations))
        write_json(file, {**made_from, "score": asdict(score)})
        return score

    def tuned_search(self, checkpoint: Path) -> DecodingConfig:
        """Return the search that `tformer tune` finds for a checkpoint; it is looked for once."""
        texts = self.config.data.valid_texts
        made_from = {
            name: self._made_from(text, self.config.decoding) for name, text in texts.items()
        }
        file = self.run.eval / f"{checkpoint.name}.tuning.json"
        known = _content_of(file)
        if not made_from.items() <= known.items():
            tuning = tune_search(self.translator(checkpoint), list(texts.values()), "bleu")
            known = {**made_from, **tuning.as_json()}
            write_json(file, known)
        return changed_decoding(self.config, [f"decoding={json.dumps(known['best']['decoding'])}"])

    def _made_from(self, text: Bitext, search: DecodingConfig) -> dict[str, object]:
        """Return what a score of a text depends on, besides the checkpoint."""
        return {
            "decoding": asdict(search),
            "bleu": asdict(self.config.evaluation.bleu),
            "text": reading_checksums(text, self.run.stores),
        }

    def bleu(
        self, translator: Translator, text: Bitext, search: DecodingConfig
    ) -> tuple[list[str], Score]:
        """Return the translations of a text, in its direction, and their BLEU."""
        sources, references = zip(*read_texts([text]), strict=True)
        source, target = self.config.data.direction_of(text)
        metric = build_metric("bleu", self.config.evaluation, target)
        translations = translator.into(target, source).translate(sources, decoding=search)
        return translations, metric.score(translations, references)


class Ours(TrainingRun):
    """tformer, as its users train it."""

    name = "ours"
    title = "tformer"

    def train(self) -> None:
        with contextlib.suppress(Interrupted):
            train(self.config, self.run, device=CPU)

    def translator(self, checkpoint: Path) -> Translator:
        trained = load_trained_model(self.run, checkpoint.name)
        return Translator.from_model(trained.model, trained.tokenizers, trained.config, CPU)


class Marian(TrainingRun):
    """transformers' Marian, with the environment and the allocator of ours."""

    name = "hf"
    title = "Marian"

    def check(self) -> None:
        super().check()
        if isinstance(self.config.data.valid, tuple):
            what = "must be a text, not a list"
            raise UsageError("data.valid", what, remedy=f"name one, or leave {self.name} out")
        defaults, remedy = TrainingConfig(), f"leave it out, or leave {self.name} out"
        for key in OURS_ALONE:
            if getattr(self.config.training, key) != getattr(defaults, key):
                raise UsageError(f"training.{key}", f"has no effect on {self.title}", remedy=remedy)
        self.build()

    def build(self) -> "TransformersModel":
        """Return the network with its initial weights."""
        return build_marian(self.config, self.tokenizers())

    def tokenizers(self) -> Tokenizers:
        """Return the tokenizers that tformer builds from the same config."""
        if not self.run.tokenizer.is_dir():
            prepared(self.config, self.run.path)
        return load_tokenizers(self.run.tokenizer)

    def train(self) -> None:
        config, tokenizers, path = self.config, self.tokenizers(), self.run.path
        training = config.training
        logger = TrainingLogger(None, training)
        ours = Trainer.setup(config, self.run, tokenizers, device=CPU, logger=logger)
        marian, precision = self.build(), ours.state.precision
        state = TrainState.of(marian, training, device=CPU, precision=precision, seed=config.seed)
        state.progress = replace(ours.initial, settings=trajectory_settings(config))
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
                    minutes = state.progress.seconds / 60
                    log(f"{self.title} step {state.step}  loss {loss:.3f}  after {minutes:.1f} min")
                shutdown.poll()
                if shutdown.signal is not None or training.saves_at(state.step):
                    self._validate_and_save(state)
                    shutdown.poll()
                if shutdown.signal is not None:
                    return

    def _resume(self, state: TrainState) -> None:
        """Restore the last checkpoint, if there is one."""
        checkpoint, saved, initial = self.run.pointed("last"), self.progress(), state.progress
        if saved is None and not self.run.step_checkpoints():
            return
        if (
            saved is None
            or saved.settings != initial.settings
            or saved.data_fingerprint != initial.data_fingerprint
        ):
            raise CheckpointError(
                str(self.run.path),
                f"holds a {self.title} that was trained otherwise",
                remedy="remove it, or name another --folder",
            )
        restore_checkpoint(self.run, state, checkpoint)
        state.progress = replace(saved, environment=initial.environment)

    def _validate_and_save(self, state: TrainState) -> None:
        """Save a checkpoint, validated if that is due, by the rules of ours."""
        average = averaged_model(self.run, state, log)
        if self.config.training.validates_at(state.step):
            score = self.validation_score(average or state.model)
            state.progress = scored(state.progress, score, self.config.training)
            is_best = state.progress.best_step == state.step
            best = "  (best so far)" if is_best else ""
            log(f"{self.title} valid {state.step}  {score:.3f}{best}")
        take_checkpoint(self.run, state, average)

    def validation_score(self, marian: "TransformersModel") -> float:
        """Return BLEU or negative loss: the higher the better."""
        training, text = self.config.training, self.config.data.valid
        if training.selection_metric == "loss":
            return -mean_nll(marian, evaluation_store(text, self.tokenizers()))
        translator = self.translator_of(marian)
        return self.bleu(translator, text, training.validation_decoding)[1].score

    def translator(self, checkpoint: Path) -> Translator:
        marian = self.build()
        load_weights(checkpoint, marian)
        return self.translator_of(marian)

    def translator_of(self, marian: "TransformersModel") -> Translator:
        """Return what translates by the search of transformers."""
        tokenizers = self.tokenizers()
        engine = MarianEngine(marian, tokenizers.target.suppressed_ids, SEARCH_BATCH)
        return Translator(engine, tokenizers, self.config)


class M2M100(Marian):
    """transformers' M2M-100, like Marian with pre-norm, which learns from less text."""

    name = "m2m100"
    title = "M2M-100"

    def build(self) -> "TransformersModel":
        return build_m2m100(self.config, self.tokenizers())


def _content_of(file: Path) -> dict[str, Any]:
    """Return the content of a file, of none if it is missing."""
    return read_json(file) if file.is_file() else {}


RUNS: dict[str, type[TrainingRun]] = {kind.name: kind for kind in (Ours, Marian, M2M100)}


def train_in_process(training: TrainingRun, *, threads: int) -> None:
    """Train to the end, unless that is done, in a process that saves and ends with this one.

    Raises:
        TrainingError: it has failed, or was stopped; it resumes.
    """
    if training.is_over():
        return
    config_file = training.beside("yaml")
    write_text(config_file, dump_config(training.config))
    arguments = {"name": training.name, "config_file": str(config_file), "threads": threads}
    before = children_cpu_seconds()
    try:
        with Worker("training_runs.serve_run", **arguments) as worker:
            worker.result()
    finally:
        training.add_cpu_seconds(children_cpu_seconds() - before)
    if not training.is_over():
        raise TrainingError(
            str(training.run.path),
            "the training ended early",
            remedy="re-run the command to resume",
        )


def serve_run(name: str, config_file: str, threads: int) -> None:
    """Train in this process."""
    torch.set_num_threads(threads)
    file = Path(config_file)
    training = RUNS[name](load_config(file), RunDirectory(file.with_suffix("")))
    threading.Thread(target=end_with_parent, daemon=True).start()
    training.train()


def end_with_parent() -> None:
    """Send SIGTERM to this process when its standard input has ended."""
    select.select([sys.stdin], [], [])
    os.kill(os.getpid(), signal.SIGTERM)
