"""Models that CTranslate2's converters wrote, such as OPUS-MT: what translates text by them.

Such a folder has weights and vocabularies of tokens. The sentencepiece models of the model that was
converted make tokenizers of them, and its settings, where they are there too, say the rest.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tformer_cli.choices import Quantization
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.config.schema.model import EncoderDecoderConfig, LearnedPositions, NoPositions
from tformer_cli.config.schema.tokenizer import MarianConfig
from tformer_cli.errors import CheckpointError
from tformer_cli.export.marian_settings import (
    LANGUAGES_FILE,
    SEARCH_FILE,
    SETTINGS_FILE,
    Languages,
    data_config,
    json_object,
    read_languages,
    read_search,
)
from tformer_cli.storage.atomic import read_json
from tformer_cli.storage.run_directory import EXPORT_FILE, RunDirectory
from tformer_cli.storage.trained_model import ModelFiles
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.subword import MarianTokenizer, marian_file
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.text.vocabulary import EOS_ID, SPECIAL_TOKENS

# By side: those of Marian, and one of both languages.
SENTENCEPIECE_FILES = (("source.spm", "target.spm"), ("sentencepiece.model",) * 2)
# By side: one of both languages, or one of each; older converters wrote text.
VOCABULARY_FILES = tuple(
    (f"{source}_vocabulary.{ending}", f"{target}_vocabulary.{ending}")
    for ending in ("json", "txt")
    for source, target in (("shared", "shared"), ("source", "target"))
)
POSITIONS = "position_encodings/encodings"
# Versions of the format of weights, and the number formats of matrices by CTranslate2's ids.
VERSIONS = range(4, 7)
NUMBER_FORMATS: dict[int, Quantization] = {1: "int8", 4: "float16", 5: "bfloat16"}
EXACT: Quantization = "float32"
CONVERT_AGAIN = "convert the model again"


class WeightsSummary(NamedTuple):
    """What the weights say of themselves."""

    num_positions: int | None  # rows of the position tables; None without a table
    quantization: Quantization


def read_converted(folder: Path) -> ModelFiles:
    """Return what translates by a folder that CTranslate2's converters wrote, without torch.

    Its config describes the network by its number of positions only: CTranslate2 knows the rest.
    Languages and search are those of tokenizer_config.json and generation_config.json.

    Raises:
        CheckpointError: a tokenizer or a vocabulary is missing or damaged, or `</s>` ends nothing.
        ConfigError: a settings file has impossible values.
    """
    _check_eos(folder)
    vocabulary_files = _side_files(folder, VOCABULARY_FILES, "vocabulary")
    sentencepiece_files = _side_files(folder, SENTENCEPIECE_FILES, "tokenizer")
    pairs = zip(sentencepiece_files, map(_tokens, vocabulary_files), strict=True)
    source, target = (_tokenizer(file, tokens) for file, tokens in pairs)
    is_shared = len(set(vocabulary_files)) == 1
    weights = summarize_weights(folder / EXPORT_FILE)
    return ModelFiles(
        run=RunDirectory(folder),
        directory=folder,
        config=_config(folder, weights.num_positions, is_shared),
        tokenizers=Tokenizers(source, target, is_shared),
        step=0,
        max_source_sentences=None,
        quantization=weights.quantization,
    )


def lacks_source_eos(folder: Path) -> bool:
    """Return whether a model was trained with EOS behind sources, and CTranslate2 adds none.

    transformers' tokenizers add it, so their converters leave it out of config.json. Their models
    begin targets with EOS too. OpenNMT-py's begin with BOS, and read sources without EOS.
    """
    settings = _settings(folder)
    begins_with_eos = settings.get("decoder_start_token") == SPECIAL_TOKENS[EOS_ID]
    return begins_with_eos and not settings.get("add_source_eos", False)


def summarize_weights(file: Path) -> WeightsSummary:
    """Return what a file of CTranslate2's weights says of itself; of a damaged one, less.

    CTranslate2 says itself what is wrong with a file that it cannot load.
    """
    rows: list[int] = []
    formats: set[int] = set()
    with file.open("rb") as content:
        try:
            for name, shape, number_format in _variables(content):
                if name.endswith(POSITIONS):
                    rows.append(shape[0])
                if len(shape) > 1:
                    formats.add(number_format)
        except (struct.error, UnicodeDecodeError, IndexError):
            pass
    names = [name for number, name in NUMBER_FORMATS.items() if number in formats]
    return WeightsSummary(min(rows, default=None), (*names, EXACT)[0])


def _variables(content: BinaryIO) -> Iterator[tuple[str, list[int], int]]:
    """Yield name, shape and number format of each variable; the format is `ModelSpec.save`'s."""

    def number(kind: str) -> int:
        value: int
        (value,) = struct.unpack(f"<{kind}", content.read(struct.calcsize(f"<{kind}")))
        return value

    def text() -> str:
        return content.read(number("H"))[:-1].decode()

    if number("I") not in VERSIONS:
        return
    text()  # kind of network
    number("I")  # its revision
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        yield name, shape, number("B")
        content.seek(number("I"), 1)


