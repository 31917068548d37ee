"""What a training reads of its texts: their lines, or the phrase pairs that a text stands for."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.text import Direction, Text, has_phrases
from tformer_cli.corpus.checksums import reading_checksums
from tformer_cli.corpus.phrases import find_phrases, no_phrases
from tformer_cli.corpus.reader import read_rows
from tformer_cli.terminal import progress_bar


def training_rows(
    text: Text, direction: Direction, held_out: Sequence[Text]
) -> Iterator[tuple[str, ...]]:
    """Return the rows of a training text: its lines, or its phrase pairs.

    No side of a phrase pair is a line of the `held_out` texts.

    Raises:
        DataError: a text has no phrase pairs, or is too large to be aligned; or as `read_rows`.
    """
    if not has_phrases(text):
        return read_rows(text)
    with progress_bar("pair", desc="extracting phrases") as bar:
        phrases, _ = find_phrases(text, direction, held_out=held_out, on_done=bar.update)
    if not phrases:
        raise no_phrases(text)
    return iter(phrases)


def training_pairs(data: DataConfig) -> Callable[[], Iterator[tuple[str, str]]]:
    """Return what yields all pairs to train on, text after text, as often as it is called.

    Targets of monolingual text are empty. Lines are read anew each time, phrases are found once.
    """
    phrases = {
        index: list(training_rows(text, data.direction_of(text), data.held_out))
        for index, text in enumerate(data.train)
        if has_phrases(text)
    }

    def pairs() -> Iterator[tuple[str, str]]:
        for index, text in enumerate(data.train):
            for row in phrases.get(index) or read_rows(text):
                yield row if len(row) == 2 else (row[0], "")

    return pairs


def training_checksums(
    text: Text, direction: Direction, held_out: Sequence[Text], stores: Path
) -> list[str]:
    """Return the checksums of a training text's files, and what else decides its rows."""
    checksums = reading_checksums(text, stores)
    if not has_phrases(text):
        return checksums
    others = [checksum for other in held_out for checksum in reading_checksums(other, stores)]
    return [*checksums, "phrases", *direction, *others]
