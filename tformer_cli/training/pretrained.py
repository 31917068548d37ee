"""The run whose tokenizers and weights a training begins with, for fine-tuning or transfer."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path

from tformer_cli.config.load import as_plain, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.model import (
    EncoderDecoderConfig,
    MaskedEncoderConfig,
    ModelConfig,
    TransformerConfig,
)
from tformer_cli.config.schema.tokenizer import M2MConfig, T5TokenizerConfig, TokenizerConfig
from tformer_cli.corpus.training_text import training_pairs
from tformer_cli.errors import CheckpointError, ConfigError, Problem
from tformer_cli.model.build import build_network
from tformer_cli.model.encoder import MaskedEncoder
from tformer_cli.model.encoder_decoder import EncoderDecoder
from tformer_cli.model.network import Network
from tformer_cli.storage.checkpoint import load_weights
from tformer_cli.storage.integrity import trained_weights
from tformer_cli.storage.run_directory import EXPORT_FILE, MODEL_FILE, RunDirectory
from tformer_cli.storage.state import load_progress
from tformer_cli.storage.trained_model import check_tokenizers
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers, load_tokenizers
from tformer_cli.training.resume import Log, last_checkpoint

DROPOUT_KEYS = ("dropout", "embedding_dropout", "attention_dropout", "feedforward_dropout")
# Keys in which models may differ that are the same function of the same weights; a model may also
# be fine-tuned with a larger window.
FREE_MODEL_KEYS = ("initialization", "sliding_window", *DROPOUT_KEYS)
FREE_ENCODER_KEYS = ("kind", "initialization", *DROPOUT_KEYS)


def pretrained_run(config: Config, run: RunDirectory) -> RunDirectory | None:
    """Return the run that `training.init_from` names, or None; `run` is the new one.

    Raises:
        CheckpointError: it is the new run itself, is missing, is an export, or has another
            tokenizer than the config asks for.
        ConfigError: the model or the encoder is another function of its weights.
    """
    path = config.training.init_from
    if path is None:
        return None
    if os.path.realpath(path) == os.path.realpath(run.path):
        raise CheckpointError(
            str(run.path),
            "a run cannot be initialized from itself",
            remedy="name another folder with `run`",
        )
    pretrained = RunDirectory(path)
    if not pretrained.config_file.is_file():
        raise CheckpointError(str(path), "no such run folder", remedy="name the folder of a run")
    exported = [path / MODEL_FILE, path / EXPORT_FILE]
    if any(file.is_file() for file in exported) and not pretrained.checkpoints.is_dir():
        raise CheckpointError(
            str(path),
            "holds an exported model, which a training cannot begin with",
            remedy="name the run that was exported, or one that `tformer import` makes of the "
            "folder",
        )
    _check_fits(load_config(pretrained.config_file), config, pretrained)
    return pretrained


def _check_fits(saved: Config, config: Config, pretrained: RunDirectory) -> None:
    """Check that a training can begin with the tokenizers and weights of a run's config."""
    if saved.tokenizer != _pretrained_tokenizer(saved.model, config):
        raise CheckpointError(
            str(pretrained.path),
            "was trained with another tokenizer than the config asks for",
            remedy=f"take over `tokenizer` from {pretrained.config_file}",
        )
    mismatches = list(_mismatches(saved.model, config.model, pretrained))
    mismatches += _moved_tags(saved.data.tags, config.data.tags, pretrained)
    has_tags = config.data.language_marks == "tags" and len(saved.data.targets) > 1
    if has_tags and len(config.data.targets) == 1:
        # Sources without the tag of a target language are none that it has been trained with.
        what = f"needs several target languages, as in {pretrained.path}"
        remedy = "add a text of another one, with a small weight"
        mismatches.append(Problem("data.train", what, config.data.targets[0], remedy))
    if mismatches:
        raise ConfigError(mismatches)


def pretrained_tokenizers(pretrained: RunDirectory, config: Config, log: Log) -> Tokenizers:
    """Return the tokenizers of a pretrained run.

    A masked encoder has a source vocabulary alone. For a translation model without a shared
    vocabulary, that of the target is learned from the training text.
    """
    tokenizers = load_tokenizers(pretrained.tokenizer)
    tokenizer = _pretrained_tokenizer(load_config(pretrained.config_file).model, config)
    if tokenizer == config.tokenizer:
        return tokenizers
    log("building the vocabulary of the target")
    pairs = training_pairs(config.data)
    targets = lambda: (("", target) for _, target in pairs())  # noqa: E731 - read twice
    learned = build_tokenizers(tokenizer, targets, config.seed)
    return Tokenizers(tokenizers.source, learned.target, shared=False)


def _pretrained_tokenizer(saved: ModelConfig, config: Config) -> TokenizerConfig:
    """Return the tokenizer that a pretrained model must have; that of an encoder is shared."""
    tokenizer = config.tokenizer
    if not _is_encoder_for(saved, config.model) or tokenizer.shared:
        return tokenizer
    assert not isinstance(tokenizer, M2MConfig | T5TokenizerConfig), "its vocabulary is shared"
    return replace(tokenizer, shared=True)


