"""Single characters: Unicode code points."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar

from tformer_cli.config.schema import CharConfig
from tformer_cli.errors import DataError
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.vocabulary import NUM_SPECIAL, UNEMITTED_IDS, Vocabulary


class CharTokenizer:
    """One side of a character vocabulary.

    `decode(encode(line))` is the normalised line without the characters that are unknown.
    """

    kind: ClassVar = "char"

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
        """Return the ids of the characters of a line."""
        return [self._vocabulary.id_of(character) for character in self.normalizer(line)]

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line."""
        return [self.encode(line) for line in lines]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the characters of ids in a row."""
        return "".join(self.tokens([i for i in ids if i >= NUM_SPECIAL]))

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the characters of ids, special tokens included."""
        return [self._vocabulary.tokens[i] for i in ids]


def learn_characters(lines: Iterable[str], config: CharConfig) -> bytes:
    """Return the vocabulary file of all characters that are frequent enough.

    The most frequent come first, by code point among equals.

    Raises:
        DataError: no character is frequent enough.
    """
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    frequent = [character for character in counts if counts[character] >= config.min_frequency]
    if not frequent:
        raise DataError(
            "tokenizer.min_frequency",
            "no character of the text is that frequent",
            got=str(config.min_frequency),
            remedy="lower it",
        )
    frequent.sort(key=lambda character: (-counts[character], character))
    return Vocabulary.of(frequent).to_bytes()
