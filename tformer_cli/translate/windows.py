"""Windows of translated lines, of all processes, and the files that they are written to."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from tformer_cli.distributed import World
from tformer_cli.storage.partial_file import partial_file
from tformer_cli.translate.preprocess import InputLine

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


def translate_shared(
    translate: Callable[..., Iterable[Sequence[Line]]],
    windows: Iterable[Sequence[InputLine]],
    outputs: Sequence[tuple[Output, Callable[[Line], str]]],
    world: World,
    num_done: int,
    *,
    on_done: Callable[[int], object],
    on_written: Callable[[int], object] = lambda num_done: None,
) -> None:
    """Translate windows of lines by all processes, and write each before the next one.

    Args:
        translate: `Translator.translate_windows` or `Teachers.translate`, with its options.
        windows: the lines behind those that are done, equal in all processes.
        outputs: where to write, and the text there of a translated line.
        world: the processes that share each window; all of them call this function.
        num_done: lines that the outputs have already.
        on_done: called with a number of lines whenever about as many are translated.
        on_written: called with `num_done` and all lines since, when those of a window are written.
    """
    translated = translate(
        map(world.shard, windows),
        first_line=num_done + 1 + world.rank,
        line_stride=world.size,
        # The other processes are about as fast.
        on_done=lambda count: on_done(count * world.size),
    )
    for window in translated:
        num_lines = 0
        for output, text_of in outputs:
            texts = world.gather_shards([text_of(line) for line in window])
            output.add("".join(texts), len(texts))
            num_lines = len(texts)
        num_done += num_lines
        on_written(num_done)
