"""Teachers: several models that translate one text, and the choice among their translations."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.errors import Problem, UsageError, reject_str
from tformer_cli.storage.run_directory import named_twice
from tformer_cli.translate.mbr import rank_texts
from tformer_cli.translate.options import (
    MBR,
    SearchOptions,
    resolve_num_hypotheses,
    resolve_search,
)
from tformer_cli.translate.postprocess import Translation
from tformer_cli.translate.preprocess import InputLine
from tformer_cli.translate.translator import TranslatedLine, Translator


@dataclass(frozen=True, slots=True)
class Chosen:
    """A translation that becomes a pair: of which teacher, and its utility by MBR."""

    teacher: str
    translation: Translation
    rank: int
    utility: float | None


class Teachers:
    """Models that translate the same lines, and the choice among their translations."""

    def __init__(
        self,
        names: Sequence[str],
        translators: Sequence[Translator],
        decoding: DecodingConfig | SearchOptions | None,
        count: int,
        mbr: MBR | None,
        tags: Sequence[str],
    ) -> None:
        """Name teachers; the other arguments are as for `synthesize`."""
        self.names = names
        self.translators = translators
        self.count = count
        self.mbr = mbr
        self.tags = tags
        self.searches = [resolve_search(decoding, each.config) for each in translators]
        self.num_hypotheses = [resolve_num_hypotheses(x, count, mbr) for x in self.searches]
        # What the engine of a teacher cannot do is found before another one translates.
        for each, search, number in zip(
            translators, self.searches, self.num_hypotheses, strict=True
        ):
            each.engine.check((), search, number)

    @classmethod
    def load(
        cls,
        paths: Sequence[str | os.PathLike[str]],
        ensemble: Sequence[str | os.PathLike[str]],
        decoding: DecodingConfig | SearchOptions | None,
        count: int,
        mbr: MBR | None,
        tags: Sequence[str],
        on_warning: Callable[[Problem], object],
        **options: Any,
    ) -> "Teachers":
        """Load the teachers of some paths, or one ensemble; `options` are of `Translator.load`."""
        reject_str(teachers=paths, ensemble=ensemble, tags=tags)
        tags = tuple(tags)
        names = [str(Path(path)) for path in paths]
        if not names:
            raise UsageError("`teachers`", "needs at least one model", remedy="name a run folder")
        if twice := named_twice(names):
            what = "names a model twice"
            raise UsageError("`teachers`", what, got=twice, remedy="name each once")
        if ensemble and len(names) > 1:
            what = "needs a single teacher, whose other models it names"
            remedy = "name one teacher, and the others by `ensemble`"
            raise UsageError("`ensemble`", what, got=f"{len(names)} teachers", remedy=remedy)
        translators = [Translator.load(name, ensemble=ensemble, **options) for name in names]
        for each in translators:
            # A language that is missing, or a tag, is found before an output is begun.
            each.tag_ids(tags)
        first, *others = [_languages(each) for each in translators]
        for name, languages in zip(names[1:], others, strict=True):
            if languages != first:
                what = f"has other languages than {names[0]}, {first}"
                on_warning(Problem(name, what, languages, "check that both read the same language"))
        if ensemble:
            names = [" + ".join(str(Path(path)) for path in (*names, *ensemble))]
        return cls(names, translators, decoding, count, mbr, tags)

    def fingerprint(self) -> dict[str, object]:
        """Return by name what determines the pairs of a text."""
        return {
            "teachers": self.names,
            "model": [files.fingerprint for each in self.translators for files in each.files],
            "languages": [_languages(each) for each in self.translators],
            "search": [asdict(search) for search in self.searches],
            "count": self.count,
            "mbr": None if self.mbr is None else asdict(self.mbr),
            # None, as in a record that was begun when there were none.
            "tags": self.tags or None,
        }

    def translate(
        self,
        windows: Iterable[Sequence[InputLine]],
        *,
        on_done: Callable[[int], object],
        on_warning: Callable[[Problem], object],
        **numbering: Any,
    ) -> Iterator[list[tuple[TranslatedLine, ...]]]:
        """Yield each line of each window by all teachers, before the next window is read."""
        copies = itertools.tee(windows, len(self.names))
        translated = [
            each.translate_windows(
                copy,
                num_hypotheses,
                has_phrases=False,
                decoding=search,
                tags=self.tags,
                on_done=on_done,
                on_warning=on_warning,
                **numbering,
            )
            for each, copy, search, num_hypotheses in zip(
                self.translators, copies, self.searches, self.num_hypotheses, strict=True
            )
        ]
        for by_teacher in zip(*translated, strict=True):
            yield list(zip(*by_teacher, strict=True))

    def choose(self, lines: Sequence[TranslatedLine]) -> list[Chosen]:
        """Return the pairs of a line that all teachers have translated; empty ones are none."""
        named = list(zip(self.names, lines, strict=True))
        if self.mbr is None:
            return [
                Chosen(name, translation, rank, None)
                for name, line in named
                for rank, translation in enumerate(line.translations[: self.count], start=1)
                if translation.text.strip()
            ]
        candidates = [(name, each) for name, line in named for each in line.translations]
        candidates = [(name, each) for name, each in candidates if each.text.strip()]
        ranked = rank_texts(
            self.mbr.utility,
            [each.text for _, each in candidates],
            uses_whitespace=self.translators[0].postprocessor.separator != "",
        )
        return [
            Chosen(*candidates[index], rank, utility)
            for rank, (index, utility) in enumerate(ranked[: self.count], start=1)
        ]


def _languages(translator: Translator) -> str:
    return " -> ".join(translator.direction.languages)
