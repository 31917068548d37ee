"""The interface of a tokenizer, and the two tokenizers of a run: learned, saved and loaded."""

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.text import Direction, Text
from tformer_cli.config.schema.tokenizer import (
    CharConfig,
    ImportedTokenizerConfig,
    LearnedTokenizerConfig,
    SubwordConfig,
    TokenizerConfig,
    WordConfig,
)
from tformer_cli.errors import CheckpointError, DataError, NewerFormatError, UsageError
from tformer_cli.storage.atomic import atomic_directory, parse_json
from tformer_cli.text.m2m import M2MTokenizer
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.special_tokens import DECODER_START_IDS, EOS_ID, NUM_SPECIAL, tag_ids
from tformer_cli.text.subword import (
    MarianTokenizer,
    SubwordTokenizer,
    learn_subwords,
    reservoir_sample,
)
from tformer_cli.text.symbol import CharTokenizer, WordTokenizer, learn_characters, learn_words
from tformer_cli.text.t5 import T5Tokenizer
from tformer_cli.text.vocabulary import TRAIN_AGAIN

TOKENIZER_VERSION = 1
HEADER_FILE = "tokenizer.json"
# Bytes, language codes and special tokens of imported models.
_FIXED = re.compile(r"<.+>|>>.+<<")

Ids = tuple[int, ...]
Pairs = Callable[[], Iterable[tuple[str, str]]]


class Tokenizer(Protocol):
    """Text of one language to ids and back."""

    kind: ClassVar[str]  # of its config
    content: bytes  # of the file that it is saved as
    normalizer: Normalizer  # applied to a line first
    size: int  # number of ids, special ones included
    byte_ids: range  # ids of single bytes, by byte; empty without byte fallback
    suppressed_ids: tuple[int, ...]  # in no translation: special ones except EOS, line breaks

    def encode(self, line: str) -> list[int]:
        """Return the ids of a line; UNK is the only special one, see `with_eos`."""

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids without special tokens and without line breaks."""

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the printable token of each id."""

    def to_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """Return the UTF-8 bytes of text of each id, whitespace between words included."""


def with_eos(ids: Sequence[int]) -> list[int]:
    """Add EOS to the ids of a source, with which every model was trained.

    An empty source stays empty: it is not translated.
    """
    return [*ids, EOS_ID] if ids else []


_TOKENIZERS: dict[str, Callable[..., Tokenizer]] = {
    "subword": SubwordTokenizer,
    "word": WordTokenizer,
    "char": CharTokenizer,
    "marian": MarianTokenizer,
    "m2m": M2MTokenizer,
    "t5": T5Tokenizer,
}


