"""Tokenizers of whole symbols from a vocabulary: words or characters."""

import functools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from tformer_cli.config.schema.tokenizer import CharConfig, WordConfig
from tformer_cli.errors import DataError
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.special_tokens import NUM_SPECIAL, SPECIAL_TOKENS, SUPPRESSED_IDS
from tformer_cli.text.vocabulary import Vocabulary


class SymbolTokenizer(ABC):
    """Tokenizer of one side whose tokens are whole symbols."""

    kind: ClassVar[str]
    separator: ClassVar[str]

    def __init__(self, vocabulary: bytes, normalizer: Normalizer, *, name: str) -> None:
        """Parse the vocabulary file `name`; raise CheckpointError if it is none."""
        self.content = vocabulary
        self.normalizer = normalizer
        self._vocabulary = Vocabulary.from_json(vocabulary, name)
        self.size = len(self._vocabulary)
        self.byte_ids = range(0)
        self.suppressed_ids = SUPPRESSED_IDS

    @abstractmethod
    def split(self, line: str) -> Sequence[str]:
        """Return the symbols of a normalized line."""

    def encode(self, line: str) -> list[int]:
        return [self._vocabulary.id_of(symbol) for symbol in self.split(self.normalizer(line))]

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        return [self.encode(line) for line in lines]

    def decode(self, ids: Sequence[int]) -> str:
        return self.separator.join(self.tokens([i for i in ids if i >= NUM_SPECIAL]))

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._vocabulary.tokens[i] for i in ids]

    def to_bytes(self, ids: Sequence[int]) -> list[bytes]:
        return [f"{symbol}{self.separator}".encode() for symbol in self.tokens(ids)]


class CharTokenizer(SymbolTokenizer):
    """Tokenizer of Unicode code points; decoding restores all but unknown characters."""

    kind = "char"
    separator = ""

    def split(self, line: str) -> str:
        return line


class WordTokenizer(SymbolTokenizer):
    """Tokenizer of words by torchtext's basic_english, meant for teaching.

    Whatever the language, text is lowercased and punctuation is split off or dropped, so decoding
    cannot restore the line.
    """

    kind = "word"
    separator = " "

    def split(self, line: str) -> list[str]:
        return _basic_english()(line)


def learn_characters(lines: Iterable[str], config: CharConfig) -> bytes:
    """Return the vocabulary file of all frequent characters, by frequency, then code point."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    frequent = [character for character in counts if counts[character] >= config.min_frequency]
    if not frequent:
        raise _nothing_frequent("character", config.min_frequency)
    frequent.sort(key=lambda character: (-counts[character], character))
    return Vocabulary.of(frequent).to_json()


def learn_words(lines: Iterable[str], config: WordConfig) -> bytes:
    """Return the vocabulary file of the most frequent words, by frequency, then alphabet."""
    from torchtext.vocab import Vocab  # Importing torchtext takes seconds.

    split = _basic_english()
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(split(line))
    vocab = Vocab(
        counts,
        max_size=config.max_size - NUM_SPECIAL,
        min_freq=config.min_frequency,
        specials=list(SPECIAL_TOKENS),
    )
    if len(vocab.itos) == NUM_SPECIAL:
        raise _nothing_frequent("word", config.min_frequency)
    return Vocabulary(tuple(vocab.itos)).to_json()


def _nothing_frequent(symbol: str, min_frequency: int) -> DataError:
    return DataError(
        "tokenizer.min_frequency",
        f"no {symbol} of the text is that frequent",
        got=str(min_frequency),
        remedy="lower it",
    )


@functools.cache
def _basic_english() -> Callable[[str], list[str]]:
    from torchtext.data.utils import get_tokenizer

    split: Callable[[str], list[str]] = get_tokenizer("basic_english")
    return split
