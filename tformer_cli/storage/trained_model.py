"""A trained model, with all that it takes to translate."""

import hashlib
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tformer_cli.config.load import load_config
from tformer_cli.config.renamed import current_settings
from tformer_cli.config.schema.config import Config
from tformer_cli.errors import CheckpointError
from tformer_cli.model.build import build_network
from tformer_cli.model.network import Network, Seq2Seq
from tformer_cli.storage.checkpoint import load_weights
from tformer_cli.storage.integrity import check_intact, verify_checksums
from tformer_cli.storage.origin import (
    TOKENIZERS_NOTE,
    check_settings,
    check_tokenizers,
    noted_sentences,
)
from tformer_cli.storage.run_directory import INFERENCE_FILES, MODEL_FILE, RunDirectory
from tformer_cli.storage.state import load_state
from tformer_cli.storage.tensors import read_notes
from tformer_cli.text.tokenizer import Tokenizers, load_tokenizers
from tformer_cli.text.vocabulary import DECODER_START_IDS


@dataclass(frozen=True, slots=True)
class TrainedNetwork:
    """A network of whatever kind with its weights, its tokenizers and its config.

    Attributes:
        max_source_sentences: of a source line of its training text; None where nobody knows.
    """

    config: Config
    tokenizers: Tokenizers
    model: Network
    step: int
    max_source_sentences: int | None = None


@dataclass(frozen=True, slots=True)
class TrainedModel(TrainedNetwork):
    """What it takes to translate: a model with its weights, its tokenizers and its config."""

    model: Seq2Seq

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides how it translates, the search apart."""
        data = self.config.data
        languages = (data.source_language, data.target_language)
        limits = (data.filters.max_length, self.max_source_sentences)
        shape = (self.config.model, *limits, *languages)
        digest = hashlib.sha256(f"{self.tokenizers.fingerprint} {shape}".encode())
        for name, weight in self.model.named_parameters():
            digest.update(name.encode())
            digest.update(
                weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
            )
        return digest.hexdigest()


def load_trained_model(run: RunDirectory, name: str = "best") -> TrainedModel:
    """Load the model of a run on the CPU, ready to translate; arguments as the next function's.

    Raises:
        CheckpointError: there is no such run or checkpoint, it is damaged, or does not translate.
    """
    trained = load_trained_network(run, name)
    if not isinstance(trained.model, Seq2Seq):
        raise CheckpointError(
            str(run.path),
            "does not translate",
            got=f"model.kind {trained.config.model.kind}",
            remedy="train an encoder_decoder that begins with it: training.init_from",
        )
    return TrainedModel(
        trained.config,
        trained.tokenizers,
        trained.model,
        trained.step,
        trained.max_source_sentences,
    )


def load_trained_network(run: RunDirectory, name: str = "best") -> TrainedNetwork:
    """Load the network of a run on the CPU, ready to evaluate.

    Args:
        run: the run folder, or a plain folder of `tformer export --format safetensors`, whose
            weights are its best and its last checkpoint.
        name: `best`, `last`, a step such as `400`, or the name of a checkpoint such as
            `step-000400`. The last one stands in for a best one that there is not yet.

    Raises:
        CheckpointError: there is no such run or checkpoint, it is damaged, or config.yaml or the
            tokenizers are no longer those that it was trained with.
    """
    if not run.path.is_dir():
        raise CheckpointError(str(run.path), "no such run folder", remedy=_sentence_hint(run.path))
    if name in ("best", "last") and (run.path / MODEL_FILE).is_file() and run.config_file.is_file():
        return _load_plain(run)
    if name in ("best", "last"):
        directory = run.pointed(name) or run.pointed("last")
    else:
        directory = run.checkpoint(int(name)) if name.isdecimal() else run.checkpoints / name
    if directory is None or not directory.is_dir():
        there = sorted(path.name for path in run.checkpoints.glob("[!.]*"))
        raise CheckpointError(
            str(run.path),
            "has no such checkpoint",
            got=name,
            remedy=f"there are {', '.join(there)}" if there else "train it first",
        )
    if verify_checksums(directory, INFERENCE_FILES) is not None:
        # Only now is it worth reading the others.
        check_intact(directory, _another_checkpoint(run))
    config = load_config(run.config_file)
    tokenizers = load_tokenizers(run.tokenizer)
    state = load_state(directory)
    check_settings(state.settings, config, run.config_file)
    check_tokenizers(state.tokenizer_fingerprint, tokenizers, run.tokenizer)
    model = _network(config, tokenizers, directory)
    return TrainedNetwork(config, tokenizers, model, state.step, state.max_source_sentences)


def _load_plain(folder: RunDirectory) -> TrainedNetwork:
    """Load the network of a plain folder, whose weights have notes in place of a state."""
    config, tokenizers = load_config(folder.config_file), load_tokenizers(folder.tokenizer)
    notes = read_notes(folder.path / MODEL_FILE)
    check_settings(current_settings(notes), config, folder.config_file)
    check_tokenizers(notes.get(TOKENIZERS_NOTE, ""), tokenizers, folder.tokenizer)
    model = _network(config, tokenizers, folder.path)
    return TrainedNetwork(config, tokenizers, model, 0, noted_sentences(notes))


def _network(config: Config, tokenizers: Tokenizers, directory: Path) -> Network:
    """Return a network with the weights in a folder, ready to evaluate."""
    model = build_network(
        config.model,
        source_size=tokenizers.source.size,
        target_size=tokenizers.target.size,
        seed=config.seed,
    )
    load_weights(directory, model)
    return model.eval()


def load_ensemble(runs: Sequence[RunDirectory], name: str = "best") -> list[TrainedModel]:
    """Load the models of several runs, which translate as one.

    The config of the first run is in force, so its limits of length must do for all.

    Args:
        runs: one run folder or more.
        name: of the checkpoint of each, as `load_trained_model` has it.

    Raises:
        CheckpointError: a run cannot be loaded, or does not go with the first.
    """
    first, *others = [load_trained_model(run, name) for run in runs]
    for run, other in zip(runs[1:], others, strict=True):
        if other.tokenizers.fingerprint != first.tokenizers.fingerprint:
            raise CheckpointError(
                str(run.path),
                f"has other tokenizers than {runs[0].path}",
                remedy="an ensemble has one vocabulary: name runs of the same text, tokenizer "
                "section and seed, or one that continues from the other",
            )
        if DECODER_START_IDS[other.config.model.kind] != DECODER_START_IDS[first.config.model.kind]:
            raise CheckpointError(
                str(run.path),
                f"is of another kind than {runs[0].path}, and its targets begin differently",
                got=other.config.model.kind,
                remedy="name runs of one model.kind",
            )
        longest = other.model.max_length
        if longest is not None and longest < (first.model.max_length or math.inf):
            raise CheckpointError(
                str(run.path),
                f"has learnt fewer positions than {runs[0].path} has",
                got=str(longest),
                remedy="name it first",
            )
    return [first, *others]


def _sentence_hint(path: Path) -> str:
    text = str(path)
    if " " in text.strip():
        return f"to translate a sentence: tformer translate {shlex.quote(text)}"
    return "name the folder of a run, such as runs/demo"


def _another_checkpoint(run: RunDirectory) -> str:
    """Return the remedy for a checkpoint that cannot translate."""
    for checkpoint in reversed(run.step_checkpoints()):
        if verify_checksums(checkpoint, INFERENCE_FILES) is None:
            return f'use `checkpoint="{checkpoint.name}"`'
    return "no other one is whole: train anew with `fresh=True`"
