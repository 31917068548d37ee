"""Export to Marian NMT's own files, model.npz and decoder.yml, and import of them.

`marian-decoder -c decoder.yml` then translates alike by greedy search, but may translate by
nothing, and up to three times as many tokens as the source has (`max-length-factor`). Its beam
search ends by another rule than ours.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import yaml

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.tokenizer import MarianConfig
from tformer_cli.errors import CheckpointError, Problem
from tformer_cli.export.check import ImportedFormat
from tformer_cli.export.format import filled, sentencepiece_model
from tformer_cli.export.marian import PIECES_FILES, Side
from tformer_cli.export.marian_npz_settings import (
    ACTIVATIONS,
    DECODER_FILE,
    FIXED,
    MODEL_SETTINGS,
    NPZ_FILE,
    decoder_settings,
    model_settings,
    read_decoder_settings,
    read_model_settings,
    read_vocabulary,
    vocabulary_text,
)
from tformer_cli.export.marian_npz_weights import npz_names, read_npz, start_from_zero, to_npz
from tformer_cli.export.marian_settings import unsupported_by_marian
from tformer_cli.export.marian_weights import suppressed_bias
from tformer_cli.export.settings import RESTORE, data_config
from tformer_cli.export.weights import LOGITS_BIAS, our_weights, to_theirs
from tformer_cli.storage.atomic import atomic_write, write_text
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.special_tokens import BOS_ID, EOS_ID, NUM_SPECIAL, SPECIAL_TOKENS, UNK_ID
from tformer_cli.text.subword import MarianTokenizer, marian_file, sentencepiece_processor
from tformer_cli.text.tokenizer import Tokenizer, Tokenizers

# Of both languages.
VOCABULARY_MODEL = "vocab.spm"
# Special tokens that Marian needs.
REQUIRED = SPECIAL_TOKENS[EOS_ID], SPECIAL_TOKENS[UNK_ID]


class MarianNpzFormat(ImportedFormat):
    """A folder that marian-decoder loads."""

    program: ClassVar = "Marian"

    def unsupported(self, trained: TrainedModel) -> Iterator[Problem]:
        return unsupported_by_marian(trained.config, FIXED, tuple(ACTIVATIONS.values()))

    def write(self, trained: TrainedModel, folder: Path) -> None:
        config, tokenizers = trained.config.model, trained.tokenizers
        assert isinstance(config, EncoderDecoderConfig)
        both = tokenizers.source, tokenizers.target
        sides = _npz_sides(*both)
        for side in sides:
            for name, content in side.files.items():
                (folder / name).write_bytes(content)
        ours = start_from_zero(our_weights(trained.model), config)
        source, target = (_ids(*pair) for pair in zip(both, sides, strict=True))
        weights = to_theirs(ours, npz_names(config), (source, target))
        bias = suppressed_bias(ours, tokenizers.target.suppressed_ids)
        weights[LOGITS_BIAS] = bias[None, target]
        settings = yaml.safe_dump(model_settings(config, (len(source), len(target))))
        arrays = to_npz(weights)
        arrays[MODEL_SETTINGS] = np.frombuffer(f"{settings}\0".encode(), np.int8)
        with atomic_write(folder / NPZ_FILE) as temporary, temporary.open("wb") as file:
            # No array is named as an option of the function.
            np.savez(file, **arrays)  # type: ignore[arg-type]
        names = sides[0].vocabulary, sides[1].vocabulary
        decoder = decoder_settings(names, trained.config.decoding)
        write_text(folder / DECODER_FILE, yaml.safe_dump(decoder, sort_keys=False))

    def read(self, folder: Path) -> TrainedModel:
        return read_marian_npz(folder)

    def example(self, trained: TrainedModel, line: str) -> str:
        source = trained.tokenizers.source
        sides = _npz_sides(source, trained.tokenizers.target)
        if all(side.vocabulary == side.model for side in sides):
            return filled("marian-npz.py.txt", line=repr(line))
        code, text = source.split_code(line) if isinstance(source, MarianTokenizer) else ("", line)
        return filled(
            "marian-npz-pieces.py.txt",
            source=sides[0].model,
            target=sides[1].model,
            code=f"{code!r}, " if code else "",
            line=repr(text),
        )

    def packages(self, trained: TrainedModel) -> list[str]:
        return ["pymarian", "sentencepiece"]


class NpzSide(NamedTuple):
    """The files of a language, which of them splits text and which maps ids, and its tokens."""

    files: dict[str, bytes]
    model: str
    vocabulary: str
    tokens: list[str]


def _npz_sides(source: Tokenizer, target: Tokenizer) -> tuple[NpzSide, NpzSide]:
    """Return what is written for both languages, once if it is the same."""
    names = PIECES_FILES
    if _npz_side(source, VOCABULARY_MODEL) == _npz_side(target, VOCABULARY_MODEL):
        names = VOCABULARY_MODEL, VOCABULARY_MODEL
    return _npz_side(source, names[0]), _npz_side(target, names[1])


def _npz_side(tokenizer: Tokenizer, name: str) -> NpzSide:
    """Return what is written for a language with a sentencepiece model of this name.

    Marian splits text itself by a model that has exactly the pieces of the vocabulary. Any other
    vocabulary is a list, and Marian reads pieces.
    """
    model = sentencepiece_model(tokenizer)
    pieces = tokenizer.tokens(range(NUM_SPECIAL, tokenizer.size))
    own = _pieces(model, name)
    if [x for x in own if x not in SPECIAL_TOKENS] == pieces and set(REQUIRED) <= set(own):
        return NpzSide({name: model}, name, name, own)
    tokens = [*REQUIRED, *pieces]
    listed = f"{Path(name).stem}.yml"
    return NpzSide({name: model, listed: vocabulary_text(tokens).encode()}, name, listed, tokens)


def _pieces(model: bytes, name: str) -> list[str]:
    processor = sentencepiece_processor(model, name, RESTORE)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def _ids(tokenizer: Tokenizer, side: NpzSide) -> torch.Tensor:
    """Return our ids (V,) of Marian's tokens."""
    pieces = tokenizer.tokens(range(NUM_SPECIAL, tokenizer.size))
    ids = dict(zip(REQUIRED, (EOS_ID, UNK_ID), strict=True))
    ids |= {piece: i for i, piece in enumerate(pieces, start=NUM_SPECIAL)}
    # Other special tokens have the row of `<s>`, which no source has, and no probability.
    return torch.tensor([ids.get(token, BOS_ID) for token in side.tokens])


