"""Import of a Marian folder as transformers saves it.

Our start token stands for Marian's pad, with which its targets begin. Tokens that Marian does not
have, such as `<mask>`, get zero embeddings and an output bias that leaves them no probability.
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
from tformer_cli.export.marian_settings import Shape, read_languages, read_search, read_shape
from tformer_cli.export.marian_weights import (
    OUR_IDS,
    OUTPUT,
    SOURCE,
    TARGET,
    EmbeddingTables,
    VocabularyMapping,
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
OUTPUT_PROJECTION = "lm_head.weight"
LOGITS_BIAS = "final_logits_bias"
# Weights outside the layers: tables, and sinusoids, which are the same in every model.
OUTSIDE = {
    "model.encoder.embed_positions.weight",
    "model.decoder.embed_positions.weight",
    SHARED,
    SOURCE_EMBEDDINGS,
    TARGET_EMBEDDINGS,
    OUTPUT_PROJECTION,
    LOGITS_BIAS,
}


class Side(NamedTuple):
    """The tokenizer of a language, and its ids by Marian's."""

    tokenizer: MarianTokenizer
    mapping: VocabularyMapping


def read_marian(
    folder: Path, *, source_language: str | None = None, target_language: str | None = None
) -> TrainedModel:
    """Return the model of a folder, with the search of its generation_config.json.

    Nothing is unpickled. Arguments and errors are those of `import_run`.
    """
    _check_files(folder)
    shape = read_shape(folder / SETTINGS_FILE)
    decoding = read_search(folder / SEARCH_FILE)
    languages = read_languages(folder / "tokenizer_config.json")
    if languages.are_separate and shape.model.tie_embeddings == "all":
        file, got = folder / "tokenizer_config.json", "separate_vocabs true"
        what = "has two vocabularies, but config.json has one embedding table"
        raise CheckpointError(str(file), what, got=got, remedy=RESTORE)
    source = _side(folder, "source.spm", "vocab.json", shape.source_size)
    target_file = "target_vocab.json" if languages.are_separate else "vocab.json"
    target = _side(folder, "target.spm", target_file, shape.target_size)
    _check_special_ids(folder, target_file, shape, target.mapping)
    model = _model(weights_file(folder), shape, source.mapping, target.mapping)
    tokenizers = Tokenizers(source.tokenizer, target.tokenizer, not languages.are_separate)
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
            remedy = "name a folder of a Marian model as transformers saves it"
            raise CheckpointError(str(folder / name), "no such file", remedy=remedy)


def _side(folder: Path, model_name: str, vocabulary_name: str, size: int) -> Side:
    file = folder / vocabulary_name
    ids = json_object(file)
    if not all(type(i) is int for i in ids.values()):
        got = "an id that is no whole number"
        raise CheckpointError(str(file), "is not a vocabulary", got=got, remedy=RESTORE)
    if any(map(_has_lone_surrogate, ids)):
        got = "half a character of Unicode"
        raise CheckpointError(str(file), "is not a vocabulary", got=got, remedy=RESTORE)
    if len(ids) != size or sorted(ids.values()) != list(range(size)):
        what = f"must name each of the {size} embedding rows once"
        raise CheckpointError(str(file), what, got=f"{len(ids)} pieces", remedy=RESTORE)
    for token in OUR_IDS:
        if token not in ids:
            raise CheckpointError(str(file), f"has no {token}", remedy=RESTORE)
    pieces = sorted(ids.keys() - OUR_IDS.keys(), key=ids.__getitem__)
    model_file = folder / model_name
    content = marian_file(model_file.read_bytes(), pieces)
    tokenizer = MarianTokenizer(content, Normalizer(), name=str(model_file))
    mapping = VocabularyMapping(
        ours=torch.tensor([*OUR_IDS.values(), *range(NUM_SPECIAL, tokenizer.size)]),
        theirs=torch.tensor([ids[piece] for piece in (*OUR_IDS, *pieces)]),
        our_size=tokenizer.size,
        their_size=size,
    )
    return Side(tokenizer, mapping)


