"""Translate lines of text: text -> ids -> search -> text, in the order given, by any engine."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Unpack

from tformer_cli.choices import Backend, Quantization
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.corpus.prefetch import chunks
from tformer_cli.errors import Problem, UsageError, reject_str
from tformer_cli.process import tune_allocator
from tformer_cli.search.engine import Engine, OnWarning, Request
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import ModelFiles
from tformer_cli.text.segments import Terminology
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.translate.backend import find_files, load_engine, native_engine, shared
from tformer_cli.translate.confidence import ConfidenceModel, load_confidence
from tformer_cli.translate.direction import TranslationDirection
from tformer_cli.translate.inspector import Inspector, Retry
from tformer_cli.translate.line_search import LineSearch
from tformer_cli.translate.options import (
    LEAVE_ONE_OUT,
    MBR,
    LineLimits,
    SearchOptions,
    TranslateOptions,
    resolve_num_hypotheses,
    resolve_search,
    retry_search,
)
from tformer_cli.translate.postprocess import Postprocessor, Translation
from tformer_cli.translate.preprocess import (
    InputLine,
    Preprocessor,
    common_tags,
    input_lines,
    one_each,
)

if TYPE_CHECKING:
    import torch

    from tformer_cli.model.network import Seq2Seq
    from tformer_cli.search.teacher_forcing import Aligner
    from tformer_cli.translate.score import ScoredPair

# Lines sorted by length and translated together: enough for full batches, few enough for memory.
WINDOW_LINES = 8192


class TranslatedLine(NamedTuple):
    """A line with its number and its translations, best first."""

    number: int
    source: str
    translations: list[Translation]


class Translator:
    """A trained model that translates lines of text.

    A line above `max_source_length` tokens is split at sentence ends, or at weaker punctuation, and
    the translations of its pieces are joined. So is a line above `max_source_sentences`: a model
    trained on single sentences translates the first one and drops the others. A model of several
    target languages translates into the one that `to` or `into` names.

    Examples:
        >>> translator = Translator.load("runs/demo")  # doctest: +SKIP
        >>> translator.translate(["The girl has danced with us."])  # doctest: +SKIP
        ['Das Mädchen hat mit uns getanzt.']
    """

    def __init__(
        self,
        engine: Engine,
        tokenizers: Tokenizers,
        config: Config,
        *,
        direction: TranslationDirection | None = None,
        tags: Sequence[str] | None = None,
        load_aligner: "Callable[[], Aligner] | None" = None,
        load_confidence: Callable[[], ConfidenceModel | None] = lambda: None,
        device: str = "cpu",
        files: Sequence[ModelFiles] = (),
        **limits: Unpack[LineLimits],
    ) -> None:
        """Combine an engine with the tokenizers and the config of its model.

        Args:
            engine: translates token ids.
            tokenizers: of the model.
            config: of the run; its `decoding` is the default search.
            direction: the languages; None for the first ones of the model.
            tags: those that a source may begin with; None for all of the config.
            load_aligner: returns what aligns target tokens to source tokens, when it is first
                needed; without it there are no alignments.
            load_confidence: returns what rates translations of the config's search, if anything.
            device: where the engine computes.
            files: of the models of a run, or of an ensemble.
            limits: those of `LineLimits`.
        """
        self.engine = engine
        self.tokenizers = tokenizers
        self.config = config
        self.device = device
        self.load_aligner = load_aligner
        self.load_confidence = load_confidence
        self.files = files
        self.limits = limits
        data = config.data
        self.tags = data.tags if tags is None else tags
        self.direction = direction or TranslationDirection.first(data, tokenizers)
        facts = [*(f"{source} -> {target}" for source, target in data.directions), device]
        if files:
            runs = " + ".join(str(each.run.path) for each in files)
            facts.append(f"{runs} at step {files[0].step}")
        self.description = ", ".join(facts)
        self.postprocessor = Postprocessor.of_direction(tokenizers, self.direction.languages)
        max_source_length = limits.get("max_source_length")
        if max_source_length is None:
            max_source_length = data.filters.max_length
        self.preprocessor = Preprocessor(
            tokenizers=tokenizers,
            max_source_length=max_source_length,
            max_source_sentences=limits.get("max_source_sentences"),
            max_positions=config.model.max_length,
            long_lines=limits.get("long_lines", "split"),
            uses_whitespace=self.postprocessor.separator != "",
        )

    def into(self, to: str | None, source: str | None = None) -> "Translator":
        """Return this translator, with its engine, into `to`; see `TranslationDirection.into`."""
        direction = self.direction.into(to, source)
        if direction == self.direction:
            return self
        return Translator(
            self.engine,
            self.tokenizers,
            self.config,
            direction=direction,
            tags=self.tags,
            load_aligner=self.load_aligner,
            load_confidence=self.load_confidence,
            device=self.device,
            files=self.files,
            **self.limits,
        )

    def tag_ids(self, tags: Sequence[str] = ()) -> tuple[int, ...]:
        """Return the ids that each source begins with: those of a language, and tags.

        Raises:
            UsageError: a tag is unknown, no target language is chosen, or the runs of an ensemble
                number it differently.
        """
        ids, names = self.direction.start_of_source(tags)
        if set(names) - {*tags, *self.tags}:
            what = "has runs that number this target language differently"
            remedy = "name runs with the same target languages in the same order"
            raise UsageError("`ensemble`", what, got=self.direction.languages[1], remedy=remedy)
        return self.preprocessor.encode_tags(names, self.tags, ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.description})"

    @classmethod
    def load(
        cls,
        run: str | os.PathLike[str],
        *,
        to: str | None = None,
        source_language: str | None = None,
        ensemble: Sequence[str | os.PathLike[str]] = (),
        checkpoint: str = "best",
        device: str = "auto",
        precision: str | None = None,
        backend: Backend = "auto",
        quantization: Quantization | None = None,
        workers: int | None = 1,
        log: Callable[[str], object] = lambda line: None,
        **limits: Unpack[LineLimits],
    ) -> "Translator":
        """Load the model of a run, or those of several runs as an ensemble.

        Args:
            run: the run folder, or one that `tformer export` wrote as safetensors or for
                CTranslate2, or that CTranslate2's converters wrote (`read_converted`).
            to: target language, of a model that has several; None for the one that a translation
                names.
            source_language: of a model that has several; None as for `into`.
            ensemble: further runs with the same tokenizers; the probabilities are averaged.
            checkpoint: `best`, `last`, a step such as `400`, or a name such as `step-000400`.
            device: auto, cpu, cuda, cuda:N or mps.
            precision: number format of matrix products: auto, float32, bfloat16, float16, or int8
                on a CPU; None is float32 on a CPU and auto on a GPU.
            backend: `native`, our own engine; `ctranslate2` on the CPU, with an export that stays
                in the run; or `auto`, which is CTranslate2 where it is installed and translates
                alike, by an export that is checked once, and else our own engine.
            quantization: number format of CTranslate2's matrices; float32 by default.
            workers: processes of our own engine that share the work on a CPU, one thread each; 1
                works in this process with all threads of torch, None starts one for each core.
            log: called with a line of an export that is written, or of what cannot be used.
            limits: those of `LineLimits`; `max_source_sentences` is by default what 99% of the
                training lines do not exceed.

        Raises:
            TformerError: the run, checkpoint, device or precision is not there, or arguments
                contradict each other.
        """
        reject_str(ensemble=ensemble)
        tune_allocator()
        runs = [RunDirectory(Path(path)) for path in (run, *ensemble)]
        files = find_files(runs[0], checkpoint)
        max_sentences = limits.get("max_source_sentences")
        long_lines = limits.get("long_lines", "split")
        if max_sentences is None:
            limits["max_source_sentences"] = files.max_source_sentences
        elif long_lines != "split":
            what = f'has no effect on `long_lines="{long_lines}"`'
            got = str(max_sentences)
            raise UsageError("`max_source_sentences`", what, got=got, remedy=LEAVE_ONE_OUT)
        # A wrong language is refused before an export is written.
        first = TranslationDirection.first(files.config.data, files.tokenizers)
        direction = first.into(to, source_language)
        options = checkpoint, device, precision, backend, quantization, workers
        loaded = load_engine(runs, files, *options, log=log)
        rated = cache(partial(load_confidence, files, log))
        all_files = (files, *(find_files(each, checkpoint) for each in runs[1:]))
        return cls(
            loaded.engine,
            files.tokenizers,
            files.config,
            direction=direction,
            tags=common_tags([each.config.data.tags for each in all_files]),
            load_aligner=loaded.load_aligner,
            load_confidence=(lambda: None) if ensemble else rated,
            device=loaded.device,
            files=all_files,
            **limits,
        )

    @classmethod
    def from_model(
        cls,
        model: "Seq2Seq",
        tokenizers: Tokenizers,
        config: Config,
        device: "torch.device",
        precision: "torch.dtype | None" = None,
        *,
        others: "Sequence[Seq2Seq]" = (),
        tags: Sequence[str] | None = None,
        workers: int | None = 1,
        **limits: Unpack[LineLimits],
    ) -> "Translator":
        """Return the translator of a model in memory.

        The model, and the `others` of an ensemble, move to `device`; on a CPU their weights are
        packed for inference. The precision is by default float32 on a CPU, and on a GPU what
        `auto` is there.
        """
        native = native_engine([model, *others], tokenizers, config, device, precision)
        return cls(
            shared(native, workers),
            tokenizers,
            config,
            tags=tags,
            load_aligner=lambda: native.aligner,
            device=str(device),
            **limits,
        )

    def translate(
        self,
        lines: Iterable[str],
        *,
        to: str | None = None,
        prefixes: Iterable[str] | None = None,
        required: Iterable[Sequence[str]] | None = None,
        **options: Unpack[TranslateOptions],
    ) -> list[str]:
        """Return the best translation of each line; arguments and errors are those of `nbest`."""
        options = {"scored": False, **options}
        translated = self.nbest(lines, 1, to=to, prefixes=prefixes, required=required, **options)
        return [best.text for best, *_ in translated]

    def nbest(
        self,
        lines: Iterable[str],
        count: int,
        *,
        to: str | None = None,
        prefixes: Iterable[str] | None = None,
        required: Iterable[Sequence[str]] | None = None,
        **options: Unpack[TranslateOptions],
    ) -> Iterator[list[Translation]]:
        """Yield the `count` best translations of each line, best first, in the order given.

        A line of whitespace has an empty translation. Lines are read ahead by `WINDOW_LINES`.

        Args:
            lines: source text.
            count: translations of each line, at most the beam size.
            to: target language, of a model that has several; None for that of `into`.
            prefixes: how each translation begins; for a line in pieces, its first piece.
            required: phrases that each translation contains, as often as they are listed; needs
                beam search.
            options: those of `TranslateOptions`.

        Raises:
            TformerError: the search is invalid, keeps fewer than `count` translations or cannot
                require phrases; a line is too long (`long_lines="error"`); or a prefix or phrase
                cannot occur in a translation.
        """
        reject_str(
            lines=lines,
            prefixes=prefixes,
            required=required,
            tags=options.get("tags"),
            banned=options.get("banned"),
            keep=options.get("keep"),
        )
        windows = chunks(input_lines(lines, prefixes, required), WINDOW_LINES)
        has_phrases = required is not None
        own = self if to is None else self.into(to)
        for window in own.translate_windows(windows, count, has_phrases=has_phrases, **options):
            yield from (line.translations for line in window)

    def translate_windows(
        self,
        windows: Iterable[Sequence[InputLine]],
        count: int,
        *,
        has_phrases: bool,
        decoding: DecodingConfig | SearchOptions | None = None,
        mbr: MBR | None = None,
        tags: Sequence[str] = (),
        banned: Sequence[str] = (),
        terminology: Terminology | None = None,
        scored: bool = True,
        aligned: bool = False,
        inspected: bool = False,
        repair: bool = False,
        keep: Sequence[str] = (),
        name: str | None = None,
        first_line: int = 1,
        line_stride: int = 1,
        on_done: Callable[[int], object] = lambda count: None,
        on_warning: Callable[[Problem], object] = lambda problem: None,
        on_draft: Callable[[int, str], object] | None = None,
    ) -> Iterator[list[TranslatedLine]]:
        """Yield the translated lines of each window, before the next window is read.

        The lines of a window are sorted by length and translated together. `has_phrases` says
        whether lines may have required phrases; `on_draft` is called with the index of a line in
        its window and its translation so far, which may change. All else is as for `nbest`.
        """
        # Each is read more than once, and may be an iterator.
        tags, banned, keep = tuple(tags), tuple(banned), tuple(keep)
        if aligned and self.load_aligner is None:
            what = "needs a translator that has an aligner"
            raise UsageError("`aligned`", what, remedy="leave it out")
        aligner = self.load_aligner() if aligned and self.load_aligner else None
        line_search = LineSearch(self.engine, self.postprocessor, aligner)
        requiring = "`required`" if has_phrases else "`terminology`" if terminology else None
        search = resolve_search(decoding, self.config, requiring)
        num_hypotheses = resolve_num_hypotheses(search, count, mbr)
        inspector = None
        if inspected or repair or keep:
            is_rated = scored and mbr is None and search == self.config.decoding
            confidence = self.load_confidence() if is_rated else None
            separator = self.postprocessor.separator
            inspector = Inspector.of(
                self.direction.languages, separator, keep, repair, count, confidence
            )
        preprocessor = self.preprocessor
        tag_ids, start = self.tag_ids(tags), self.direction.target_ids
        banned_ids = preprocessor.encode_banned(banned)
        numbers = itertools.count(first_line, line_stride)

        def encode(line: InputLine, number: int, on_warning: OnWarning) -> list[Request]:
            return preprocessor.encode(
                line,
                number=number,
                where=line.where or (f"{name}:{number}" if name else f"line {number}"),
                tags=tag_ids,
                start=start,
                banned=banned_ids,
                terminology=terminology,
                on_warning=on_warning,
            )

        for window in windows:
            numbered = list(zip(window, numbers, strict=False))
            requests = [encode(*pair, on_warning) for pair in numbered]
            translations = line_search(
                requests,
                search,
                num_hypotheses,
                count,
                mbr=mbr,
                scored=scored,
                on_done=on_done,
                on_warning=on_warning,
                on_draft=on_draft,
            )
            if inspector is not None:
                again = line_search, retry_search(search), preprocessor
                retry = Retry(inspector, numbered, requests, encode, *again)
                translations = inspector.check(translations, retry)
            yield [
                TranslatedLine(number, line.text, best)
                for (line, number), best in zip(numbered, translations, strict=True)
            ]

    def score(
        self,
        sources: Iterable[str],
        targets: Iterable[str],
        *,
        to: str | None = None,
        on_done: Callable[[int], object] = lambda count: None,
        on_warning: Callable[[Problem], object] = lambda problem: None,
    ) -> "Iterator[ScoredPair]":
        """Yield the log probabilities of given translations; see `score_pairs`.

        Raises:
            UsageError: there are more or fewer translations than sources.
        """
        from tformer_cli.translate.score import score_pairs

        reject_str(sources=sources, targets=targets)
        own = self if to is None else self.into(to)
        return score_pairs(
            self.engine.scorer,
            self.tokenizers,
            one_each(sources, targets, "`targets`"),
            tags=own.tag_ids(),
            target_tags=own.direction.target_ids,
            on_done=on_done,
            on_warning=on_warning,
        )
