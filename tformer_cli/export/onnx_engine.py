"""onnxruntime as an engine: our searches over the graphs of an export."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tformer_cli.export.format import package
from tformer_cli.padding import pad_rows
from tformer_cli.search.continuous_batching import decode_all
from tformer_cli.search.engine import Engine, Job, OnDone, OnWarning, build_search
from tformer_cli.search.request import Hypothesis, SpecialTokens
from tformer_cli.search.scoring import Pair, empty_source_log_probs
from tformer_cli.search.stepper import Sentence, Stepper

SOURCE_FILE, STEP_FILE = "encoder.onnx", "decoder_step.onnx"
CPU = torch.device("cpu")
BATCH_SIZE = 32


class OnnxEngine(Engine):
    """Runs the graphs of a folder."""

    def __init__(self, folder: Path, tokens: SpecialTokens, *, max_length: int | None) -> None:
        """Load the graphs, for sentences of up to `max_length` tokens (None for any)."""
        onnxruntime = package("onnxruntime", "onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(str(folder / name), options, ["CPUExecutionProvider"])
            for name in (SOURCE_FILE, STEP_FILE)
        )
        self.special_tokens = tokens
        self.scorer = OnnxScorer(self, max_length)

    def decode(self, job: Job, on_done: OnDone, on_warning: OnWarning) -> list[list[Hypothesis]]:
        results: dict[int, list[Hypothesis]] = {}
        for start in range(0, len(job.requests), BATCH_SIZE):
            batch = job._replace(requests=job.requests[start : start + BATCH_SIZE])
            search = build_search(batch, self.special_tokens, CPU)
            # A slot for each sentence, so none is inserted later: sequences of a graph have one
            # length.
            decoded = decode_all(self.stepper(), search, batch.requests, lambda _: BATCH_SIZE)
            for index, hypotheses in decoded:
                results[start + index] = hypotheses
                on_done(1)
        return [results[index] for index in range(len(job.requests))]

    def stepper(self) -> "OnnxStepper":
        """Return a stepper over the graphs."""
        return OnnxStepper(self.encoder, self.decoder)


class OnnxStepper(Stepper):
    """Sequences of one length that all start together."""

    def __init__(self, encoder: Any, decoder: Any) -> None:
        self.encoder, self.decoder = encoder, decoder
        self.source_names = [node.name for node in encoder.get_outputs()]
        nodes = [node for node in decoder.get_inputs() if node.name.startswith("past_")]
        self.past_names = [node.name for node in nodes]
        self.empty = [(node.shape[1], 0, node.shape[3]) for node in nodes]
        self.num_beams = 1
        self.inputs: dict[str, Any] = {}
        self.past: list[Any] = []

    def start(self, sentences: Sequence[Sentence], num_beams: int) -> None:
        """Encode the sentences for `num_beams` sequences each."""
        source, mask = (part.numpy() for part in pad_rows(sentences))
        cross = self.encoder.run(None, {"source": source, "source_mask": mask})
        self.num_beams = num_beams
        names = ("source_mask", *self.source_names)
        repeated = (np.repeat(part, num_beams, axis=0) for part in (mask, *cross))
        self.inputs = dict(zip(names, repeated, strict=True))
        count = len(sentences) * num_beams
        self.past = [np.zeros((count, *shape), np.float32) for shape in self.empty]

    def insert(
        self, slots: Tensor, sentences: Sequence[Sentence], lookahead: Iterable[Sentence]
    ) -> None:
        """Refuse: sequences have one length."""
        raise NotImplementedError("sequences of a graph start together")

    def step(self, ids: Tensor) -> Tensor:
        """Append a token (B, K) to each sequence; return the next log probabilities (B, K, V)."""
        past = dict(zip(self.past_names, self.past, strict=True))
        inputs = {"token": ids.reshape(-1, 1).numpy(), **self.inputs, **past}
        log_probs, *self.past = self.decoder.run(None, inputs)
        return torch.from_numpy(log_probs).view(*ids.shape, -1)

    def reorder(self, beam_indices: Tensor) -> None:
        """Continue other sequences of the same slot."""
        first = torch.arange(len(beam_indices))[:, None] * self.num_beams
        self._select_past((first + beam_indices).flatten())

    def select(self, slots: Tensor) -> None:
        """Keep these slots, in this order."""
        rows = (slots[:, None] * self.num_beams + torch.arange(self.num_beams)).flatten()
        self.inputs = {name: part[rows.numpy()] for name, part in self.inputs.items()}
        self._select_past(rows)

    def _select_past(self, rows: Tensor) -> None:
        self.past = [part[rows.numpy()] for part in self.past]


class OnnxScorer:
    """Scores given translations, one pair at a time."""

    def __init__(self, engine: OnnxEngine, max_length: int | None) -> None:
        self.engine = engine
        self.max_length = max_length

    def score(
        self, pairs: Sequence[Pair], *, on_done: Callable[[int], object] = lambda count: None
    ) -> list[tuple[float, ...]]:
        scores = []
        for source, target in pairs:
            scores.append(self._score(source, target) if source else empty_source_log_probs(target))
            on_done(1)
        return scores

    def _score(self, source: Sequence[int], target: Sequence[int]) -> tuple[float, ...]:
        special, stepper = self.engine.special_tokens, self.engine.stepper()
        stepper.start([source], 1)
        tokens = (special.bos, *target, special.eos)
        return tuple(
            float(stepper.step(torch.tensor([[token]]))[0, 0, following])
            for token, following in itertools.pairwise(tokens)
        )
