"""How fast a member trains and translates, and what it remembers of a token: in its own process."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from apart import printed
from trainers.worker import Worker

from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.corpus.reader import read_pairs
from tformer_cli.process import ENVIRONMENT, tune_allocator
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.translate.translator import Translator

CPU = torch.device("cpu")
FLOAT_BYTES = 4
# Tokens of every translation whose time is taken, about as many as a caption has: members that
# have learnt too little to end their sentences have no more to write than the others.
NUM_TOKENS = 16
SEARCH = GreedyConfig(min_length=NUM_TOKENS - 1, max_length=NUM_TOKENS)


@dataclass(frozen=True, slots=True)
class Speed:
    """One turn of one member.

    Attributes:
        training: target tokens a second.
        decoding: target tokens a second, greedy, many sentences of one length at a time.
    """

    training: float
    decoding: float


def take_turn(run: RunDirectory, lines: int, *, seconds: float, threads: int) -> Speed:
    """Let a trained member train for some seconds, and translate some lines.

    Args:
        run: of the member; the training goes nowhere.
        lines: of its first test set.
        seconds: of training.
        threads: of each.
    """
    with Worker("ours", "float32", threads, run) as worker:
        worker.answer()
        turn = worker.ask(steps=None, seconds=seconds)
    words = [str(run.path), str(lines), str(threads)]
    found = printed("members.speed.translate_apart", *words, environment=ENVIRONMENT)
    return Speed(turn["num_tokens"] / turn["seconds"], json.loads(found))


def translate_apart(folder: str, count: str, threads: str) -> None:
    """Print how many target tokens a run writes a second."""
    torch.set_num_threads(int(threads))
    tune_allocator()
    run = RunDirectory(Path(folder))
    trained = load_trained_model(run)
    text = next(iter(trained.config.data.test.values()))
    lines = [source for source, _ in read_pairs(text.source, text.target)][: int(count)]
    translator = Translator.from_model(trained.model, trained.tokenizers, trained.config, CPU)
    translator.translate(lines[:8], decoding=SEARCH)
    print(json.dumps(tokens_a_second(translator, lines)))


def tokens_a_second(translator: Translator, lines: Sequence[str]) -> float:
    """Return how many target tokens are written a second, NUM_TOKENS of each line."""
    start = time.perf_counter()
    translator.translate(lines, decoding=SEARCH)
    return NUM_TOKENS * len(lines) / (time.perf_counter() - start)


def cache_bytes(run: RunDirectory) -> int:
    """Return what a trained member remembers of a target token, over all layers, in float32."""
    stack = load_trained_model(run).model.stacks()[-1]
    return FLOAT_BYTES * sum(shape.size for shape in stack.kv_shapes())
