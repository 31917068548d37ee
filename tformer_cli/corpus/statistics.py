"""Statistics of a text: sentence lengths, and how well a vocabulary fits."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.text import PlainText
from tformer_cli.corpus.prefetch import chunks
from tformer_cli.corpus.reader import read_texts
from tformer_cli.device import derive_seed
from tformer_cli.text.segments import sentence_ends
from tformer_cli.text.special_tokens import UNK_ID
from tformer_cli.text.subword import reservoir_sample
from tformer_cli.text.tokenizer import Tokenizer, Tokenizers

# Lines tokenized together.
CHUNK_LINES = 4096
# Enough for two digits of a rate of 0.1%; tokenizing them takes some seconds.
SAMPLE_LINES = 100_000
# Enough to tell 1% from 2%; splitting them into sentences takes a second or two.
COUNTED_LINES = 50_000


@dataclass(frozen=True, slots=True)
class LengthReport:
    """Distribution of sentence lengths in tokens; zeros for an empty text."""

    mean: float
    median: int
    p99: int
    longest: int

    def __str__(self) -> str:
        return (
            f"{self.mean:.1f} tokens a sentence "
            f"(median {self.median:,}, 99% up to {self.p99:,}, longest {self.longest:,})"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabularyReport:
    """How well a vocabulary fits one side of a text, by a sample of its lines.

    Attributes:
        vocabulary_size: ids, special ones included.
        num_sentences: lines of the text.
        num_sampled: lines that all figures below count.
        num_tokens: without special ones.
        coverage: fraction of the characters, whitespace excluded, in tokens of the vocabulary:
            neither unknown, nor bytes, nor dropped.
        unknown_rate: fraction of unknown tokens.
        byte_rate: fraction of single-byte tokens.
        lengths: in tokens: `mean`, `median`, `p99` and `longest`.
        characters_per_token: whitespace included.
    """

    vocabulary_size: int
    num_sentences: int
    num_sampled: int
    num_tokens: int
    coverage: float
    unknown_rate: float
    byte_rate: float
    lengths: LengthReport
    characters_per_token: float


def report_lengths(lengths: Sequence[int] | np.ndarray) -> LengthReport:
    """Return the distribution of some lengths."""
    if len(lengths) == 0:
        return LengthReport(mean=0.0, median=0, p99=0, longest=0)
    # The smallest length that this share of all lengths does not exceed.
    median, p99 = np.quantile(lengths, (0.5, 0.99), method="inverted_cdf")
    return LengthReport(float(np.mean(lengths)), int(median), int(p99), int(np.max(lengths)))


def p99_sentences(lines: Iterable[str]) -> int:
    """Return the number of sentences that 99% of the lines with text do not exceed.

    All lines are read; of many, evenly spaced ones are counted.
    """
    counted: list[str] = []
    spacing = 1
    for number, line in enumerate(filter(str.strip, lines)):
        if number % spacing == 0:
            counted.append(line)
            if len(counted) == 2 * COUNTED_LINES:
                counted, spacing = counted[::2], 2 * spacing
    return report_lengths([len(sentence_ends(line.strip())) for line in counted]).p99


def source_sentences(data: DataConfig) -> int | None:
    """Return how many sentences 99% of the source lines do not exceed; None of monolingual text.

    Each text has its own number, of which the largest counts: many phrases beside some sentences
    take nothing from what these have taught.
    """
    texts = [text for text in data.line_texts if not isinstance(text, PlainText)]
    numbers = (p99_sentences(source for source, _ in read_texts([text])) for text in texts)
    return max(numbers, default=None)


def report_side(tokenizer: Tokenizer, lines: Sequence[str], num_sentences: int) -> VocabularyReport:
    """Encode a sample of `num_sentences` lines, and count tokens.

    No text has coverage 1 and other rates 0.
    """
    counts = np.zeros(tokenizer.size, dtype=np.int64)
    lengths = array("q")
    num_characters, num_visible = 0, 0
    for chunk in chunks(lines, CHUNK_LINES):
        for text in map(tokenizer.normalizer, chunk):
            num_characters += len(text)
            num_visible += _count_visible(text)
        rows = tokenizer.encode_batch(chunk)
        lengths.extend(map(len, rows))
        ids = np.fromiter(chain.from_iterable(rows), dtype=np.int64)
        counts += np.bincount(ids, minlength=tokenizer.size)
    num_tokens = int(counts.sum())
    num_covered = sum(
        int(counts[i]) * _count_visible(tokenizer.decode([i]))
        for i in map(int, np.flatnonzero(counts))
        if i not in tokenizer.byte_ids
    )
    return VocabularyReport(
        vocabulary_size=tokenizer.size,
        num_sentences=num_sentences,
        num_sampled=len(lines),
        num_tokens=num_tokens,
        coverage=num_covered / num_visible if num_visible else 1.0,
        unknown_rate=_fraction(int(counts[UNK_ID]), num_tokens),
        byte_rate=_fraction(int(counts[list(tokenizer.byte_ids)].sum()), num_tokens),
        lengths=report_lengths(lengths),
        characters_per_token=_fraction(num_characters, num_tokens),
    )


def report_sides(
    tokenizers: Tokenizers, pairs: Iterable[tuple[str, str]], num_sides: int, seed: int
) -> dict[str, VocabularyReport]:
    """Report on `source` and `target` of pairs, or on `source` alone of text with one side.

    All lines are read; of more than `SAMPLE_LINES`, so many are drawn uniformly and encoded.
    """
    # By `seed` itself, they would all be lines that the subwords were learned from.
    sample, num_sentences = reservoir_sample(
        pairs, SAMPLE_LINES, derive_seed(seed, "vocabulary report")
    )
    sides = {"source": tokenizers.source, "target": tokenizers.target}
    return {
        name: report_side(tokenizer, [pair[side] for pair in sample], num_sentences)
        for side, (name, tokenizer) in enumerate(sides.items())
        if side < num_sides
    }


def _count_visible(text: str) -> int:
    return sum(map(len, text.split()))


def _fraction(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
