#!/usr/bin/env python
"""Train transformers' Marian model beside a finished run, and compare their translations.

Marian gets the run's vocabulary, its batches in their order, its width, layers, heads, activation,
dropout, tied embeddings, optimiser, schedule, label smoothing and number of steps, in float32. Its
own are: norms behind the blocks, first weights by transformers, positions by sine and cosine, and
the dropout of embeddings, which is `model.dropout`. It goes on where it was interrupted.

Norms behind the blocks may want a gentler --learning-rate, and a narrow model first weights larger
than transformers' 0.02: --init-std of about dim ** -0.5.

Example: python scripts/bench/marian.py runs/multi30k --learning-rate 1e-3 --init-std 0.07
"""

import os

from tformer_cli.process import ENVIRONMENT

# As `tformer train` has it; read when torch is imported.
os.environ.update(ENVIRONMENT | os.environ)

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from peers.marian import (
    INIT_STD,
    build_marian,
    count_parameters,
    longest,
    mean_nll,
    refuse_another_size,
    score,
)
from peers.marian_training import OPTIMIZERS, train_marian, with_optimizer

from tformer_cli.cli.options import chosen_decoding
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import ParallelText
from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.corpus.pipeline import batches_in_order, evaluation_store, training_store
from tformer_cli.device import resolve_device
from tformer_cli.errors import CheckpointError, TformerError, UsageError
from tformer_cli.evaluation.evaluate import (
    LIKELIHOOD_BATCH_TOKENS,
    Evaluator,
    reference_likelihood,
)
from tformer_cli.evaluation.metrics import Score, build_metric
from tformer_cli.process import tune_allocator
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import TrainingProgress, load_state
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.translate.translator import Translator


def compare(
    run: RunDirectory,
    *,
    split: str = "test",
    checkpoint: str = "last",
    steps: int | None = None,
    beam: int | None = None,
    optimizer: str | None = None,
    learning_rate: float | None = None,
    init_std: float = INIT_STD,
    folder: RunDirectory | None = None,
    device: torch.device,
) -> dict[str, Any]:
    """Train Marian as a run was trained, and score both.

    Args:
        run: the finished run.
        split: a test set, `test` for the first one, or `valid`.
        checkpoint: our weights, `last` or `best`; Marian's are always its last ones.
        steps: of Marian; as many as the run took where it is None.
        beam: beam size; the run's where it is None.
        optimizer: Marian's, a key of OPTIMIZERS; the run's where it is None.
        learning_rate: Marian's peak; the run's where it is None.
        init_std: standard deviation of Marian's first weights.
        folder: where Marian is kept; marian-NAME beside the run where it is None.
        device: where to train and translate.

    Returns:
        The two sides and how they came about, as plain data.

    Raises:
        TformerError: the run or the options cannot be used, or Marian diverged.
    """
    ours = load_trained_model(run, checkpoint)
    finished = load_state(run.pointed("last"))
    config, tokenizers = with_optimizer(ours.config, optimizer, learning_rate), ours.tokenizers
    name, text = _chosen_text(config, split)
    searches = _searches(config, beam)
    metric = build_metric("bleu", config.evaluation, config.data.target_language)
    if folder is None:
        path = run.path.resolve()
        folder = RunDirectory(path.with_name(f"marian-{path.name}"))
    marian = build_marian(
        config, tokenizers, num_positions=longest(config, tokenizers), init_std=init_std
    ).to(device)
    refuse_another_size(ours.model.num_parameters(), count_parameters(marian))
    store, _ = training_store(config.data, tokenizers, run.stores)
    state = train_marian(
        marian,
        config,
        store,
        folder,
        begin=replace(finished, step=0, data_position=(0, 0), num_tokens=0, seconds=0.0),
        steps=finished.step if steps is None else steps,
        device=device,
    )
    _refuse_other_batches(run, finished, state)

    valid = evaluation_store(config.data.valid, tokenizers)
    likelihood = reference_likelihood(
        ours.model.to(device),
        batches_in_order(valid, batch_tokens=LIKELIHOOD_BATCH_TOKENS),
        device=device,
        precision=torch.float32,
    )
    translator = Translator.from_model(ours.model, tokenizers, config, device)

    def our_score(search: DecodingConfig) -> Score:
        evaluation = Evaluator([ours.model], translator).evaluate(text, [metric], decoding=search)
        return evaluation.scores["bleu"]

    def marians_score(search: DecodingConfig) -> Score:
        return score(marian, tokenizers, text, search, metric, device)

    return {
        "run": str(run.path),
        "checkpoint": checkpoint,
        "folder": str(folder.path),
        "split": name,
        "searches": {kind: asdict(search) for kind, search in searches.items()},
        "attention": marian.config._attn_implementation,
        "versions": {name: version(name) for name in ("torch", "transformers")},
        "device": str(device),
        "threads": torch.get_num_threads(),
        "tformer": {
            "parameters": ours.model.num_parameters(),
            "optimizer": ours.config.training.optimizer.kind,
            "learning_rate": ours.config.training.optimizer.learning_rate,
            **_course(load_state(run.pointed(checkpoint) or run.pointed("last"))),
            "valid_loss": likelihood.loss,
            "bleu": {kind: our_score(search).score for kind, search in searches.items()},
        },
        "marian": {
            "parameters": count_parameters(marian),
            "optimizer": config.training.optimizer.kind,
            "learning_rate": config.training.optimizer.learning_rate,
            "init_std": init_std,
            **_course(state),
            "valid_loss": mean_nll(marian, valid, device),
            "bleu": {kind: marians_score(search).score for kind, search in searches.items()},
        },
        "signature": str(metric.scorer.get_signature()),
    }


