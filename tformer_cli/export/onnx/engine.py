"""onnxruntime as an engine: our searches, which ask the graphs of a folder what may come next."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.errors import Problem
from tformer_cli.export.extra import package
from tformer_cli.padding import pad_rows
from tformer_cli.search.continuous_batching import decode_all
from tformer_cli.search.engine import build_search, longest_first
from tformer_cli.search.request import EMPTY, Hypothesis, Request, SpecialTokens
from tformer_cli.search.scoring import Pair, empty_source_log_probs
from tformer_cli.search.stepper import Sentence, Stepper

SOURCE_FILE, STEP_FILE = "encoder.onnx", "decoder_step.onnx"
CPU = torch.device("cpu")
# Sentences at work together.
BATCH = 32


class OnnxEngine:
    """Runs the graphs of an export.

    Attributes:
        scorer: says how probable given translations are.
    """

    def __init__(self, folder: Path, roles: SpecialTokens, *, max_length: int | None) -> None:
        """Load the graphs.

        Args:
            folder: what was exported.
            roles: start, end and suppressed ids.
            max_length: longest sentence in tokens, or None where any length will do.

        Raises:
            UsageError: onnxruntime is not installed.
        """
        onnxruntime = package("onnxruntime", "onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.reading, self.stepping = (
            onnxruntime.InferenceSession(str(folder / name), options, ["CPUExecutionProvider"])
            for name in (SOURCE_FILE, STEP_FILE)
        )
        self.special_tokens = roles
        self.scorer = OnnxScorer(self, max_length)

    def translate(
        self,
        requests: Sequence[Request],
        config: DecodingConfig,
        *,
        nbest: int = 1,
        scored: bool = True,
        on_done: Callable[[int], object] = lambda count: None,
        on_warning: Callable[[Problem], object] = lambda problem: None,
    ) -> list[list[Hypothesis]]:
        """Return translations, as `Engine` says."""
        found = [[EMPTY] * nbest for _ in requests]
        order = longest_first(requests)
        on_done(len(requests) - len(order))
        for start in range(0, len(order), BATCH):
            numbers = order[start : start + BATCH]
            batch = [requests[number] for number in numbers]
            search = build_search(
                config, self.special_tokens, CPU, batch, nbest=nbest, scored=scored
            )
            # With a place for each sentence none begins while others are under way: a graph wants
            # rows of one length.
            for turn, hypotheses in decode_all(self.stepper(), search, batch, lambda _: BATCH):
                found[numbers[turn]] = hypotheses
                on_done(1)
        return found

    def stepper(self) -> "OnnxStepper":
        """Return what asks the graphs."""
        return OnnxStepper(self.reading, self.stepping)


class OnnxStepper(Stepper):
    """Rows of one length, which all begin at once."""

    def __init__(self, reading: Any, stepping: Any) -> None:
        """Take the sessions of the two graphs."""
        self.reading, self.stepping = reading, stepping
        self.source_names = [node.name for node in reading.get_outputs()]
        past = [node for node in stepping.get_inputs() if node.name.startswith("past_")]
        self.past_names = [node.name for node in past]
        self.empty = [(node.shape[1], 0, node.shape[3]) for node in past]

    def start(self, sentences: Sequence[Sentence], num_beams: int) -> None:
        """Read the sentences, each for so many rows."""
        source, mask = (part.numpy() for part in pad_rows(sentences))
        found = self.reading.run(None, {"source": source, "source_mask": mask})
        self.num_beams = num_beams
        self.seen = dict(
            zip(
                ("source_mask", *self.source_names),
                (np.repeat(part, num_beams, axis=0) for part in (mask, *found)),
                strict=True,
            )
        )
        count = len(sentences) * num_beams
        self.past = [np.zeros((count, *shape), np.float32) for shape in self.empty]

    def insert(
        self, places: Tensor, sentences: Sequence[Sentence], lookahead: Iterable[Sentence]
    ) -> None:
        """Refuse: the rows that are there are longer than new ones."""
        raise NotImplementedError("rows of a graph begin together")

    def step(self, ids: Tensor) -> Tensor:
        """Add one token (B, K) to each row; return the log probabilities (B, K, V) that follow."""
        past = dict(zip(self.past_names, self.past, strict=True))
        inputs = {"token": ids.reshape(-1, 1).numpy(), **self.seen, **past}
        log_probs, *self.past = self.stepping.run(None, inputs)
        return torch.from_numpy(log_probs).view(*ids.shape, -1)

    def reorder(self, beam_indices: Tensor) -> None:
        """Let rows go on from others of their place."""
        first = torch.arange(len(beam_indices))[:, None] * self.num_beams
        self._take((first + beam_indices).flatten())

    def select(self, places: Tensor) -> None:
        """Keep these places, in this order."""
        rows = (places[:, None] * self.num_beams + torch.arange(self.num_beams)).flatten()
        self.seen = {name: part[rows.numpy()] for name, part in self.seen.items()}
        self._take(rows)

    def _take(self, rows: Tensor) -> None:
        self.past = [part[rows.numpy()] for part in self.past]


class OnnxScorer:
    """Asks the graphs, one pair after the other.

    Attributes:
        max_length: longest source or target, or None where any length will do.
    """

    def __init__(self, engine: OnnxEngine, max_length: int | None) -> None:
        self.engine = engine
        self.max_length = max_length

    def score(
        self,
        pairs: Sequence[Pair],
        *,
        on_done: Callable[[int], object] = lambda count: None,
    ) -> list[tuple[float, ...]]:
        """Return log probabilities, as `Scorer` says."""
        found = []
        for source, target in pairs:
            found.append(self._score(source, target) if source else empty_source_log_probs(target))
            on_done(1)
        return found

    def _score(self, source: Sequence[int], target: Sequence[int]) -> tuple[float, ...]:
        roles, stepper = self.engine.special_tokens, self.engine.stepper()
        stepper.start([source], 1)
        tokens = (roles.bos, *target, roles.eos)
        return tuple(
            float(stepper.step(torch.tensor([[token]]))[0, 0, following])
            for token, following in itertools.pairwise(tokens)
        )
