"""Marian's JSON settings by ours, both ways: config, tokenizer config and generation config."""

import json
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tformer_cli.config.load import as_plain
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.config.schema.fields import check
from tformer_cli.config.schema.model import EncoderDecoderConfig, SinusoidalPositions
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.config.schema.tokenizer import SubwordConfig
from tformer_cli.errors import CheckpointError, ConfigError, Problem
from tformer_cli.storage.atomic import read_json
from tformer_cli.text.vocabulary import BOS_ID, EOS_ID, UNK_ID

SETTINGS_FILE, SEARCH_FILE = "config.json", "generation_config.json"
LANGUAGES_FILE = "tokenizer_config.json"

# Values of our keys in every Marian model.
FIXED: dict[str, Any] = {
    "norm": "layer",
    "norm_position": "post",
    "norm_epsilon": 1e-5,
    "embedding_norm": False,
    "embedding_scale": None,
    "attention_scale": None,
    "output_scale": None,
    "head_width": None,
    "bias": True,
    "positions": SinusoidalPositions(),
    "num_kv_heads": None,
    "latent": None,
    "sliding_window": None,
    "qk_norm": False,
    "source_eos": True,
}
# Our keys by Marian's. Two of one key have one value.
SIZES = {
    "d_model": "dim",
    "encoder_layers": "num_encoder_layers",
    "decoder_layers": "num_decoder_layers",
    "encoder_attention_heads": "num_heads",
    "decoder_attention_heads": "num_heads",
    "encoder_ffn_dim": "feedforward_dim",
    "decoder_ffn_dim": "feedforward_dim",
}
DROPOUTS = {
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "feedforward_dropout",
}
# Our activations by Marian's; of two names for one, the last is its own.
OUR_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
THEIR_ACTIVATIONS = {ours: theirs for theirs, ours in OUR_ACTIVATIONS.items()}

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
# Our ids of Marian's special tokens. Its targets begin with <pad>, our <s>.
OUR_IDS = {"</s>": EOS_ID, "<unk>": UNK_ID, "<pad>": BOS_ID}
# Marian's ids of them in our exports.
SPECIAL_IDS = {token: i for i, token in enumerate(OUR_IDS)}
# Rows of Marian's table of sinusoids, which fails past the last; more if our limits are higher.
MIN_POSITIONS = 1024

RESTORE = "fetch the folder again"

KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
Kind = TypeVar("Kind", int, float, bool, str)


def unsupported_by_marian(
    config: Config,
    fixed: Mapping[str, Any] = FIXED,
    activations: Collection[str] = tuple(THEIR_ACTIVATIONS),
) -> Iterator[Problem]:
    """Yield the keys of a config that no Marian model has; `fixed` has the values of the rest."""
    model, tokenizer = config.model, config.tokenizer
    required: dict[str, tuple[object, object]] = {}  # and actual values by key
    if not isinstance(model, EncoderDecoderConfig):
        required["model.kind"] = "encoder_decoder", model.kind
    else:
        if model.kv_heads == model.num_heads:
            model = replace(model, num_kv_heads=None)
        required |= {f"model.{key}": (value, getattr(model, key)) for key, value in fixed.items()}
        if isinstance(model.positions, SinusoidalPositions):
            del required["model.positions"]
            for key in ("frequencies", "offset"):
                both = getattr(fixed["positions"], key), getattr(model.positions, key)
                required[f"model.positions.{key}"] = both
        if model.activation not in activations:
            choices = f"one of {', '.join(activations)}"
            required["model.activation"] = choices, model.activation
        if model.tie_embeddings == "inputs":
            required["model.tie_embeddings"] = "one of none, output, all", model.tie_embeddings
        if isinstance(tokenizer, SubwordConfig):
            required["tokenizer.lowercase"] = "none", tokenizer.lowercase
            required["tokenizer.nfkc"] = "none", tokenizer.nfkc
        elif tokenizer.kind != "marian":
            required["tokenizer.kind"] = "subword", tokenizer.kind
    if len(config.data.targets) > 1:
        # Its vocabulary has no tags.
        required["data.train"] = "of one target language", ", ".join(config.data.targets)
    if config.data.prefixes is not None:
        # Nothing in it puts them before sources.
        required["data.prefixes"] = None, ", ".join(config.data.prefixes.values())
    for key, (value, actual) in required.items():
        if actual != value:
            yield Problem(key, f"must be {shown(value)} in a Marian model", shown(actual))


