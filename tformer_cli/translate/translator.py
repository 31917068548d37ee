"""Strings in, strings out, in the order given, over any engine."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import get_args

import torch

from tformer_cli.config.schema.check import checked
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import (
    BeamConfig,
    DecodingConfig,
    GreedyConfig,
    SampleConfig,
)
from tformer_cli.config.schema.model import ModelConfig
from tformer_cli.corpus.prefetch import chunks
from tformer_cli.device import empty_cache, resolve_device, resolve_precision
from tformer_cli.errors import ConfigError, Problem, UsageError
from tformer_cli.model.network import Seq2Seq
from tformer_cli.search.alignment import Aligner
from tformer_cli.search.engine import Engine, NativeEngine
from tformer_cli.search.request import Hypothesis, SpecialTokens
from tformer_cli.search.workers import WorkersEngine
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import load_ensemble
from tformer_cli.text.segments import Terminology, word_separator
from tformer_cli.text.tokenizer import Tokenizer, Tokenizers
from tformer_cli.text.vocabulary import BOS_ID, DECODER_START_IDS, EOS_ID
from tformer_cli.translate.mbr import MBR
from tformer_cli.translate.postprocess import Postprocessor, Translation, best_combinations
from tformer_cli.translate.preprocess import LongLines, Preprocessor
from tformer_cli.translate.score import ScoredPair, score_pairs

# Lines read before they are sorted by length and translated: enough for full batches of equal
# length, little enough to hold in memory whatever the file.
WINDOW_LINES = 8192


class Translator:
    """A trained model that translates lines of text.

    A line of more than `max_source_length` tokens is long: training has seen none such. It is cut
    into pieces at sentence ends, or where that does not do at lesser pauses; each piece is
    translated as a line of its own, and the translations are joined. Or it loses what is beyond
    that length (`truncate`), or is refused (`error`).

    With `split`, a line of more than `max_source_sentences` sentences is cut at sentence ends too:
    a model that was trained on single sentences translates the first one and drops the rest.

    Example:
        >>> translator = Translator.load("runs/demo")  # doctest: +SKIP
        >>> translator.translate(["The girl has danced with us."])  # doctest: +SKIP
        ['Das Mädchen hat mit uns getanzt.']
    """

    def __init__(
        self,
        engine: Engine,
        tokenizers: Tokenizers,
        decoding: DecodingConfig,
        *,
        max_source_length: int,
        max_source_sentences: int | None = None,
        long_lines: LongLines = "split",
        blank: str = " ",
        source_blank: str = " ",
        aligner: Aligner | None = None,
        start_id: int = BOS_ID,
        description: str = "",
    ) -> None:
        """Join an engine and the tokenizers of its model.

        Args:
            engine: translates token ids.
            tokenizers: of the model behind the engine.
            decoding: the search where a call asks for no other.
            max_source_length: tokens of a line, `</s>` not counted, above which it is long.
            max_source_sentences: sentences of a line above which it is cut; None sets no limit.
            long_lines: what becomes of a long line.
            blank: what joins the translations of its pieces.
            source_blank: likewise in the source language.
            aligner: of the model behind the engine; without it there are no alignments.
            start_id: what the targets of that model begin with.
            description: of the model and where it is, for `repr`.

        Raises:
            UsageError: `max_source_length` or `max_source_sentences` is below 1, or `long_lines` is
                none of its choices.
        """
        _check_positive("`max_source_length`", max_source_length)
        if max_source_sentences is not None:
            _check_positive("`max_source_sentences`", max_source_sentences)
        if long_lines not in get_args(LongLines):
            raise UsageError(
                "`long_lines`", f"must be one of {', '.join(get_args(LongLines))}", got=long_lines
            )
        self.engine: Engine = engine
        self.tokenizers = tokenizers
        self.decoding = decoding
        self.max_source_length = max_source_length
        self.max_source_sentences = max_source_sentences
        self.long_lines = long_lines
        self.wording = Postprocessor(tokenizers, blank=blank, source_blank=source_blank)
        self.aligner = aligner
        self.start_id = start_id
        self.description = description
        self._has_told_of_sentences = False

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
        workers: int = 1,
        long_lines: LongLines = "split",
        max_source_length: int | None = None,
        max_source_sentences: int | None = None,
    ) -> "Translator":
        """Load the translator of a run folder, or of several as an ensemble.

        Args:
            run: the folder.
            ensemble: further runs of the same tokenizers; what counts is the mean of the
                probabilities that their models and that of `run` give.
            checkpoint: `best`, `last` or a name such as `step-000400`.
            device: auto, cpu, cuda or mps.
            precision: number format of matrix products: auto, float32, bfloat16, float16, or int8
                on a CPU.
            workers: processes that share the work on a CPU, with a thread each; 1 works in this
                process, with all threads that torch has.
            long_lines: what becomes of a long line.
            max_source_length: tokens above which a line is long; the run's
                `data.filters.max_length` where it is None.
            max_source_sentences: sentences above which a line is cut at sentence ends; as many as
                the lines of the training text had where it is None.

        Raises:
            CheckpointError: there is no such run or checkpoint, it is damaged, or the runs do not
                go together.
            DeviceError: this machine does not have the device, or that not the precision.
            UsageError: the model has not learnt positions for so many tokens; or several processes
                are to share a device other than a CPU; or `workers`, `max_source_length` or
                `max_source_sentences` is below 1, or `long_lines` is none of its choices; or a text
                is given where a list belongs.
        """
        reject_str(ensemble=ensemble)
        place = resolve_device(device)
        runs = [RunDirectory(Path(one)) for one in (run, *ensemble)]
        trained, *others = load_ensemble(runs, checkpoint)
        if max_source_sentences is None:
            max_source_sentences = trained.max_source_sentences
        translator = cls.from_model(
            trained.model,
            trained.tokenizers,
            trained.config,
            place,
            resolve_precision(precision, place),
            others=[other.model for other in others],
            long_lines=long_lines,
            max_source_length=max_source_length,
            max_source_sentences=max_source_sentences,
        )
        names = " + ".join(str(one.path) for one in runs)
        translator.description += f", {names} at step {trained.step}"
        # Their weights would stay in the memory of all workers.
        del trained, others
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
        long_lines: LongLines = "split",
        max_source_length: int | None = None,
        max_source_sentences: int | None = None,
    ) -> "Translator":
        """Return the translator of a model in memory, or with others of an ensemble.

        The models move to `device`. On a CPU their weights are laid out anew for it, so that memory
        is saved where nobody holds the models any more.

        Raises:
            UsageError: the model has not learnt positions for `max_source_length` tokens; or
                `max_source_length` or `max_source_sentences` is below 1, or `long_lines` is none of
                its choices.
            DeviceError: memory has no room for the models.
        """
        if max_source_length is None:
            max_source_length = config.data.filters.max_length
        if model.max_length is not None and max_source_length >= model.max_length:
            raise UsageError(
                "`max_source_length`",
                f"must be below the positions that the model has learnt ({model.max_length})",
                got=str(max_source_length),
                remedy="leave it out, or train with model.positions: {kind: sinusoidal}",
            )
        engine = NativeEngine(
            model,
            special_tokens(tokenizers.target, config.model),
            device=device,
            precision=precision,
            others=others,
        )
        return cls(
            engine,
            tokenizers,
            config.decoding,
            max_source_length=max_source_length,
            max_source_sentences=max_source_sentences,
            long_lines=long_lines,
            blank=word_separator(config.data.target_language),
            source_blank=word_separator(config.data.source_language),
            # One pass over many translations has matrices large enough for all threads of this
            # process, and the others have nothing to do in the meantime.
            aligner=engine.aligner,
            start_id=engine.special_tokens.bos,
            description=f"{config.data.source_language} -> {config.data.target_language}, {device}",
        )

    def start_workers(self, workers: int) -> None:
        """Let so many processes share the work on a CPU, with a thread each; 1 is this one alone.

        They begin when there are lines for them, share all memory that this process has then, and
        keep it. Those that were begun before end.

        Raises:
            UsageError: the device is no CPU, or the system cannot share memory with processes; or
                `workers` is below 1.
        """
        _check_positive("`workers`", workers)
        if isinstance(self.engine, WorkersEngine):
            # Processes that begin processes would hear the answers to each other.
            self.engine = self.engine.engine
        if workers == 1:
            return
        if isinstance(self.engine, NativeEngine) and self.engine.device.type != "cpu":
            raise UsageError(
                "`workers`", "is for a CPU", got=str(workers), remedy='use 1, or `device="cpu"`'
            )
        empty_cache(torch.device("cpu"))
        self.engine = WorkersEngine(self.engine, workers)

    def translate(
        self,
        lines: Iterable[str],
        *,
        decoding: DecodingConfig | None = None,
        mbr: MBR | None = None,
        prefixes: Iterable[str] | None = None,
        banned: Sequence[str] = (),
        required: Iterable[Sequence[str]] | None = None,
        terminology: Terminology | None = None,
        on_warning: Callable[[Problem], object] = lambda problem: None,
    ) -> list[str]:
        """Return the best translation of each line; a blank line gives an empty one.

        All else is as `nbest` says.
        """
        found = self.nbest(
            lines,
            1,
            decoding=decoding,
            mbr=mbr,
            prefixes=prefixes,
            banned=banned,
            required=required,
            terminology=terminology,
            scored=False,
            on_warning=on_warning,
        )
        return [best.text for best, *_ in found]

    def nbest(
        self,
        lines: Iterable[str],
        count: int,
        *,
        decoding: DecodingConfig | None = None,
        mbr: MBR | None = None,
        prefixes: Iterable[str] | None = None,
        banned: Sequence[str] = (),
        required: Iterable[Sequence[str]] | None = None,
        terminology: Terminology | None = None,
        scored: bool = True,
        aligned: bool = False,
        name: str | None = None,
        start: int = 1,
        step: int = 1,
        on_done: Callable[[int], object] = lambda count: None,
        on_warning: Callable[[Problem], object] = lambda problem: None,
    ) -> Iterator[list[Translation]]:
        """Yield the `count` best translations of each line, best first, in the order given.

        Args:
            lines: source text, read ahead by a window of lines.
            count: translations of each line, at most the beam size.
            decoding: the search; the run's own where it is None.
            mbr: choose among more that the search finds those that agree most with all,
                whose `score` is then the mean utility; each text comes once, so fewer may come.
                Without it the score of the search decides.
            prefixes: what the translation of each line begins with, as many as lines; of a line in
                pieces that of the first piece.
            banned: words and phrases that no translation contains, as the target tokenizer writes
                them.
            required: phrases that the translation of each line contains, each as often as it is
                listed, as many lists as lines; a blank line stays empty. Beam search alone keeps
                to them.
            terminology: terms whose translations are required where a line has them; of a line in
                pieces each piece has its own.
            scored: whether scores are wanted; without them they may be NaN.
            aligned: whether alignments are wanted.
            name: of the file that the lines are from, for messages.
            start: number of the first line, for messages and for what is drawn at random.
            step: from the number of a line to that of the next.
            on_done: called with the number of lines whenever some are translated; where long
                ones are among them, in proportion to their pieces.
            on_warning: called with each long line that is split or truncated, once in all with a
                line that is split for its sentences, and once if memory runs out and less is
                translated at a time.

        Raises:
            ConfigError: the search breaks limits or rules of its keys, or goes beyond the positions
                that the model has learnt.
            UsageError: the search keeps fewer than `count` translations, or to no phrases; or there
                is no aligner for alignments; or `count` is below 1; or a text is given where a list
                of texts belongs.
            DataError: a line is long, and that is an error here, or it has phrases and is cut into
                pieces; or a prefix or a phrase has a token that no translation has, or they are
                longer than what the model can write, or contain a banned phrase; or a required or a
                banned phrase has no token.
        """
        reject_str(lines=lines, prefixes=prefixes, banned=banned, required=required)
        if aligned and self.aligner is None:
            raise UsageError(
                "`aligned`", "needs a translator that has an aligner", remedy="leave it out"
            )
        search = _checked_search(self.decoding if decoding is None else decoding)
        _check_has_positions(search, self.engine.scorer.max_length)
        if required is not None or terminology is not None:
            _check_keeps_to_phrases(
                search, "`required`" if required is not None else "`terminology`"
            )
        num_wanted = _num_wanted(search, count, mbr)

        def on_sentences(problem: Problem) -> None:
            if not self._has_told_of_sentences:
                self._has_told_of_sentences = True
                on_warning(problem)

        requests = Preprocessor(
            self.tokenizers,
            max_source_length=self.max_source_length,
            max_source_sentences=self.max_source_sentences,
            max_target_length=self.engine.scorer.max_length,
            long_lines=self.long_lines,
            has_blanks=self.wording.blank != "",
            banned=banned,
            terminology=terminology,
            on_warning=on_warning,
            on_sentences=on_sentences,
        )
        with_prefix = zip(lines, prefixes, strict=True) if prefixes is not None else None
        both = with_prefix or ((line, "") for line in lines)
        with_phrases = zip(both, required, strict=True) if required is not None else None
        asked = with_phrases or ((pair, ()) for pair in both)
        for window in chunks(zip(itertools.count(start, step), asked), WINDOW_LINES):
            if required is not None:
                for n, (_, phrases) in window:
                    reject_str(**{f"required[{(n - start) // step}]": phrases})
            lines_in_pieces = [
                requests.of(
                    line,
                    prefix,
                    phrases,
                    number=n,
                    where=f"line {n}" if name is None else f"{name}:{n}",
                )
                for n, ((line, prefix), phrases) in window
            ]
            pieces = [piece for pieces in lines_in_pieces for piece in pieces]
            progress = _in_proportion(on_done, len(pieces), len(window))
            found = iter(
                self.engine.translate(
                    pieces,
                    search,
                    nbest=num_wanted,
                    scored=scored,
                    on_done=progress,
                    on_warning=on_warning,
                )
            )
            chosen = []
            for line_in_pieces in lines_in_pieces:
                hypotheses = [next(found) for _ in line_in_pieces]
                if mbr is not None:
                    hypotheses = [self._agreeing(piece, mbr) for piece in hypotheses]
                chosen.append(best_combinations(hypotheses, count))
            if aligned:
                assert self.aligner is not None
                yield from self.wording.aligned(self.aligner, lines_in_pieces, chosen)
            else:
                yield from ([self.wording.translation(parts) for parts in ways] for ways in chosen)

    def _agreeing(self, found: Sequence[Hypothesis], mbr: MBR) -> list[Hypothesis]:
        texts = [self.tokenizers.target.decode(one.token_ids) for one in found]
        return mbr.ranked(found, texts, has_blanks=self.wording.blank != "")

    def score(
        self,
        sources: Iterable[str],
        targets: Iterable[str],
        *,
        on_done: Callable[[int], object] = lambda count: None,
    ) -> Iterator[ScoredPair]:
        """Yield how probable given translations are, in the order given, as `score_pairs` says.

        Raises:
            UsageError: a text is given where a list of texts belongs.
            DataError: a line is longer than the positions that the model has learnt.
        """
        reject_str(sources=sources, targets=targets)
        pairs = zip(sources, targets, strict=True)
        return score_pairs(self.engine.scorer, self.tokenizers, pairs, on_done=on_done)


def _check_positive(argument: str, number: int) -> None:
    """Check that there is at least one of what an argument counts.

    Raises:
        UsageError: there is none.
    """
    if number < 1:
        raise UsageError(argument, "must be at least 1", got=str(number))


def reject_str(**arguments: object) -> None:
    """Refuse a text where a list of texts belongs: Python would take it apart into letters.

    Raises:
        UsageError: an argument is one.
    """
    for name, texts in arguments.items():
        if isinstance(texts, str):
            raise UsageError(
                f"`{name}`",
                "must be a list of texts",
                got="a text",
                remedy="put brackets around it",
            )


def _in_proportion(
    on_done: Callable[[int], object], num_pieces: int, num_lines: int
) -> Callable[[int], object]:
    """Return a listener to pieces that tells `on_done` of lines, all of them in the end."""
    pieces_done = 0

    def on_pieces(count: int) -> None:
        nonlocal pieces_done
        before = pieces_done * num_lines // num_pieces
        pieces_done += count
        on_done(pieces_done * num_lines // num_pieces - before)

    return on_pieces


def _num_wanted(search: DecodingConfig, count: int, mbr: MBR | None) -> int:
    """Return how many translations of a line a search has to find, so that `count` are left.

    Raises:
        UsageError: it keeps fewer, or none are wanted.
    """
    _check_positive("`count`", count)
    num_wanted = count if mbr is None else mbr.num_wanted(search)
    if count > num_wanted:
        raise UsageError(
            "`count`",
            f"must be at most the candidates of `mbr` ({num_wanted})",
            got=str(count),
            remedy=f"use `MBR(num_candidates={count})`",
        )
    if isinstance(search, SampleConfig):
        return num_wanted
    beam_size = search.beam_size if isinstance(search, BeamConfig) else 1
    if count > beam_size:
        raise UsageError(
            "`count`",
            f"must be at most the beam size ({beam_size})",
            got=str(count),
            remedy=f"use `BeamConfig(beam_size={count})`",
        )
    return num_wanted


def _checked_search(decoding: DecodingConfig) -> DecodingConfig:
    """Return a search that makes sense.

    Raises:
        UsageError: it is no search.
        ConfigError: every limit and rule that it breaks.
    """
    if not isinstance(decoding, BeamConfig | GreedyConfig | SampleConfig):
        raise UsageError(
            "`decoding`",
            "must be a search",
            got=repr(decoding),
            remedy="pass BeamConfig(beam_size=5), GreedyConfig() or SampleConfig()",
        )
    return checked(decoding, "decoding")


def _check_has_positions(search: DecodingConfig, longest: int | None) -> None:
    """Check that a search does not go beyond the longest translation that the model can write.

    Raises:
        ConfigError: it does.
    """
    conflicts = () if longest is None else search.conflicts_of_positions(longest)
    problems = [
        Problem(f"decoding.{conflict.key}", conflict.what, conflict.got) for conflict in conflicts
    ]
    if problems:
        raise ConfigError(problems)


def _check_keeps_to_phrases(search: DecodingConfig, argument: str) -> None:
    """Check that a search keeps to required phrases.

    Raises:
        UsageError: it does not.
    """
    if not isinstance(search, BeamConfig):
        raise UsageError(
            argument, "needs beam search", got=search.kind, remedy="use `BeamConfig(beam_size=5)`"
        )
    if search.num_beam_groups > 1:
        raise UsageError(
            argument,
            "needs a beam of one group",
            got=str(search.num_beam_groups),
            remedy="use decoding.num_beam_groups=1",
        )


def special_tokens(target: Tokenizer, model: ModelConfig) -> SpecialTokens:
    """Return the ids that mean something to a search in the target language of a model."""
    return SpecialTokens(DECODER_START_IDS[model.kind], EOS_ID, target.suppressed_ids)