def _settings(folder: Path) -> Mapping[str, Any]:
    file = folder / SETTINGS_FILE
    return json_object(file) if file.is_file() else {}


def _check_eos(folder: Path) -> None:
    ours = SPECIAL_TOKENS[EOS_ID]
    theirs = _settings(folder).get("eos_token", ours)
    if theirs != ours:
        where = f"{folder / SETTINGS_FILE}: eos_token"
        raise CheckpointError(where, f"must be {ours}", got=str(theirs))


def _side_files(folder: Path, choices: tuple[tuple[str, ...], ...], kind: str) -> tuple[Path, ...]:
    """Return the files of both sides: the first choice that is there."""
    for names in choices:
        files = tuple(folder / name for name in names)
        if all(file.is_file() for file in files):
            return files
    looked_for = ", ".join(" and ".join(dict.fromkeys(names)) for names in choices)
    what = f"has no {kind}: none of {looked_for}"
    remedy = "copy it from the model that was converted"
    raise CheckpointError(str(folder), what, remedy=remedy)


def _tokens(file: Path) -> list[str]:
    """Return the tokens of a vocabulary file: JSON, or text with a token a line."""
    try:
        if file.suffix == ".txt":
            return file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        tokens = read_json(file)
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise ValueError("something other than a list of strings")
        "".join(tokens).encode()
    except (OSError, ValueError) as error:
        what = "is not a vocabulary"
        raise CheckpointError(str(file), what, got=str(error), remedy=CONVERT_AGAIN) from None
    return tokens


def _tokenizer(file: Path, tokens: list[str]) -> MarianTokenizer:
    pieces = [token for token in tokens if token not in SPECIAL_TOKENS]
    return MarianTokenizer(marian_file(file.read_bytes(), pieces), Normalizer(), name=str(file))


def _config(folder: Path, num_positions: int | None, is_shared: bool) -> Config:
    search = read_search(folder / SEARCH_FILE)
    languages = Languages("source", "target", not is_shared)
    if (folder / LANGUAGES_FILE).is_file():
        languages = read_languages(folder / LANGUAGES_FILE)
    config = Config(
        data=data_config(languages.source, languages.target),
        tokenizer=MarianConfig(shared=is_shared),
        model=EncoderDecoderConfig(positions=NoPositions()),
        decoding=search,
    )
    if num_positions is None:
        return config
    # A source and its EOS, and a translation, have a position for each token.
    filters, training = config.data.filters, config.training
    filters = replace(filters, max_length=min(filters.max_length, num_positions - 1))
    validation = _limited(training.validation_decoding, num_positions)
    return replace(
        config,
        data=replace(config.data, filters=filters),
        model=replace(config.model, positions=LearnedPositions(max_length=num_positions)),
        training=replace(training, validation_decoding=validation),
        decoding=_limited(search, num_positions),
    )


def _limited(search: DecodingConfig, num_positions: int) -> DecodingConfig:
    """Return a search for translations that have positions."""
    return replace(search, max_length=min(search.max_length, num_positions))