@dataclass(frozen=True, slots=True)
class Tokenizers:
    """The tokenizers of source and target language.

    With `shared`, both have the same vocabulary; their normalizers may still differ.
    """

    source: Tokenizer
    target: Tokenizer
    shared: bool

    @property
    def fingerprint(self) -> str:
        """Hash of everything that determines the ids of a text."""
        digest = hashlib.sha256()
        for name, content in self.files().items():
            digest.update(f"{name} {len(content)}\n".encode())
            digest.update(content)
        return digest.hexdigest()

    def start_id(self, kind: str) -> int:
        """Return the first decoder input of a kind of network, or of an imported model."""
        if isinstance(self.target, MarianTokenizer):
            return self.target.start_id
        return DECODER_START_IDS[kind]

    def special_ids(self, kind: str) -> tuple[int, int, Ids]:
        """Return the start id of a kind of network, EOS, and the ids that no translation has."""
        return self.start_id(kind), EOS_ID, self.target.suppressed_ids

    def language_ids(self, languages: Direction, where: str = "data") -> tuple[Ids, Ids]:
        """Return the language tokens that sources and targets begin with, if there are any.

        `where` is what has the languages, for messages.

        Raises:
            UsageError: the vocabulary has tokens of languages, and not of one of these.
        """
        if not isinstance(self.source, M2MTokenizer):
            return (), ()
        known = self.source.languages
        for name in languages:
            if name not in known:
                remedy = f"choose from: {', '.join(known)}"
                what = "is in a language that the vocabulary lacks"
                raise UsageError(where, what, got=name, remedy=remedy)
        source, target = languages
        return (known[source],), (known[target],)

    def first_ids(self, data: DataConfig, text: Text) -> tuple[Ids, Ids]:
        """Return what sources and targets of a text begin with: languages, a prefix and tags."""
        keys = (f"data.{key}" for key, other in data.texts().items() if other == text)
        where = next(keys, str(text.source_file))
        source, target = self.language_ids(data.direction_of(text), where)
        prefix = self.source.encode(data.prefix_of(text))
        return (*source, *prefix, *tag_ids(data.tags_of(text), data.tags)), target

    def save(self, directory: Path) -> None:
        """Write a tokenizer directory atomically, replacing an earlier one."""
        with atomic_directory(directory) as temporary:
            for name, content in self.files().items():
                (temporary / name).write_bytes(content)

    def files(self) -> dict[str, bytes]:
        """Return the content of each file of a tokenizer directory."""
        header = {
            "format_version": TOKENIZER_VERSION,
            "kind": self.source.kind,
            "shared": self.shared,
            "source": asdict(self.source.normalizer),
            "target": asdict(self.target.normalizer),
        }
        source_name, target_name = _file_names(self.source.kind, self.shared)
        return {
            HEADER_FILE: (json.dumps(header, indent=2) + "\n").encode(),
            source_name: self.source.content,
            target_name: self.target.content,
        }


def build_tokenizers(config: TokenizerConfig, pairs: Pairs, seed: int) -> Tokenizers:
    """Learn the tokenizers of both sides from parallel text.

    `pairs` returns all (source, target) lines and is called twice, or three times for subwords:
    these are learned from a sample, which `seed` determines, and of which the indices are held.

    Raises:
        DataError: there is no text, or the vocabulary size does not suit it.
    """
    if isinstance(config, ImportedTokenizerConfig):
        raise DataError(
            "tokenizer.kind",
            "comes with an imported model, and is not learned from text",
            got=config.kind,
            remedy="name the run of `tformer import` in training.init_from",
        )
    if config.kind == "subword":
        indices = (index for index, _ in enumerate(pairs()))
        sample, _ = reservoir_sample(indices, config.sample_lines, seed)
        sample.sort()
        return _learned_tokenizers(config, lambda: _pairs_at(pairs(), sample))
    return _learned_tokenizers(config, pairs)


def load_tokenizers(directory: Path) -> Tokenizers:
    """Load a tokenizer directory; raise CheckpointError if a file is missing, damaged or newer."""
    file = directory / HEADER_FILE
    try:
        header = parse_json(_read(file))
        version = header["format_version"]
        if version > TOKENIZER_VERSION:
            raise NewerFormatError.of(str(file), version, TOKENIZER_VERSION)
        kind, shared = header["kind"], header["shared"]
        normalizers = Normalizer(**header["source"]), Normalizer(**header["target"])
        tokenizer_class = _TOKENIZERS[kind]
        names = _file_names(kind, shared)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            str(file), "is damaged", got=repr(error), remedy=TRAIN_AGAIN
        ) from None
    source, target = (
        tokenizer_class(_read(directory / name), normalizer, name=str(directory / name))
        for name, normalizer in zip(names, normalizers, strict=True)
    )
    return Tokenizers(source, target, shared)


