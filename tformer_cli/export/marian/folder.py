"""A folder that holds a Marian model, as transformers saves it, as a model of ours.

Our start token stands for Marian's pad, with which its targets begin. Of the tokens that Marian
does not have, such as `<mask>`, embeddings are zeros, and an output bias leaves them no
probability.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig, ParallelText, TrainingText
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.tokenizer import MarianConfig
from tformer_cli.errors import CheckpointError, ConfigError, Problem
from tformer_cli.export.imported_folder import (
    RESTORE,
    check_weights,
    fill,
    json_object,
    new_model,
    read_weights,
    shapes,
    weights_file,
)
from tformer_cli.export.marian.search import read_search
from tformer_cli.export.marian.settings import Shape, read_languages, read_shape
from tformer_cli.export.marian.weights import (
    OUR_IDS,
    OUTPUT,
    SOURCE,
    TARGET,
    Rows,
    Tables,
    to_ours,
    weight_mappings,
)
from tformer_cli.model.network import Seq2Seq
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.subword import MarianTokenizer, marian_file
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.text.vocabulary import NUM_SPECIAL

SETTINGS_FILE = "config.json"
SEARCH_FILE = "generation_config.json"
PICKLE_FILE = "pytorch_model.bin"

SHARED = "model.shared.weight"
SOURCE_EMBEDDINGS = "model.encoder.embed_tokens.weight"
TARGET_EMBEDDINGS = "model.decoder.embed_tokens.weight"
OUTPUT_MAP = "lm_head.weight"
LOGITS_BIAS = "final_logits_bias"
# All weights that are not inside the layers: tables, and waves, which are the same in every model.
OUTSIDE = {
    "model.encoder.embed_positions.weight",
    "model.decoder.embed_positions.weight",
    SHARED,
    SOURCE_EMBEDDINGS,
    TARGET_EMBEDDINGS,
    OUTPUT_MAP,
    LOGITS_BIAS,
}


class Side(NamedTuple):
    """One language of a model: its tokenizer, and which ids in it are which of Marian's."""

    tokenizer: MarianTokenizer
    rows: Rows


def read_marian(
    folder: Path, *, source_language: str | None = None, target_language: str | None = None
) -> TrainedModel:
    """Return the model of a folder, and the search that its generation_config.json asks for.

    Args:
        folder: as transformers saves it, with safetensors; nothing in it is unpickled.
        source_language: an ISO code; what the folder says where it is None.
        target_language: likewise.

    Raises:
        CheckpointError: the folder holds something else, or a file is missing or damaged.
        ConfigError: the model is another function than any of ours; everything that differs.
    """
    _check_files(folder)
    shape = read_shape(folder / SETTINGS_FILE)
    decoding = read_search(folder / SEARCH_FILE)
    languages = read_languages(folder / "tokenizer_config.json")
    if languages.are_apart and shape.model.tie_embeddings == "all":
        raise CheckpointError(
            str(folder / "tokenizer_config.json"),
            "has two vocabularies where config.json has one table of embeddings",
            got="separate_vocabs true",
            remedy=RESTORE,
        )
    source = _side(folder, "source.spm", "vocab.json", shape.source_size)
    target_file = "target_vocab.json" if languages.are_apart else "vocab.json"
    target = _side(folder, "target.spm", target_file, shape.target_size)
    _check_roles(folder, target_file, shape, target.rows)
    model = _model(weights_file(folder), shape, source.rows, target.rows)
    tokenizers = Tokenizers(source.tokenizer, target.tokenizer, not languages.are_apart)
    config = Config(
        data=_data(source_language or languages.source, target_language or languages.target),
        tokenizer=MarianConfig(shared=tokenizers.shared),
        model=shape.model,
        decoding=decoding,
    )
    return TrainedModel(config, tokenizers, model, step=0)


def _check_files(folder: Path) -> None:
    weights = weights_file(folder)
    if (folder / PICKLE_FILE).exists() and not weights.exists():
        saving = f"MarianMTModel.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        raise CheckpointError(
            str(folder / PICKLE_FILE),
            f"is a pickle, which can run any program; only {weights.name} is read",
            remedy="if you trust it, convert it: "
            f'python -c "from transformers import MarianMTModel; {saving}"',
        )
    names = SETTINGS_FILE, weights.name, "source.spm", "target.spm", "vocab.json"
    for name in (*names, "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise CheckpointError(
                str(folder / name),
                "no such file",
                remedy="name a folder of a Marian model as transformers saves it",
            )


def _side(folder: Path, model_name: str, vocabulary_name: str, size: int) -> Side:
    file = folder / vocabulary_name
    ids = json_object(file)
    if not all(type(i) is int for i in ids.values()):
        raise CheckpointError(
            str(file), "is not a vocabulary", got="an id that is no whole number", remedy=RESTORE
        )
    if any(map(_is_broken, ids)):
        raise CheckpointError(
            str(file), "is not a vocabulary", got="half a character of Unicode", remedy=RESTORE
        )
    if len(ids) != size or sorted(ids.values()) != list(range(size)):
        raise CheckpointError(
            str(file),
            f"must name each of the {size} rows of the embeddings once",
            got=f"{len(ids)} pieces",
            remedy=RESTORE,
        )
    for token in OUR_IDS:
        if token not in ids:
            raise CheckpointError(str(file), f"has no {token}", remedy=RESTORE)
    pieces = sorted(ids.keys() - OUR_IDS.keys(), key=ids.__getitem__)
    model_file = folder / model_name
    content = marian_file(model_file.read_bytes(), pieces)
    tokenizer = MarianTokenizer(content, Normalizer(), name=str(model_file))
    rows = Rows(
        ours=torch.tensor([*OUR_IDS.values(), *range(NUM_SPECIAL, tokenizer.size)]),
        theirs=torch.tensor([ids[piece] for piece in (*OUR_IDS, *pieces)]),
        our_size=tokenizer.size,
        their_size=size,
    )
    return Side(tokenizer, rows)


