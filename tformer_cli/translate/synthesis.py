"""Synthetic text to train on: pairs of which one side is real and models write the other.

With real sources it is sequence-level knowledge distillation (Kim and Rush 2016), with real targets
back-translation (Sennrich et al. 2016). The pairs are first a record of JSON lines, which resumes
after a kill; the two text files are made of it at the end, and compressed if they are named `.gz`.
"""

import functools
import hashlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from tformer_cli import __version__
from tformer_cli.choices import Backend
from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.config.schema.text import TrainingText
from tformer_cli.corpus.lines import read_lines
from tformer_cli.corpus.prefetch import chunks
from tformer_cli.distributed import process_group
from tformer_cli.errors import Problem, check_choice
from tformer_cli.storage.atomic import file_checksum, open_atomic
from tformer_cli.storage.outputs import check_outputs, output_files
from tformer_cli.storage.partial_file import PartialFile, partial_file
from tformer_cli.translate import translator
from tformer_cli.translate.files import Output, main_output, translate_shared
from tformer_cli.translate.options import MBR, SearchOptions
from tformer_cli.translate.postprocess import SCORE_DECIMALS
from tformer_cli.translate.preprocess import InputLine
from tformer_cli.translate.teachers import Teachers
from tformer_cli.translate.translator import TranslatedLine

RealSide = Literal["source", "target"]
# Translations have errors, which a model shall not take for good sources (Caswell et al. 2019). A
# distilled text has real sources, such as the model is to translate, and no tag.
TAGS: Mapping[RealSide, tuple[str, ...]] = {"source": (), "target": ("[back-translated]",)}
# A larger fraction of untranslated lines gives a warning; a trained model leaves hardly any.
_MAX_UNTRANSLATED = 0.1


@dataclass(frozen=True, slots=True)
class Synthesis:
    """Synthetic pairs, and which lines and teachers they come from.

    Attributes:
        text: both files, with tags, as an item of `data.train`.
        record: JSON Lines, line n for pair n: the `line` of the real text, `source`, `target`,
            `teacher`, `rank` among the pairs of its line and teacher (with MBR, of its line),
            `score`, and with MBR its `utility`. The score is the natural logarithm of the
            translation's probability divided by its number of tokens, with EOS counted once.
        num_lines: of the real text.
        num_pairs: by teacher.
        omitted: numbers of the lines without a pair: those of whitespace, those with an empty
            translation, and those with duplicates alone, if these are dropped.
    """

    text: TrainingText
    record: Path
    num_lines: int
    num_pairs: dict[str, int]
    omitted: tuple[int, ...]


def synthesize(
    teachers: Sequence[str | os.PathLike[str]],
    text: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    real: RealSide,
    to: str | None = None,
    source_language: str | None = None,
    ensemble: Sequence[str | os.PathLike[str]] = (),
    count: int = 1,
    mbr: MBR | None = None,
    tags: Sequence[str] = (),
    decoding: DecodingConfig | SearchOptions | None = None,
    drop_duplicates: bool = False,
    checkpoint: str = "best",
    device: str = "auto",
    precision: str | None = None,
    backend: Backend = "auto",
    workers: int | None = 1,
    log: Callable[[str], object] = lambda line: None,
    on_start: Callable[[int], object] = lambda count: None,
    on_done: Callable[[int], object] = lambda count: None,
    on_warning: Callable[[Problem], object] = lambda problem: None,
) -> Synthesis:
    """Translate a monolingual text by one or several models, into pairs to train on.

    The pairs of a line come one after another: by teacher in the order given, of each the best
    translation first. A call that was interrupted is resumed by the same call, and writes the same
    bytes.

    Examples:
        >>> synthesize(["runs/de-en"], "news.de", "back", real="target")  # doctest: +SKIP
        >>> synthesize(  # doctest: +SKIP
        ...     ["runs/a"], "news.en", "distilled", real="source", ensemble=["runs/b", "runs/c"]
        ... )

    Args:
        teachers: folders as `Translator.load` takes them: runs, exports for CTranslate2 and models
            that its converters wrote; of one direction, with any tokenizers.
        text: the real text, plain or gzip (`.gz`), one sentence a line.
        output: what the names of the files begin with: `output.source`, `output.target` and
            `output.jsonl`. With `output.gz` they are gzip: `output.source.gz` and so on.
        real: the side of the pairs that is the real text. With `source` the teachers translate as
            the new model will (distillation), with `target` the other way (back-translation).
        to: target language of the teachers, if they have several.
        source_language: of a model that has several; None for that of its training texts.
        ensemble: further runs that make one teacher of a single one, as for `Translator.load`.
        count: pairs of a line and teacher; with `mbr`, of a line.
        mbr: choose among the candidates of all teachers together, by their mean utility.
        tags: of the teachers' training texts, that each line begins with.
        decoding: the search, or changes to that of each teacher; None for their own.
        drop_duplicates: drop a pair if an earlier one is equal.
        checkpoint: best, last, a step, or a name such as step-000400.
        device: auto, cpu, cuda, cuda:N or mps.
        precision: as for `Translator.load`.
        backend: as for `Translator.load`.
        workers: processes that share the work on a CPU, one thread each; None for one a core.
        log: called with a line when an export is written, or CTranslate2 does not do.
        on_start: called with the number of translations to do, one a line and teacher.
        on_done: called with a number of translations whenever some are done.
        on_warning: called for teachers of different languages, where many translations are empty,
            and as for `Translator.nbest`.

    Raises:
        TformerError: a teacher or the text is unusable, arguments contradict each other, or the
            files were begun from something else.
    """
    check_choice("`real`", real, get_args(RealSide))
    file = Path(text)
    source, target, record = output_files(output, ["source", "target", "jsonl"])
    sides = TrainingText(source=source, target=target, tags=TAGS[real])
    check_outputs([file], [source, target, record])
    total = sum(1 for _ in read_lines(file))
    models = Teachers.load(
        teachers,
        ensemble,
        decoding,
        count,
        mbr,
        tags,
        on_warning,
        to=to,
        source_language=source_language,
        checkpoint=checkpoint,
        device=device,
        precision=precision,
        backend=backend,
        workers=workers,
        log=log,
    )
    if (to, source_language) != (None, None):
        languages = models.translators[0].direction.languages[:: 1 if real == "source" else -1]
        sides = replace(sides, source_language=languages[0], target_language=languages[1])
    made_from = {
        "tformer": __version__,
        "text": file_checksum(file),
        "real side": real,
        "treatment of duplicates": drop_duplicates,
        "precision": precision,
        "backend": backend,
        **models.fingerprint(),
    }
    with (
        process_group(models.translators[0].device) as world,
        main_output(world, functools.partial(partial_file, record, made_from)) as rows,
    ):
        num_done = world.all_reduce_max(rows.num_lines)
        on_start((total - num_done) * len(models.names))
        left = map(InputLine, itertools.islice(read_lines(file), num_done, None))
        output_rows: Output = rows
        if drop_duplicates and isinstance(rows, PartialFile):
            output_rows = DistinctRows(rows)
        text_of = functools.partial(_rows, models, real)
        translate_shared(
            functools.partial(models.translate, name=str(file), on_warning=on_warning),
            chunks(left, translator.WINDOW_LINES * world.size),
            [(output_rows, text_of)],
            world,
            num_done,
            on_done=on_done,
        )
        counts = None
        if isinstance(rows, PartialFile):
            counts = _write_sides(rows.path, sides, total)
            if problem := _untranslated_warning(file, rows.path, real, counts[1]):
                on_warning(problem)
        num_pairs, omitted = world.broadcast_object(counts)
    by_teacher = {name: num_pairs.get(name, 0) for name in models.names}
    return Synthesis(sides, record, total, by_teacher, tuple(omitted))


