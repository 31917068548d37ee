"""Translate lines of text: text -> ids -> search -> text, in the order given, by any engine."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack

import torch

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.corpus.prefetch import chunks
from tformer_cli.device import (
    default_num_workers,
    empty_cache,
    resolve_device,
    resolve_precision,
)
from tformer_cli.distributed import local_device, num_processes
from tformer_cli.errors import Problem, UsageError
from tformer_cli.model.network import Seq2Seq
from tformer_cli.process import tune_allocator
from tformer_cli.search.alignment import Aligner
from tformer_cli.search.engine import Engine, NativeEngine
from tformer_cli.search.request import Hypothesis, Request
from tformer_cli.search.workers import WorkersEngine
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import load_ensemble
from tformer_cli.text.segments import Terminology, word_separator
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.translate.check import (
    Backend,
    check_backend,
    check_can_require,
    check_positive,
    check_search,
    reject_str,
)
from tformer_cli.translate.mbr import MBR, resolve_num_hypotheses
from tformer_cli.translate.postprocess import Postprocessor, Translation, best_combinations
from tformer_cli.translate.preprocess import InputLine, LongLines, Preprocessor, special_tokens
from tformer_cli.translate.score import ScoredPair, score_pairs

if TYPE_CHECKING:
    from tformer_cli.export.ctranslate2.format import Quantization

# Lines that are read before they are sorted by length and translated: enough for full batches of
# sentences of equal length, few enough for memory whatever the size of the file.
WINDOW_LINES = 8192


CPU = torch.device("cpu")


class TranslatedLine(NamedTuple):
    """A line with its number and its translations, best first."""

    number: int
    source: str
    translations: list[Translation]


class TranslateOptions(TypedDict, total=False):
    """Options of a translation.

    Attributes:
        decoding: the search; None for the run's own.
        mbr: minimum-Bayes-risk decoding: choose by mean utility, which becomes the `score`. Equal
            texts count as one translation, so fewer may come. None ranks by the search.
        banned: words and phrases that no translation contains, as the target tokenizer spells them.
        terminology: terms whose translations are required where a line, or a piece of a long line,
            contains them; needs beam search.
        scored: whether to compute scores; without it they may be NaN.
        aligned: whether to compute word alignments.
        name: file of the lines, for messages.
        start: number of the first line, for messages and for sampling noise.
        step: difference between the numbers of two consecutive lines.
        on_done: called with the number of lines whenever some are translated; a long line counts in
            proportion to its pieces.
        on_warning: called for each long line, once for lines of many sentences, and once when
            memory runs out and batches become smaller.
    """

    decoding: DecodingConfig | None
    mbr: MBR | None
    banned: Sequence[str]
    terminology: Terminology | None
    scored: bool
    aligned: bool
    name: str | None
    start: int
    step: int
    on_done: Callable[[int], object]
    on_warning: Callable[[Problem], object]


class Translator:
    """A trained model that translates lines of text.

    A line longer than `max_source_length` tokens is longer than any training line. It is split at
    sentence ends, or else at weaker punctuation, and the translations of its pieces are joined
    (`long_lines="split"`); or it is truncated, or refused (`error`). With `split`, a line of more
    than `max_source_sentences` sentences is split, too: a model trained on single sentences
    translates the first one and drops the others.

    Example:
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
        long_lines: LongLines = "split",
        max_source_length: int | None = None,
        max_source_sentences: int | None = None,
        aligner: Aligner | None = None,
        device: torch.device = CPU,
        description: str = "",
    ) -> None:
        """Combine an engine with the tokenizers and the config of its model.

        Args:
            engine: translates token ids.
            tokenizers: of the model.
            config: of the run; its `decoding` is the default search.
            long_lines: what to do with a line above `max_source_length`.
            max_source_length: maximum number of tokens of a line, EOS excluded; None for
                `data.filters.max_length`.
            max_source_sentences: maximum number of sentences of a line; None for no limit.
            aligner: aligns target tokens to source tokens; without it there are no alignments.
            device: where the engine computes.
            description: languages, device and run, for `repr`.

        Raises:
            UsageError: a limit is below 1 or above the learnt positions; or an unknown choice.
        """
        self.engine: Engine = engine
        self.tokenizers = tokenizers
        self.config = config
        self.aligner = aligner
        self.device = device
        self.description = description
        self.postprocessor = Postprocessor(
            tokenizers,
            separator=word_separator(config.data.target_language),
            source_separator=word_separator(config.data.source_language),
        )
        if max_source_length is None:
            max_source_length = config.data.filters.max_length
        self.preprocessor = Preprocessor(
            tokenizers=tokenizers,
            max_source_length=max_source_length,
            max_source_sentences=max_source_sentences,
            max_positions=engine.scorer.max_length,
            long_lines=long_lines,
            uses_whitespace=self.postprocessor.separator != "",
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.description})"

    @classmethod
    def load(
        cls,
        run: str | os.PathLike[str],
        *,
        ensemble: Sequence[str | os.PathLike[str]] = (),
        checkpoint: str = "best",
        device: str = "auto",
        precision: str = "float32",
        backend: Backend = "native",
        quantization: "Quantization | None" = None,
        workers: int | None = 1,
        long_lines: LongLines = "split",
        max_source_length: int | None = None,
        max_source_sentences: int | None = None,
    ) -> "Translator":
        """Load the model of a run, or those of several runs as an ensemble.

        Args:
            run: the run folder.
            ensemble: further runs with the same tokenizers; the probabilities are averaged.
            checkpoint: `best`, `last` or a name such as `step-000400`.
            device: auto, cpu, cuda, cuda:N or mps.
            precision: number format of matrix products: auto, float32, bfloat16, float16, or int8
                on a CPU.
            backend: `native`, or `ctranslate2` on the CPU, with an export that stays in the run.
            quantization: number format of CTranslate2's matrices; float32 by default.
            workers: processes that share the work on a CPU, one thread each; 1 works in this
                process with all threads of torch, None starts one for each core.
            long_lines: what to do with a long line: split, truncate or error.
            max_source_length: tokens above which a line is long; None for the run's
                `data.filters.max_length`.
            max_source_sentences: sentences above which a line is split; None for the maximum of
                the training lines.

        Raises:
            TformerError: the run, checkpoint, device or precision is not there, or arguments
                contradict each other.
        """
        reject_str(ensemble=ensemble)
        tune_allocator()
        if backend == "ctranslate2" and device == "auto":
            device = "cpu"
        resolved = local_device(resolve_device(device))
        check_backend(backend, quantization, ensemble, resolved, precision, workers)
        runs = [RunDirectory(Path(path)) for path in (run, *ensemble)]
        first, *others = load_ensemble(runs, checkpoint)
        if max_source_sentences is None:
            max_source_sentences = first.max_source_sentences
        engine: Engine | None = None
        if backend == "ctranslate2":
            from tformer_cli.export.ctranslate2.format import cached_engine

            engine = cached_engine(runs[0], first, quantization or "float32")
        translator = cls.from_model(
            first.model,
            first.tokenizers,
            first.config,
            resolved,
            resolve_precision(precision, resolved),
            others=[other.model for other in others],
            engine=engine,
            long_lines=long_lines,
            max_source_length=max_source_length,
            max_source_sentences=max_source_sentences,
        )
        names = " + ".join(str(run.path) for run in runs)
        translator.description += f", {names} at step {first.step}"
        # Worker processes would inherit the weights.
        del first, others
        if backend == "native":
            translator.start_workers(workers)
        return translator

    @classmethod
    def from_model(
        cls,
        model: Seq2Seq,
        tokenizers: Tokenizers,
        config: Config,
        device: torch.device,
        precision: torch.dtype = torch.float32,
        *,
        others: Sequence[Seq2Seq] = (),
        engine: Engine | None = None,
        long_lines: LongLines = "split",
        max_source_length: int | None = None,
        max_source_sentences: int | None = None,
    ) -> "Translator":
        """Return the translator of a model in memory; limits are those of the constructor.

        The model, and the `others` of an ensemble, move to `device`; on a CPU their weights are
        packed for inference. An `engine` is another program that runs the same model.
        """
        tokens = special_tokens(tokenizers.target, config.model)
        aligner: Aligner
        if engine is None:
            engine = native = NativeEngine(
                model, tokens, device=device, precision=precision, others=others
            )
            # The aligner runs in this process: its few large matrices use all threads, while
            # worker processes are idle.
            aligner = native.aligner
        else:
            aligner = Aligner([model], tokens.bos, device=device, precision=precision)
        return cls(
            engine,
            tokenizers,
            config,
            long_lines=long_lines,
            max_source_length=max_source_length,
            max_source_sentences=max_source_sentences,
            aligner=aligner,
            device=device,
            description=f"{config.data.source_language} -> {config.data.target_language}, {device}",
        )

    def start_workers(self, workers: int | None) -> None:
        """Share the work between processes on a CPU, one thread each; 1 stops them again.

        They start with the next lines, and share the memory of this process.

        Args:
            workers: number of processes; None for one a core, or for 1 under torchrun.

        Raises:
            UsageError: `workers` is below 1, or the device or the system does not allow processes.
        """
        if isinstance(self.engine, WorkersEngine):
            # Workers that start workers would read each other's answers.
            self.engine = self.engine.engine
        if workers is None:
            workers = default_num_workers(self.device) if num_processes() == 1 else 1
        check_positive("`workers`", workers)
        if workers == 1:
            return
        if self.device.type != "cpu":
            raise UsageError(
                "`workers`", "is for a CPU", got=str(workers), remedy='use 1, or `device="cpu"`'
            )
        empty_cache(self.device)
        self.engine = WorkersEngine(self.engine, workers)

    def translate(
        self,
        lines: Iterable[str],
        *,
        prefixes: Iterable[str] | None = None,
        required: Iterable[Sequence[str]] | None = None,
        **options: Unpack[TranslateOptions],
    ) -> list[str]:
        """Return the best translation of each line; arguments and errors are those of `nbest`."""
        options = {"scored": False, **options}
        translated = self.nbest(lines, 1, prefixes=prefixes, required=required, **options)
        return [best.text for best, *_ in translated]

    def nbest(
        self,
        lines: Iterable[str],
        count: int,
        *,
        prefixes: Iterable[str] | None = None,
        required: Iterable[Sequence[str]] | None = None,
        **options: Unpack[TranslateOptions],
    ) -> Iterator[list[Translation]]:
        """Yield the `count` best translations of each line, best first, in the order given.

        A blank line has an empty translation. Lines are read ahead by `WINDOW_LINES`.

        Args:
            lines: source text.
            count: translations of each line, at most the beam size.
            prefixes: how each translation begins; for a line in pieces, its first piece.
            required: phrases that each translation contains, as often as they are listed; needs
                beam search.
            options: those of `TranslateOptions`.

        Raises:
            TformerError: the search is invalid, keeps fewer than `count` translations or cannot
                require phrases; a line is too long (`long_lines="error"`); or a prefix or phrase
                cannot occur in a translation.
        """
        reject_str(lines=lines, prefixes=prefixes, required=required, banned=options.get("banned"))
        windows = chunks(_input_lines(lines, prefixes, required), WINDOW_LINES)
        has_phrases = required is not None
        for window in self.translate_windows(windows, count, has_phrases=has_phrases, **options):
            yield from (line.translations for line in window)

    def translate_windows(
        self,
        windows: Iterable[Sequence[InputLine]],
        count: int,
        *,
        has_phrases: bool,
        decoding: DecodingConfig | None = None,
        mbr: MBR | None = None,
        banned: Sequence[str] = (),
        terminology: Terminology | None = None,
        scored: bool = True,
        aligned: bool = False,
        name: str | None = None,
        start: int = 1,
        step: int = 1,
        on_done: Callable[[int], object] = lambda count: None,
        on_warning: Callable[[Problem], object] = lambda problem: None,
    ) -> Iterator[list[TranslatedLine]]:
        """Yield the translated lines of each window, before the next window is read.

        The lines of a window are sorted by length and translated together. `has_phrases` says
        whether lines may have required phrases; all else is as for `nbest`.
        """
        if aligned and self.aligner is None:
            raise UsageError(
                "`aligned`", "needs a translator that has an aligner", remedy="leave it out"
            )
        search = self.config.decoding if decoding is None else decoding
        check_search(search, self.engine.scorer.max_length)
        if has_phrases or terminology is not None:
            check_can_require(search, "`required`" if has_phrases else "`terminology`")
        num_hypotheses = resolve_num_hypotheses(search, count, mbr)
        preprocessor = self.preprocessor
        banned_ids = preprocessor.encode_banned(banned)
        numbers = itertools.count(start, step)
        for window in windows:
            numbered = list(zip(window, numbers, strict=False))
            requests = [
                preprocessor.encode(
                    line,
                    number=number,
                    where=f"{name}:{number}" if name else f"line {number}",
                    banned=banned_ids,
                    terminology=terminology,
                    on_warning=on_warning,
                )
                for line, number in numbered
            ]
            pieces = list(itertools.chain.from_iterable(requests))
            hypotheses = iter(
                self.engine.translate(
                    pieces,
                    search,
                    nbest=num_hypotheses,
                    scored=scored,
                    on_done=_in_proportion(on_done, len(pieces), len(window)),
                    on_warning=on_warning,
                )
            )
            chosen = [
                best_combinations([self._rerank(next(hypotheses), mbr) for _ in line], count)
                for line in requests
            ]
            decoded = self._decode(requests, chosen, aligned)
            yield [
                TranslatedLine(number, line.text, translations)
                for (line, number), translations in zip(numbered, decoded, strict=True)
            ]

    def _rerank(self, hypotheses: list[Hypothesis], mbr: MBR | None) -> list[Hypothesis]:
        if mbr is None:
            return hypotheses
        texts = [self.tokenizers.target.decode(one.token_ids) for one in hypotheses]
        return mbr.rerank(hypotheses, texts, uses_whitespace=self.postprocessor.separator != "")

    def _decode(
        self,
        requests: Sequence[Sequence[Request]],
        chosen: Sequence[Sequence[Sequence[Hypothesis]]],
        aligned: bool,
    ) -> Iterator[list[Translation]]:
        if aligned and self.aligner is not None:
            return self.postprocessor.decode_aligned(self.aligner, requests, chosen)
        return ([self.postprocessor.decode(pieces) for pieces in line] for line in chosen)

    def score(
        self,
        sources: Iterable[str],
        targets: Iterable[str],
        *,
        on_done: Callable[[int], object] = lambda count: None,
    ) -> Iterator[ScoredPair]:
        """Yield the log probabilities of given translations; see `score_pairs`."""
        reject_str(sources=sources, targets=targets)
        pairs = zip(sources, targets, strict=True)
        return score_pairs(self.engine.scorer, self.tokenizers, pairs, on_done=on_done)


def _input_lines(
    lines: Iterable[str],
    prefixes: Iterable[str] | None,
    required: Iterable[Sequence[str]] | None,
) -> Iterator[InputLine]:
    """Yield each line with its prefix and its phrases."""
    if prefixes is None:
        pairs: Iterable[tuple[str, str]] = ((line, "") for line in lines)
    else:
        pairs = zip(lines, prefixes, strict=True)
    if required is None:
        yield from itertools.starmap(InputLine, pairs)
        return
    for index, ((line, prefix), phrases) in enumerate(zip(pairs, required, strict=True)):
        reject_str(**{f"required[{index}]": phrases})
        yield InputLine(line, prefix, phrases)


def _in_proportion(
    on_done: Callable[[int], object], num_pieces: int, num_lines: int
) -> Callable[[int], object]:
    """Return a callback for pieces that calls `on_done` with lines; they sum to `num_lines`."""
    pieces_done = 0

    def on_pieces(count: int) -> None:
        nonlocal pieces_done
        before = pieces_done * num_lines // num_pieces
        pieces_done += count
        on_done(pieces_done * num_lines // num_pieces - before)

    return on_pieces
