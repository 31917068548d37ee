"""What words and characters have in common: a line is a row of units from a vocabulary."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.vocabulary import NUM_SPECIAL, SUPPRESSED_IDS, Vocabulary


class SymbolTokenizer(ABC):
    """One side of a vocabulary of whole units."""

    kind: ClassVar[str]
    separator: ClassVar[str]

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
        self._vocabulary = Vocabulary.from_json(vocabulary, name)
        self.size = len(self._vocabulary)
        self.byte_ids = range(0)
        self.suppressed_ids = SUPPRESSED_IDS

    @abstractmethod
    def split(self, line: str) -> Sequence[str]:
        """Return the units of a normalised line."""

    def encode(self, line: str) -> list[int]:
        """Return the ids of the units of a line."""
        return [self._vocabulary.id_of(unit) for unit in self.split(self.normalizer(line))]

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line."""
        return [self.encode(line) for line in lines]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the units of ids with the separator between them."""
        return self.separator.join(self.tokens([i for i in ids if i >= NUM_SPECIAL]))

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the units of ids, special tokens included."""
        return [self._vocabulary.tokens[i] for i in ids]

    def to_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """Return the bytes of each unit, and of the separator after it."""
        return [f"{unit}{self.separator}".encode() for unit in self.tokens(ids)]
