"""How well a vocabulary fits a text."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from tformer_cli.config.schema.data import Text
from tformer_cli.corpus.lengths import LengthReport, report_lengths
from tformer_cli.corpus.prefetch import chunks
from tformer_cli.corpus.reader import read_rows
from tformer_cli.text.tokenizer import Tokenizer, Tokenizers
from tformer_cli.text.vocabulary import UNK_ID

# Lines handed to the tokenizer at once.
CHUNK_LINES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabularyReport:
    """What a tokenizer makes of one side of a text.

    Attributes:
        vocabulary_size: number of ids, special ones included.
        num_sentences: lines of the text.
        num_tokens: tokens of the text, special ones not counted.
        coverage: share of the text's characters, blanks aside, that lie in tokens of the
            vocabulary: neither in unknown tokens, nor spelled as bytes, nor dropped.
        unknown_rate: share of the tokens that are unknown.
        byte_rate: share of the tokens that are single bytes.
        lengths: how long the sentences are.
        characters_per_token: characters of the text, blanks included, per token.
    """

    vocabulary_size: int
    num_sentences: int
    num_tokens: int
    coverage: float
    unknown_rate: float
    byte_rate: float
    lengths: LengthReport
    characters_per_token: float


def report_vocabulary(tokenizer: Tokenizer, lines: Iterable[str]) -> VocabularyReport:
    """Encode a text, and count.

    An empty text is covered: its coverage is 1, its other rates are 0.
    """
    counts = np.zeros(tokenizer.size, dtype=np.int64)
    lengths = array("q")
    num_characters, num_visible = 0, 0
    for chunk in chunks(lines, CHUNK_LINES):
        for text in map(tokenizer.normalizer, chunk):
            num_characters += len(text)
            num_visible += _visible(text)
        rows = tokenizer.encode_batch(chunk)
        lengths.extend(map(len, rows))
        ids = np.fromiter(chain.from_iterable(rows), dtype=np.int64)
        counts += np.bincount(ids, minlength=tokenizer.size)
    num_tokens = int(counts.sum())
    covered = sum(
        int(counts[i]) * _visible(tokenizer.decode([i]))
        for i in map(int, np.flatnonzero(counts))
        if i not in tokenizer.byte_ids
    )
    return VocabularyReport(
        vocabulary_size=tokenizer.size,
        num_sentences=len(lengths),
        num_tokens=num_tokens,
        coverage=covered / num_visible if num_visible else 1.0,
        unknown_rate=_share(int(counts[UNK_ID]), num_tokens),
        byte_rate=_share(int(counts[list(tokenizer.byte_ids)].sum()), num_tokens),
        lengths=report_lengths(lengths),
        characters_per_token=_share(num_characters, num_tokens),
    )


def report_sides(tokenizers: Tokenizers, texts: Sequence[Text]) -> dict[str, VocabularyReport]:
    """Report on each side that some texts have, as `source` and `target`.

    Args:
        tokenizers: of both sides.
        texts: one after the other, all of them parallel, or none; read once for each side.

    Raises:
        DataError: a file cannot be read.
    """
    sides = {"source": tokenizers.source, "target": tokenizers.target}
    names = list(sides)[: len(texts[0].files)]
    return {
        name: report_vocabulary(
            sides[name], (row[side] for text in texts for row in read_rows(text))
        )
        for side, name in enumerate(names)
    }


def _visible(text: str) -> int:
    """Count the characters that are no white space."""
    return sum(map(len, text.split()))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