def table(result: dict[str, Any]) -> str:
    """Return a comparison as lines to read."""
    sides = result["tformer"], result["marian"]
    rows = [("", "tformer", "Marian")]
    for title, key, form in (
        ("parameters", "parameters", "{:,}"),
        ("optimiser", "optimizer", "{}"),
        ("learning rate", "learning_rate", "{:g}"),
        ("steps", "steps", "{:,}"),
        ("target tokens trained", "target_tokens", "{:,}"),
        ("minutes", "minutes", "{:.1f}"),
        ("target tokens/s", "target_tokens_per_second", "{:,.0f}"),
        ("valid loss", "valid_loss", "{:.4f}"),
    ):
        rows.append((title, *(form.format(side[key]) for side in sides)))
    for kind, search in result["searches"].items():
        title = f"BLEU {kind}" + (f" {search['beam_size']}" if kind == "beam" else "")
        rows.append((title, *(f"{side['bleu'][kind]:.2f}" for side in sides)))
    lines = [f"{title:<24}{ours:>12}{marians:>12}" for title, ours, marians in rows]
    lines.append(f"{result['split']}, {result['signature']}")
    lines.append(
        f"tformer: its {result['checkpoint']} checkpoint; Marian: its last weights, "
        f"init_std {sides[1]['init_std']:g}; both saw the same batches in the same order"
    )
    return "\n".join(lines)


def _chosen_text(config: Config, split: str) -> tuple[str, ParallelText]:
    texts = {"valid": config.data.valid, **config.data.test}
    if split == "test" and config.data.test:
        split = next(iter(config.data.test))
    if split not in texts:
        raise UsageError(
            "--split",
            "the config has no such split",
            got=split,
            remedy=f"choose from: {', '.join(texts)}",
        )
    return split, texts[split]


def _searches(config: Config, beam: int | None) -> dict[str, DecodingConfig]:
    """Return greedy search, and beam search where the run or the command line asks for it."""
    searches: dict[str, DecodingConfig] = {
        "greedy": GreedyConfig(max_length=config.decoding.max_length)
    }
    search = chosen_decoding(config, beam, None)
    if isinstance(search, BeamConfig):
        searches["beam"] = search
    return searches


def _course(state: TrainingProgress) -> dict[str, float]:
    """Return what a training has taken."""
    return {
        "steps": state.step,
        "target_tokens": state.num_tokens,
        "minutes": state.seconds / 60,
        "target_tokens_per_second": state.num_tokens / state.seconds,
    }


def _refuse_other_batches(
    run: RunDirectory, finished: TrainingProgress, state: TrainingProgress
) -> None:
    if state.step == finished.step and state.num_tokens != finished.num_tokens:
        raise CheckpointError(
            str(run.path),
            f"was trained on other text than its files hold now ({state.num_tokens:,} target "
            "tokens in as many steps)",
            got=f"{finished.num_tokens:,} target tokens",
            remedy="restore the text, or train the run again",
        )


def _positive(kind: type[float]) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
        return value

    return number


def main(arguments: list[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder, such as runs/demo")
    parser.add_argument(
        "--split", default="test", help="a test set, test for the first one (default), or valid"
    )
    parser.add_argument(
        "--checkpoint", choices=("last", "best"), default="last", help="ours (default: last)"
    )
    parser.add_argument("--steps", type=_positive(int), help="Marian's (default: the run's)")
    parser.add_argument("--beam", type=_positive(int), help="beam size (default: the run's)")
    parser.add_argument(
        "--optimizer", choices=sorted(OPTIMIZERS), help="Marian's (default: the run's)"
    )
    parser.add_argument(
        "--learning-rate", type=_positive(float), help="Marian's (default: the run's)"
    )
    parser.add_argument(
        "--init-std",
        type=_positive(float),
        default=INIT_STD,
        help="standard deviation of Marian's first weights (default: %(default)s)",
    )
    parser.add_argument(
        "--folder", type=Path, help="where Marian is kept (default: marian-NAME beside the run)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    tune_allocator()
    result = compare(
        RunDirectory(options.run),
        split=options.split,
        checkpoint=options.checkpoint,
        steps=options.steps,
        beam=options.beam,
        optimizer=options.optimizer,
        learning_rate=options.learning_rate,
        init_std=options.init_std,
        folder=None if options.folder is None else RunDirectory(options.folder),
        device=resolve_device(options.device),
    )
    print(json.dumps(result, indent=2, ensure_ascii=False) if options.json else table(result))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except TformerError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
