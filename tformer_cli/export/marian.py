"""Export to a folder that transformers' MarianMTModel and MarianTokenizer load.

Logits are ours, and suppressed tokens have none to speak of, so greedy translations and
probabilities are equal. Empty translations are excluded by the folder's `generate` settings. Text
that is spelled like a special token, or begins with a language code (`>>de<<`), means something to
Marian and is plain text to us; all other text has the same ids.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.errors import Problem
from tformer_cli.export.card import filled
from tformer_cli.export.format import Format
from tformer_cli.export.marian_folder import (
    LOGITS_BIAS,
    OUTPUT_PROJECTION,
    SEARCH_FILE,
    SETTINGS_FILE,
    SHARED,
    SOURCE_EMBEDDINGS,
    TARGET_EMBEDDINGS,
    read_marian,
)
from tformer_cli.export.marian_weights import (
    ACTIVATIONS,
    NORM_EPSILON,
    OUR_IDS,
    EmbeddingTables,
    VocabularyMapping,
    to_theirs,
)
from tformer_cli.search.engine import NativeEngine
from tformer_cli.storage.atomic import atomic_write, write_json
from tformer_cli.storage.checkpoint import save_tensors
from tformer_cli.storage.run_directory import MODEL_FILE
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.subword import MarianTokenizer
from tformer_cli.text.tokenizer import Tokenizer
from tformer_cli.text.vocabulary import NUM_SPECIAL
from tformer_cli.translate.preprocess import special_tokens

# Marian's ids of its special tokens.
SPECIAL_IDS = {token: i for i, token in enumerate(OUR_IDS)}
# Marian's activations by ours; of two names for one, the last is its own.
THEIR_ACTIVATIONS = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
# Rows of Marian's table of sinusoids, which fails past the last; more if our limits are higher.
MIN_POSITIONS = 1024
# Logit bias of suppressed tokens.
SUPPRESSED = -1e9


class MarianFormat(Format):
    """A folder that transformers loads.

    Its beam search ends by another rule than ours, so greedy search is compared, with the folder
    read back by our own import.
    """

    program: ClassVar = "transformers"

    def unsupported(self, trained: TrainedModel) -> Iterator[Problem]:
        rules = _model_rules(trained.config) + _tokenizer_rules(trained.config)
        for key, required, got, is_met in rules:
            if not is_met:
                yield Problem(key, f"must be {required} in a Marian model", got)

    def write(self, trained: TrainedModel, folder: Path) -> None:
        config, tokenizers = trained.config, trained.tokenizers
        vocabularies = [_vocabulary(side) for side in (tokenizers.source, tokenizers.target)]
        # Files of safetensors are private to their owner; those of `atomic_write` are not.
        with atomic_write(folder / MODEL_FILE) as temporary:
            save_tensors(_weights(trained), temporary, {"format": "pt"})
        write_json(folder / SETTINGS_FILE, _settings(config, *map(len, vocabularies)))
        write_json(folder / SEARCH_FILE, _generation(config))
        write_json(folder / "tokenizer_config.json", _tokenizer_settings(config))
        write_json(folder / "vocab.json", vocabularies[0])
        if not tokenizers.shared:
            write_json(folder / "target_vocab.json", vocabularies[1])
        for name, side in (("source.spm", tokenizers.source), ("target.spm", tokenizers.target)):
            content = side.model if isinstance(side, MarianTokenizer) else side.content
            (folder / name).write_bytes(content)

    def engine(self, trained: TrainedModel, folder: Path) -> NativeEngine:
        written = read_marian(folder)
        tokens = special_tokens(written.tokenizers.target, written.config.model)
        return NativeEngine(written.model, tokens, device=torch.device("cpu"))

    def searches(self, max_length: int) -> list[DecodingConfig]:
        return [GreedyConfig(max_length=max_length)]

    def example(self, trained: TrainedModel, line: str) -> str:
        return filled("marian.py.txt", line=repr(line))

    def packages(self, trained: TrainedModel) -> list[str]:
        return ["transformers", "sentencepiece", "torch"]


# Key, required value, actual value, and whether it is met.
Rule = tuple[str, str, str, bool]


def _model_rules(config: Config) -> list[Rule]:
    model = config.model
    if not isinstance(model, EncoderDecoderConfig):
        return [("model.kind", "encoder_decoder", model.kind, False)]
    latent = "" if model.latent is None else f"dim {model.latent.kv_lora_rank}"
    window, positions = model.sliding_window, model.positions.kind
    activations = f"one of {', '.join(THEIR_ACTIVATIONS)}"
    epsilon, is_known = f"{model.norm_epsilon:g}", model.activation in THEIR_ACTIVATIONS
    is_multi_head = model.kv_heads == model.num_heads
    return [
        ("model.norm", "layer", model.norm, model.norm == "layer"),
        ("model.norm_position", "post", model.norm_position, model.norm_position == "post"),
        ("model.norm_epsilon", f"{NORM_EPSILON:g}", epsilon, model.norm_epsilon == NORM_EPSILON),
        ("model.activation", activations, model.activation, is_known),
        ("model.bias", "true", "false", model.bias),
        ("model.positions", "of kind sinusoidal", positions, positions == "sinusoidal"),
        ("model.num_kv_heads", "null", str(model.num_kv_heads), is_multi_head),
        ("model.latent", "null", latent, model.latent is None),
        ("model.sliding_window", "null", str(window), window is None),
        ("model.qk_norm", "false", "true", not model.qk_norm),
    ]


def _tokenizer_rules(config: Config) -> list[Rule]:
    tokenizer = config.tokenizer
    if not isinstance(config.model, EncoderDecoderConfig) or tokenizer.kind == "marian":
        return []
    if tokenizer.kind != "subword":
        return [("tokenizer.kind", "subword", tokenizer.kind, False)]
    return [
        ("tokenizer.lowercase", "none", tokenizer.lowercase, tokenizer.lowercase == "none"),
        ("tokenizer.nfkc", "none", tokenizer.nfkc, tokenizer.nfkc == "none"),
    ]


def _vocabulary(tokenizer: Tokenizer) -> dict[str, int]:
    """Return Marian's id of each piece."""
    pieces = tokenizer.tokens(range(NUM_SPECIAL, tokenizer.size))
    return SPECIAL_IDS | {piece: i for i, piece in enumerate(pieces, start=len(SPECIAL_IDS))}


