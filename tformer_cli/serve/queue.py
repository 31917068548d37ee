"""Queue of a model: threads translate what waits, requests of many clients together."""

import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from tformer_cli.config.schema.decoding import DecodingConfig, SampleConfig
from tformer_cli.config.schema.text import Direction
from tformer_cli.errors import DataError, Problem, TformerError
from tformer_cli.serve.model import ServedModel
from tformer_cli.serve.refusal import Failed, Overloaded
from tformer_cli.text.segments import Terminology
from tformer_cli.translate.options import TranslateOptions
from tformer_cli.translate.preprocess import InputLine
from tformer_cli.translate.translator import TranslatedLine, Translator

# Characters of the requests that are translated together: about as many sentences as our own engine
# has slots, few enough that a short request does not wait long for long ones.
BATCH_CHARACTERS = 1 << 14
# An idle thread looks for a newer checkpoint so often.
IDLE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How the lines of a job are translated; jobs with equal options are translated together.

    Attributes:
        decoding: the search.
        direction: source and target language; None for those of a model that has no others.
        count: translations of each line.
        terminology: lines of a source term, a tab and a target term.
        has_phrases: whether lines have required phrases.
        drafted: whether to tell the translations as they grow.
        inspected: whether to name the defects of translations.
        others: all that the translator alone needs.
    """

    decoding: DecodingConfig
    direction: Direction | None = None
    count: int = 1
    terminology: tuple[str, ...] = ()
    has_phrases: bool = False
    drafted: bool = False
    inspected: bool = False
    others: TranslateOptions = field(default_factory=TranslateOptions)


@dataclass(frozen=True, slots=True, eq=False)
class TranslationJob:
    """The lines of a request, and the future of their translations.

    `on_draft` is called in a thread of the queue with the index of a line and its draft.
    """

    lines: Sequence[InputLine]
    options: JobOptions
    future: "Future[list[TranslatedLine]]" = field(default_factory=Future)
    on_draft: Callable[[int, str], object] = lambda index, text: None

    @property
    def num_characters(self) -> int:
        """Characters of all lines."""
        return sum(len(line.text) for line in self.lines)


class TranslationQueue:
    """Translates the jobs of a model, in as many threads as its engine has callers."""

    def __init__(
        self,
        model: ServedModel,
        max_waiting: int,
        log: Callable[[str], object] = lambda line: None,
    ) -> None:
        """Start the threads.

        Args:
            model: translates.
            max_waiting: jobs that may wait, apart from those that are being translated.
            log: called with a line when memory runs out, and with the traceback of a bug.
        """
        self.model = model
        self.max_waiting = max_waiting
        self.num_lines = 0  # translated so far
        self.num_tokens = 0  # of their best translations
        self._log = log
        self._waiting: deque[TranslationJob] = deque()
        self._is_open = True
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=model.name, daemon=True)
            for _ in range(model.translator.engine.num_callers)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        """Return the number of jobs that wait, those without a client excluded."""
        with self._changed:
            return sum(not job.future.cancelled() for job in self._waiting)

    def submit(self, job: TranslationJob) -> None:
        """Let a job wait for its turn; whoever cancels its future withdraws it.

        Raises:
            Overloaded: there is no room, or the queue is closed.
        """
        with self._changed:
            if not self._is_open:
                raise Overloaded(self.model.name, "is being stopped")
            self._waiting = deque(one for one in self._waiting if not one.future.cancelled())
            if len(self._waiting) >= self.max_waiting:
                what = "has too many requests that wait"
                got = str(len(self._waiting))
                raise Overloaded(self.model.name, what, got=got, remedy="repeat it later")
            self._waiting.append(job)
            self._changed.notify()

    def close(self) -> None:
        """Refuse further jobs, and wait until all others are done."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (batch := self._next_batch()) is not None:
            with self._changed:
                self.model.reload()
            if batch:
                self._translate(batch)

    def _next_batch(self) -> list[TranslationJob] | None:
        """Return the next jobs: an empty list if there is none for a while, None at the end."""
        with self._changed:
            if not self._waiting and self._is_open:
                self._changed.wait(IDLE_SECONDS)
            if not self._waiting:
                return [] if self._is_open else None
            batch = next_batch(self._waiting)
            self._waiting = deque(job for job in self._waiting if job not in batch)
        # From here on a job cannot be withdrawn.
        return [job for job in batch if job.future.set_running_or_notify_cancel()]

    def _translate(self, batch: list[TranslationJob]) -> None:
        """Answer the jobs of a batch; if it fails, each of them alone, so that only one fails."""
        try:
            translated = iter(self._translated(batch))
        except Exception as error:
            if len(batch) > 1:
                for job in batch:
                    self._translate([job])
                return
            if not isinstance(error, TformerError):
                self._log(traceback.format_exc())
                error = Failed("text", "has not been translated", remedy="see the server's log")
            batch[0].future.set_exception(error)
            return
        for job in batch:
            job.future.set_result([next(translated) for _ in job.lines])

    def _translated(self, batch: list[TranslationJob]) -> list[TranslatedLine]:
        options = batch[0].options
        translator = self.model.into(options.direction)
        terminology = _terminology(options.terminology, translator)
        window = [line for job in batch for line in job.lines]
        for number, line in enumerate(window, 1):
            if line.prefix or line.phrases or terminology:
                check_required(line, number, translator, terminology, self.model.max_length)
        others: TranslateOptions = {
            **options.others,
            "decoding": options.decoding,
            "terminology": terminology,
            "inspected": options.inspected or translator.load_confidence() is not None,
            "name": "text",
            "on_warning": self._warn,
        }
        (lines,) = translator.translate_windows(
            [window],
            options.count,
            has_phrases=options.has_phrases,
            on_draft=drafts_of(batch) if options.drafted else None,
            **others,
        )
        with self._changed:
            self.num_lines += len(lines)
            self.num_tokens += sum(len(line.translations[0].tokens) for line in lines)
        return lines

    def _warn(self, problem: Problem) -> None:
        """Log what concerns the whole server: what becomes of a long text, its client sees."""
        if problem.where == self.model.translator.device:
            self._log(str(problem))