class DistinctRows:
    """The rows of a record, without those whose pair an earlier row has."""

    def __init__(self, rows: PartialFile) -> None:
        """Read the pairs that are in the file already."""
        self._rows = rows
        self._seen = {_pair_digest(row) for row in _read_record(rows.path)}

    @property
    def num_lines(self) -> int:
        """As of the file."""
        return self._rows.num_lines

    def add(self, text: str, num_lines: int) -> None:
        """Append new rows of some more input lines."""
        kept = []
        # Some characters of a text end a line for str.splitlines.
        for row in text.split("\n")[:-1]:
            digest = _pair_digest(json.loads(row))
            if digest not in self._seen:
                self._seen.add(digest)
                kept.append(f"{row}\n")
        self._rows.add("".join(kept), num_lines)


def _rows(models: Teachers, real: RealSide, lines: Sequence[TranslatedLine]) -> str:
    """Return the rows of a line in the record."""
    texts = []
    for chosen in models.choose(lines):
        translation = chosen.translation
        sides = (lines[0].source, translation.text)
        source, target = sides if real == "source" else sides[::-1]
        row = {
            "line": lines[0].number,
            "teacher": chosen.teacher,
            "rank": chosen.rank,
            "score": round(translation.log_prob / (len(translation.tokens) + 1), SCORE_DECIMALS),
            "source": source,
            "target": target,
        }
        if chosen.utility is not None:
            row["utility"] = round(chosen.utility, SCORE_DECIMALS)
        texts.append(json.dumps(row, ensure_ascii=False) + "\n")
    return "".join(texts)


def _read_record(file: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, read_lines(file))


def _pair_digest(row: Mapping[str, Any]) -> bytes:
    pair = json.dumps([row["source"], row["target"]])
    return hashlib.blake2b(pair.encode(), digest_size=16).digest()


def _write_sides(
    record: Path, sides: TrainingText, num_lines: int
) -> tuple[dict[str, int], list[int]]:
    """Write both sides of a record, line n of each for its row n.

    Returns:
        The number of pairs by teacher, and the numbers of the lines without a pair.
    """
    num_pairs: Counter[str] = Counter()
    omitted: list[int] = []
    next_line = 1
    with (
        open_atomic(sides.source) as sources,
        open_atomic(sides.target) as targets,
    ):
        for row in _read_record(record):
            sources.write(f"{row['source']}\n".encode())
            targets.write(f"{row['target']}\n".encode())
            num_pairs[row["teacher"]] += 1
            omitted += range(next_line, row["line"])
            next_line = row["line"] + 1
    omitted += range(next_line, num_lines + 1)
    return dict(num_pairs), omitted


def _untranslated_warning(
    text: Path, record: Path, real: RealSide, omitted: Sequence[int]
) -> Problem | None:
    """Return what says that many lines with words have no translation but empty ones, if so."""
    if not omitted:
        return None
    numbers = frozenset(omitted)
    num_lines = sum(bool(line.strip()) for line in read_lines(text))
    without_pair = [
        line
        for number, line in enumerate(read_lines(text), start=1)
        if number in numbers and line.strip()
    ]
    # The pairs of a line may have been dropped as those of an equal line.
    translated = set(without_pair).intersection(row[real] for row in _read_record(record))
    num_untranslated = sum(line not in translated for line in without_pair)
    if num_untranslated <= _MAX_UNTRANSLATED * num_lines:
        return None
    got = f"{num_untranslated:,} of {num_lines:,}"
    remedy = "train the teachers longer, or name others"
    return Problem(str(text), "has lines whose translations are all empty", got, remedy)
