"""The road of every export: written, checked by real lines, and only then there."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch

from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.errors import ConfigError, DataError, ExportError, Problem
from tformer_cli.export.check import Comparison, Difference, compare, score, searches
from tformer_cli.search.engine import Engine, NativeEngine
from tformer_cli.search.request import Hypothesis, Request
from tformer_cli.storage.atomic import new_directory
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.text.vocabulary import EOS_ID
from tformer_cli.translate.preprocess import special_tokens


class Format(ABC):
    """How a model is written for another program.

    Attributes:
        program: its name.
    """

    program: ClassVar[str]

    @property
    @abstractmethod
    def is_exact(self) -> bool:
        """Whether it computes what we do; one that rounds weights is compared, but may differ."""

    @abstractmethod
    def unsupported(self, trained: TrainedModel) -> Iterator[Problem]:
        """Yield what keeps a model from being written exactly, by the keys of its config."""

    @abstractmethod
    def write(self, trained: TrainedModel, folder: Path) -> None:
        """Write all that it takes to translate into a folder that is there and empty.

        Raises:
            UsageError: what it takes to write it is not installed.
        """

    @abstractmethod
    def engine(self, trained: TrainedModel, folder: Path) -> Engine:
        """Return the other program with what has been written."""

    def searches(self, max_length: int) -> list[DecodingConfig]:
        """Return the searches that it is compared by; the last one is that of the example.

        The other program knows them as we do.

        Args:
            max_length: longest translation in tokens.
        """
        return searches(max_length)

    @abstractmethod
    def example(self, trained: TrainedModel, line: str) -> str:
        """Return lines of Python that translate a line inside the folder, and print it."""

    @abstractmethod
    def packages(self, trained: TrainedModel) -> list[str]:
        """Return what has to be installed for that, as pip has it."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Return the versions of what it was written by."""


@dataclass(frozen=True, slots=True)
class CheckText:
    """Real lines, by which an export is checked.

    Attributes:
        name: of their file, for messages.
        lines: the text.
        numbers: of each line in that file.
        sources: their tokens, the end token among them.
    """

    name: str
    lines: tuple[str, ...]
    numbers: tuple[int, ...]
    sources: tuple[tuple[int, ...], ...] = field(repr=False)

    @classmethod
    def of(
        cls, lines: Sequence[str], tokenizers: Tokenizers, *, name: str, max_length: int
    ) -> "CheckText":
        """Return lines with their tokens; those without text or beyond a length are left out.

        Args:
            lines: the text from the first line on.
            tokenizers: of the model.
            name: of the file.
            max_length: longest line in tokens.

        Raises:
            DataError: no line is left.
        """
        encoded = [tokenizers.source.encode(line) for line in lines]
        kept = [number for number, ids in enumerate(encoded) if 0 < len(ids) <= max_length]
        if not kept:
            raise DataError(
                name,
                f"has no line of 1 to {max_length:,} tokens to check an export by",
                remedy="give another text",
            )
        return cls(
            name,
            tuple(lines[number] for number in kept),
            tuple(number + 1 for number in kept),
            tuple((*encoded[number], EOS_ID) for number in kept),
        )


@contextlib.contextmanager
def exported(
    trained: TrainedModel,
    form: Format,
    folder: Path,
    text: CheckText,
    *,
    on_done: Callable[[int], object] = lambda count: None,
) -> Iterator[tuple[Path, list[Comparison]]]:
    """Write a model for another program, and yield the folder when it has passed its check.

    Until the end of the block it has a temporary name; then it is there as a whole, or not at all.

    Args:
        trained: the model.
        form: of the other program.
        folder: where to write; there must be nothing yet.
        text: what both translate.
        on_done: called with the number of lines whenever some are translated: by each of two
            programs, by each search.

    Yields:
        The folder, and how the translations of both compare, by each search.

    Raises:
        ConfigError: the other program has nothing that computes the same; all keys that say so.
        UsageError: the other program is not installed, or the folder already exists.
        ExportError: it translates otherwise.
        StorageError: the system does not let it be written.
    """
    if problems := list(form.unsupported(trained)):
        raise ConfigError(problems)
    with new_directory(folder) as temporary:
        form.write(trained, temporary)
        yield temporary, check(trained, form, temporary, text, on_done=on_done)


def check(
    trained: TrainedModel,
    form: Format,
    folder: Path,
    text: CheckText,
    *,
    on_done: Callable[[int], object] = lambda count: None,
) -> list[Comparison]:
    """Compare the translations of what has been written with those of the model itself.

    Args:
        trained: the model.
        form: of the other program.
        folder: what has been written.
        text: what both translate.
        on_done: as `exported` has it.

    Raises:
        ExportError: they differ, and the format is exact.
    """
    roles = special_tokens(trained.tokenizers.target, trained.config.model)
    ours = NativeEngine(trained.model, roles, device=torch.device("cpu"))
    theirs = form.engine(trained, folder)
    requests = [Request(source) for source in text.sources]
    comparisons = []
    for search in form.searches(trained.config.decoding.max_length):
        comparison = compare(ours, theirs, requests, search, on_done=on_done)
        if form.is_exact and comparison.differences:
            raise _refusal(form.program, trained.tokenizers, text, comparison.differences)
        comparisons.append(comparison)
    return comparisons


def _refusal(
    program: str, tokenizers: Tokenizers, text: CheckText, differences: Sequence[Difference]
) -> ExportError:
    """Say what the first difference is."""

    def shown(found: Hypothesis | None) -> str:
        if found is None:
            return "none"
        return f"{tokenizers.target.decode(found.token_ids)!r} ({score(found):.5f})"

    first = differences[0]
    translation = "the best" if first.rank == 0 else f"number {first.rank + 1}"
    return ExportError(
        f"{text.name}:{text.numbers[first.line]}",
        f"{program} has another translation, or another score for it",
        got=f"{shown(first.theirs)} in place of {shown(first.ours)}, {translation} of the line; "
        f"{len(differences)} differ in all",
        remedy="nothing was written: export another checkpoint, and tell us of this one",
    )
