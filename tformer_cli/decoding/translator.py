"""Strings in, strings out, in the order given, over any engine."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tformer_cli.checkpoint import load_trained_model
from tformer_cli.config.schema import Config, DecodingConfig
from tformer_cli.corpus.chunks import chunks
from tformer_cli.corpus.pipeline import too_long
from tformer_cli.decoding.engine import Engine, NativeEngine
from tformer_cli.decoding.hypothesis import Hypothesis
from tformer_cli.decoding.processors import TokenRoles
from tformer_cli.device import resolve_device
from tformer_cli.errors import UsageError
from tformer_cli.model.seq2seq import Seq2Seq
from tformer_cli.run_directory import RunDirectory
from tformer_cli.text.tokenizer import Tokenizer, Tokenizers
from tformer_cli.text.vocabulary import END_ID, START_ID

# Lines read before they are sorted by length and translated: enough for full batches of equal
# length, little enough to hold in memory whatever the file.
WINDOW_LINES = 8192


@dataclass(frozen=True, slots=True)
class Translation:
    """One translation of a line.

    Attributes:
        text: the translation.
        tokens: its tokens as the model wrote them.
        score: what the search ranked it by.
        log_prob: natural logarithm of its probability.
    """

    text: str
    tokens: tuple[str, ...]
    score: float
    log_prob: float


class Translator:
    """A trained model that translates lines of text.

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
        max_length: int | None = None,
    ) -> None:
        """Join an engine and the tokenizers of its model.

        Args:
            engine: translates token ids.
            tokenizers: of the model behind the engine.
            decoding: the search where a call asks for no other.
            max_length: source tokens that the model takes, `</s>` included, or None for any
                number.
        """
        self.engine = engine
        self.max_length = max_length
        self.tokenizers = tokenizers
        self.decoding = decoding

    @classmethod
    def load(
        cls, run: str | Path, *, checkpoint: str = "best", device: str = "auto"
    ) -> "Translator":
        """Load the translator of a run folder.

        Args:
            run: the folder.
            checkpoint: `best`, `last` or a name such as `step-000400`.
            device: auto, cpu, cuda or mps.

        Raises:
            CheckpointError: there is no such run or checkpoint, or it is damaged.
            DeviceError: this machine does not have the device.
        """
        trained = load_trained_model(RunDirectory(Path(run)), checkpoint)
        return cls.of_model(
            trained.model, trained.tokenizers, trained.config, resolve_device(device)
        )

    @classmethod
    def of_model(
        cls,
        model: Seq2Seq,
        tokenizers: Tokenizers,
        config: Config,
        device: torch.device,
        precision: torch.dtype = torch.float32,
    ) -> "Translator":
        """Return the translator of a model in memory; the model moves to `device`."""
        engine = NativeEngine(
            model.to(device), token_roles(tokenizers.target), device=device, precision=precision
        )
        return cls(engine, tokenizers, config.decoding, max_length=model.max_length)

    def translate(
        self, lines: Iterable[str], *, decoding: DecodingConfig | None = None
    ) -> list[str]:
        """Return the best translation of each line; a blank line gives an empty one."""
        return [best.text for best, *_ in self.nbest(lines, 1, decoding=decoding)]

    def nbest(
        self,
        lines: Iterable[str],
        count: int,
        *,
        decoding: DecodingConfig | None = None,
        on_done: Callable[[int], object] = lambda count: None,
    ) -> Iterator[list[Translation]]:
        """Yield the `count` best translations of each line, best first, in the order given.

        Args:
            lines: source text, read ahead by a window of lines.
            count: translations of each line, at most the beam size.
            decoding: the search; the run's own where it is None.
            on_done: called with the number of lines whenever some are translated.

        Raises:
            UsageError: the search keeps fewer than `count` translations.
            DataError: a line is longer than the model takes.
        """
        search = self.decoding if decoding is None else decoding
        beam_size = 1 if search.kind == "greedy" else search.size
        if count > beam_size:
            raise UsageError(
                "--nbest",
                f"must be at most the beam size ({beam_size})",
                got=str(count),
                remedy=f"use --beam {count}",
            )
        numbered = enumerate(lines, start=1)
        for window in chunks(numbered, WINDOW_LINES):
            sentences = [self._encode(number, line) for number, line in window]
            for hypotheses in self.engine.translate(
                sentences, search, nbest=count, on_done=on_done
            ):
                yield [self._translation(hypothesis) for hypothesis in hypotheses]

    def _encode(self, number: int, line: str) -> Sequence[int]:
        ids = self.tokenizers.source.encode(line)
        if self.max_length is not None and len(ids) >= self.max_length:
            raise too_long(f"line {number}", len(ids) + 1, self.max_length)
        return [*ids, END_ID] if ids else []

    def _translation(self, hypothesis: Hypothesis) -> Translation:
        target = self.tokenizers.target
        return Translation(
            text=target.decode(hypothesis.token_ids),
            tokens=tuple(target.tokens(hypothesis.token_ids)),
            score=hypothesis.score,
            log_prob=hypothesis.log_prob,
        )


def token_roles(target: Tokenizer) -> TokenRoles:
    """Return the ids that mean something to a search in the target language."""
    return TokenRoles(START_ID, END_ID, target.suppressed_ids)
