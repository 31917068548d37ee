"""Translate a text into files, by all processes: a document, or lines."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar, Unpack

from tformer_cli import __version__
from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.corpus.prefetch import chunks
from tformer_cli.distributed import World, process_group
from tformer_cli.storage.partial_file import partial_file
from tformer_cli.translate import translator as translators
from tformer_cli.translate.documents import DocumentReport, translate_document
from tformer_cli.translate.options import TranslateOptions, resolve_search
from tformer_cli.translate.preprocess import (
    InputLine,
    count_input_lines,
    read_input_lines,
    read_terminology,
)
from tformer_cli.translate.translator import TranslatedLine, Translator

Line = TypeVar("Line")
Opener = Callable[[], AbstractContextManager["Output"]]


class InputFiles(NamedTuple):
    """A text to translate, and the files beside it.

    Attributes:
        source: a document, a file of lines, or what returns windows of other lines.
        prefixes: how each translation begins, line by line.
        constraints: required phrases between tabs, line by line.
        terminology: lines of a source term, a tab and a target term.
    """

    source: Path | Callable[[Translator], Iterable[Sequence[str]]]
    prefixes: Path | None = None
    constraints: Path | None = None
    terminology: Path | None = None


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


@dataclass(frozen=True, slots=True)
class ResumableFile:
    """A file that the same call resumes after an interruption (`partial_file`).

    Attributes:
        path: the file.
        made_from: what determines its content beside the models and the search, by name.
    """

    path: Path
    made_from: Mapping[str, object]


class LineOutput(NamedTuple):
    """Where lines are written to, and the text there of a translated line."""

    target: ResumableFile | Opener
    text_of: Callable[[TranslatedLine], str]


def translate_text(
    load: Callable[[], Translator],
    files: InputFiles,
    outputs: Path | Sequence[LineOutput],
    *,
    field: str | None = None,
    count: int = 1,
    on_start: Callable[[int, int], object] = lambda num_done, total: None,
    **options: Unpack[TranslateOptions],
) -> DocumentReport | None:
    """Translate a document, or lines, and return what a document had.

    The files are read once before the model is loaded, to check them, unless one is a pipe. The
    processes of torchrun share the lines.

    Args:
        load: returns the translator.
        files: the text, and the files beside it.
        outputs: the document to write, as for `translate_document`; or the outputs of lines, the
            first of which says how many lines are done already.
        field: as for `translate_document`.
        count: translations of each line.
        on_start: called with the number of lines that are done already, and of all, unless a file
            is a pipe; or with 0 and the number of sentences of a document.
        options: those of `TranslateOptions`, without `terminology`. Inspected lines are aligned, if
            the model aligns words.

    Raises:
        TformerError: a file cannot be read or written, or the text cannot be translated.
    """
    num_lines = None
    if isinstance(files.source, Path) and not isinstance(outputs, Path):
        num_lines = count_input_lines(files.source, files.prefixes, files.constraints)
        options["name"] = str(files.source)
    translator = load()
    search = resolve_search(options.get("decoding"), translator.config)
    options["decoding"] = search
    options["terminology"] = read_terminology(files.terminology, translator.direction.languages[0])
    has_phrases = files.constraints is not None
    # Faults of the options are found before a prompt, or an output.
    for _ in translator.translate_windows((), count, has_phrases=has_phrases, **options):
        pass
    if isinstance(outputs, Path):
        assert isinstance(files.source, Path), "a document is a file"
        return translate_document(
            translator,
            files.source,
            outputs,
            field=field,
            on_start=partial(on_start, 0),
            **options,
        )
    is_inspected = options.get("inspected", False)
    options.setdefault("aligned", is_inspected and translator.load_aligner is not None)
    with process_group(translator.device) as world, contextlib.ExitStack() as stack:
        opened = [
            (stack.enter_context(_open(each.target, translator, search, world)), each.text_of)
            for each in outputs
        ]
        num_done = world.all_reduce_max(opened[0][0].num_lines)
        if num_lines is not None:
            on_start(num_done, num_lines)
        count_done = _Counter(options.pop("on_done", lambda num_lines: None), num_done)
        translate_shared(
            partial(
                translator.translate_windows,
                count=count,
                has_phrases=has_phrases,
                **options,
            ),
            _windows(files, translator, num_done, world.size),
            opened,
            world,
            num_done,
            on_done=count_done,
            on_written=lambda num_written: count_done(num_written - count_done.total),
        )
    return None


class _Counter:
    """A callback that adds up what it passes on."""

    def __init__(self, on_done: Callable[[int], object], total: int) -> None:
        self.on_done = on_done
        self.total = total

    def __call__(self, count: int) -> None:
        self.total += count
        self.on_done(count)


def _windows(
    files: InputFiles, translator: Translator, num_done: int, num_processes: int
) -> Iterator[Sequence[InputLine]]:
    """Return the lines that are not done, in windows that are translated together."""
    source, *beside, _ = files
    if not isinstance(source, Path):
        return (list(map(InputLine, window)) for window in source(translator))
    left = itertools.islice(read_input_lines(source, *beside), num_done, None)
    return chunks(left, translators.WINDOW_LINES * num_processes)


def _open(
    target: ResumableFile | Opener,
    translator: Translator,
    search: DecodingConfig,
    world: World,
) -> AbstractContextManager[Output]:
    if not isinstance(target, ResumableFile):
        return main_output(world, target)
    made_from = {
        "tformer": __version__,
        "model": [each.fingerprint for each in translator.files],
        **{f"decoding.{key}": value for key, value in asdict(search).items()},
        **target.made_from,
    }
    return main_output(world, partial(partial_file, target.path, made_from))


def main_output(world: World, open_output: Opener) -> AbstractContextManager[Output]:
    """Open an output in the main process; the others write nothing."""
    return open_output() if world.is_main_process else contextlib.nullcontext(NoOutput())


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