def shown(value: Any) -> str:
    return value if isinstance(value, str) else getattr(value, "kind", json.dumps(as_plain(value)))


def config_json(config: Config, source_size: int, target_size: int) -> dict[str, Any]:
    """Return the content of config.json."""
    model = config.model
    assert isinstance(model, EncoderDecoderConfig)
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        **{theirs: getattr(model, ours) for theirs, ours in SIZES.items()},
        "activation_function": THEIR_ACTIVATIONS[model.activation],
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": model.tie_embeddings == "all",
        "tie_word_embeddings": model.tie_embeddings != "none",
        "max_position_embeddings": _num_positions(config),
        **{theirs: model.own_dropout(getattr(model, ours)) for theirs, ours in DROPOUTS.items()},
        "vocab_size": source_size,
        "decoder_vocab_size": target_size,
        "bos_token_id": None,
        **_special_ids(),
    }


def search_settings(config: Config) -> dict[str, Any]:
    """Return the content of generation_config.json."""
    return _special_ids() | {"min_new_tokens": 1} | search_limits(config)


def search_limits(config: Config) -> dict[str, Any]:
    """Return the run's search, as far as transformers has it."""
    search = config.decoding
    beam: dict[str, Any] = {"num_beams": 1}
    if isinstance(search, BeamConfig):
        beam = {"num_beams": search.beam_size, "length_penalty": search.length_penalty}
    return {"max_new_tokens": search.max_length} | beam


def language_settings(config: Config) -> dict[str, Any]:
    """Return the content of tokenizer_config.json."""
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": config.data.source_language,
        "target_lang": config.data.target_language,
        "separate_vocabs": not config.tokenizer.shared,
        "model_max_length": _num_positions(config),
    }


def _special_ids() -> dict[str, int | None]:
    end, pad = SPECIAL_IDS["</s>"], SPECIAL_IDS["<pad>"]
    return {
        "eos_token_id": end,
        # A translation that is cut off has no EOS, as with us.
        "forced_eos_token_id": None,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
    }


def _num_positions(config: Config) -> int:
    longest = max(config.data.filters.max_length, config.decoding.max_length)
    return max(MIN_POSITIONS, longest + 1)


class Shape(NamedTuple):
    """The content of config.json."""

    model: EncoderDecoderConfig  # ours
    source_size: int  # vocabulary
    target_size: int
    end_id: int  # Marian's id of `</s>`
    pad_id: int  # and of `<pad>`, with which translations begin
    is_scaled: bool  # whether embeddings are multiplied by sqrt(D), as ours are


class Languages(NamedTuple):
    """The content of tokenizer_config.json: languages, and whether each has its vocabulary."""

    source: str
    target: str
    are_separate: bool


def json_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    try:
        content = read_json(file)
    except (OSError, ValueError) as error:
        raise CheckpointError(str(file), "is not JSON", got=str(error), remedy=RESTORE) from None
    if not isinstance(content, dict):
        got = type(content).__name__
        raise CheckpointError(str(file), "must be a JSON object", got=got, remedy=RESTORE)
    return content


def vocabulary_ids(file: Path) -> dict[str, int]:
    """Return the id of each piece in a vocabulary of JSON."""
    ids = json_object(file)
    got = None
    if not all(type(i) is int for i in ids.values()):
        got = "an id that is no whole number"
    elif any("\ud800" <= character <= "\udfff" for piece in ids for character in piece):
        # JSON escaped one of the two surrogates of a character without the other.
        got = "half a character of Unicode"
    if got is not None:
        raise CheckpointError(str(file), "is not a vocabulary", got=got, remedy=RESTORE)
    return ids


class Settings:
    """The JSON object of a file, and all problems found in it."""

    def __init__(self, file: Path, values: dict[str, Any]) -> None:
        self.file = file
        self.values = DEFAULTS | values
        self.problems: list[Problem] = []

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

    def choose(self, key: str, choices: Mapping[str, Any]) -> Any:
        """Return what a value stands for; note an unknown one, and return the first of all."""
        value = self.take(key, str)
        if value not in choices:
            self.note(Problem(key, f"must be one of {', '.join(choices)}", value))
        return choices.get(value, next(iter(choices.values())))

    def note(self, problem: Problem) -> None:
        """Note a problem of a key."""
        self.problems.append(replace(problem, where=f"{self.file}: {problem.where}"))

    def check(self, config: object = None, key: str = "", remedy: str | None = None) -> None:
        """Raise ConfigError with all problems, or else with what our schema says of a config."""
        for conflict in [] if self.problems or config is None else check(config, key):
            self.note(replace(conflict, remedy=remedy))
        if self.problems:
            raise ConfigError(self.problems)


