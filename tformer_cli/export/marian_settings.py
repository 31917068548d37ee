"""Marian's JSON settings by ours, both ways: config, tokenizer config and generation config."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.model import EncoderDecoderConfig, SinusoidalPositions
from tformer_cli.config.schema.tokenizer import SubwordConfig
from tformer_cli.errors import CheckpointError, Problem
from tformer_cli.export.settings import (
    THEIR_ACTIVATIONS,
    Settings,
    differences,
    json_object,
    network_settings,
    read_network,
    search_limits,
)
from tformer_cli.text.special_tokens import BOS_ID, EOS_ID, UNK_ID

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
# Our ids of Marian's special tokens. Its targets begin with <pad>, our <s>.
OUR_IDS = {"</s>": EOS_ID, "<unk>": UNK_ID, "<pad>": BOS_ID}
# Marian's ids of them in our exports.
SPECIAL_IDS = {token: i for i, token in enumerate(OUR_IDS)}
# Rows of Marian's table of sinusoids, which fails past the last; more if our limits are higher.
MIN_POSITIONS = 1024


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
    yield from differences(required, "Marian")


def config_json(config: Config, source_size: int, target_size: int) -> dict[str, Any]:
    """Return the content of config.json."""
    model = config.model
    assert isinstance(model, EncoderDecoderConfig)
    return {
        **network_settings(model, "marian", "MarianMTModel"),
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": model.tie_embeddings == "all",
        "tie_word_embeddings": model.tie_embeddings != "none",
        "max_position_embeddings": _num_positions(config),
        "vocab_size": source_size,
        "decoder_vocab_size": target_size,
        "bos_token_id": None,
        **_special_ids(),
    }


def search_settings(config: Config) -> dict[str, Any]:
    """Return the content of generation_config.json."""
    return _special_ids() | {"min_new_tokens": 1} | search_limits(config)


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
        **read_network(settings),
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
