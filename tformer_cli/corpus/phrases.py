"""Phrase pairs of a parallel text, as more text to train on (Sen et al. 2021).

A small text shows each word in few sentences. Its phrase pairs, which word alignment finds, show
which part of a sentence is the translation of which.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from tformer_cli.config.schema.text import (
    Bitext,
    Direction,
    PairsFile,
    Text,
    TrainingBitext,
    TrainingPairsFile,
    TrainingText,
)
from tformer_cli.corpus.line_keys import line_key
from tformer_cli.corpus.reader import read_texts
from tformer_cli.corpus.word_alignment import Links, align_words
from tformer_cli.errors import DataError, check_positive, reject_str
from tformer_cli.storage.atomic import open_atomic
from tformer_cli.storage.outputs import check_outputs, output_files
from tformer_cli.text.language import side_names
from tformer_cli.text.segments import word_separator, word_spans

# Begins each source, since it is no whole sentence.
TAG = "[phrase]"
MAX_PHRASE_WORDS = 7
# Sentences with more words are left out: their links are slow to find, and the least certain.
MAX_SENTENCE_WORDS = 100
# Of all sentences together; each takes about 100 bytes of memory.
MAX_WORD_PAIRS = 50_000_000


@dataclass(frozen=True, slots=True)
class Phrases:
    """The phrase pairs of a text.

    Attributes:
        text: both files, with the tag `[phrase]`, as an item of `data.train`.
        num_phrases: phrase pairs in them, all different.
        num_pairs: pairs of sentences that they come from.
    """

    text: TrainingText
    num_phrases: int
    num_pairs: int


@dataclass(frozen=True, slots=True)
class _Side:
    """A sentence, and the start and end of each of its words."""

    line: str
    spans: list[tuple[int, int]]

    def words(self) -> list[str]:
        """Return the words, whatever their case."""
        return [self.line[start:end].casefold() for start, end in self.spans]

    def phrase(self, first: int, last: int) -> str:
        """Return the text from a word to another, both included."""
        return self.line[self.spans[first][0] : self.spans[last][1]]


def extract_phrases(
    text: Bitext,
    output: str | os.PathLike[str],
    *,
    languages: Direction,
    max_words: int = MAX_PHRASE_WORDS,
    on_done: Callable[[int], object] = lambda count: None,
) -> Phrases:
    """Write the phrase pairs of a parallel text, each once.

    Words are aligned by what occurs together in this text. A phrase pair is a part of a source and
    the part of its target whose words are aligned with each other and with no word outside (Koehn
    et al. 2003, section 4.3). It neither begins nor ends with punctuation or with a word that is
    not aligned, and is no whole source.

    Examples:
        >>> text = ParallelText(source=Path("corpus.en"), target=Path("corpus.de"))
        >>> extract_phrases(text, "phrases", languages=("en", "de"))  # doctest: +SKIP

    Args:
        text: two files of lines, or a file of pairs.
        output: what the names of the files begin with: `output.en` and `output.de` for these
            languages. With `output.gz` they are gzip.
        languages: ISO codes of source and target.
        max_words: of a phrase, on each side; where no whitespace separates words, twice as many
            characters.
        on_done: called with a number of pairs of sentences whenever some are done.

    Raises:
        TformerError: a file is unusable, has no phrase pairs, or is too large to be aligned.
    """
    reject_str(languages=languages)
    files = output_files(output, side_names(languages))
    check_outputs(list(text.files.values()), files)
    phrases, num_pairs = find_phrases(text, languages, max_words=max_words, on_done=on_done)
    if not phrases:
        raise no_phrases(text)
    return Phrases(_write(phrases, files), len(phrases), num_pairs)


def find_phrases(
    text: Bitext,
    languages: Direction,
    *,
    max_words: int = MAX_PHRASE_WORDS,
    held_out: Sequence[Text] = (),
    on_done: Callable[[int], object] = lambda count: None,
) -> tuple[list[tuple[str, str]], int]:
    """Return the phrase pairs of a text, each once, and the number of pairs that were aligned.

    No side of them is a line of the `held_out` texts, in any case and with any whitespace. Other
    arguments and errors are those of `extract_phrases`, but a text may have none.
    """
    check_positive("`max_words`", max_words)
    if isinstance(text, PairsFile) and text.languages is None:
        text = replace(text, languages=languages)
    pairs = list(_sentence_pairs(text, languages))
    limits = [max_words if word_separator(code) else 2 * max_words for code in languages]
    phrases: dict[tuple[str, str], None] = {}
    for (source, target), links in zip(pairs, _align(pairs), strict=True):
        for source_words, target_words in consistent_spans(links, len(source.spans), *limits):
            phrases[source.phrase(*source_words), target.phrase(*target_words)] = None
        on_done(1)
    if held_out:
        keys = {line_key(side) for pair in read_texts(held_out) for side in pair}
        return [pair for pair in phrases if keys.isdisjoint(map(line_key, pair))], len(pairs)
    return list(phrases), len(pairs)


def no_phrases(text: Bitext) -> DataError:
    """Return the error of a text without a phrase pair."""
    remedy = "give a text with sentences of several words"
    return DataError(str(text.source_file), "has no phrase pairs", remedy=remedy)


def with_phrases_extracted(text: Bitext) -> TrainingBitext:
    """Return a training text that stands for the phrase pairs of a text, with the tag of these."""
    kind = TrainingPairsFile if isinstance(text, PairsFile) else TrainingText
    values = {field.name: getattr(text, field.name) for field in fields(text)}
    return kind(**values | {"extract": "phrases", "tags": (TAG,)})


def consistent_spans(
    links: Links, num_words: int, max_source_words: int, max_target_words: int
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield the first and the last word of each phrase of a source, and those of its target.

    A link leaves no pair of spans on one side alone. The first and the last words of both have one.
    The whole source, of `num_words` words, is no phrase.
    """
    targets_of: list[list[int]] = [[] for _ in range(num_words)]
    sources_of: dict[int, list[int]] = {}
    for source, target in links:
        targets_of[source].append(target)
        sources_of.setdefault(target, []).append(source)
    linked = [word for word, targets in enumerate(targets_of) if targets]
    for number, first in enumerate(linked):
        reached: list[int] = []
        for last in linked[number:]:
            if last - first >= max_source_words:
                break
            reached += targets_of[last]
            start, end = min(reached), max(reached)
            if end - start >= max_target_words:
                break
            back = [i for target in range(start, end + 1) for i in sources_of.get(target, ())]
            is_whole = last - first == num_words - 1
            if first <= min(back) and max(back) <= last and not is_whole:
                yield (first, last), (start, end)


