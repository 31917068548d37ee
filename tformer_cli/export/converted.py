"""Models that CTranslate2's converters wrote, such as OPUS-MT: what translates text by them.

Such a folder has weights and vocabularies of tokens. The sentencepiece models of the model that was
converted make tokenizers of them, and its settings, where they are there too, say the rest.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.config.schema.model import EncoderDecoderConfig, LearnedPositions, NoPositions
from tformer_cli.config.schema.tokenizer import MarianConfig
from tformer_cli.errors import CheckpointError
from tformer_cli.export.ctranslate2_file import (
    CONVERT_AGAIN,
    EMBEDDINGS,
    StoredModel,
    summarize_weights,
)
from tformer_cli.export.marian_settings import Languages, read_languages
from tformer_cli.export.settings import (
    LANGUAGES_FILE,
    SEARCH_FILE,
    SETTINGS_FILE,
    data_config,
    json_object,
    read_search,
)
from tformer_cli.storage.atomic import read_json
from tformer_cli.storage.run_directory import EXPORT_FILE, RunDirectory
from tformer_cli.storage.trained_model import ModelFiles
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.special_tokens import BOS_ID, EOS_ID, SPECIAL_TOKENS, UNK_ID
from tformer_cli.text.subword import MarianTokenizer, marian_file
from tformer_cli.text.tokenizer import Tokenizers

# By side: those of Marian, and one of both languages.
SENTENCEPIECE_FILES = (
    ("source.spm", "target.spm"),
    ("sentencepiece.model",) * 2,
    ("spiece.model",) * 2,
)
# By side: one of both languages, or one of each; older converters wrote text.
VOCABULARY_FILES = tuple(
    (f"{source}_vocabulary.{ending}", f"{target}_vocabulary.{ending}")
    for ending in ("json", "txt")
    for source, target in (("shared", "shared"), ("source", "target"))
)
# With which translations begin, unless config.json has another.
START = SPECIAL_TOKENS[BOS_ID]


class SideFiles(NamedTuple):
    """What a folder has beside its weights."""

    tokenizers: Tokenizers
    tokens: tuple[list[str], list[str]]  # of the vocabularies of source and target
    source_eos: bool  # whether the model was trained with EOS behind sources


def read_converted(folder: Path) -> ModelFiles:
    """Return what translates by a folder that CTranslate2's converters wrote, without torch.

    Its config describes the network by its number of positions only: CTranslate2 knows the rest.
    Languages and search are those of tokenizer_config.json and generation_config.json.

    Raises:
        CheckpointError: a tokenizer or a vocabulary is missing or damaged, or `</s>` ends nothing.
        ConfigError: a settings file has impossible values.
    """
    tokenizers = read_side_files(folder).tokenizers
    weights = summarize_weights(folder / EXPORT_FILE)
    rows = weights.num_positions
    positions = NoPositions() if rows is None else LearnedPositions(max_length=rows)
    model = EncoderDecoderConfig(positions=positions)
    config = converted_config(folder, model, is_shared=tokenizers.shared)
    # CTranslate2 has no limit of repetition as we have it.
    decoding = replace(config.decoding, no_repeat_ngram_size=0)
    return ModelFiles(
        run=RunDirectory(folder),
        directory=folder,
        config=replace(config, decoding=decoding),
        tokenizers=tokenizers,
        step=0,
        max_source_sentences=None,
        quantization=weights.quantization,
    )


def read_side_files(folder: Path) -> SideFiles:
    """Return tokenizers and vocabularies; errors are those of `read_converted`."""
    _check_special_tokens(folder)
    vocabulary_files = _side_files(folder, VOCABULARY_FILES, "vocabulary")
    sentencepiece_files = _side_files(folder, SENTENCEPIECE_FILES, "tokenizer")
    source_tokens, target_tokens = map(_tokens, vocabulary_files)
    tokenizers = Tokenizers(
        _tokenizer(sentencepiece_files[0], source_tokens),
        _tokenizer(sentencepiece_files[1], target_tokens),
        shared=len(set(vocabulary_files)) == 1,
    )
    adds_eos = settings_of(folder).get("add_source_eos", False)
    source_eos = bool(adds_eos) or lacks_source_eos(folder)
    return SideFiles(tokenizers, (source_tokens, target_tokens), source_eos)


def check_vocabularies(folder: Path) -> None:
    """Refuse vocabularies that have more or fewer tokens than the weights have rows.

    CTranslate2 loads them, and fails when it chooses a token without a name.

    Raises:
        CheckpointError: they are such, or damaged.
    """
    stored = StoredModel(folder / EXPORT_FILE)
    files = _side_files(folder, VOCABULARY_FILES, "vocabulary")
    for table, file in zip(EMBEDDINGS.values(), files, strict=True):
        # Older converters called the table of sources otherwise.
        if table in stored:
            stored.check_rows(table, _tokens(file))


def lacks_source_eos(folder: Path) -> bool:
    """Return whether a model was trained with EOS behind sources, and CTranslate2 adds none.

    transformers' tokenizers add it, so their converters leave it out of config.json. Their models
    begin targets with EOS or padding. OpenNMT-py's begin with BOS, and read sources without EOS.
    """
    settings = settings_of(folder)
    begins_with_bos = settings.get("decoder_start_token", START) == START
    return not begins_with_bos and not settings.get("add_source_eos", False)


def settings_of(folder: Path) -> Mapping[str, Any]:
    """Return the content of config.json, which older converters did not write."""
    file = folder / SETTINGS_FILE
    return json_object(file) if file.is_file() else {}


def _check_special_tokens(folder: Path) -> None:
    settings = settings_of(folder)
    for key, ours in (("eos_token", SPECIAL_TOKENS[EOS_ID]), ("unk_token", SPECIAL_TOKENS[UNK_ID])):
        if (theirs := settings.get(key, ours)) != ours:
            where = f"{folder / SETTINGS_FILE}: {key}"
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


def converted_config(folder: Path, model: EncoderDecoderConfig, *, is_shared: bool) -> Config:
    """Return the config of a network, with the languages and the search of a folder."""
    search = read_search(folder / SEARCH_FILE)
    languages = Languages("source", "target", not is_shared)
    if (folder / LANGUAGES_FILE).is_file():
        languages = read_languages(folder / LANGUAGES_FILE)
    config = Config(
        data=data_config(languages.source, languages.target),
        tokenizer=MarianConfig(shared=is_shared),
        model=model,
        decoding=search,
    )
    return within_positions(config)


def within_positions(config: Config) -> Config:
    """Return a config whose sentences and translations have no more tokens than positions."""
    if (num_positions := config.model.max_length) is None:
        return config
    # A source and its EOS, and a translation, have a position for each token.
    filters, training = config.data.filters, config.training
    more = config.data.max_length - filters.max_length
    longest = num_positions - 1 - more
    filters = replace(filters, max_length=min(filters.max_length, longest))
    validation = _limited(training.validation_decoding, num_positions)
    return replace(
        config,
        data=replace(config.data, filters=filters),
        training=replace(training, validation_decoding=validation),
        decoding=_limited(config.decoding, num_positions),
    )


def _limited(search: DecodingConfig, num_positions: int) -> DecodingConfig:
    """Return a search for translations that have positions."""
    return replace(search, max_length=min(search.max_length, num_positions))
