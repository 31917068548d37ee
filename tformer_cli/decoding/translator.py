"""Strings in, strings out, in the order given, over any engine."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from tformer_cli.checkpoint.trained_model import load_trained_model
from tformer_cli.config.schema import BeamConfig, Config, DecodingConfig, SampleConfig
from tformer_cli.corpus.chunks import chunks
from tformer_cli.decoding.engine import Engine, NativeEngine
from tformer_cli.decoding.hypothesis import Hypothesis
from tformer_cli.decoding.processors import TokenRoles
from tformer_cli.decoding.request import Request
from tformer_cli.decoding.workers import WorkersEngine
from tformer_cli.device import resolve_device
from tformer_cli.errors import DataError, Problem, UsageError
from tformer_cli.model.seq2seq import Seq2Seq
from tformer_cli.run_directory import RunDirectory
from tformer_cli.text.segments import blank_between, segments
from tformer_cli.text.tokenizer import Tokenizer, Tokenizers
from tformer_cli.text.vocabulary import END_ID, START_ID

# Lines read before they are sorted by length and translated: enough for full batches of equal
# length, little enough to hold in memory whatever the file.
WINDOW_LINES = 8192

# Numbers the pieces of a line, for what is drawn at random.
MOST_PIECES = 1 << 20

LongLines = Literal["split", "truncate", "error"]


@dataclass(frozen=True, slots=True)
class Translation:
    """One translation of a line.

    Attributes:
        text: the translation.
        tokens: its tokens as the model wrote them.
        score: what the search ranked it by; of a line in pieces the mean over them.
        log_prob: natural logarithm of its probability; of a line in pieces the sum over them.
    """

    text: str
    tokens: tuple[str, ...]
    score: float
    log_prob: float


class Translator:
    """A trained model that translates lines of text.

    A line of more than `max_source_length` tokens is long: training has seen none such. It is cut
    into pieces at sentence ends, or where that does not do at lesser pauses; each piece is
    translated as a line of its own, and the translations are joined. Or it loses what is beyond
    that length (`truncate`), or is refused (`error`).

    Example:
        >>> translator = Translator.load("runs/demo")  # doctest: +SKIP
        >>> translator.translate(["The old dog sleeps."])  # doctest: +SKIP
        ['Der alte Hund schläft.']
    """

    def __init__(
        self,
        engine: Engine,
        tokenizers: Tokenizers,
        decoding: DecodingConfig,
        *,
        max_source_length: int,
        long_lines: LongLines = "split",
        blank: str = " ",
    ) -> None:
        """Join an engine and the tokenizers of its model.

        Args:
            engine: translates token ids.
            tokenizers: of the model behind the engine.
            decoding: the search where a call asks for no other.
            max_source_length: tokens of a line, `</s>` not counted, above which it is long.
            long_lines: what becomes of a long line.
            blank: what joins the translations of its pieces.
        """
        self.engine = engine
        self.tokenizers = tokenizers
        self.decoding = decoding
        self.max_source_length = max_source_length
        self.long_lines = long_lines
        self.blank = blank

    @classmethod
    def load(
        cls,
        run: str | Path,
        *,
        checkpoint: str = "best",
        device: str = "auto",
        workers: int = 1,
        long_lines: LongLines = "split",
        max_source_length: int | None = None,
    ) -> "Translator":
        """Load the translator of a run folder.

        Args:
            run: the folder.
            checkpoint: `best`, `last` or a name such as `step-000400`.
            device: auto, cpu, cuda or mps.
            workers: processes that share the work on a CPU, with a thread each; 1 works in this
                process, with all threads that torch has.
            long_lines: what becomes of a long line.
            max_source_length: tokens above which a line is long; the run's
                `data.filters.max_length` where it is None.

        Raises:
            CheckpointError: there is no such run or checkpoint, or it is damaged.
            DeviceError: this machine does not have the device.
            UsageError: the model has not learnt positions for so many tokens.
        """
        trained = load_trained_model(RunDirectory(Path(run)), checkpoint)
        return cls.of_model(
            trained.model,
            trained.tokenizers,
            trained.config,
            resolve_device(device),
            workers=workers,
            long_lines=long_lines,
            max_source_length=max_source_length,
        )

    @classmethod
    def of_model(
        cls,
        model: Seq2Seq,
        tokenizers: Tokenizers,
        config: Config,
        device: torch.device,
        precision: torch.dtype = torch.float32,
        *,
        workers: int = 1,
        long_lines: LongLines = "split",
        max_source_length: int | None = None,
    ) -> "Translator":
        """Return the translator of a model in memory; the model moves to `device`.

        Raises:
            UsageError: the model has not learnt positions for `max_source_length` tokens.
        """
        if max_source_length is None:
            max_source_length = config.data.filters.max_length
        if model.max_length is not None and max_source_length >= model.max_length:
            raise UsageError(
                "--max-source-length",
                f"must be below the positions that the model has learnt ({model.max_length})",
                got=str(max_source_length),
                remedy="leave it out, or train with model.positions: {kind: sinusoidal}",
            )
        engine: Engine = NativeEngine(
            model.to(device), token_roles(tokenizers.target), device=device, precision=precision
        )
        return cls(
            engine if workers == 1 else WorkersEngine(engine, workers),
            tokenizers,
            config.decoding,
            max_source_length=max_source_length,
            long_lines=long_lines,
            blank=blank_between(config.data.target_language),
        )

    def translate(
        self,
        lines: Iterable[str],
        *,
        decoding: DecodingConfig | None = None,
        on_long_line: Callable[[Problem], object] = lambda problem: None,
    ) -> list[str]:
        """Return the best translation of each line; a blank line gives an empty one."""
        found = self.nbest(lines, 1, decoding=decoding, scored=False, on_long_line=on_long_line)
        return [best.text for best, *_ in found]

    def nbest(
        self,
        lines: Iterable[str],
        count: int,
        *,
        decoding: DecodingConfig | None = None,
        prefixes: Iterable[str] | None = None,
        banned: Sequence[str] = (),
        scored: bool = True,
        name: str | None = None,
        start: int = 1,
        on_done: Callable[[int], object] = lambda count: None,
        on_long_line: Callable[[Problem], object] = lambda problem: None,
    ) -> Iterator[list[Translation]]:
        """Yield the `count` best translations of each line, best first, in the order given.

        Args:
            lines: source text, read ahead by a window of lines.
            count: translations of each line, at most the beam size.
            decoding: the search; the run's own where it is None.
            prefixes: what the translation of each line begins with, as many as lines; of a line in
                pieces that of the first piece.
            banned: words and phrases that no translation contains, as the target tokenizer writes
                them.
            scored: whether scores are wanted; without them they may be NaN.
            name: of the file that the lines are from, for messages.
            start: number of the first line, for messages.
            on_done: called with the number of lines whenever some are translated; where long
                ones are among them, in proportion to their pieces.
            on_long_line: called with each long line that is split or truncated.

        Raises:
            UsageError: the search keeps fewer than `count` translations.
            DataError: a line is long, and that is an error here; or a prefix or a banned word has
                a token that no translation has.
        """
        search = self.decoding if decoding is None else decoding
        if not isinstance(search, SampleConfig):
            beam_size = search.size if isinstance(search, BeamConfig) else 1
            if count > beam_size:
                raise UsageError(
                    "--nbest",
                    f"must be at most the beam size ({beam_size})",
                    got=str(count),
                    remedy=f"use --beam {count}",
                )
        phrases = tuple(self._target_ids(phrase, "a banned word") for phrase in banned)
        with_prefix = zip(lines, prefixes, strict=True) if prefixes is not None else None
        both = with_prefix or ((line, "") for line in lines)
        for window in chunks(enumerate(both, start), WINDOW_LINES):
            lines_in_pieces = []
            for n, (line, prefix) in window:
                where = f"line {n}" if name is None else f"{name}:{n}"
                first = self._target_ids(prefix, f"the prefix of {where}")
                lines_in_pieces.append(
                    [
                        Request(
                            source=source,
                            prefix=() if place else first,
                            banned=phrases,
                            number=n * MOST_PIECES + place,
                        )
                        for place, source in enumerate(self._pieces(line, where, on_long_line))
                    ]
                )
            pieces = [piece for pieces in lines_in_pieces for piece in pieces]
            progress = _in_proportion(on_done, len(pieces), len(window))
            found = iter(
                self.engine.translate(pieces, search, nbest=count, scored=scored, on_done=progress)
            )
            for line_in_pieces in lines_in_pieces:
                hypotheses = [next(found) for _ in line_in_pieces]
                yield [self._translation(parts) for parts in best_combinations(hypotheses, count)]

    def _target_ids(self, text: str, where: str) -> tuple[int, ...]:
        """Return the ids of a text that is to be, or not to be, in a translation."""
        target = self.tokenizers.target
        ids = tuple(target.encode(text))
        if impossible := set(ids) & set(target.suppressed_ids):
            token = target.tokens([min(impossible)])[0]
            raise DataError(
                where, "has a token that no translation has", got=f"{token} in {text!r}"
            )
        return ids

    def _pieces(
        self, line: str, where: str, on_long_line: Callable[[Problem], object]
    ) -> list[list[int]]:
        """Return the source ids of a line, or of each piece of a long one."""
        encode, most = self.tokenizers.source.encode, self.max_source_length
        ids = encode(line)
        if len(ids) <= most:
            return [_ended(ids)]
        what, got = f"is longer than {most:,} tokens", f"{len(ids):,}"
        if self.long_lines == "error":
            raise DataError(where, what, got=got, remedy="split it, or use --long-lines split")
        if self.long_lines == "truncate":
            pieces = [ids[:most]]
            outcome = f"only the first {most:,} are translated"
        else:
            # No sentence of training ends in blanks; to some tokenizers they are tokens.
            texts = segments(line, most, lambda text: len(encode(text.strip())))
            # A single character may have more tokens than there is room for.
            pieces = [encode(text.strip())[:most] for text in texts]
            noun = "piece" if len(pieces) == 1 else "pieces"
            outcome = f"translated in {len(pieces):,} {noun}"
        on_long_line(Problem(where, what, got, outcome))
        return [_ended(piece) for piece in pieces]

    def _translation(self, pieces: Sequence[Hypothesis]) -> Translation:
        target = self.tokenizers.target
        texts = [target.decode(piece.token_ids) for piece in pieces]
        return Translation(
            text=self.blank.join(text for text in texts if text),
            tokens=tuple(token for piece in pieces for token in target.tokens(piece.token_ids)),
            score=sum(piece.score for piece in pieces) / len(pieces),
            log_prob=sum(piece.log_prob for piece in pieces),
        )


def best_combinations(
    pieces: Sequence[Sequence[Hypothesis]], count: int
) -> list[tuple[Hypothesis, ...]]:
    """Return the `count` ways to take a translation of each piece whose scores sum highest.

    Args:
        pieces: the translations of each piece, best first.
        count: how many ways are wanted; fewer come where there are fewer.

    Returns:
        One translation a piece, the best way first.
    """
    best: list[tuple[float, tuple[Hypothesis, ...]]] = [(0.0, ())]
    for hypotheses in pieces:
        # Of ranks i and j, counted from one, i * j - 1 other pairs are no worse.
        pairs = (
            (total + hypothesis.score, (*chosen, hypothesis))
            for rank, (total, chosen) in enumerate(best, start=1)
            for hypothesis in hypotheses[: count // rank]
        )
        best = heapq.nlargest(count, pairs, key=lambda pair: pair[0])
    return [chosen for _, chosen in best]


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


def _ended(ids: Sequence[int]) -> list[int]:
    """Put the end token after the ids of a sentence; an empty one stays empty."""
    return [*ids, END_ID] if ids else []


def token_roles(target: Tokenizer) -> TokenRoles:
    """Return the ids that mean something to a search in the target language."""
    return TokenRoles(START_ID, END_ID, target.suppressed_ids)
