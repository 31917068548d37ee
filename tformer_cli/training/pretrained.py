"""The run whose tokenizers and weights a training begins with, for fine-tuning or transfer."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from tformer_cli.config.load import as_plain, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.model import (
    EncoderDecoderConfig,
    MaskedEncoderConfig,
    ModelConfig,
    TransformerConfig,
)
from tformer_cli.corpus.reader import read_texts
from tformer_cli.errors import CheckpointError, ConfigError, Problem
from tformer_cli.model.build import build_network
from tformer_cli.model.encoder import MaskedEncoder
from tformer_cli.model.encoder_decoder import EncoderDecoder
from tformer_cli.model.network import Network
from tformer_cli.storage.checkpoint import load_weights
from tformer_cli.storage.run_directory import MODEL_FILE, RAW_MODEL_FILE, RunDirectory
from tformer_cli.storage.state import load_progress
from tformer_cli.storage.trained_model import check_tokenizers
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers, load_tokenizers
from tformer_cli.training.checkpoints import Log, last_checkpoint

DROPOUTS = ("dropout", "embedding_dropout", "attention_dropout", "feedforward_dropout")
# Keys in which models may differ that are the same function of the same weights; a model may also
# be fine-tuned with a larger window.
FREE_KEYS = ("initialization", "sliding_window", *DROPOUTS)
FREE_ENCODER_KEYS = ("kind", "initialization", *DROPOUTS)


@dataclass(frozen=True, slots=True)
class PretrainedRun:
    """The run that `training.init_from` names."""

    run: RunDirectory

    @classmethod
    def of(cls, config: Config, run: RunDirectory) -> "PretrainedRun | None":
        """Return the run that a config begins with, or None; `run` is the new one.

        Raises:
            CheckpointError: it is the new run itself, or is missing.
        """
        path = config.training.init_from
        if path is None:
            return None
        if path.resolve() == run.path.resolve():
            raise CheckpointError(
                str(run.path),
                "a run cannot be initialized from itself",
                remedy="name another folder with `run`",
            )
        if not path.is_dir():
            raise CheckpointError(
                str(path), "no such run folder", remedy="name the folder of a run"
            )
        return cls(RunDirectory(path))

    def fingerprint(self) -> str:
        """Return the hash of the tokenizers of the run."""
        return load_tokenizers(self.run.tokenizer).fingerprint

    def tokenizers(self, config: Config, log: Log) -> Tokenizers:
        """Return the tokenizers of the run.

        A masked encoder has a source vocabulary alone. For a translation model without a shared
        vocabulary, that of the target is learned from the training text.
        """
        tokenizer = config.tokenizer
        is_target_learned = self._is_encoder_for(config) and not tokenizer.shared
        if is_target_learned:
            tokenizer = replace(tokenizer, shared=True)
        if load_config(self.run.config_file).tokenizer != tokenizer:
            raise CheckpointError(
                str(self.run.path),
                "was trained with another tokenizer than the config asks for",
                remedy=f"take over `tokenizer` from {self.run.config_file}",
            )
        pretrained = load_tokenizers(self.run.tokenizer)
        if not is_target_learned:
            return pretrained
        log("building the vocabulary of the target")
        learned = build_tokenizers(
            tokenizer,
            lambda: (("", target) for _, target in read_texts(config.data.train)),
            config.seed,
        )
        return Tokenizers(pretrained.source, learned.target, shared=False)

    def load_into(self, model: Network, config: Config, log: Log) -> None:
        """Load the weights of the run's last checkpoint into a new model, or into its encoder.

        Raises:
            CheckpointError: there is no checkpoint, or the tokenizers beside it are not its own.
            ConfigError: the model or the encoder is another function of the weights.
        """
        checkpoint = last_checkpoint(self.run, log)
        if checkpoint is None:
            raise CheckpointError(
                str(self.run.path), "has no checkpoint yet", remedy="train it first"
            )
        fingerprint = load_progress(checkpoint).tokenizer_fingerprint
        check_tokenizers(fingerprint, load_tokenizers(self.run.tokenizer), self.run.tokenizer)
        # Of an averaged run, the weights that its training would resume with.
        is_averaged = (checkpoint / RAW_MODEL_FILE).exists()
        file_name = RAW_MODEL_FILE if is_averaged else MODEL_FILE
        saved, wanted = load_config(self.run.config_file).model, config.model
        if isinstance(saved, MaskedEncoderConfig) and isinstance(wanted, EncoderDecoderConfig):
            _refuse(_encoder_mismatches(saved, wanted, self.run))
            assert isinstance(model, EncoderDecoder), "an encoder_decoder config builds one"
            size = model.encoder.embeddings.tokens.num_embeddings
            network = build_network(saved, source_size=size, target_size=size, seed=0)
            assert isinstance(network, MaskedEncoder), "a masked_encoder config builds one"
            load_weights(checkpoint, network, file_name)
            model.encoder.load_state_dict(network.encoder.state_dict())
            log(f"initializing from the encoder of {checkpoint}: {_describe_encoder(model)}")
        else:
            _refuse(_mismatches(saved, wanted, self.run))
            load_weights(checkpoint, model, file_name)
            log(f"initializing from the weights of {checkpoint}")

    def _is_encoder_for(self, config: Config) -> bool:
        saved = load_config(self.run.config_file).model
        return isinstance(saved, MaskedEncoderConfig) and isinstance(
            config.model, EncoderDecoderConfig
        )


def check_pretrained(config: Config, run: RunDirectory) -> None:
    """Refuse to begin a run without the run that it begins with; once begun it needs none."""
    if not run.path.exists():
        PretrainedRun.of(config, run)


def _refuse(problems: Iterator[Problem]) -> None:
    if mismatches := list(problems):
        raise ConfigError(mismatches)


def _mismatches(saved: ModelConfig, wanted: ModelConfig, run: RunDirectory) -> Iterator[Problem]:
    """Yield each key that makes another function of the same weights, or needs other weights."""
    is_same_kind = saved.kind == wanted.kind
    keys = [part.name for part in fields(saved)] if is_same_kind else ["kind"]
    for key in keys:
        theirs, ours = getattr(saved, key), getattr(wanted, key)
        # Fine-tuning on longer sentences changes the base, or the scaling.
        is_rotary = key == "positions" and theirs.kind == ours.kind == "rotary"
        if theirs != ours and key not in FREE_KEYS and not is_rotary:
            what = f"must be {_as_yaml(theirs)}, as in {run.path}"
            yield Problem(f"model.{key}", what, _as_yaml(ours))


def _encoder_mismatches(
    saved: MaskedEncoderConfig, wanted: EncoderDecoderConfig, run: RunDirectory
) -> Iterator[Problem]:
    keys = [part.name for part in fields(TransformerConfig) if part.name not in FREE_ENCODER_KEYS]
    values = {key: (getattr(saved, key), getattr(wanted, key)) for key in keys}
    values["num_encoder_layers"] = saved.num_layers, wanted.num_encoder_layers
    for key, (theirs, ours) in values.items():
        if theirs != ours:
            what = f"must be {_as_yaml(theirs)}, as in the encoder of {run.path}"
            yield Problem(f"model.{key}", what, _as_yaml(ours))
    if saved.norm_position == wanted.norm_position == "deep":
        yield Problem(
            "model.norm_position",
            f"must not be deep with the encoder of {run.path}, whose residuals weigh otherwise",
            "deep",
        )


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