def trim(
    tokenizers: Tokenizers, pairs: Iterable[tuple[str, str]]
) -> tuple[Tokenizers, tuple[list[int], list[int]]]:
    """Return tokenizers with the tokens that a parallel text needs, and their former ids by side.

    Text of which all tokens are left has the same tokens. What spells other text is left too:
    bytes, single characters and tokens within others that are left; so are language codes.

    Raises:
        DataError: the tokens are no subwords.
    """
    sides = tokenizers.source, tokenizers.target
    used: tuple[set[str], set[str]] = set(), set()
    for pair in pairs:
        for side, line, tokens in zip(sides, pair, used, strict=True):
            tokens.update(side.tokens(side.encode(line)))
    if tokenizers.shared:
        used = (used[0] | used[1],) * 2
    ids = _needed_ids(sides[0], used[0]), _needed_ids(sides[1], used[1])
    source, target = (_trimmed(side, each) for side, each in zip(sides, ids, strict=True))
    return Tokenizers(source, target, tokenizers.shared), ids


def _trimmed(tokenizer: Tokenizer, ids: Sequence[int]) -> Tokenizer:
    if not isinstance(tokenizer, SubwordTokenizer | MarianTokenizer):
        what = "must be subword or marian, to be trimmed"
        raise DataError("tokenizer.kind", what, got=tokenizer.kind, remedy="use the run as it is")
    return tokenizer.trimmed(ids)


def _needed_ids(tokenizer: Tokenizer, used: Iterable[str]) -> list[int]:
    parts = {
        token[start:end]
        for token in used
        for start in range(len(token))
        for end in range(start + 1, len(token) + 1)
    }
    if isinstance(tokenizer, M2MTokenizer):
        parts |= {*tokenizer.language_tokens.values()}
    return [
        i
        for i, token in enumerate(tokenizer.tokens(range(tokenizer.size)))
        if i < NUM_SPECIAL or len(token) == 1 or token in parts or _FIXED.fullmatch(token)
    ]


def _learned_tokenizers(config: LearnedTokenizerConfig, pairs: Pairs) -> Tokenizers:
    source_normalizer = Normalizer.of_side(config, "source")
    target_normalizer = Normalizer.of_side(config, "target")
    sources = (source_normalizer(source) for source, _ in pairs())
    targets = (target_normalizer(target) for _, target in pairs())
    if config.shared:
        source_content = target_content = _learn(config, itertools.chain(sources, targets))
    else:
        source_content, target_content = _learn(config, sources), _learn(config, targets)
    tokenizer_class = _TOKENIZERS[config.kind]
    source_name, target_name = _file_names(config.kind, config.shared)
    return Tokenizers(
        tokenizer_class(source_content, source_normalizer, name=source_name),
        tokenizer_class(target_content, target_normalizer, name=target_name),
        config.shared,
    )


def _pairs_at(pairs: Iterable[tuple[str, str]], indices: list[int]) -> Iterator[tuple[str, str]]:
    """Yield the pairs at ascending indices."""
    remaining = iter(pairs)
    for before, index in itertools.pairwise([-1, *indices]):
        yield from itertools.islice(remaining, index - before - 1, index - before)


def _learn(config: LearnedTokenizerConfig, lines: Iterator[str]) -> bytes:
    """Return the content of a vocabulary file learned from normalized lines."""
    first = next(filter(None, lines), None)
    if first is None:
        raise DataError(
            "data.train",
            "no lines with text to learn a vocabulary from",
            remedy="name files with text",
        )
    text = itertools.chain([first], lines)
    match config:
        case SubwordConfig():
            return learn_subwords(text, config)
        case WordConfig():
            return learn_words(text, config)
        case CharConfig():
            return learn_characters(text, config)


def _file_names(kind: str, shared: bool) -> tuple[str, str]:
    """Return the file of the source and of the target tokenizer; the same if shared."""
    suffix = ".model" if kind == "subword" else ".json"
    # Marian segments each language with its own model, even with a shared vocabulary.
    if shared and kind != "marian":
        return f"shared{suffix}", f"shared{suffix}"
    return f"source{suffix}", f"target{suffix}"


def _read(file: Path) -> bytes:
    try:
        if not file.exists() or file.is_file():
            return file.read_bytes()
        # Reading a pipe or a device may never end.
        got: str | None = "no regular file"
    except OSError as error:
        got = error.strerror
    raise CheckpointError(str(file), "cannot be read", got=got, remedy=TRAIN_AGAIN)
