"""A trained model as a folder that transformers' MarianMTModel and MarianTokenizer load.

Logits there are ours; what no translation has, the unknown token for one, has none to speak of. So
greedy translations and the probabilities of given ones are equal. `</s>` alone, an empty
translation, is kept out by the settings of `generate`, which are part of the folder.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.errors import ConfigError, Problem
from tformer_cli.export.format import Format
from tformer_cli.export.marian.folder import read_marian
from tformer_cli.export.marian.weights import (
    ACTIVATIONS,
    NORM_EPSILON,
    OUR_IDS,
    Rows,
    Tables,
    to_theirs,
)
from tformer_cli.search.engine import NativeEngine
from tformer_cli.storage.atomic import atomic_write, new_directory, write_json
from tformer_cli.storage.tensors import save_tensors
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.subword import MarianTokenizer
from tformer_cli.text.tokenizer import Tokenizer
from tformer_cli.text.vocabulary import NUM_SPECIAL
from tformer_cli.translate.preprocess import special_tokens

# Marian's ids of its special tokens.
SPECIAL_IDS = {token: i for i, token in enumerate(OUR_IDS)}

# By ours; where two names are of one activation, the last is Marian's own.
THEIR_ACTIVATIONS = {ours: theirs for theirs, ours in ACTIVATIONS.items()}

# Rows of its table of waves, beyond which Marian fails; more where our own limits are higher.
MIN_POSITIONS = 1024

# Added to the logits of tokens that no translation contains: their probability is zero.
SUPPRESSED = -1e9


def write_marian(trained: TrainedModel, folder: Path) -> None:
    """Write a model as transformers has Marian's: as a whole, or not at all.

    Text that is spelled like a special token, or begins with a language code (`>>de<<`), means
    something there and is but text here; all other text becomes the same ids.

    Args:
        trained: the model.
        folder: where to write; there must be nothing yet.

    Raises:
        ConfigError: Marian is another function; everything that differs.
        UsageError: the folder already exists.
        StorageError: the system does not let it be written.
    """
    if problems := list(unsupported(trained.config)):
        raise ConfigError(problems)
    with new_directory(folder) as temporary:
        _write(trained, temporary)


class MarianFormat(Format):
    """A folder that transformers loads.

    Its beam search ends by another rule than ours, so what is compared is greedy search, by what
    the folder says: it is read back, as `tformer import` does.
    """

    program: ClassVar = "transformers"
    is_exact: ClassVar = True

    def unsupported(self, trained: TrainedModel) -> Iterator[Problem]:
        """Yield what Marian cannot compute, as `Format` says."""
        return unsupported(trained.config)

    def write(self, trained: TrainedModel, folder: Path) -> None:
        """Write the model and what makes its tokens, as `Format` says."""
        _write(trained, folder)

    def engine(self, trained: TrainedModel, folder: Path) -> NativeEngine:
        """Return our own engine with what has been written; pieces have the same ids again."""
        written = read_marian(folder)
        roles = special_tokens(written.tokenizers.target, written.config.model)
        return NativeEngine(written.model, roles, device=torch.device("cpu"))

    def searches(self, max_length: int) -> list[DecodingConfig]:
        """Return greedy search."""
        return [GreedyConfig(max_length=max_length)]

    def example(self, trained: TrainedModel, line: str) -> str:
        """Return lines of Python that translate a line, as `Format` says."""
        return "\n".join(
            [
                "from transformers import MarianMTModel, MarianTokenizer",
                'tokenizer = MarianTokenizer.from_pretrained(".")',
                'model = MarianMTModel.from_pretrained(".")',
                f'batch = tokenizer([{line!r}], return_tensors="pt")',
                "found = model.generate(**batch, num_beams=1)",
                "print(tokenizer.decode(found[0], skip_special_tokens=True))",
            ]
        )

    def packages(self, trained: TrainedModel) -> list[str]:
        """Return what has to be installed for that."""
        return ["transformers", "sentencepiece", "torch"]

    def versions(self) -> dict[str, str]:
        """Return nothing: no program but ours writes the folder."""
        return {}


def unsupported(config: Config) -> Iterator[Problem]:
    """Yield every key that keeps a model from being one of Marian's."""
    model, tokenizer = config.model, config.tokenizer
    if not isinstance(model, EncoderDecoderConfig):
        yield _misfit("model.kind", "encoder_decoder", model.kind)
        return
    if model.norm != "layer":
        yield _misfit("model.norm", "layer", model.norm)
    if model.norm_position != "post":
        yield _misfit("model.norm_position", "post", model.norm_position)
    if model.norm_epsilon != NORM_EPSILON:
        yield _misfit("model.norm_epsilon", f"{NORM_EPSILON:g}", f"{model.norm_epsilon:g}")
    if model.activation not in THEIR_ACTIVATIONS:
        one_of = f"one of {', '.join(THEIR_ACTIVATIONS)}"
        yield _misfit("model.activation", one_of, model.activation)
    if not model.bias:
        yield _misfit("model.bias", "true", "false")
    if model.positions.kind != "sinusoidal":
        yield _misfit("model.positions", "of kind sinusoidal", model.positions.kind)
    if model.kv_heads != model.num_heads:
        yield _misfit("model.num_kv_heads", "null", str(model.num_kv_heads))
    if model.latent is not None:
        yield _misfit("model.latent", "null", f"dim {model.latent.kv_lora_rank}")
    if model.sliding_window is not None:
        yield _misfit("model.sliding_window", "null", str(model.sliding_window))
    if model.qk_norm:
        yield _misfit("model.qk_norm", "false", "true")
    if tokenizer.kind not in ("subword", "marian"):
        yield _misfit("tokenizer.kind", "subword", tokenizer.kind)
    if tokenizer.kind == "subword":
        if tokenizer.lowercase != "none":
            yield _misfit("tokenizer.lowercase", "none", tokenizer.lowercase)
        if tokenizer.nfkc != "none":
            yield _misfit("tokenizer.nfkc", "none", tokenizer.nfkc)


