"""Whole words, by torchtext's basic_english: for teaching.

torchtext takes seconds to import, so that happens only when a word tokenizer is at work.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from tformer_cli.config.schema import WordConfig
from tformer_cli.errors import DataError
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.vocabulary import NUM_SPECIAL, SPECIAL_TOKENS, UNEMITTED_IDS, Vocabulary


class WordTokenizer:
    """One side of a word vocabulary.

    Text is lower-cased and punctuation split off or dropped, whatever the language, so `decode`
    gives words with blanks between them and cannot restore the line.
    """

    kind: ClassVar = "word"

    def __init__(self, vocabulary: bytes, normalizer: Normalizer, *, name: str) -> None:
        """Read a vocabulary.

        Args:
            vocabulary: the content of a vocabulary file.
            normalizer: of this side.
            name: of that file, for messages.

        Raises:
            CheckpointError: the content is no vocabulary.
        """
        self.content = vocabulary
        self.normalizer = normalizer
        self._vocabulary = Vocabulary.from_bytes(vocabulary, name)
        self.size = len(self._vocabulary)
        self.byte_ids = range(0)
        self.suppressed_ids = UNEMITTED_IDS

    def encode(self, line: str) -> list[int]:
        """Return the ids of the words of a line."""
        words = _basic_english()(self.normalizer(line))
        return [self._vocabulary.id_of(word) for word in words]

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line."""
        return [self.encode(line) for line in lines]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the words of ids with blanks between them."""
        return " ".join(self.tokens([i for i in ids if i >= NUM_SPECIAL]))

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the words of ids, special ones included."""
        return [self._vocabulary.tokens[i] for i in ids]


def learn_words(lines: Iterable[str], config: WordConfig) -> bytes:
    """Return the vocabulary file of the most frequent words; alphabetical among equals.

    Raises:
        DataError: no word is frequent enough.
    """
    from torchtext.vocab import Vocab

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
        raise DataError(
            "tokenizer.min_frequency",
            "no word of the text is that frequent",
            got=str(config.min_frequency),
            remedy="lower it",
        )
    return Vocabulary(tuple(vocab.itos)).to_bytes()


@functools.cache
def _basic_english() -> Callable[[str], list[str]]:
    from torchtext.data.utils import get_tokenizer

    split: Callable[[str], list[str]] = get_tokenizer("basic_english")
    return split
