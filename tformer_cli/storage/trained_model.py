"""Trained models: finding and loading them, with checks that all belongs together; ensembles."""

import hashlib
import itertools
import math
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from tformer_cli.config.load import load_config
from tformer_cli.config.renamed import current_settings
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.fields import leaves
from tformer_cli.errors import CheckpointError, UsageError
from tformer_cli.storage.atomic import file_checksum, read_json
from tformer_cli.storage.integrity import (
    INFERENCE_FILES,
    RESTORE_CONFIG,
    recorded_checksum,
    verify_checksums,
)
from tformer_cli.storage.notes import read_notes
from tformer_cli.storage.run_directory import (
    EXPORT_FILE,
    MODEL_FILE,
    STATE_FILE,
    RunDirectory,
    is_converted,
    named_twice,
)
from tformer_cli.storage.state import load_progress
from tformer_cli.text.special_tokens import DECODER_START_IDS
from tformer_cli.text.tokenizer import Tokenizers, load_tokenizers

if TYPE_CHECKING:
    from tformer_cli.model.network import Network, Seq2Seq

# Sections of a config that determine what the weights compute and what ids a text becomes.
SECTIONS = ("model", "tokenizer")
# What an export for CTranslate2 says of itself.
EXPORT_NOTES_FILE = "tformer.json"
# Notes of a plain folder or an export, beside those settings.
TOKENIZERS_NOTE = "tokenizer_fingerprint"
SENTENCES_NOTE = "max_source_sentences"
QUANTIZATION_NOTE = "quantization"
_SENTENCES = re.compile("[1-9][0-9]{0,8}")
_STEP = re.compile("[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What a run holds of a trained model; all but its weights is read, without torch."""

    run: RunDirectory
    directory: Path  # of the weights: a checkpoint, or the run itself if it is a plain folder
    config: Config
    tokenizers: Tokenizers
    step: int
    # 99th percentile of the sentences per source line of the training text, if known
    max_source_sentences: int | None
    quantization: str | None = None  # of an export for CTranslate2

    @property
    def is_plain(self) -> bool:
        """Whether the run is a folder without checkpoints: a plain one, or an export."""
        return self.directory == self.run.path

    @property
    def checkpoint(self) -> str:
        """The name of the checkpoint."""
        return "best" if self.is_plain else self.directory.name

    @property
    def fingerprint(self) -> str:
        """A hash of all that determines its translations, except the search."""
        data = self.config.data
        languages = itertools.chain(*data.directions)
        limits = (data.filters.max_length, self.max_source_sentences)
        # What was calibrated or exported without prefixes stays valid.
        prefixes = () if data.prefixes is None else (data.prefixes,)
        shape = (self.config.model, *limits, *languages, *prefixes)
        file = MODEL_FILE if self.quantization is None else EXPORT_FILE
        weights = (
            file_checksum(self.directory / file)
            if self.is_plain
            else recorded_checksum(self.directory, file)
        )
        content = f"{self.tokenizers.fingerprint} {weights} {shape}"
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class TrainedNetwork:
    """A network of any kind with its weights, tokenizers and config."""

    config: Config
    tokenizers: Tokenizers
    model: "Network"
    step: int
    max_source_sentences: int | None = None  # as in `ModelFiles`
    files: ModelFiles | None = None  # that it was loaded from, if it was


@dataclass(frozen=True, slots=True)
class TrainedModel(TrainedNetwork):
    """A translation model with its weights, tokenizers and config."""

    model: "Seq2Seq"


def find_model(run: RunDirectory, name: str = "best") -> ModelFiles:
    """Find the model of a run, a plain folder or an export; check its config and tokenizers.

    `name` is `best` (before the first validation, the last), `last`, a step such as `400`, or the
    name of a checkpoint such as `step-000400`.
    """
    if not run.path.is_dir():
        remedy = "name the folder of a run, such as runs/demo"
        if " " in str(run.path).strip():
            remedy = f"to translate a sentence: tformer translate {shlex.quote(str(run.path))}"
        raise CheckpointError(str(run.path), "no such run folder", remedy=remedy)
    if is_converted(run.path):
        what = "was written for CTranslate2 by another program"
        remedy = (
            "name a run, which `tformer import` makes of the folder; "
            "only translate, distill and back-translate take it as it is"
        )
        raise CheckpointError(str(run.path), what, remedy=remedy)
    notes = _notes(run) if name in ("best", "last") else None
    directory = run.path if notes is not None else _find_checkpoint(run, name)
    config = load_config(run.config_file)
    tokenizers = load_tokenizers(run.tokenizer)
    quantization = None
    if notes is not None:
        quantization = notes.pop(QUANTIZATION_NOTE, None)
        settings = notes
        step = 0
        fingerprint = settings.get(TOKENIZERS_NOTE, "")
        sentences = noted_sentences(settings)
    else:
        state = load_progress(directory)
        settings = state.settings
        step = state.step
        fingerprint = state.tokenizer_fingerprint
        sentences = state.max_source_sentences
    check_settings(settings, config, run.config_file)
    check_tokenizers(fingerprint, tokenizers, run.tokenizer)
    return ModelFiles(run, directory, config, tokenizers, step, sentences, quantization)


def _notes(run: RunDirectory) -> dict[str, str] | None:
    """Return what a plain folder or an export has instead of a state.json; None of a run."""
    if not run.config_file.is_file():
        return None
    weights, notes_file = run.path / MODEL_FILE, run.path / EXPORT_NOTES_FILE
    if weights.is_file():
        return dict(read_notes(weights))
    if not notes_file.is_file() and not (run.path / EXPORT_FILE).is_file():
        return None
    try:
        notes = read_json(notes_file)
        return {QUANTIZATION_NOTE: "", **{str(key): str(value) for key, value in notes.items()}}
    except (OSError, ValueError, AttributeError) as error:
        what = "is not what tformer export has written"
        remedy = "export the model again"
        raise CheckpointError(str(notes_file), what, got=str(error), remedy=remedy) from None


def load_trained_model(run: RunDirectory, name: str = "best") -> TrainedModel:
    """Load a network by `load_trained_network`, and refuse one that does not translate."""
    trained = load_trained_network(run, name)
    check_translates(run, trained.config)
    return TrainedModel(**{field.name: getattr(trained, field.name) for field in fields(trained)})


def check_translates(run: RunDirectory, config: Config) -> None:
    """Refuse the run of a network that does not translate."""
    if config.model.kind == "masked_encoder":
        raise CheckpointError(
            str(run.path),
            "does not translate",
            got=f"model.kind {config.model.kind}",
            remedy="train an encoder_decoder that begins with it: training.init_from",
        )


def load_trained_network(run: RunDirectory, name: str = "best") -> TrainedNetwork:
    """Load the network of a run by `find_model`, on the CPU in evaluation mode."""
    from tformer_cli.model.build import SkipRandomInit, build_network
    from tformer_cli.storage.checkpoint import load_weights

    files = find_model(run, name)
    if files.quantization is not None:
        what = "is an export, and only CTranslate2 reads its weights"
        remedy = "name the run that was exported, or one that `tformer import` makes of the folder"
        raise CheckpointError(str(run.path), what, remedy=remedy)
    if not files.is_plain:
        _check_intact(run, files.directory, (MODEL_FILE,))
    with SkipRandomInit():
        model = build_network(
            files.config.model,
            source_size=files.tokenizers.source.size,
            target_size=files.tokenizers.target.size,
            seed=files.config.seed,
        )
    load_weights(files.directory, model)
    return TrainedNetwork(
        files.config,
        files.tokenizers,
        model.eval(),
        files.step,
        files.max_source_sentences,
        files,
    )


def _find_checkpoint(run: RunDirectory, name: str) -> Path:
    """Return a checkpoint with an intact state by its name."""
    if name in ("best", "last"):
        directory = run.pointed(name) or run.pointed("last")
    else:
        directory = run.checkpoint(int(name)) if _STEP.fullmatch(name) else run.checkpoints / name
    if directory is None or not directory.is_dir():
        if names := sorted(path.name for path in run.checkpoints.glob("[!.]*")):
            remedy = f"there are {', '.join(names)}"
        elif run.log_file.exists() or not run.config_file.exists():
            remedy = "train it first"
        # A plain folder or an export: no training has been here.
        elif name in ("best", "last"):
            remedy = f"restore {MODEL_FILE}, or export the model again"
        else:
            remedy = "leave `checkpoint` out"
        raise CheckpointError(str(run.path), "has no such checkpoint", got=name, remedy=remedy)
    _check_intact(run, directory, (STATE_FILE,))
    return directory


def _check_intact(run: RunDirectory, directory: Path, names: Collection[str]) -> None:
    """Refuse a checkpoint with a file that is not as it was saved, and name an intact one."""
    problem = verify_checksums(directory, names)
    if problem is None:
        return
    remedy = "no other checkpoint is intact: train again with `fresh=True`"
    for checkpoint in reversed(run.step_checkpoints()):
        if verify_checksums(checkpoint, INFERENCE_FILES) is None:
            remedy = f'use `checkpoint="{checkpoint.name}"`'
            break
    raise CheckpointError(problem.where, problem.what, got=problem.got, remedy=remedy)


def load_ensemble(runs: Sequence[RunDirectory], name: str = "best") -> list[TrainedModel]:
    """Load the models of several runs that translate together, each from its checkpoint `name`.

    The config of the first run counts, so the others must translate texts as long.
    """
    if twice := named_twice(run.path for run in runs):
        raise UsageError("`ensemble`", "names a run twice", got=twice, remedy="name each once")
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
            what = f"is of another kind than {runs[0].path}, and its targets begin differently"
            got = other.config.model.kind
            remedy = "name runs of one model.kind"
            raise CheckpointError(str(run.path), what, got=got, remedy=remedy)
        longest = other.model.max_length
        if longest is not None and longest < (first.model.max_length or math.inf):
            what = f"has learned fewer positions than {runs[0].path} has"
            raise CheckpointError(str(run.path), what, got=str(longest), remedy="name it first")
    return [first, *others]


def settings_of_model(config: Config) -> dict[str, str]:
    """Return the settings of the network and of its tokenizers, by key path."""
    return {
        key: str(value)
        for section in SECTIONS
        for key, value in leaves(getattr(config, section), section)
    }


def check_settings(saved: Mapping[str, str], config: Config, file: Path) -> None:
    """Refuse a config, read from `file`, whose model or tokenizer settings are not the saved ones.

    A key that only one of the two versions knows is not compared.
    """
    now = settings_of_model(config)
    then = current_settings(saved)
    for key in (*now, *(key for key in then if key.split(".")[0] in SECTIONS)):
        old, new = _setting(key, then), _setting(key, now)
        if old is not None and new is not None and old != new:
            what = f"{key} is not {old}, as in training"
            raise CheckpointError(str(file), what, got=new, remedy=RESTORE_CONFIG)


def check_tokenizers(saved: str, tokenizers: Tokenizers, folder: Path) -> None:
    """Refuse tokenizers, read from `folder`, whose fingerprint is not the saved one, if any."""
    if saved not in ("", tokenizers.fingerprint):
        what = "does not hold the tokenizers that the model was trained with"
        raise CheckpointError(str(folder), what, remedy="restore the folder, or train again")


def notes_of(trained: TrainedModel) -> dict[str, str]:
    """Return the notes that tie weights to the config and the tokenizers beside them."""
    notes = {TOKENIZERS_NOTE: trained.tokenizers.fingerprint, **settings_of_model(trained.config)}
    if trained.max_source_sentences is not None:
        notes[SENTENCES_NOTE] = str(trained.max_source_sentences)
    return notes


def noted_sentences(notes: Mapping[str, str]) -> int | None:
    """Return the sentences per training line by the notes of a plain folder, from anywhere."""
    noted = notes.get(SENTENCES_NOTE, "")
    return int(noted) if _SENTENCES.fullmatch(noted) else None


def _setting(key: str, settings: Mapping[str, str]) -> str | None:
    """Return a setting; the null of its section if that is null; None if unknown."""
    while key not in settings and key:
        key = key.rpartition(".")[0]
    return settings.get(key)
