"""What every tokenizer offers, and the pair of them that belongs to a run."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from tformer_cli.config.schema.tokenizer import (
    CharConfig,
    LearntTokenizerConfig,
    MarianConfig,
    SubwordConfig,
    TokenizerConfig,
    WordConfig,
)
from tformer_cli.errors import CheckpointError, DataError
from tformer_cli.json_text import parse_json
from tformer_cli.storage.run_directory import whole_directory
from tformer_cli.text.char import CharTokenizer, learn_characters
from tformer_cli.text.marian import MarianTokenizer
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.subword import SubwordTokenizer, learn_subwords, reservoir_sample
from tformer_cli.text.word import WordTokenizer, learn_words

FORMAT_VERSION = 1
HEADER_FILE = "tokenizer.json"

_TOKENIZERS: dict[
    str,
    type[SubwordTokenizer] | type[WordTokenizer] | type[CharTokenizer] | type[MarianTokenizer],
] = {
    "subword": SubwordTokenizer,
    "word": WordTokenizer,
    "char": CharTokenizer,
    "marian": MarianTokenizer,
}
_SUFFIXES = {"subword": ".model", "word": ".json", "char": ".json", "marian": ".json"}

Pairs = Callable[[], Iterable[tuple[str, str]]]


class Tokenizer(Protocol):
    """Text of one language to ids and back.

    Attributes:
        kind: the `kind` of its configuration.
        content: of the file that it is saved as.
        normalizer: what is done to a line first.
        size: number of ids.
        byte_ids: ids of single bytes, by byte; empty where there are none.
        suppressed_ids: ids that no translation contains: all special ones but `</s>`, and the
            bytes of the line breaks.
    """

    @property
    def kind(self) -> str: ...
    @property
    def content(self) -> bytes: ...
    @property
    def normalizer(self) -> Normalizer: ...
    @property
    def size(self) -> int: ...
    @property
    def byte_ids(self) -> range: ...
    @property
    def suppressed_ids(self) -> tuple[int, ...]: ...

    def encode(self, line: str) -> list[int]:
        """Return the ids of a line, no special ones among them but that of the unknown."""

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line, as `encode` does."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids without the special ones; never a line break in it."""

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return each id's token as it is shown to people."""

    def to_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """Return the UTF-8 bytes of text that each id stands for, blanks between words included."""


@dataclass(frozen=True, slots=True)
class Tokenizers:
    """The tokenizers of both languages of a run.

    Attributes:
        source: of the language that is read.
        target: of the language that is written.
        shared: whether both have the same vocabulary; their normalizers may still differ.
    """

    source: Tokenizer
    target: Tokenizer
    shared: bool

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides which ids a text becomes."""
        digest = hashlib.sha256()
        for name, content in self.files().items():
            digest.update(f"{name} {len(content)}\n".encode())
            digest.update(content)
        return digest.hexdigest()

    def save(self, directory: Path) -> None:
        """Write a tokenizer folder in the place of what was there: as a whole, or not at all."""
        with whole_directory(directory) as temporary:
            for name, content in self.files().items():
                (temporary / name).write_bytes(content)

    def files(self) -> dict[str, bytes]:
        """Return the content of each file of a tokenizer folder."""
        header = {
            "format_version": FORMAT_VERSION,
            "kind": self.source.kind,
            "shared": self.shared,
            "source": asdict(self.source.normalizer),
            "target": asdict(self.target.normalizer),
        }
        names = _file_names(self.source.kind, self.shared)
        return {
            HEADER_FILE: (json.dumps(header, indent=2) + "\n").encode(),
            names[0]: self.source.content,
            names[1]: self.target.content,
        }


def build_tokenizers(config: TokenizerConfig, pairs: Pairs, seed: int) -> Tokenizers:
    """Learn the tokenizers of both sides from parallel text.

    Args:
        config: what kind of tokens.
        pairs: returns the (source, target) lines from their beginning; called once or twice.
            Only the sample that subwords are learnt from is held in memory.
        seed: decides that sample.

    Raises:
        DataError: there is no text, or the configured sizes do not suit it; or tokens of this kind
            are not learnt.
    """
    if isinstance(config, MarianConfig):
        raise DataError(
            "tokenizer.kind",
            "comes with an imported model, and is not learnt from text",
            got=config.kind,
            remedy="name the run of `tformer import` in training.initialize_from",
        )
    if config.kind == "subword":
        sample = reservoir_sample(pairs(), config.sample_lines, seed)
        return _learnt(config, lambda: sample)
    return _learnt(config, pairs)


def load_tokenizers(directory: Path) -> Tokenizers:
    """Read a tokenizer folder.

    Raises:
        CheckpointError: a file is missing, damaged or of a newer version.
    """
    file = directory / HEADER_FILE
    try:
        header = parse_json(_read(file))
        if header["format_version"] > FORMAT_VERSION:
            raise CheckpointError(
                str(file),
                f"was written by a newer tformer; this one reads format {FORMAT_VERSION}",
                got=f"format {header['format_version']}",
                remedy="upgrade tformer",
            )
        kind, shared = header["kind"], header["shared"]
        normalizers = Normalizer(**header["source"]), Normalizer(**header["target"])
        names = _file_names(kind, shared)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            str(file), "is damaged", got=repr(error), remedy="restore the file, or train again"
        ) from None
    source, target = (
        _TOKENIZERS[kind](_read(directory / name), normalizer, name=str(directory / name))
        for name, normalizer in zip(names, normalizers, strict=True)
    )
    return Tokenizers(source, target, shared)


def _learnt(config: LearntTokenizerConfig, pairs: Pairs) -> Tokenizers:
    source_normalizer = Normalizer.of_side(config, "source")
    target_normalizer = Normalizer.of_side(config, "target")
    sources = (source_normalizer(source) for source, _ in pairs())
    targets = (target_normalizer(target) for _, target in pairs())
    if config.shared:
        source_content = target_content = _learn(config, itertools.chain(sources, targets))
    else:
        source_content, target_content = _learn(config, sources), _learn(config, targets)
    make = _TOKENIZERS[config.kind]
    names = _file_names(config.kind, config.shared)
    return Tokenizers(
        make(source_content, source_normalizer, name=names[0]),
        make(target_content, target_normalizer, name=names[1]),
        config.shared,
    )


def _learn(config: LearntTokenizerConfig, lines: Iterator[str]) -> bytes:
    """Return the content of the file that holds the vocabulary of some normalised lines."""
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
    """Return the files of the source and the target side; one and the same if they share it."""
    suffix = _SUFFIXES[kind]
    # Marian cuts each language by a model of its own, also where both have one vocabulary.
    if shared and kind != "marian":
        return f"shared{suffix}", f"shared{suffix}"
    return f"source{suffix}", f"target{suffix}"


def _read(file: Path) -> bytes:
    try:
        if not file.exists() or file.is_file():
            return file.read_bytes()
        # A pipe or a device may never end.
        got: str | None = "no regular file"
    except OSError as error:
        got = error.strerror
    raise CheckpointError(
        str(file), "cannot be read", got=got, remedy="restore the file, or train again"
    )
