"""Transformers' T5, T5 1.1, mT5 and MADLAD-400: import of a folder, and export to T5.

Raffel et al. 2020; Xue et al. 2021; Kudugunta et al. 2023. Logits are ours. Rows of the tables that
no text has, such as `<extra_id_0>`, are in no translation of ours, and T5 has them all.
"""

import base64
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import target_token
from tformer_cli.config.schema.model import EncoderDecoderConfig, T5Positions
from tformer_cli.config.schema.tokenizer import T5TokenizerConfig
from tformer_cli.errors import CheckpointError, Problem
from tformer_cli.export.check import TransformersFormat
from tformer_cli.export.format import filled
from tformer_cli.export.plain import in_languages
from tformer_cli.export.settings import (
    LANGUAGES_FILE,
    RESTORE,
    SEARCH_FILE,
    SETTINGS_FILE,
    Settings,
    check_files,
    data_config,
    differences,
    json_object,
    read_search,
    search_limits,
)
from tformer_cli.export.t5_weights import OUTPUT_PROJECTION, OUTSIDE, output_projection, t5_names
from tformer_cli.export.weights import (
    our_weights,
    read_weights,
    to_theirs,
    weights_file,
    write_weights,
)
from tformer_cli.storage.atomic import write_json
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.subword import sentencepiece_processor
from tformer_cli.text.t5 import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Piece,
    T5Tokenizer,
    t5_tokenizer,
    unigram_model,
)
from tformer_cli.text.tokenizer import Tokenizers

MODEL_TYPES = ("t5", "mt5")
PIECES_FILE, TOKENIZER_FILE = "spiece.model", "tokenizer.json"

# Values of our keys in every T5.
FIXED: dict[str, Any] = {
    "norm": "rms",
    "norm_position": "pre",
    "bias": False,
    "embedding_scale": 1.0,
    "attention_scale": 1.0,
    "num_kv_heads": None,
    "latent": None,
    "sliding_window": None,
    "qk_norm": False,
    "output_bias": True,
    "train_output_bias": False,
    "source_eos": True,
}
# Our keys by T5's.
SIZES = {
    "d_model": "dim",
    "d_kv": "head_width",
    "d_ff": "feedforward_dim",
    "num_heads": "num_heads",
    "num_layers": "num_encoder_layers",
    "num_decoder_layers": "num_decoder_layers",
}
# Our activations by T5's; transformers has the tanh approximation for its gated-gelu.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "silu": "silu",
    "gated-silu": "swiglu",
    "gated-gelu": "geglu_tanh",
}
THEIR_ACTIVATIONS = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
# transformers' defaults of keys that older folders lack.
DEFAULTS: dict[str, Any] = {
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6,
    "pad_token_id": 0,
    "eos_token_id": 1,
}

EXTRA_ID = re.compile("<extra_id_[0-9]+>")
BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")
LANGUAGE_TAG = re.compile(r"<2([\w-]+)>")
TRANSLATION_TASK = re.compile(r"translation_(\w+)_to_(\w+)")


# Our special tokens by T5's keys.
SPECIAL_KEYS = {
    "<s>": "decoder_start_token_id",
    "<pad>": "pad_token_id",
    "</s>": "eos_token_id",
}


class T5Format(TransformersFormat):
    """A folder that transformers loads as T5ForConditionalGeneration, also of an mT5."""

    def unsupported(self, trained: TrainedModel) -> Iterator[Problem]:
        return unsupported_by_t5(trained.config)

    def write(self, trained: TrainedModel, folder: Path) -> None:
        tokenizer, model = trained.tokenizers.source, trained.config.model
        assert isinstance(tokenizer, T5Tokenizer)
        assert isinstance(model, EncoderDecoderConfig)
        rows = torch.tensor(tokenizer.rows)
        ids = rows.argsort()[tokenizer.rows.count(-1) :]
        weights = to_theirs(our_weights(trained.model), t5_names(model), (ids, ids))
        write_weights(folder, weights)
        write_json(folder / SETTINGS_FILE, config_json(trained.config, model, tokenizer))
        write_json(folder / SEARCH_FILE, search_json(trained.config, model, tokenizer))
        write_json(folder / LANGUAGES_FILE, tokenizer_json(tokenizer))
        (folder / PIECES_FILE).write_bytes(tokenizer.model)

    def read(self, folder: Path) -> TrainedModel:
        return read_t5(folder)

    def example(self, trained: TrainedModel, line: str) -> str:
        data = trained.config.data
        prefix = data.prefix_of(data.first_valid_text)
        return filled("t5.py.txt", line=repr(prefix + line))

    def packages(self, trained: TrainedModel) -> list[str]:
        return ["transformers", "sentencepiece", "protobuf", "torch"]


