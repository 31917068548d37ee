"""The run that another one goes on from: its tokenizers, and its weights to begin with."""

from collections.abc import Callable
from dataclasses import dataclass

from tformer_cli.checkpoint.checkpoint import load_weights
from tformer_cli.checkpoint.layout import MODEL_FILE, TRAINED_FILE
from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.errors import CheckpointError
from tformer_cli.model.seq2seq import Seq2Seq
from tformer_cli.run_directory import RunDirectory
from tformer_cli.text.tokenizer import Tokenizers, load_tokenizers
from tformer_cli.training.checkpoints import last_checkpoint

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Predecessor:
    """A run whose weights another run begins with, as `training.initialize_from` says."""

    run: RunDirectory

    @classmethod
    def of(cls, config: Config, run: RunDirectory) -> "Predecessor | None":
        """Return the one that a config names, or None.

        Args:
            config: of the run that goes on.
            run: its folder.

        Raises:
            CheckpointError: a run cannot go on from itself.
        """
        path = config.training.initialize_from
        if path is None:
            return None
        if path.resolve() == run.path.resolve():
            raise CheckpointError(
                str(run.path),
                "a new training cannot go on from the folder that it is to write",
                remedy="name another folder with --run",
            )
        return cls(RunDirectory(path))

    def tokenizers(self, config: Config) -> Tokenizers:
        """Return the tokenizers that the weights were trained with.

        Raises:
            CheckpointError: there are none, or the config asks for others.
        """
        if not self.run.path.is_dir():
            raise CheckpointError(
                str(self.run.path), "no such run folder", remedy="name the folder of a run"
            )
        if load_config(self.run.config_file).tokenizer != config.tokenizer:
            raise CheckpointError(
                str(self.run.path),
                "was trained with another tokenizer than the config asks for",
                remedy=f"take over `tokenizer` from {self.run.config_file}",
            )
        return load_tokenizers(self.run.tokenizer)

    def load_into(self, model: Seq2Seq, say: Say) -> None:
        """Give a model the weights that the last checkpoint would go on with.

        Raises:
            CheckpointError: there is none, or it is of another model.
        """
        checkpoint = last_checkpoint(self.run, say)
        if checkpoint is None:
            raise CheckpointError(
                str(self.run.path), "has no checkpoint yet", remedy="train it first"
            )
        is_averaged = (checkpoint / TRAINED_FILE).exists()
        try:
            load_weights(checkpoint, model, TRAINED_FILE if is_averaged else MODEL_FILE)
        except CheckpointError as error:
            (problem,) = error.problems
            where, what = problem.where, problem.what
            remedy = f"take over `model` from {self.run.config_file}"
            raise CheckpointError(where, what, got=problem.got, remedy=remedy) from None
        say(f"beginning with the weights of {checkpoint}")