def read_marian_npz(
    folder: Path, *, source_language: str | None = None, target_language: str | None = None
) -> TrainedModel:
    """Return the model of a folder, with the search of its decoder.yml.

    Nothing is unpickled. Arguments and errors are those of `import_run`.
    """
    settings = read_decoder_settings(folder / DECODER_FILE)
    for file in (settings.model, *settings.vocabularies):
        if not file.is_file():
            remedy = f"copy it from where {DECODER_FILE} comes from"
            raise CheckpointError(str(file), "no such file", remedy=remedy)
    stored, content = read_npz(settings.model)
    config = read_model_settings(settings.model, content)
    (source, source_tokens), (target, target_tokens) = (
        _read_side(file, folder / name)
        for file, name in zip(settings.vocabularies, PIECES_FILES, strict=True)
    )
    is_shared = source_tokens == target_tokens
    if config.tie_embeddings == "all" and not is_shared:
        what = f"has one embedding table, but {DECODER_FILE} names two vocabularies that differ"
        raise CheckpointError(str(settings.model), what, remedy=RESTORE)
    names = npz_names(config, stored.weights)
    stored.check_tables(names, (len(source_tokens), len(target_tokens)), config.dim)
    outside = {*names.tables.values(), LOGITS_BIAS}
    model = stored.network(names, (source.rows, target.rows), config, outside=outside)
    whole = Config(
        data=data_config(source_language or "source", target_language or "target"),
        tokenizer=MarianConfig(shared=is_shared),
        model=config,
        decoding=settings.search,
    )
    tokenizers = Tokenizers(source.tokenizer, target.tokenizer, is_shared)
    return TrainedModel(whole, tokenizers, model, step=0)


def _read_side(file: Path, pieces_file: Path) -> tuple[Side, list[str]]:
    """Return a language by its vocabulary, and the tokens of that by id."""
    is_model = file.suffix == ".spm"
    if is_model:
        pieces_file = file
    elif not pieces_file.is_file():
        # Our exports of two languages that have one.
        pieces_file = pieces_file.with_name(VOCABULARY_MODEL)
    if not pieces_file.is_file():
        what = "has pieces, but no sentencepiece model that splits text into them"
        remedy = f"copy {' and '.join(PIECES_FILES)} beside it"
        raise CheckpointError(str(file), what, remedy=remedy)
    model = pieces_file.read_bytes()
    tokens = _pieces(model, str(file)) if is_model else read_vocabulary(file)
    for token in REQUIRED:
        if token not in tokens:
            raise CheckpointError(str(file), f"has no {token}", remedy=RESTORE)
    pieces = [token for token in tokens if token not in SPECIAL_TOKENS]
    tokenizer = MarianTokenizer(marian_file(model, pieces), Normalizer(), name=str(pieces_file))
    ids = {token: i for i, token in enumerate(tokens)}
    # It has no start token.
    return Side.of(tokenizer, [*(ids[x] for x in REQUIRED), -1, *(ids[x] for x in pieces)]), tokens
