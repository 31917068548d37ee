"""Settings of M2M-100, NLLB and mBART-50 folders by ours, both ways: network, tokens, languages."""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.model import (
    EncoderDecoderConfig,
    LearnedPositions,
    SinusoidalPositions,
)
from tformer_cli.errors import CheckpointError, Problem, UsageError
from tformer_cli.export.settings import (
    LANGUAGES_FILE,
    RESTORE,
    SETTINGS_FILE,
    Settings,
    json_object,
    network_settings,
    read_network,
    search_limits,
    vocabulary_ids,
)
from tformer_cli.text.m2m import M2M_IDS, UNUSED, M2MTokenizer
from tformer_cli.text.special_tokens import EOS_ID
from tformer_cli.text.subword import sentencepiece_processor

SENTENCEPIECE_FILE, TOKENS_FILE = "sentencepiece.bpe.model", "tokenizer.json"
VOCABULARY_FILE, SPECIAL_FILE = "vocab.json", "special_tokens_map.json"
# Ids of special tokens in every model; translations begin with `</s>`, then a language.
IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
FIRST_TOKENS = list(M2M_IDS)[:4]
# Position of the first token: fairseq counts from behind that of its padding.
OFFSET = 2
# transformers' defaults of missing keys, by model type.
DEFAULTS: dict[str, dict[str, Any]] = {
    "m2m_100": {"attention_dropout": 0.1, "scale_embedding": True, **IDS},
    "mbart": {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2},
}
ARCHITECTURES = {
    "m2m_100": "M2M100ForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
}
# Tokens of languages: `__fr__` of M2M-100, `fra_Latn` of NLLB, `fr_XX` of mBART.
LANGUAGE = re.compile(r"__(?P<m2m>\w+)__|(?P<other>[a-z]{2,3}_[A-Z][A-Za-z]{1,3})")


# Languages of M2M-100's tokenizer in the order of their ids, by its `language_codes`; a folder with
# vocab.json names no others.
_M2M100 = """
    af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha
    he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my
    ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi
    wo xh yi yo zh zu
"""
LANGUAGE_CODES = {
    "m2m100": _M2M100.split(),
    "wmt21": ["en", "ha", "is", "ja", "cs", "ru", "zh", "de"],
}


class Shape(NamedTuple):
    """The content of config.json."""

    model: EncoderDecoderConfig  # ours
    size: int  # vocabulary


def read_shape(file: Path) -> Shape:
    """Read config.json.

    Raises:
        CheckpointError: it is of another family.
        ConfigError: all settings that our network does not have.
    """
    content = json_object(file)
    kind = content.get("model_type")
    if kind not in DEFAULTS:
        what, got = "is not of an M2M-100, NLLB or mBART model", f"model_type {json.dumps(kind)}"
        raise CheckpointError(str(file), what, got=got)
    settings = Settings(file, DEFAULTS[kind] | content)
    for key in ("scale_embedding", "tie_word_embeddings"):
        if not settings.take(key, bool):
            settings.note(Problem(key, "must be true", "false"))
    for key, number in IDS.items():
        if settings.values.get(key) != number:
            got = json.dumps(settings.values.get(key))
            settings.note(Problem(key, f"must be {number}, as in M2M-100, NLLB and mBART-50", got))
    positions = settings.take("max_position_embeddings", int)
    model = EncoderDecoderConfig(
        **read_network(settings),
        norm_epsilon=1e-5,
        positions=SinusoidalPositions(frequencies="tensor2tensor", offset=OFFSET)
        if kind == "m2m_100"
        else LearnedPositions(max_length=positions, offset=OFFSET),
        embedding_norm=kind == "mbart",
        output_bias=True,
        train_output_bias=False,
    )
    size = settings.take("vocab_size", int)
    settings.check(model, "model")
    return Shape(model, size)


class Languages(NamedTuple):
    """The tokens of a folder by their ids, and those of languages by what these are called."""

    vocabulary: list[str]
    tokens: dict[str, str]
    source: str | None  # languages of tokenizer_config.json
    target: str | None


def read_languages(folder: Path, model: bytes, size: int) -> Languages:
    """Read the tokens of a folder with the serialized sentencepiece model, for a vocabulary size.

    Subwords come from vocab.json, or are those of sentencepiece behind four special tokens. Other
    ids are in tokenizer.json, or in tokenizer_config.json; without them, languages follow the
    subwords and `<mask>` follows them, as in fairseq.
    """
    config_file, vocabulary_file = folder / LANGUAGES_FILE, folder / VOCABULARY_FILE
    config = json_object(config_file) if config_file.is_file() else {}
    if vocabulary_file.is_file():
        ids = vocabulary_ids(vocabulary_file)
        subwords = sorted(ids, key=ids.__getitem__)
        if [ids[token] for token in subwords] != list(range(len(subwords))):
            what = "must name each id from 0 on once"
            raise CheckpointError(str(vocabulary_file), what, remedy=RESTORE)
    else:
        processor = sentencepiece_processor(model, str(folder / SENTENCEPIECE_FILE), RESTORE)
        pieces = map(processor.id_to_piece, range(3, processor.get_piece_size()))
        subwords = [*FIRST_TOKENS, *pieces]
    added = _added_tokens(folder, config)
    listed = _listed(folder, config)
    if vocabulary_file.is_file():
        codes = LANGUAGE_CODES.get(str(config.get("language_codes")), LANGUAGE_CODES["m2m100"])
        listed = [f"__{code}__" for code in codes]
    names = dict.fromkeys((*listed, *added.values()))
    matches = {token: match for token in names if (match := LANGUAGE.fullmatch(token))}
    more = list(matches) if vocabulary_file.is_file() else [*matches, "<mask>"]
    by_id = dict(enumerate(subwords)) | added
    missing = [token for token in more if token not in by_id.values()]
    by_id |= dict(enumerate(missing, start=len(subwords)))
    vocabulary = [by_id.get(i, UNUSED.format(i)) for i in range(size)]
    if max(by_id) >= size or vocabulary[:4] != FIRST_TOKENS or len({*vocabulary}) != size:
        what = f"has no vocabulary of the {size} tokens that {SETTINGS_FILE} has"
        raise CheckpointError(str(folder), what, got=f"{max(by_id) + 1} tokens", remedy=RESTORE)
    tokens = {match["m2m"] or match["other"]: token for token, match in matches.items()}
    if not tokens:
        what = "lists no token of a language in additional_special_tokens"
        raise CheckpointError(str(config_file), what, remedy=RESTORE)
    settings = Settings(config_file, config)
    source, target = (_usual_language(settings, key) for key in ("src_lang", "tgt_lang"))
    settings.check()
    return Languages(vocabulary, tokens, source, target)


