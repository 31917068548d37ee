"""The JSON settings of a Marian folder: config, tokenizer config and generation config."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.config.schema.fields import check
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.errors import CheckpointError, ConfigError, Problem
from tformer_cli.export.imported_folder import json_object
from tformer_cli.export.marian_weights import ACTIVATIONS, NORM_EPSILON

# transformers' defaults of missing keys.
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
    """The content of config.json."""

    model: EncoderDecoderConfig  # ours
    source_size: int  # vocabulary
    target_size: int
    end_id: int  # Marian's id of `</s>`
    start_id: int  # Marian's id of the decoder start token, its pad
    is_scaled: bool  # whether embeddings are multiplied by sqrt(D), as ours are


class Languages(NamedTuple):
    """The content of tokenizer_config.json: languages, and whether each has its vocabulary."""

    source: str
    target: str
    are_separate: bool


class Settings:
    """The JSON object of a file, and all problems found in it."""

    def __init__(self, file: Path, values: dict[str, Any]) -> None:
        self.file = file
        self.values = DEFAULTS | values
        self.problems: list[Problem] = []

    @classmethod
    def read(cls, file: Path) -> "Settings":
        """Read a file."""
        return cls(file, json_object(file))

    def take(self, key: str, kind: type[Kind]) -> Kind:
        """Return a value; note a missing or mistyped one, and return an empty one."""
        value: Any = self.values.get(key)
        if kind is float and type(value) in (int, float):
            # Python's JSON has NaN, Infinity and whole numbers of any size.
            if abs(value) <= sys.float_info.max:
                return kind(value)
        elif type(value) is kind:
            return value
        got = "nothing" if value is None else json.dumps(value)
        self.note(Problem(key, f"must be {KINDS[kind]}", got))
        return kind()

    def note(self, problem: Problem) -> None:
        """Note a problem of a key."""
        self.problems.append(replace(problem, where=f"{self.file}: {problem.where}"))

    def note_conflicts(self, config: Any, key: str, remedy: str | None = None) -> None:
        """Note what our own schema forbids, unless there are problems already."""
        for conflict in [] if self.problems else check(config, key):
            self.note(Problem(conflict.key, conflict.what, conflict.got, remedy))

    def check(self) -> None:
        """Raise ConfigError with all problems, if there are some."""
        if self.problems:
            raise ConfigError(self.problems)


def read_shape(file: Path) -> Shape:
    """Read config.json."""
    settings = Settings.read(file)
    kind = settings.values.get("model_type")
    if kind != "marian":
        what, got = "is not of a Marian model", f"model_type {json.dumps(kind)}"
        raise CheckpointError(str(file), what, got=got)
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
    """Return our config; problems are noted."""
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
    settings.note_conflicts(model, "model")
    return model


def read_languages(file: Path) -> Languages:
    """Read tokenizer_config.json."""
    settings = Settings.read(file)
    for side in ("source", "target"):
        # transformers writes null for an unknown language.
        if settings.values.get(f"{side}_lang") is None:
            settings.values[f"{side}_lang"] = side
    languages = Languages(
        settings.take("source_lang", str),
        settings.take("target_lang", str),
        settings.take("separate_vocabs", bool),
    )
    settings.check()
    return languages


def read_search(file: Path) -> DecodingConfig:
    """Read `num_beams`, `length_penalty`, `max_new_tokens` and `max_length` of generation_config.

    Missing keys have our defaults, not transformers' (greedy search and 20 tokens), which nobody
    chose for the model. Marian's beam search ends by another rule, and it forces EOS on a
    translation that is too long (`forced_eos_token_id`), where ours is cut off.
    """
    if not file.is_file():
        return BeamConfig()
    settings = Settings.read(file)
    search = _search(settings)
    remedy = f"correct {file.name}, or remove it to have a search of ours"
    settings.note_conflicts(search, "decoding", remedy)
    settings.check()
    return search


def _search(settings: Settings) -> DecodingConfig:
    """Return the search of a file; problems are noted."""
    # transformers writes null for what nobody chose.
    chosen = {key for key, value in settings.values.items() if value is not None}
    limits: dict[str, Any] = {}
    if "max_new_tokens" in chosen:
        limits["max_length"] = settings.take("max_new_tokens", int)
    elif "max_length" in chosen:
        # It counts the decoder start token.
        limits["max_length"] = settings.take("max_length", int) - 1
    beam: dict[str, Any] = {}
    if "num_beams" in chosen:
        beam["beam_size"] = settings.take("num_beams", int)
    if "length_penalty" in chosen:
        beam["length_penalty"] = settings.take("length_penalty", float)
    if beam.get("beam_size") == 1:
        return GreedyConfig(**limits)
    return BeamConfig(**limits, **beam)
