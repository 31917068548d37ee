"""Baselines that train, and the process in which each trains.

Both train Marian's network: post-norm, sinusoidal positions, tied embeddings, dropout on embeddings
and on the output of each block. They begin with the same weights and see the same batches.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from baseline_marian import marian_like, marian_steps
from flops import CPU
from harness import ROOT, Worker

from tformer_cli.config.load import dump_config, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.corpus.batch import Batch
from tformer_cli.corpus.training_text import training_pairs
from tformer_cli.device import peak_memory
from tformer_cli.storage.atomic import write_text
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers, load_tokenizers
from tformer_cli.training.logging import TrainingLogger
from tformer_cli.training.step import NonFiniteStep, StepBatch, TrainState, train_steps

WARM_UP_STEPS = 10
CONFIG = ROOT / "configs" / "multi30k-tiny.yaml"
# Its text in one direction, once a step, and its newest weights: the speed of a step is measured.
PLAIN = (
    "training.bidirectional_steps=null",
    "training.consistency=null",
    "training.average_checkpoints=null",
)
# Marian's design, with its dropout, so that all train one network.
DESIGN = ("model.norm_position=post", "model.norm_epsilon=1e-5", "model.feedforward_dropout=0.0")


def network(dim: int, layers: int, heads: int, feedforward_dim: int) -> tuple[str, ...]:
    """Return the settings of Marian's design in a size."""
    return (
        *DESIGN,
        f"model.dim={dim}",
        f"model.num_encoder_layers={layers}",
        f"model.num_decoder_layers={layers}",
        f"model.num_heads={heads}",
        f"model.feedforward_dim={feedforward_dim}",
    )


TINY, SMALL = network(128, 4, 4, 256), network(256, 3, 8, 1024)
# Of Vaswani et al. 2017, table 3.
BASE, BIG = network(512, 6, 8, 2048), network(1024, 6, 16, 4096)


def prepared(config: Config, folder: Path) -> RunDirectory:
    """Write the config and the tokenizers of a training into a folder, for its processes."""
    run = RunDirectory(folder)
    write_text(run.config_file, dump_config(config))
    pairs = training_pairs(config.data)
    build_tokenizers(config.tokenizer, pairs, config.seed).save(run.tokenizer)
    return run


def marian_state(ours: TrainState, config: Config, tokenizers: Tokenizers) -> TrainState:
    """Return transformers' Marian with the weights of ours, and an optimizer as ours."""
    marian = marian_like(ours.model, config, tokenizers).to(ours.device)
    settings = {"device": ours.device, "precision": ours.precision, "seed": config.seed}
    return TrainState.of(marian, config.training, **settings)


def our_steps(state: TrainState, batches: Iterable[StepBatch]) -> Iterator[float]:
    """Take a step of ours per batch; yield its loss.

    Raises:
        RuntimeError: a step was skipped or done in pieces, which is no measurement.
    """
    for report in train_steps(state, batches):
        if isinstance(report, NonFiniteStep) or report.num_oom_micro_batches:
            raise RuntimeError(f"no plain step: {report}")
        yield report.loss


# Ours, and transformers' Marian in a loop as good: sorted batches, SDPA, fused optimizer.
BASELINES = {"ours": our_steps, "hf": marian_steps}


@dataclass(frozen=True, slots=True)
class Step:
    """An optimizer step that has been taken."""

    batches: Sequence[Batch]  # one, or those of gradient accumulation
    loss: float  # smoothed, per target token before the step, in nats
    seconds: float  # wall-clock time, waiting for the batch included
    loading_seconds: float  # of these, waiting for the batch

    @property
    def num_target_tokens(self) -> int:
        """Target tokens with a loss: EOS has one, BOS and padding have none."""
        return sum(batch.num_target_tokens for batch in self.batches)


def steps_of(name: str, state: TrainState, batches: Iterable[StepBatch]) -> Iterator[Step]:
    """Take a step of a baseline for each batch, and time it."""
    batches, fed = itertools.tee(batches)
    losses = BASELINES[name](state, fed)
    started = time.perf_counter()
    for batch in batches:
        loaded = time.perf_counter()
        loss = next(losses)
        ended = time.perf_counter()
        yield Step(batch.micro_batches, loss, ended - started, loaded - started)
        started = time.perf_counter()


def take_steps(steps: Iterator[Step], seconds: float) -> list[Step]:
    """Take steps until they have taken some seconds, one at least."""
    taken, elapsed = [], 0.0
    for step in steps:
        taken.append(step)
        elapsed += step.seconds
        if elapsed >= seconds:
            break
    return taken


@contextlib.contextmanager
def training_workers(
    entries: Mapping[str, tuple[str, RunDirectory]], threads: int
) -> Iterator[dict[str, Worker]]:
    """Start a process for each entry: a baseline on the config and tokenizers of a run folder."""
    with contextlib.ExitStack() as stack:
        workers = {}
        for entry, (name, run) in entries.items():
            arguments = {"name": name, "folder": str(run.path), "threads": threads}
            worker = Worker("train_baselines.serve_training", **arguments)
            workers[entry] = stack.enter_context(worker)
        for worker in workers.values():
            # One step, so that none starts or warms up beside another's first turn.
            worker.ask(seconds=0)
        yield workers


def serve_training(
    name: str, folder: str, threads: int
) -> Callable[[dict[str, float]], dict[str, float]]:
    """Return what trains for some seconds when asked to, after some steps as a warm-up."""
    # It needs sacrebleu, which may be missing where a GPU is; gpu_throughput.py does without.
    from tformer_cli.training.trainer import Trainer

    torch.set_num_threads(threads)
    run = RunDirectory(Path(folder))
    config, tokenizers = load_config(run.config_file), load_tokenizers(run.tokenizer)
    logger = TrainingLogger(None, config.training)
    trainer = Trainer.setup(config, run, tokenizers, device=CPU, logger=logger)
    trainer.initialize()
    state = trainer.state if name == "ours" else marian_state(trainer.state, config, tokenizers)
    # Without an end; the process ends with its standard input.
    steps = steps_of(name, state, trainer.data.batches(state))
    for _ in itertools.islice(steps, WARM_UP_STEPS):
        pass

    def answer(request: dict[str, float]) -> dict[str, float]:
        taken = take_steps(steps, request["seconds"])
        seconds = sum(step.seconds for step in taken)
        num_tokens = sum(step.num_target_tokens for step in taken)
        return {"tokens_per_second": num_tokens / seconds, "peak_mib": peak_memory(CPU) / 2**20}

    return answer