def _is_broken(piece: str) -> bool:
    """Say whether JSON has escaped one of the two surrogates of a character without the other."""
    return any("\ud800" <= character <= "\udfff" for character in piece)


def _check_roles(folder: Path, name: str, shape: Shape, rows: Rows) -> None:
    """Check that config.json means the special tokens of the target vocabulary."""
    settings = folder / SETTINGS_FILE
    theirs = dict(zip(OUR_IDS, rows.theirs.tolist(), strict=False))
    problems = [
        Problem(f"{settings}: {key}", f"must be the id of {token} in {name} ({theirs[token]})", got)
        for key, token, got in (
            ("eos_token_id", "</s>", str(shape.end_id)),
            ("pad_token_id", "<pad>", str(shape.start_id)),
        )
        if got != str(theirs[token])
    ]
    if problems:
        raise ConfigError(problems)


def _model(file: Path, shape: Shape, source: Rows, target: Rows) -> Seq2Seq:
    theirs = read_weights(file)
    names = _names_of_tables(theirs, shape.model)
    _check_tables(file, theirs, names, shape)
    settings = file.with_name(SETTINGS_FILE)
    ours = shapes(
        shape.model,
        source_size=source.our_size,
        target_size=target.our_size,
        num_weights=len(theirs),
        settings=settings,
    )
    _check_layers(file, theirs, shape.model, ours)
    model = new_model(
        shape.model,
        source_size=source.our_size,
        target_size=target.our_size,
        settings=settings,
    )
    bias = theirs.get(LOGITS_BIAS, torch.zeros(1, shape.target_size))
    tables = Tables(theirs[names[0]], theirs[names[1]], theirs[names[2]], bias[0])
    weights = to_ours(theirs, tables, source, target, shape.model)
    fill(model, weights if shape.is_scaled else scaled_down(weights, shape.model), file)
    return model


def _names_of_tables(
    theirs: Mapping[str, Tensor], config: EncoderDecoderConfig
) -> tuple[str, str, str]:
    """Return the names of the source and target embeddings and of the output."""
    if config.tie_embeddings == "all":
        shared = SHARED if SHARED in theirs else TARGET_EMBEDDINGS
        return shared, shared, shared
    source, target = (
        name if name in theirs else SHARED for name in (SOURCE_EMBEDDINGS, TARGET_EMBEDDINGS)
    )
    return source, target, target if config.tie_embeddings == "output" else OUTPUT_MAP


def _check_tables(
    file: Path, theirs: Mapping[str, Tensor], names: tuple[str, str, str], shape: Shape
) -> None:
    """Check what has a row for each token, which says how large the rest can be.

    Args:
        file: for messages.
        theirs: its weights.
        names: of the source and target embeddings and of the output among them.
        shape: what they should be.
    """
    sizes = shape.source_size, shape.target_size, shape.target_size
    expected = {name: (size, shape.model.dim) for name, size in zip(names, sizes, strict=True)}
    if LOGITS_BIAS in theirs:
        expected[LOGITS_BIAS] = 1, shape.target_size
    found = {name: tuple(theirs[name].shape) for name in expected if name in theirs}
    check_weights(file, found, expected, SETTINGS_FILE)


def _check_layers(
    file: Path,
    theirs: Mapping[str, Tensor],
    config: EncoderDecoderConfig,
    ours: Mapping[str, tuple[int, ...]],
) -> None:
    """Check that a file has the weights of all layers, and no others.

    Args:
        file: for messages.
        theirs: its weights.
        config: our shape of the model.
        ours: the shapes of our weights.
    """
    expected = {mapping.theirs: ours[mapping.ours] for mapping in weight_mappings(config)}
    found = {name: tuple(weight.shape) for name, weight in theirs.items() if name not in OUTSIDE}
    check_weights(file, found, expected, SETTINGS_FILE)


def scaled_down(weights: dict[str, Tensor], config: EncoderDecoderConfig) -> dict[str, Tensor]:
    """Return weights of embeddings that are multiplied by the root of their width, as ours are.

    Where the output has the same weights, the last norm makes up for it.

    Args:
        weights: of embeddings that are taken as they are.
        config: our shape of the model.
    """
    root = math.sqrt(config.dim)
    factors = {SOURCE: 1 / root, TARGET: 1 / root}
    if config.tie_embeddings != "none":
        last = f"decoder.layers.{config.num_decoder_layers - 1}.feedforward_norm"
        factors |= {OUTPUT: 1 / root, f"{last}.weight": root, f"{last}.bias": root}
    return weights | {name: weights[name] * factor for name, factor in factors.items()}


def _data(source: str, target: str) -> DataConfig:
    """Return where a training that goes on looks for text, below its `data.root`."""
    return DataConfig(
        source_language=source,
        target_language=target,
        train=(TrainingText(source=Path(f"train.{source}"), target=Path(f"train.{target}")),),
        valid=ParallelText(source=Path(f"valid.{source}"), target=Path(f"valid.{target}")),
    )