def drafts_of(batch: Sequence[TranslationJob]) -> Callable[[int, str], None]:
    """Return a callback for the lines of a batch, which gives each draft to its job."""
    owners = [(job, index) for job in batch for index in range(len(job.lines))]

    def on_draft(number: int, text: str) -> None:
        job, index = owners[number]
        job.on_draft(index, text)

    return on_draft


def next_batch(waiting: Sequence[TranslationJob]) -> list[TranslationJob]:
    """Return the first job, and others with the same options while there is room.

    Samples depend on the number of a line, so a job that samples is translated alone.
    """
    first, *others = waiting
    batch = [first]
    room = BATCH_CHARACTERS - first.num_characters
    if isinstance(first.options.decoding, SampleConfig):
        return batch
    for job in others:
        if job.options == first.options and job.num_characters <= room:
            batch.append(job)
            room -= job.num_characters
    return batch


def check_required(
    line: InputLine,
    number: int,
    translator: Translator,
    terminology: Terminology | None,
    max_length: int,
) -> None:
    """Refuse a line whose prefix and required phrases need a longer translation than allowed.

    A search takes as many steps as they need.

    Raises:
        DataError: they do, or no translation can contain them.
    """
    where, start = f"text:{number}", translator.direction.target_ids
    requests = translator.preprocessor.encode(
        line, number=number, where=where, start=start, terminology=terminology
    )
    needed = max(len(each.forced) + sum(map(len, each.required)) + 1 for each in requests)
    if needed > max_length:
        what = f"requires more tokens than the {max_length} that a translation may have"
        remedy = "shorten its prefix or its required phrases"
        raise DataError(where, what, got=f"{needed:,} tokens", remedy=remedy)


def _terminology(lines: tuple[str, ...], translator: Translator) -> Terminology | None:
    if not lines:
        return None
    language = translator.direction.languages[0]
    return Terminology(lines, "terminology", source_language=language)