def _has_lone_surrogate(piece: str) -> bool:
    """Return whether JSON escaped one of the two surrogates of a character without the other."""
    return any("\ud800" <= character <= "\udfff" for character in piece)


def _check_special_ids(folder: Path, name: str, shape: Shape, mapping: VocabularyMapping) -> None:
    """Check that config.json has the special ids of the target vocabulary."""
    settings = folder / SETTINGS_FILE
    theirs = dict(zip(OUR_IDS, mapping.theirs.tolist(), strict=False))
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


def _model(
    file: Path, shape: Shape, source: VocabularyMapping, target: VocabularyMapping
) -> Seq2Seq:
    theirs = read_weights(file)
    names = _table_names(theirs, shape.model)
    _check_tables(file, theirs, names, shape)
    settings = file.with_name(SETTINGS_FILE)
    sizes = {"source_size": source.our_size, "target_size": target.our_size}
    ours = shapes(shape.model, **sizes, num_weights=len(theirs), settings=settings)
    expected = {mapping.theirs: ours[mapping.ours] for mapping in weight_mappings(shape.model)}
    actual = {name: tuple(weight.shape) for name, weight in theirs.items() if name not in OUTSIDE}
    check_weights(file, actual, expected, SETTINGS_FILE)
    model = new_model(shape.model, **sizes, settings=settings)
    bias = theirs.get(LOGITS_BIAS, torch.zeros(1, shape.target_size))
    tables = EmbeddingTables(theirs[names[0]], theirs[names[1]], theirs[names[2]], bias[0])
    weights = to_ours(theirs, tables, source, target, shape.model)
    fill(model, weights if shape.is_scaled else scaled_down(weights, shape.model), file)
    return model


def _table_names(
    theirs: Mapping[str, Tensor], config: EncoderDecoderConfig
) -> tuple[str, str, str]:
    """Return the names of source embeddings, target embeddings and output projection."""
    if config.tie_embeddings == "all":
        shared = SHARED if SHARED in theirs else TARGET_EMBEDDINGS
        return shared, shared, shared
    source, target = (
        name if name in theirs else SHARED for name in (SOURCE_EMBEDDINGS, TARGET_EMBEDDINGS)
    )
    return source, target, target if config.tie_embeddings == "output" else OUTPUT_PROJECTION


def _check_tables(
    file: Path, theirs: Mapping[str, Tensor], names: tuple[str, str, str], shape: Shape
) -> None:
    """Check the tables first: they say how large the rest can be."""
    sizes = shape.source_size, shape.target_size, shape.target_size
    expected = {name: (size, shape.model.dim) for name, size in zip(names, sizes, strict=True)}
    if LOGITS_BIAS in theirs:
        expected[LOGITS_BIAS] = 1, shape.target_size
    actual = {name: tuple(theirs[name].shape) for name in expected if name in theirs}
    check_weights(file, actual, expected, SETTINGS_FILE)


def scaled_down(weights: dict[str, Tensor], config: EncoderDecoderConfig) -> dict[str, Tensor]:
    """Return weights for a model that multiplies embeddings by sqrt(D), from one that does not.

    If the output projection shares them, the last norm compensates.
    """
    root = math.sqrt(config.dim)
    factors = {SOURCE: 1 / root, TARGET: 1 / root}
    if config.tie_embeddings != "none":
        last = f"decoder.layers.{config.num_decoder_layers - 1}.feedforward_norm"
        factors |= {OUTPUT: 1 / root, f"{last}.weight": root, f"{last}.bias": root}
    return weights | {name: weights[name] * factor for name, factor in factors.items()}


def _data(source: str, target: str) -> DataConfig:
    """Return the text files that a further training expects below its `data.root`."""
    return DataConfig(
        source_language=source,
        target_language=target,
        train=(TrainingText(source=Path(f"train.{source}"), target=Path(f"train.{target}")),),
        valid=ParallelText(source=Path(f"valid.{source}"), target=Path(f"valid.{target}")),
    )