def unsupported_by_t5(config: Config) -> Iterator[Problem]:
    """Yield the keys of a config that no T5 has."""
    model = config.model
    required: dict[str, tuple[object, object]] = {"tokenizer.kind": ("t5", config.tokenizer.kind)}
    if not isinstance(model, EncoderDecoderConfig):
        required["model.kind"] = "encoder_decoder", model.kind
    else:
        required |= {f"model.{key}": (value, getattr(model, key)) for key, value in FIXED.items()}
        required["model.positions"] = "t5", model.positions.kind
        if model.activation not in THEIR_ACTIVATIONS:
            choices = f"one of {', '.join(THEIR_ACTIVATIONS)}"
            required["model.activation"] = choices, model.activation
        if model.tie_embeddings not in ("inputs", "all"):
            required["model.tie_embeddings"] = "inputs or all", model.tie_embeddings
        if model.output_scale is not None:
            required["model.output_scale"] = model.dim**-0.5, model.output_scale
    if config.data.tags:
        required["data.train"] = "without tags", ", ".join(config.data.tags)
    yield from differences(required, "T5")


def config_json(
    config: Config, model: EncoderDecoderConfig, tokenizer: T5Tokenizer
) -> dict[str, Any]:
    """Return the content of config.json."""
    assert isinstance(model.positions, T5Positions)
    source = config.data.source_language
    tasks = {
        f"translation_{source}_to_{target}": {"prefix": prefix}
        for target, prefix in (config.data.prefixes or {}).items()
        if target_token(target) not in prefix
    }
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        **{theirs: getattr(model, ours) for theirs, ours in SIZES.items()},
        "d_kv": model.head_dim,
        "feed_forward_proj": THEIR_ACTIVATIONS[model.activation],
        "relative_attention_num_buckets": model.positions.num_buckets,
        "relative_attention_max_distance": model.positions.max_distance,
        "dropout_rate": model.dropout,
        "layer_norm_epsilon": model.norm_epsilon,
        # The first decides for transformers before version 5, and the second from it on.
        "tie_word_embeddings": model.tie_embeddings == "all",
        "scale_decoder_outputs": model.output_scale is not None,
        "vocab_size": max(tokenizer.rows) + 1,
        **_special_ids(tokenizer),
        **({"task_specific_params": tasks} if tasks else {}),
    }


def search_json(
    config: Config, model: EncoderDecoderConfig, tokenizer: T5Tokenizer
) -> dict[str, Any]:
    """Return the content of generation_config.json: the run's search, by tokens that it allows."""
    suppressed = sorted({tokenizer.rows[i] for i in tokenizer.suppressed_ids} - {-1})
    # transformers' KV cache of a T5 has as many layers as the encoder.
    use_cache = model.num_decoder_layers <= model.num_encoder_layers
    settings = {"suppress_tokens": suppressed, "use_cache": use_cache, "min_new_tokens": 1}
    return _special_ids(tokenizer) | settings | search_limits(config)


def tokenizer_json(tokenizer: T5Tokenizer) -> dict[str, Any]:
    """Return the content of tokenizer_config.json."""
    processor = sentencepiece_processor(tokenizer.model, PIECES_FILE, RESTORE)
    size, ids = processor.get_piece_size(), _special_ids(tokenizer)
    return {
        "tokenizer_class": "T5Tokenizer",
        "eos_token": processor.id_to_piece(ids["eos_token_id"]),
        "unk_token": processor.id_to_piece(processor.unk_id()),
        "pad_token": processor.id_to_piece(ids["pad_token_id"]),
        "extra_ids": min(100, max(tokenizer.rows) + 1 - size),
    }


def _special_ids(tokenizer: T5Tokenizer) -> dict[str, int]:
    rows = tokenizer.special_rows
    return {
        "decoder_start_token_id": rows["<s>"],
        "pad_token_id": rows.get("<pad>", rows["<s>"]),
        "eos_token_id": rows["</s>"],
    }


def read_t5(
    folder: Path, *, source_language: str | None = None, target_language: str | None = None
) -> TrainedModel:
    """Return the model of a folder, with the search of its generation_config.json.

    Nothing is unpickled. Arguments and errors are those of `import_run`.
    """
    pieces_file = PIECES_FILE if (folder / PIECES_FILE).is_file() else TOKENIZER_FILE
    file, needed = weights_file(folder), (SETTINGS_FILE, pieces_file)
    check_files(folder, file, needed, "a T5 model", "T5ForConditionalGeneration")
    settings = _settings(folder / SETTINGS_FILE)
    num_rows = settings.take("vocab_size", int)
    config = _network(settings)
    stored = read_weights(file)
    output = output_projection(stored, (num_rows, config.dim))
    config = replace(config, tie_embeddings="inputs" if output == OUTPUT_PROJECTION else "all")
    tokenizer = _tokenizer(folder / pieces_file, settings, num_rows)
    rows = torch.tensor(tokenizer.rows)
    names = t5_names(config, stored.weights)
    model = stored.network(names, (rows, rows), config, outside=OUTSIDE)
    source, prefixes = read_prefixes(settings.values, tokenizer)
    target = target_language or next(iter(prefixes), "target")
    data = data_config(source_language or source or "source", target)
    whole = Config(
        data=replace(data, prefixes=prefixes or None),
        tokenizer=T5TokenizerConfig(),
        model=config,
        decoding=read_search(folder / SEARCH_FILE),
    )
    tokenizers = Tokenizers(tokenizer, tokenizer, shared=True)
    trained = TrainedModel(whole, tokenizers, model, step=0)
    return in_languages(trained, source_language, target_language)