def _write(trained: TrainedModel, folder: Path) -> None:
    """Write all files into a folder that is there."""
    config, tokenizers = trained.config, trained.tokenizers
    vocabularies = [_vocabulary(side) for side in (tokenizers.source, tokenizers.target)]
    # safetensors lets nobody else read what it writes; a whole file is for all.
    with atomic_write(folder / "model.safetensors") as temporary:
        save_tensors(_weights(trained), temporary, {"format": "pt"})
    write_json(folder / "config.json", _settings(config, *map(len, vocabularies)))
    write_json(folder / "generation_config.json", _generation(config))
    write_json(folder / "tokenizer_config.json", _tokenizer_settings(config))
    write_json(folder / "vocab.json", vocabularies[0])
    if not tokenizers.shared:
        write_json(folder / "target_vocab.json", vocabularies[1])
    (folder / "source.spm").write_bytes(_sentencepiece(tokenizers.source))
    (folder / "target.spm").write_bytes(_sentencepiece(tokenizers.target))


def _misfit(key: str, demanded: str, got: str) -> Problem:
    return Problem(key, f"must be {demanded} in a Marian model", got)


def _pieces(tokenizer: Tokenizer) -> list[str]:
    return tokenizer.tokens(range(NUM_SPECIAL, tokenizer.size))


def _vocabulary(tokenizer: Tokenizer) -> dict[str, int]:
    """Return Marian's id of each piece."""
    pieces = enumerate(_pieces(tokenizer), start=len(SPECIAL_IDS))
    return SPECIAL_IDS | {piece: i for i, piece in pieces}


def _rows(tokenizer: Tokenizer) -> Rows:
    num_pieces = tokenizer.size - NUM_SPECIAL
    return Rows(
        ours=torch.tensor([*OUR_IDS.values(), *range(NUM_SPECIAL, tokenizer.size)]),
        theirs=torch.arange(len(SPECIAL_IDS) + num_pieces),
        our_size=tokenizer.size,
        their_size=len(SPECIAL_IDS) + num_pieces,
    )


def _weights(trained: TrainedModel) -> dict[str, Tensor]:
    """Return the weights by Marian's names, each of those that are shared once."""
    config, target = trained.config.model, trained.tokenizers.target
    assert isinstance(config, EncoderDecoderConfig)
    rows = _rows(trained.tokenizers.source), _rows(target)
    named = trained.model.named_parameters(remove_duplicate=False)
    ours = {name: weight.detach().to("cpu", torch.float32) for name, weight in named}
    weights, tables = to_theirs(ours, *rows, config)
    is_suppressed = torch.isin(rows[1].ours, torch.tensor(target.suppressed_ids))
    bias = tables.bias.masked_fill(is_suppressed, SUPPRESSED)
    weights |= _named(tables, config) | {"final_logits_bias": bias[None]}
    return {name: weight.contiguous() for name, weight in weights.items()}


def _named(tables: Tables, config: EncoderDecoderConfig) -> dict[str, Tensor]:
    if config.tie_embeddings == "all":
        return {"model.shared.weight": tables.source}
    embeddings = {
        "model.encoder.embed_tokens.weight": tables.source,
        "model.decoder.embed_tokens.weight": tables.target,
    }
    return (
        embeddings
        if config.tie_embeddings == "output"
        else embeddings | {"lm_head.weight": tables.output}
    )


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
        "max_position_embeddings": _positions(config),
        "dropout": model.dropout,
        "attention_dropout": model.own_dropout(model.attention_dropout),
        "activation_dropout": model.own_dropout(model.feedforward_dropout),
        "vocab_size": source_size,
        "decoder_vocab_size": target_size,
        "bos_token_id": None,
        **_roles(),
    }


def _generation(config: Config) -> dict[str, Any]:
    """Return the content of generation_config.json: the run's search, as far as it is theirs."""
    search = config.decoding
    beam: dict[str, Any] = {"num_beams": 1}
    if isinstance(search, BeamConfig):
        beam = {"num_beams": search.beam_size, "length_penalty": search.length_penalty}
    return _roles() | {"min_new_tokens": 1, "max_new_tokens": search.max_length} | beam


def _roles() -> dict[str, int | None]:
    end, pad = SPECIAL_IDS["</s>"], SPECIAL_IDS["<pad>"]
    return {
        "eos_token_id": end,
        # A translation that is cut off at its longest has no end, here as with us.
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
        "model_max_length": _positions(config),
    }


def _positions(config: Config) -> int:
    longest = max(config.data.filters.max_length, config.decoding.max_length)
    return max(MIN_POSITIONS, longest + 1)


def _sentencepiece(tokenizer: Tokenizer) -> bytes:
    return tokenizer.model if isinstance(tokenizer, MarianTokenizer) else tokenizer.content
