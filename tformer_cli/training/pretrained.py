"""The run that another one goes on from: its tokenizers, and its weights to begin with."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.model import EncoderDecoderConfig, MaskedEncoderConfig, ModelConfig
from tformer_cli.corpus.pipeline import training_pairs
from tformer_cli.errors import CheckpointError, ConfigError, Problem
from tformer_cli.model.encoder_decoder import EncoderDecoder
from tformer_cli.model.network import Network
from tformer_cli.storage.checkpoint import load_weights
from tformer_cli.storage.origin import check_tokenizers
from tformer_cli.storage.run_directory import MODEL_FILE, RAW_MODEL_FILE, RunDirectory
from tformer_cli.storage.state import load_state
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers, load_tokenizers
from tformer_cli.training.checkpoints import Log, last_checkpoint
from tformer_cli.training.pretrained_encoder import DROPOUTS, PretrainedEncoder, shown

# A model may see further than its weights have learnt to, which is what it is trained further for.
FREE_KEYS = ("initialization", "sliding_window", *DROPOUTS)


@dataclass(frozen=True, slots=True)
class PretrainedRun:
    """A run whose weights another run begins with, as `training.init_from` says."""

    run: RunDirectory

    @classmethod
    def of(cls, config: Config, run: RunDirectory) -> "PretrainedRun | None":
        """Return the one that a config names, or None.

        Args:
            config: of the run that goes on.
            run: its folder.

        Raises:
            CheckpointError: a run cannot go on from itself, or from one that is not there.
        """
        path = config.training.init_from
        if path is None:
            return None
        if path.resolve() == run.path.resolve():
            raise CheckpointError(
                str(run.path),
                "a new training cannot go on from the folder that it is to write",
                remedy="name another folder with `run`",
            )
        if not path.is_dir():
            raise CheckpointError(
                str(path), "no such run folder", remedy="name the folder of a run"
            )
        return cls(RunDirectory(path))

    def fingerprint(self) -> str:
        """Return a hash of the tokenizers that the weights were trained with.

        Raises:
            CheckpointError: there are none.
        """
        return load_tokenizers(self.run.tokenizer).fingerprint

    def tokenizers(self, config: Config, log: Log) -> Tokenizers:
        """Return the tokenizers that the weights were trained with.

        An encoder alone has a vocabulary for the source; where the target has its own, that is
        learnt from the training text.

        Raises:
            CheckpointError: there are none, or the config asks for others.
            DataError: there is no text to learn from.
        """
        tokenizer = config.tokenizer
        is_target_learnt = self._encoder_for(config) is not None and not tokenizer.shared
        if is_target_learnt:
            tokenizer = replace(tokenizer, shared=True)
        if load_config(self.run.config_file).tokenizer != tokenizer:
            raise CheckpointError(
                str(self.run.path),
                "was trained with another tokenizer than the config asks for",
                remedy=f"take over `tokenizer` from {self.run.config_file}",
            )
        known = load_tokenizers(self.run.tokenizer)
        if not is_target_learnt:
            return known
        log("building the vocabulary of the target")
        learnt = build_tokenizers(
            tokenizer,
            lambda: (("", target) for _, target in training_pairs(config.data)),
            config.seed,
        )
        return Tokenizers(known.source, learnt.target, shared=False)

    def load_into(self, model: Network, config: Config, log: Log) -> None:
        """Give a model the weights that the last checkpoint would go on with.

        Args:
            model: all of which is taken over, or its encoder from a masked encoder.
            config: of the run that goes on.
            log: hears what was taken over.

        Raises:
            CheckpointError: there is none, or the tokenizers beside it are not its own.
            ConfigError: the model or the encoder is another function of the weights.
        """
        checkpoint = last_checkpoint(self.run, log)
        if checkpoint is None:
            raise CheckpointError(
                str(self.run.path), "has no checkpoint yet", remedy="train it first"
            )
        fingerprint = load_state(checkpoint).tokenizer_fingerprint
        check_tokenizers(fingerprint, load_tokenizers(self.run.tokenizer), self.run.tokenizer)
        is_averaged = (checkpoint / RAW_MODEL_FILE).exists()
        file_name = RAW_MODEL_FILE if is_averaged else MODEL_FILE
        encoder = self._encoder_for(config)
        if encoder is not None:
            assert isinstance(model, EncoderDecoder), "so its config says"
            taken = encoder.load_into(model, checkpoint, file_name)
            log(f"beginning with the encoder of {checkpoint}: {taken}")
            return
        problems = list(self._misfits(config.model))
        if problems:
            raise ConfigError(problems)
        load_weights(checkpoint, model, file_name)
        log(f"beginning with the weights of {checkpoint}")

    def _misfits(self, wanted: ModelConfig) -> Iterator[Problem]:
        """Yield each key that makes another function of the same weights, or needs others."""
        saved = load_config(self.run.config_file).model
        is_same_kind = saved.kind == wanted.kind
        keys = [part.name for part in fields(saved)] if is_same_kind else ["kind"]
        for key in keys:
            theirs, ours = getattr(saved, key), getattr(wanted, key)
            # Longer sentences are learnt with a larger base, or a scaling.
            is_rotary = key == "positions" and theirs.kind == ours.kind == "rotary"
            if theirs != ours and key not in FREE_KEYS and not is_rotary:
                what = f"must be {shown(theirs)}, as in {self.run.path}"
                yield Problem(f"model.{key}", what, shown(ours))

    def _encoder_for(self, config: Config) -> PretrainedEncoder | None:
        """Return what the run has trained, where that is an encoder and a decoder is wanted too."""
        saved, wanted = load_config(self.run.config_file).model, config.model
        if isinstance(saved, MaskedEncoderConfig) and isinstance(wanted, EncoderDecoderConfig):
            return PretrainedEncoder(self.run.path, saved, wanted)
        return None


def check_pretrained(config: Config, run: RunDirectory) -> None:
    """Make sure that a run whose folder is yet to be made finds the run it would go on from.

    Once begun it needs none.

    Args:
        config: of the run that goes on.
        run: its folder.

    Raises:
        CheckpointError: a run cannot go on from itself, or from one that is not there.
    """
    if not run.path.exists():
        PretrainedRun.of(config, run)