def read_shape(file: Path) -> Shape:
    """Read config.json."""
    settings = Settings(file, json_object(file))
    kind = settings.values.get("model_type")
    if kind != "marian":
        what = "is not of a Marian model"
        got = f"model_type {json.dumps(kind)}"
        raise CheckpointError(str(file), what, got=got)
    is_shared = settings.take("share_encoder_decoder_embeddings", bool)
    is_tied = settings.take("tie_word_embeddings", bool)
    model = EncoderDecoderConfig(
        **read_sizes(settings),  # type: ignore[arg-type]
        **{ours: settings.take(theirs, float) for theirs, ours in DROPOUTS.items()},  # type: ignore[arg-type]
        activation=settings.choose("activation_function", OUR_ACTIVATIONS),
        tie_embeddings="none" if not is_tied else "all" if is_shared else "output",
        output_bias=True,
        **FIXED,
    )
    source_size = target_size = settings.take("vocab_size", int)
    if not is_shared and settings.values.get("decoder_vocab_size") is not None:
        target_size = settings.take("decoder_vocab_size", int)
    keys = ("decoder_start_token_id", "pad_token_id", "eos_token_id")
    start_id, pad_id, end_id = (settings.take(key, int) for key in keys)
    if start_id != pad_id:
        rule = f"must be {pad_id}, as pad_token_id"
        settings.note(Problem("decoder_start_token_id", rule, str(start_id)))
    is_scaled = settings.take("scale_embedding", bool)
    settings.check(model, "model")
    return Shape(model, source_size, target_size, end_id, pad_id, is_scaled)


def read_sizes(settings: Settings) -> dict[str, int]:
    """Return the sizes of the model by our keys; problems are noted."""
    sizes: dict[str, int] = {}
    for key, ours in SIZES.items():
        size = settings.take(key, int)
        if size != sizes.setdefault(ours, size):
            rule = f"must be {sizes[ours]}, as {key.replace('decoder', 'encoder')}"
            settings.note(Problem(key, rule, str(size)))
    return sizes


def read_languages(file: Path) -> Languages:
    """Read tokenizer_config.json."""
    settings = Settings(file, json_object(file))
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


def data_config(source: str, target: str) -> DataConfig:
    """Return the text files that a further training expects below its `data.root`."""
    return DataConfig(
        source_language=source,
        target_language=target,
        train=(TrainingText(source=Path(f"train.{source}"), target=Path(f"train.{target}")),),
        valid=ParallelText(source=Path(f"valid.{source}"), target=Path(f"valid.{target}")),
    )


def read_search(file: Path) -> DecodingConfig:
    """Read `num_beams`, `length_penalty`, `max_new_tokens` and `max_length` of generation_config.

    Missing keys have our defaults, not transformers' (greedy search and 20 tokens), which nobody
    chose for the model. Marian's beam search ends by another rule, and it forces EOS on a
    translation that is too long (`forced_eos_token_id`), where ours is cut off.
    """
    if not file.is_file():
        return BeamConfig()
    settings = Settings(file, json_object(file))
    # transformers writes null for what nobody chose.
    chosen = {key for key, value in settings.values.items() if value is not None}
    limits: dict[str, Any] = {}
    beam: dict[str, Any] = {}
    if "max_new_tokens" in chosen:
        limits["max_length"] = settings.take("max_new_tokens", int)
    elif "max_length" in chosen:
        # It counts the decoder start token.
        limits["max_length"] = settings.take("max_length", int) - 1
    if "num_beams" in chosen:
        beam["beam_size"] = settings.take("num_beams", int)
    if "length_penalty" in chosen:
        beam["length_penalty"] = settings.take("length_penalty", float)
    is_greedy = beam.get("beam_size") == 1
    search = GreedyConfig(**limits) if is_greedy else BeamConfig(**limits, **beam)
    remedy = f"correct {file.name}, or remove it to have a search of ours"
    settings.check(search, "decoding", remedy)
    return search
