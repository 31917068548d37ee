"""Those who learn in quality.py: tformer, and transformers' Marian in a loop as good as ours.

Both have the same tokens, sizes, batches, optimiser, schedule and moments of validation, and each
keeps the checkpoint of every validation in a run folder of its own.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from conditions import Condition
from peers.marian import (
    INIT_STD,
    build_marian,
    count_parameters,
    longest,
    mean_nll,
    refuse_another_size,
    score,
    translate,
)
from peers.marian_training import POINTER, train_marian

from tformer_cli.config.schema.config import Config
from tformer_cli.corpus.pipeline import evaluation_store, training_pairs
from tformer_cli.corpus.reader import read_pairs
from tformer_cli.errors import CheckpointError
from tformer_cli.evaluation.metrics import Score, build_metric
from tformer_cli.storage.atomic import write_text
from tformer_cli.storage.checkpoint import load_weights
from tformer_cli.storage.run_directory import CHECKSUMS_FILE, MODEL_FILE, RunDirectory
from tformer_cli.storage.state import TrainingProgress, load_state
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers, load_tokenizers
from tformer_cli.training.logging import NullLogger
from tformer_cli.training.resume import is_finished
from tformer_cli.training.setup import init_model
from tformer_cli.training.trainer import Trainer, train
from tformer_cli.translate.translator import Translator

if TYPE_CHECKING:
    from transformers import MarianMTModel

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Contestant(ABC):
    """One training of one of them.

    Attributes:
        config: of the training, its seed included.
        run: where it lies.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    pointer: ClassVar[str]
    # The training itself asks for the allocator of `tuned`, as a user of tformer has it.
    condition: ClassVar[Condition] = "tuned"

    config: Config
    run: RunDirectory

    @property
    def options(self) -> list[str]:
        """What decides the training besides its config."""
        return []

    def check(self) -> None:  # noqa: B027 - there may be nothing to find out
        """Find out what would go wrong, before hours are spent.

        Raises:
            UsageError: this config or this machine does not do.
        """

    @abstractmethod
    def train(self) -> None:
        """Train to the end, from where the folder stands.

        Raises:
            Interrupted: SIGINT or SIGTERM came; what was learnt is saved.
        """

    @abstractmethod
    def translate(self, checkpoint: Path, lines: Sequence[str]) -> list[str]:
        """Translate lines with the weights of a checkpoint, as `decoding` says."""

    @abstractmethod
    def num_parameters(self) -> int:
        """Count the weights that are trained."""

    def state(self) -> TrainingProgress | None:
        """Return where the training stood when it was last saved, if that can be read."""
        checkpoint = self.run.pointed(self.pointer)
        try:
            return None if checkpoint is None else load_state(checkpoint)
        except CheckpointError:
            # Replaced at this very moment; or damaged, which the training itself has to mend.
            return None

    def is_over(self, seconds: float) -> bool:
        """Whether nothing is left to learn in so many seconds of optimiser steps."""
        state = self.state()
        if state is None:
            return False
        # A signal may have come between the last step and its validation.
        is_judged = is_finished(state, self.config.training) and state.score is not None
        return is_judged or state.seconds >= seconds

    def chosen(self) -> Iterator[tuple[Path, TrainingProgress]]:
        """Yield each checkpoint that was the best on the validation text in its time, in order."""
        for checkpoint in self.run.step_checkpoints():
            state = load_state(checkpoint)
            if state.score is not None and state.best_step == state.step:
                yield checkpoint, state

    def score(self, checkpoint: Path, test_set: str) -> Score:
        """Return the BLEU of a checkpoint on a test set; it is computed once, and kept."""
        text = self.config.data.test[test_set]
        lines, references = zip(*read_pairs(text.source, text.target), strict=True)
        metric = build_metric("bleu", self.config.evaluation, self.config.data.target_language)
        asked = {
            "weights": _digest(checkpoint),
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
        found = metric.score(translations, references)
        write_text(file.with_suffix(".hyp.txt"), "".join(f"{line}\n" for line in translations))
        write_text(file, json.dumps({"asked": asked, "score": asdict(found)}, indent=2) + "\n")
        return found


class Ours(Contestant):
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
class Marian(Contestant):
    """transformers' Marian model, with the environment and the allocator of ours.

    Attributes:
        init_std: standard deviation of its first weights.
    """

    name = "hf"
    title = "Marian"
    pointer = POINTER

    init_std: float = INIT_STD

    @property
    def options(self) -> list[str]:
        return [str(self.init_std)]

    def check(self) -> None:
        ours = init_model(self.config, self._tokenizers())
        refuse_another_size(ours.num_parameters(), self.num_parameters())

    def train(self) -> None:
        tokenizers = self._tokenizers()
        logger = NullLogger(self.run, self.config.training)
        trainer = Trainer.setup(self.config, self.run, tokenizers, device=CPU, logger=logger)
        marian = self._model(tokenizers)
        train_marian(
            marian,
            self.config,
            trainer.data.store,
            self.run,
            begin=trainer.initial,
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
        """Return what ours builds from the same config."""
        if not self.run.tokenizer.is_dir():
            config = self.config
            build_tokenizers(
                config.tokenizer, lambda: training_pairs(config.data), config.seed
            ).save(self.run.tokenizer)
        return load_tokenizers(self.run.tokenizer)

    def _model(self, tokenizers: Tokenizers) -> "MarianMTModel":
        positions = longest(self.config, tokenizers)
        return build_marian(
            self.config, tokenizers, num_positions=positions, init_std=self.init_std
        )

    def _validation_score(self, marian: "MarianMTModel", tokenizers: Tokenizers) -> float:
        """Return what a better checkpoint has more of: BLEU, or negative loss."""
        config = self.config
        if config.training.selection_metric == "loss":
            return -mean_nll(marian, evaluation_store(config.data.valid, tokenizers), CPU)
        metric = build_metric("bleu", config.evaluation, config.data.target_language)
        search = config.training.validation_decoding
        return score(marian, tokenizers, config.data.valid, search, metric, CPU).score


class DefaultMarian(Marian):
    """The same without those settings: it learns the same, on another clock."""

    name = "hf_default"
    title = "Marian, default"
    condition = "default"


CONTESTANTS: dict[str, type[Contestant]] = {
    kind.name: kind for kind in (Ours, Marian, DefaultMarian)
}


def contestant_of(name: str, config: Config, run: RunDirectory, init_std: float) -> Contestant:
    """Return a training of the contestant of a name.

    Args:
        name: a key of CONTESTANTS.
        config: of the training.
        run: where it lies.
        init_std: standard deviation of Marian's first weights.
    """
    kind = CONTESTANTS[name]
    return kind(config, run, init_std) if issubclass(kind, Marian) else kind(config, run)


def _digest(checkpoint: Path) -> str:
    """Return the sum of the weights that a checkpoint translates with."""
    lines = (checkpoint / CHECKSUMS_FILE).read_text(encoding="utf-8").splitlines()
    return next(line.split()[0] for line in lines if line.endswith(f"  {MODEL_FILE}"))