def _settings(file: Path) -> Settings:
    """Read config.json; keys that are missing or null have transformers' defaults."""
    values = {key: value for key, value in json_object(file).items() if value is not None}
    is_mt5 = values.get("model_type") == "mt5"
    defaults = {
        "num_decoder_layers": values.get("num_layers"),
        "decoder_start_token_id": values.get("pad_token_id", 0),
        "feed_forward_proj": "gated-gelu" if is_mt5 else "relu",
        "scale_decoder_outputs": not is_mt5 and values.get("tie_word_embeddings") is not False,
    }
    return Settings(file, DEFAULTS | defaults | values)


def _network(settings: Settings) -> EncoderDecoderConfig:
    """Return our network, its ties excepted.

    Raises:
        ConfigError: all problems of the settings.
    """
    sizes: dict[str, Any] = {ours: settings.take(theirs, int) for theirs, ours in SIZES.items()}
    activation = settings.choose("feed_forward_proj", ACTIVATIONS)
    is_scaled = settings.take("scale_decoder_outputs", bool)
    config = EncoderDecoderConfig(
        **sizes,
        **FIXED,
        activation=activation,
        positions=T5Positions(
            num_buckets=settings.take("relative_attention_num_buckets", int),
            max_distance=settings.take("relative_attention_max_distance", int),
        ),
        norm_epsilon=settings.take("layer_norm_epsilon", float),
        dropout=settings.take("dropout_rate", float),
    )
    # A width that no machine has may have no root.
    settings.check(config, "model")
    return replace(config, output_scale=config.dim**-0.5) if is_scaled else config


def _tokenizer(file: Path, settings: Settings, num_rows: int) -> T5Tokenizer:
    model = file.read_bytes() if file.name == PIECES_FILE else _unigram_model(file)
    processor = sentencepiece_processor(model, str(file), RESTORE)
    if processor.get_piece_size() > num_rows:
        what = f"has more pieces than the {num_rows} embedding rows that config.json has"
        got = str(processor.get_piece_size())
        raise CheckpointError(str(file), what, got=got, remedy=RESTORE)
    rows = {"<unk>": processor.unk_id()}
    for token, key in SPECIAL_KEYS.items():
        rows[token] = settings.take(key, int)
        if not 0 <= rows[token] < num_rows:
            settings.note(Problem(key, f"must be below vocab_size {num_rows}", str(rows[token])))
    settings.check()
    if rows["<pad>"] in (rows["<s>"], rows["<unk>"], rows["</s>"]):
        # Our padding is no start token: it has no row.
        del rows["<pad>"]
    return t5_tokenizer(model, processor, num_rows, rows)


def _unigram_model(file: Path) -> bytes:
    """Return the sentencepiece model of a tokenizer.json, without its `<extra_id_0>` and so on."""
    content = json_object(file)
    try:
        model = content["model"]
        if model["type"] != "Unigram":
            raise ValueError(f"a model of type {model['type']}")
        has_bytes = bool(model.get("byte_fallback"))
        special = {token["id"]: token["special"] for token in content["added_tokens"]}
        pieces = []
        for i, (text, score) in enumerate(model["vocab"]):
            kind = BYTE if has_bytes and BYTE_PIECE.fullmatch(text) else NORMAL
            if i in special:
                kind = CONTROL if special[i] else USER_DEFINED
            pieces.append(Piece(text, score, UNKNOWN if i == model["unk_id"] else kind))
        while pieces and EXTRA_ID.fullmatch(pieces[-1].text):
            pieces.pop()
        normalizer = content["normalizer"] or {}
        parts = normalizer.get("normalizers", [normalizer])
        maps = [part["precompiled_charsmap"] for part in parts if "precompiled_charsmap" in part]
        charsmap = base64.b64decode("".join(maps[:1]), validate=True)
        return unigram_model(pieces, charsmap, byte_fallback=has_bytes)
    except (KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
        what = "is not the tokenizer of a T5"
        raise CheckpointError(str(file), what, got=str(error), remedy=RESTORE) from None


def read_prefixes(
    values: Mapping[str, Any], tokenizer: T5Tokenizer
) -> tuple[str | None, dict[str, str]]:
    """Return the source language, if known, and the prefix of sources by target language.

    Those of MADLAD-400 are its pieces `<2de>`, those of T5 are in config.json.
    """
    tags = filter(None, map(LANGUAGE_TAG.fullmatch, tokenizer.pieces))
    if prefixes := {tag[1]: f"{tag[0]} " for tag in tags}:
        return None, prefixes
    tasks = values.get("task_specific_params")
    source = None
    for name, task in tasks.items() if isinstance(tasks, dict) else ():
        match = TRANSLATION_TASK.fullmatch(name)
        prefix = task.get("prefix") if isinstance(task, dict) else None
        if match and isinstance(prefix, str) and source in (None, match[1]):
            source = match[1]
            prefixes[match[2]] = prefix
    return source, prefixes
