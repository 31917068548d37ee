"""What the settings of a Marian model say: config.json and tokenizer_config.json of its folder."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tformer_cli.config.schema.fields import check
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.errors import CheckpointError, ConfigError, Problem
from tformer_cli.export.imported_folder import json_object
from tformer_cli.export.marian.weights import ACTIVATIONS, NORM_EPSILON

# What transformers assumes where a file says nothing.
DEFAULTS: dict[str, Any] = {
    "scale_embedding": False,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "separate_vocabs": False,
}
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}

Kind = TypeVar("Kind", int, float, bool, str)


class Shape(NamedTuple):
    """What config.json says.

    Attributes:
        model: our shape of it.
        source_size: rows of the source embeddings.
        target_size: rows of the target embeddings.
        end_id: Marian's id of `</s>`.
        start_id: Marian's id of what targets begin with, its pad.
        is_scaled: whether embeddings are multiplied by the root of their width, as ours are.
    """

    model: EncoderDecoderConfig
    source_size: int
    target_size: int
    end_id: int
    start_id: int
    is_scaled: bool


class Languages(NamedTuple):
    """What tokenizer_config.json says.

    Attributes:
        source: the language that is read.
        target: the language that is written.
        are_apart: whether each has a vocabulary of its own.
    """

    source: str
    target: str
    are_apart: bool


class Settings:
    """The JSON object of a file, whose problems are collected."""

    def __init__(self, file: Path) -> None:
        """Read it.

        Raises:
            CheckpointError: the file holds something else.
        """
        self.file = file
        self.values = DEFAULTS | json_object(file)
        self.problems: list[Problem] = []

    def take(self, key: str, kind: type[Kind]) -> Kind:
        """Return a value; of one that is missing or of another kind note so, and return another."""
        value: Any = self.values.get(key)
        if kind is float and type(value) in (int, float):
            # JSON has NaN and Infinity in Python, and whole numbers without end.
            if abs(value) <= sys.float_info.max:
                return kind(value)
        elif type(value) is kind:
            return value
        got = "nothing" if value is None else json.dumps(value)
        self.note(Problem(key, f"must be {KINDS[kind]}", got))
        return kind()

    def note(self, problem: Problem) -> None:
        """Note what is wrong with the key that a problem names."""
        self.problems.append(replace(problem, where=f"{self.file}: {problem.where}"))

    def check(self) -> None:
        """Do nothing if all is well.

        Raises:
            ConfigError: it is not; all that was noted.
        """
        if self.problems:
            raise ConfigError(self.problems)


def read_shape(file: Path) -> Shape:
    """Read config.json.

    Raises:
        CheckpointError: the file is damaged, or of another kind of model.
        ConfigError: no model of ours is the same function; everything that differs.
    """
    settings = Settings(file)
    kind = settings.values.get("model_type")
    if kind != "marian":
        raise CheckpointError(
            str(file),
            "is of another kind of model than Marian",
            got=f"model_type {json.dumps(kind)}",
        )
    is_shared = settings.take("share_encoder_decoder_embeddings", bool)
    model = _model(settings, is_shared=is_shared)
    source_size = target_size = settings.take("vocab_size", int)
    if not is_shared and settings.values.get("decoder_vocab_size") is not None:
        target_size = settings.take("decoder_vocab_size", int)
    start_id, pad_id = (settings.take(f"{x}_token_id", int) for x in ("decoder_start", "pad"))
    if start_id != pad_id:
        rule = f"must be pad_token_id ({pad_id})"
        settings.note(Problem("decoder_start_token_id", rule, str(start_id)))
    shape = Shape(
        model,
        source_size,
        target_size,
        settings.take("eos_token_id", int),
        start_id,
        settings.take("scale_embedding", bool),
    )
    settings.check()
    return shape


def _model(settings: Settings, *, is_shared: bool) -> EncoderDecoderConfig:
    """Return our shape of a model; what is wrong is noted.

    Args:
        settings: of config.json.
        is_shared: whether both languages have one table of embeddings.
    """
    num_heads = settings.take("encoder_attention_heads", int)
    feedforward_dim = settings.take("encoder_ffn_dim", int)
    if (got := settings.take("decoder_attention_heads", int)) != num_heads:
        rule = f"must be encoder_attention_heads ({num_heads})"
        settings.note(Problem("decoder_attention_heads", rule, str(got)))
    if (got := settings.take("decoder_ffn_dim", int)) != feedforward_dim:
        rule = f"must be encoder_ffn_dim ({feedforward_dim})"
        settings.note(Problem("decoder_ffn_dim", rule, str(got)))
    activation = settings.take("activation_function", str)
    if activation not in ACTIVATIONS:
        rule = f"must be one of {', '.join(ACTIVATIONS)}"
        settings.note(Problem("activation_function", rule, activation))
    is_tied = settings.take("tie_word_embeddings", bool)
    model = EncoderDecoderConfig(
        dim=settings.take("d_model", int),
        num_heads=num_heads,
        feedforward_dim=feedforward_dim,
        num_encoder_layers=settings.take("encoder_layers", int),
        num_decoder_layers=settings.take("decoder_layers", int),
        activation=ACTIVATIONS.get(activation, "relu"),  # type: ignore[arg-type]
        norm_position="post",
        norm_epsilon=NORM_EPSILON,
        dropout=settings.take("dropout", float),
        attention_dropout=settings.take("attention_dropout", float),
        feedforward_dropout=settings.take("activation_dropout", float),
        tie_embeddings="none" if not is_tied else "all" if is_shared else "output",
        output_bias=True,
    )
    for conflict in [] if settings.problems else check(model, "model"):
        settings.note(Problem(conflict.key, conflict.what, conflict.got))
    return model


def read_languages(file: Path) -> Languages:
    """Read tokenizer_config.json.

    Raises:
        CheckpointError: the file is damaged.
        ConfigError: a value is of another kind.
    """
    settings = Settings(file)
    for side in ("source", "target"):
        # transformers writes null where it knows none.
        if settings.values.get(f"{side}_lang") is None:
            settings.values[f"{side}_lang"] = side
    languages = Languages(
        settings.take("source_lang", str),
        settings.take("target_lang", str),
        settings.take("separate_vocabs", bool),
    )
    settings.check()
    return languages
