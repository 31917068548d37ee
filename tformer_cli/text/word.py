"""Whole words, by torchtext's basic_english: for teaching.

torchtext takes seconds to import, so that happens only when a word tokenizer is at work.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable

from tformer_cli.config.schema.tokenizer import WordConfig
from tformer_cli.errors import DataError
from tformer_cli.text.units import SymbolTokenizer
from tformer_cli.text.vocabulary import NUM_SPECIAL, SPECIAL_TOKENS, Vocabulary


class WordTokenizer(SymbolTokenizer):
    """One side of a word vocabulary.

    Text is lower-cased and punctuation split off or dropped, whatever the language, so `decode`
    gives words with blanks between them and cannot restore the line.
    """

    kind = "word"
    separator = " "

    def split(self, line: str) -> list[str]:
        """Return the words of a line."""
        return _basic_english()(line)


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
    return Vocabulary(tuple(vocab.itos)).to_json()


@functools.cache
def _basic_english() -> Callable[[str], list[str]]:
    from torchtext.data.utils import get_tokenizer

    split: Callable[[str], list[str]] = get_tokenizer("basic_english")
    return split