def _usual_language(settings: Settings, key: str) -> str | None:
    return None if settings.values.get(key) is None else settings.take(key, str)


def _listed(folder: Path, config: Mapping[str, Any]) -> list[str]:
    """Return the special tokens that a folder lists, beside those of every model."""
    special = folder / SPECIAL_FILE
    contents = {folder / LANGUAGES_FILE: config}
    contents[special] = json_object(special) if special.is_file() else {}
    keys = "additional_special_tokens", "extra_special_tokens"
    listed = []
    for file, content in contents.items():
        lists = (content.get(key) for key in keys)
        for token in itertools.chain.from_iterable(x for x in lists if isinstance(x, list)):
            text = token.get("content") if isinstance(token, dict) else token
            if not isinstance(text, str):
                what, got = "lists a special token that is no text", json.dumps(token)
                raise CheckpointError(str(file), what, got=got, remedy=RESTORE)
            listed.append(text)
    return listed


def _added_tokens(folder: Path, config: Mapping[str, Any]) -> dict[int, str]:
    """Return the tokens beside the subwords, by id, as far as files say them."""
    file = folder / LANGUAGES_FILE
    added: Any = config.get("added_tokens_decoder") or {}
    try:
        tokens = {int(i): str(token["content"]) for i, token in added.items()}
        file = folder / TOKENS_FILE
        if file.is_file():
            content = json_object(file)["added_tokens"]
            tokens |= {int(token["id"]): str(token["content"]) for token in content}
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        what = "has no added tokens with their ids"
        raise CheckpointError(str(file), what, got=repr(error), remedy=RESTORE) from None
    return tokens


def direction(languages: Languages, folder: Path, asked: Sequence[str | None]) -> tuple[str, str]:
    """Return source and target language: as asked, or as the folder says.

    Raises:
        UsageError: one of them is not named, or has no token.
    """
    names = []
    own = languages.source, languages.target
    for where, name, default in zip(
        ("`source_language`", "`target_language`"), asked, own, strict=True
    ):
        chosen = name or default
        if chosen not in languages.tokens:
            remedy = f"choose from: {', '.join(languages.tokens)}"
            what = f"has no such language, for the usual one of {folder}"
            got = chosen or "none"
            raise UsageError(where, what, got=got, remedy=remedy)
        names.append(chosen)
    return names[0], names[1]


def config_json(config: Config, size: int) -> dict[str, Any]:
    """Return the content of config.json."""
    model = config.model
    assert isinstance(model, EncoderDecoderConfig)
    kind = "mbart" if model.embedding_norm else "m2m_100"
    return {
        **network_settings(model, kind, ARCHITECTURES[kind]),
        "scale_embedding": True,
        "tie_word_embeddings": True,
        "max_position_embeddings": model.max_length or 1024,
        "vocab_size": size,
        **IDS,
    }


def search_settings(config: Config, vocabulary: Sequence[str]) -> dict[str, Any]:
    """Return the content of generation_config.json: the run's search, by tokens that it allows."""
    suppressed = [i for i, x in enumerate(vocabulary) if x in M2M_IDS and M2M_IDS[x] != EOS_ID]
    limits = search_limits(config)
    return {**IDS, "forced_eos_token_id": None, "suppress_tokens": suppressed, **limits}


def language_settings(config: Config, tokenizer: M2MTokenizer) -> dict[str, Any]:
    """Return the content of tokenizer_config.json, with the ids of languages and `<mask>`."""
    languages = tokenizer.language_tokens
    is_m2m = any(token.startswith("__") for token in languages.values())
    kind = "M2M100Tokenizer" if is_m2m else "NllbTokenizer"
    if getattr(config.model, "embedding_norm", False):
        kind = "MBart50Tokenizer"
    added = {*languages.values(), "<mask>"}
    codes = [name for name, known in LANGUAGE_CODES.items() if list(languages) == known]
    return {
        "tokenizer_class": kind,
        **({"language_codes": codes[0]} if codes else {}),
        "src_lang": config.data.source_language,
        "tgt_lang": config.data.target_language,
        "additional_special_tokens": list(languages.values()),
        "added_tokens_decoder": {
            str(i): {"content": token, "special": True, "lstrip": token == "<mask>"}
            for i, token in enumerate(tokenizer.vocabulary)
            if token in added
        },
    }
