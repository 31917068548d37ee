"""Windows of translated lines, of all processes, and the files that they are written to."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from tformer_cli.distributed import World
from tformer_cli.storage.partial_file import partial_file

Line = TypeVar("Line")


class Output(Protocol):
    """What the text of lines is added to."""

    @property
    def num_lines(self) -> int:
        """Input lines whose text an earlier process, since killed, has added."""

    def add(self, text: str, num_lines: int) -> object:
        """Append the text of some more input lines."""


class NoOutput:
    """The output of a process that writes nothing: another one does."""

    num_lines = 0

    def add(self, text: str, num_lines: int) -> None:
        """Drop the text."""


@contextlib.contextmanager
def resumable_output(file: Path, made_from: Mapping[str, object], world: World) -> Iterator[Output]:
    """Open a file in the main process by `partial_file`; the others write nothing."""
    if not world.is_main_process:
        yield NoOutput()
        return
    with partial_file(file, made_from) as output:
        yield output


def write_windows(
    windows: Iterable[Sequence[Line]],
    outputs: Sequence[tuple[Output, Callable[[Line], str]]],
    world: World,
    on_written: Callable[[int], object],
) -> None:
    """Write windows of lines, each before the next one is translated.

    Args:
        windows: of each, what `World.shard` gives this process.
        outputs: where to write, and the text there of a line.
        world: the processes that share each window; all of them call this function.
        on_written: called with the number of lines whenever those of a window are written.
    """
    for window in windows:
        num_lines = 0
        for output, text_of in outputs:
            texts = world.gather_shards([text_of(line) for line in window])
            output.add("".join(texts), len(texts))
            num_lines = len(texts)
        on_written(num_lines)
