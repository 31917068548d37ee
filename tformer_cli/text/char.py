"""Single characters: Unicode code points."""

from collections import Counter
from collections.abc import Iterable

from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.errors import DataError
from tformer_cli.text.units import SymbolTokenizer
from tformer_cli.text.vocabulary import Vocabulary


class CharTokenizer(SymbolTokenizer):
    """One side of a character vocabulary.

    `decode(encode(line))` is the normalised line without the characters that are unknown.
    """

    kind = "char"
    separator = ""

    def split(self, line: str) -> str:
        """Return the characters of a line."""
        return line


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
    return Vocabulary.of(frequent).to_json()