def _write(phrases: Sequence[tuple[str, str]], files: Sequence[Path]) -> TrainingText:
    """Write phrase pairs to two files, or to neither if one fails; return the text to train on."""
    source, target = files
    with open_atomic(source) as sources, open_atomic(target) as targets:
        for source_phrase, target_phrase in phrases:
            sources.write(f"{source_phrase}\n".encode())
            targets.write(f"{target_phrase}\n".encode())
    return TrainingText(source=source, target=target, tags=(TAG,))


def _sentence_pairs(text: Bitext, languages: Direction) -> Iterator[tuple[_Side, _Side]]:
    """Yield the pairs that have words on both sides, and not too many of them.

    A text that is too large is refused before the rest of it is read.
    """
    num_word_pairs = 0
    for lines in read_texts([text]):
        source, target = (
            _Side(line, word_spans(line, code)) for line, code in zip(lines, languages, strict=True)
        )
        if not all(0 < len(side.spans) <= MAX_SENTENCE_WORDS for side in (source, target)):
            continue
        num_word_pairs += len(source.spans) * len(target.spans)
        if num_word_pairs > MAX_WORD_PAIRS:
            what = f"has more than {MAX_WORD_PAIRS:,} pairs of words to align"
            remedy = "give a part of it"
            raise DataError(str(text.source_file), what, got=f"{num_word_pairs:,}", remedy=remedy)
        yield source, target


def _align(pairs: list[tuple[_Side, _Side]]) -> Iterator[Links]:
    """Yield the links of each pair."""
    if pairs:
        sources, targets = zip(*pairs, strict=True)
        yield from align_words(
            [side.words() for side in sources], [side.words() for side in targets]
        )