def pretrained_checkpoint(pretrained: RunDirectory, log: Log) -> Path:
    """Return the checkpoint whose weights a training begins with: the last intact one of a run.

    Raises:
        CheckpointError: there is none, or the tokenizers beside it are not its own.
    """
    checkpoint = last_checkpoint(pretrained, log)
    if checkpoint is None:
        raise CheckpointError(
            str(pretrained.path), "has no checkpoint yet", remedy="train it first"
        )
    fingerprint = load_progress(checkpoint).tokenizer_fingerprint
    check_tokenizers(fingerprint, load_tokenizers(pretrained.tokenizer), pretrained.tokenizer)
    return checkpoint


def load_pretrained(pretrained: RunDirectory, model: Network, config: Config, log: Log) -> None:
    """Load the weights of a run's last checkpoint into a new model, or into its encoder."""
    checkpoint = pretrained_checkpoint(pretrained, log)
    file_name = trained_weights(checkpoint).name
    saved = load_config(pretrained.config_file).model
    if not _is_encoder_for(saved, config.model):
        load_weights(checkpoint, model, file_name)
        log(f"initializing from the weights of {checkpoint}")
        return
    assert isinstance(model, EncoderDecoder), "an encoder_decoder config builds one"
    size = model.encoder.embeddings.tokens.num_embeddings
    network = build_network(saved, source_size=size, target_size=size, seed=0)
    assert isinstance(network, MaskedEncoder), "a masked_encoder config builds one"
    load_weights(checkpoint, network, file_name)
    model.encoder.load_state_dict(network.encoder.state_dict())
    log(f"initializing from the encoder of {checkpoint}: {_describe_encoder(model)}")


def _is_encoder_for(saved: ModelConfig, wanted: ModelConfig) -> bool:
    return isinstance(saved, MaskedEncoderConfig) and isinstance(wanted, EncoderDecoderConfig)


def _mismatches(saved: ModelConfig, wanted: ModelConfig, run: RunDirectory) -> Iterator[Problem]:
    """Yield each key that makes another function of the same weights, or needs other weights."""
    if isinstance(saved, MaskedEncoderConfig) and isinstance(wanted, EncoderDecoderConfig):
        yield from _encoder_mismatches(saved, wanted, run)
        return
    keys = ["kind"] if saved.kind != wanted.kind else [part.name for part in fields(saved)]
    for key in keys:
        theirs, ours = getattr(saved, key), getattr(wanted, key)
        # Fine-tuning on longer sentences changes the base, or the scaling.
        is_rotary = key == "positions" and theirs.kind == ours.kind == "rotary"
        if theirs != ours and key not in FREE_MODEL_KEYS and not is_rotary:
            yield _mismatch(key, theirs, ours, str(run.path))


def _encoder_mismatches(
    saved: MaskedEncoderConfig, wanted: EncoderDecoderConfig, run: RunDirectory
) -> Iterator[Problem]:
    """Yield each key that makes another encoder of the same weights, or needs other weights."""
    keys = [part.name for part in fields(TransformerConfig) if part.name not in FREE_ENCODER_KEYS]
    settings = {key: getattr(saved, key) for key in keys} | {"num_encoder_layers": saved.num_layers}
    for key, theirs in settings.items():
        ours = getattr(wanted, key)
        if theirs != ours:
            yield _mismatch(key, theirs, ours, f"the encoder of {run.path}")
    if saved.norm_position == wanted.norm_position == "deep":
        what = f"must not be deep with the encoder of {run.path}, whose residuals weigh otherwise"
        yield Problem("model.norm_position", what, "deep")


def _mismatch(key: str, theirs: object, ours: object, origin: str) -> Problem:
    what = f"must be {_as_yaml(theirs)}, as in {origin}"
    return Problem(f"model.{key}", what, _as_yaml(ours))


def _moved_tags(
    saved: Sequence[str], wanted: Sequence[str], run: RunDirectory
) -> Iterator[Problem]:
    """Yield a problem if a tag of a pretrained run has another id in the new one."""
    moved = [name for name in wanted if name in saved and wanted.index(name) != saved.index(name)]
    if moved:
        what = f"{moved[0]} is not the tag number {saved.index(moved[0]) + 1}, as in {run.path}"
        remedy = "let the tags appear in the order of that run, or rename this one"
        yield Problem("data.train", what, ", ".join(wanted), remedy)


def _describe_encoder(model: EncoderDecoder) -> str:
    """Return how many weights are pretrained, and the names of modules that are not."""
    pretrained = {id(weight): weight.numel() for weight in model.encoder.parameters()}
    others = [name for name, weight in model.named_parameters() if id(weight) not in pretrained]
    anew = dict.fromkeys(".".join(name.split(".")[:-1][:2]) for name in others)
    return (
        f"{sum(pretrained.values()):,} of {model.num_parameters():,} weights; "
        f"{', '.join(anew)} are newly initialized"
    )


def _as_yaml(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(as_plain(value))