def _vocabulary_mapping(tokenizer: Tokenizer) -> VocabularyMapping:
    their_size = len(SPECIAL_IDS) + tokenizer.size - NUM_SPECIAL
    return VocabularyMapping(
        ours=torch.tensor([*OUR_IDS.values(), *range(NUM_SPECIAL, tokenizer.size)]),
        theirs=torch.arange(their_size),
        our_size=tokenizer.size,
        their_size=their_size,
    )


def _weights(trained: TrainedModel) -> dict[str, Tensor]:
    """Return the weights by Marian's names, shared ones once."""
    config, tokenizers = trained.config.model, trained.tokenizers
    assert isinstance(config, EncoderDecoderConfig)
    source, target = map(_vocabulary_mapping, (tokenizers.source, tokenizers.target))
    named = trained.model.named_parameters(remove_duplicate=False)
    ours = {name: weight.detach().to("cpu", torch.float32) for name, weight in named}
    weights, tables = to_theirs(ours, source, target, config)
    is_suppressed = torch.isin(target.ours, torch.tensor(tokenizers.target.suppressed_ids))
    bias = tables.bias.masked_fill(is_suppressed, SUPPRESSED)
    weights |= _named_tables(tables, config) | {LOGITS_BIAS: bias[None]}
    return {name: weight.contiguous() for name, weight in weights.items()}


def _named_tables(tables: EmbeddingTables, config: EncoderDecoderConfig) -> dict[str, Tensor]:
    if config.tie_embeddings == "all":
        return {SHARED: tables.source}
    named = {SOURCE_EMBEDDINGS: tables.source, TARGET_EMBEDDINGS: tables.target}
    if config.tie_embeddings == "none":
        named[OUTPUT_PROJECTION] = tables.output
    return named


def _settings(config: Config, source_size: int, target_size: int) -> dict[str, Any]:
    """Return the content of config.json."""
    model = config.model
    assert isinstance(model, EncoderDecoderConfig)
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "d_model": model.dim,
        "encoder_layers": model.num_encoder_layers,
        "decoder_layers": model.num_decoder_layers,
        "encoder_attention_heads": model.num_heads,
        "decoder_attention_heads": model.num_heads,
        "encoder_ffn_dim": model.feedforward_dim,
        "decoder_ffn_dim": model.feedforward_dim,
        "activation_function": THEIR_ACTIVATIONS[model.activation],
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": model.tie_embeddings == "all",
        "tie_word_embeddings": model.tie_embeddings != "none",
        "max_position_embeddings": _num_positions(config),
        "dropout": model.dropout,
        "attention_dropout": model.own_dropout(model.attention_dropout),
        "activation_dropout": model.own_dropout(model.feedforward_dropout),
        "vocab_size": source_size,
        "decoder_vocab_size": target_size,
        "bos_token_id": None,
        **_special_ids(),
    }


def _generation(config: Config) -> dict[str, Any]:
    """Return the content of generation_config.json: the run's search, as far as Marian has it."""
    search = config.decoding
    beam: dict[str, Any] = {"num_beams": 1}
    if isinstance(search, BeamConfig):
        beam = {"num_beams": search.beam_size, "length_penalty": search.length_penalty}
    return _special_ids() | {"min_new_tokens": 1, "max_new_tokens": search.max_length} | beam


def _special_ids() -> dict[str, int | None]:
    end, pad = SPECIAL_IDS["</s>"], SPECIAL_IDS["<pad>"]
    return {
        "eos_token_id": end,
        # A translation that is cut off has no EOS, as with us.
        "forced_eos_token_id": None,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
    }


def _tokenizer_settings(config: Config) -> dict[str, Any]:
    """Return the content of tokenizer_config.json."""
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": config.data.source_language,
        "target_lang": config.data.target_language,
        "separate_vocabs": not config.tokenizer.shared,
        "model_max_length": _num_positions(config),
    }


def _num_positions(config: Config) -> int:
    longest = max(config.data.filters.max_length, config.decoding.max_length)
    return max(MIN_POSITIONS, longest + 1)
