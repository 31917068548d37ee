"""Names what is wrong with translations, rates them, and replaces them by better ones."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.config.schema.text import Direction
from tformer_cli.errors import DataError, UsageError
from tformer_cli.search.engine import OnWarning, Request
from tformer_cli.text.defects import Defect, term_defects, text_defects
from tformer_cli.text.spans import OPAQUE, KeptSpans, find_spans
from tformer_cli.translate.confidence import ConfidenceModel
from tformer_cli.translate.line_search import LineSearch
from tformer_cli.translate.postprocess import Repair, Translation
from tformer_cli.translate.preprocess import InputLine, Preprocessor

# Length of the token sequences that a search for less repetition has once only.
NO_REPEAT_NGRAM_SIZE = 3

Encode = Callable[[InputLine, int, OnWarning], list[Request]]
Attempt = Iterator[tuple[int, list[Translation]]]


@dataclass(frozen=True)
class Inspector:
    """Inspects translations, and repairs the best one of each line.

    A translation is replaced only by one with fewer defects. If spans to keep are lost in spite of
    all attempts, they are put into its text.

    Attributes:
        languages: of source and target.
        inspected_spans: those that are defects if they are lost or added.
        kept: those that a translation is repaired for.
        repairs_all: whether it is repaired for all other defects too.
        separator: between two words of the target language: a space, or nothing.
        confidence: says how good a translation is expected to be, if it is known.
    """

    languages: Direction
    inspected_spans: KeptSpans
    kept: KeptSpans
    repairs_all: bool
    separator: str
    confidence: ConfidenceModel | None

    @classmethod
    def of(
        cls,
        languages: Direction,
        separator: str,
        keep: Sequence[str],
        repair: bool,
        count: int,
        confidence: ConfidenceModel | None,
    ) -> Self:
        """Return the inspector of a translation, with its arguments; refuse those it has not."""
        argument = "`repair`" if repair else "`keep`" if keep else None
        if argument is not None and count > 1:
            what = "is for one translation of each line"
            raise UsageError(argument, what, got=str(count), remedy="use `count=1`")
        return cls(
            languages=languages,
            kept=KeptSpans.of([*keep, *OPAQUE] if repair else keep),
            inspected_spans=KeptSpans.of([*keep, *OPAQUE]),
            repairs_all=repair,
            separator=separator,
            confidence=confidence,
        )

    def inspected(self, source: str, translation: Translation) -> Translation:
        """Return a translation with its defects and its confidence."""
        text = translation.text
        defects = list(text_defects(source, text, languages=self.languages))
        if not translation.finished and Defect("wrong length") not in defects:
            defects.append(Defect("wrong length"))
        defects += term_defects(source, text, self.inspected_spans)
        checked = replace(translation, defects=tuple(defects))
        if self.confidence is None:
            return checked
        return replace(checked, confidence=self.confidence.confidence(source, checked))

    def check(
        self, translations: Sequence[list[Translation]], retry: "Retry"
    ) -> list[list[Translation]]:
        """Return the translations of each line with their defects, the best one repaired."""
        sources = retry.sources
        pairs = zip(sources, translations, strict=True)
        checked = [[self.inspected(source, each) for each in line] for source, line in pairs]
        best = [line[0] for line in checked]
        for attempt in (retry.nbest, retry.apart, retry.constrained, retry.unrepeated):
            failing = [index for index, each in enumerate(best) if self._is_failing(each)]
            for index, candidates in attempt(failing, best):
                best[index] = min((best[index], *candidates), key=_num_defects)
        spliced = (self.spliced(*pair, self.kept) for pair in zip(sources, best, strict=True))
        return [[first, *line[1:]] for first, line in zip(spliced, checked, strict=True)]

    def _is_failing(self, translation: Translation) -> bool:
        kinds = [f"{what} {kind}" for what in ("lost", "added") for kind in self.kept.kinds]
        return any(self.repairs_all or defect.kind in kinds for defect in translation.defects)

    def spliced(self, source: str, translation: Translation, kept: KeptSpans) -> Translation:
        """Return a translation with spans to keep in its text; unchanged if that fails."""
        if kept.is_kept(source, translation.text):
            return translation
        text = kept.splice(source, translation.text, self.separator)
        if text is None:
            return translation
        return self.inspected(source, replace(translation, text=text, repair="splice"))


def _num_defects(translation: Translation) -> int:
    return sum(max(1, len(defect.words)) for defect in translation.defects)


class Retry:
    """Further attempts to translate lines of a window, given by their indices.

    Each attempt yields lines with the translations that it finds. It is for the lines whose best
    translations so far have the defects that it may avoid.
    """

    def __init__(
        self,
        inspector: Inspector,
        lines: Sequence[tuple[InputLine, int]],
        requests: Sequence[list[Request]],
        encode: Encode,
        line_search: LineSearch,
        search: BeamConfig,
        preprocessor: Preprocessor,
    ) -> None:
        """Take the lines of a window and what they were translated by.

        Args:
            inspector: inspects the translations.
            lines: with their numbers.
            requests: the pieces of each line.
            encode: returns them for a line and its number.
            line_search: translates them.
            search: for all attempts.
            preprocessor: of the requests.
        """
        self.inspector = inspector
        self.lines = lines
        self.sources = [line.text for line, _ in lines]
        self.requests = dict(enumerate(requests))
        self.cut: set[int] = set()  # lines whose requests lack addresses and placeholders
        self.encode = encode
        self.line_search = line_search
        self.search = search
        self.preprocessor = preprocessor

    def nbest(self, lines: Sequence[int], best: Sequence[Translation]) -> Attempt:
        """Try the other hypotheses of a beam search."""
        requests = {index: self.requests[index] for index in lines}
        return self._translate("n-best", requests, self.search, self.search.beam_size)

    def apart(self, lines: Sequence[int], best: Sequence[Translation]) -> Attempt:
        """Try lines without addresses and placeholders, which come into the translation later.

        A model that has not learned to copy them translates what is around them badly. Further
        attempts are without them too.
        """
        opaque = self.inspector.kept.opaque()
        changed = {}
        for index in lines:
            if not opaque.is_kept(self.sources[index], best[index].text):
                line, number = self.lines[index]
                cut = line._replace(text=opaque.cut(line.text))
                with contextlib.suppress(DataError):
                    changed[index] = self.encode(cut, number, lambda problem: None)
        self.requests |= changed
        self.cut |= changed.keys()
        return self._translate("splice", changed, self.search, 1)

    def constrained(self, lines: Sequence[int], best: Sequence[Translation]) -> Attempt:
        """Try to require the spans that were lost."""
        requests = {index: self._requiring(index, best[index]) for index in lines}
        changed = {i: pieces for i, pieces in requests.items() if pieces != self.requests[i]}
        return self._translate("constraints", changed, self.search, 1)

    def _requiring(self, index: int, translation: Translation) -> list[Request]:
        """Return the requests of a line, each with the lost spans that its source has."""
        lost = {
            word
            for defect in translation.defects
            if defect.kind.startswith("lost ")
            for word in defect.words
        }
        source = self.sources[index]
        spans = set(self.inspector.kept.find(source))
        if self.inspector.repairs_all:
            spans.update(find_spans(source))
        texts = [span.text for span in sorted(spans) if span.text in lost]
        return [self.preprocessor.require(request, texts) for request in self.requests[index]]

    def unrepeated(self, lines: Sequence[int], best: Sequence[Translation]) -> Attempt:
        """Try to ban repetition."""
        requests = {
            index: self.requests[index]
            for index in lines
            if any(defect.kind == "loops" for defect in best[index].defects)
        }
        search = replace(self.search, no_repeat_ngram_size=NO_REPEAT_NGRAM_SIZE)
        return self._translate("no repetition", requests, search, 1)

    def _translate(
        self, repair: Repair, requests: dict[int, list[Request]], search: BeamConfig, count: int
    ) -> Attempt:
        """Yield the best translations of lines; none if the engine has no such search."""
        if not requests:
            return
        pieces = list(itertools.chain.from_iterable(requests.values()))
        try:
            self.line_search.engine.check(pieces, search, count)
        except UsageError:
            return
        translated = self.line_search(list(requests.values()), search, count, count)
        for index, candidates in zip(requests, translated, strict=True):
            yield index, [self._finished(index, repair, each) for each in candidates]

    def _finished(self, index: int, repair: Repair, translation: Translation) -> Translation:
        """Return a translation with the spans that its line was translated without."""
        source, inspector = self.sources[index], self.inspector
        repaired = inspector.inspected(source, replace(translation, repair=repair))
        if index not in self.cut:
            return repaired
        return inspector.spliced(source, repaired, inspector.kept.opaque())
