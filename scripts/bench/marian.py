#!/usr/bin/env python
"""Train transformers' Marian beside a finished run, and compare their translations."""

import os

from tformer_cli.process import ENVIRONMENT

# As for `tformer train`; torch reads it when it is imported.
os.environ.update(ENVIRONMENT | os.environ)

from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from baseline_marian import (
    INIT_STD,
    build_marian,
    count_parameters,
    max_positions,
    mean_nll,
    refuse_another_size,
    score,
)
from cli import AsJson, InitStd, show
from harness import aligned
from marian_training import train_marian, with_optimizer

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import ParallelText
from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.corpus.batch import batches_in_order
from tformer_cli.corpus.store_builder import evaluation_store, training_store
from tformer_cli.device import resolve_device
from tformer_cli.errors import CheckpointError, UsageError
from tformer_cli.evaluation.evaluate import (
    LIKELIHOOD_BATCH_TOKENS,
    Evaluator,
    reference_likelihood,
)
from tformer_cli.evaluation.metrics import build_metric
from tformer_cli.process import tune_allocator
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import TrainingProgress, load_progress
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.translate.options import SearchOptions
from tformer_cli.translate.translator import Translator


def compare(
    directory: RunDirectory,
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
    """Train Marian as a finished run was trained, and score both.

    The arguments are those of the command; None is the run's.

    Raises:
        TformerError: the run or the arguments cannot be used, or Marian diverged.
    """
    ours = load_trained_model(directory, checkpoint)
    finished = load_progress(directory.pointed("last"))
    config, tokenizers = with_optimizer(ours.config, optimizer, learning_rate), ours.tokenizers
    name, text = _text_of(config, split)
    searches = _searches(config, beam)
    metric = build_metric("bleu", config.evaluation, config.data.target_language)
    if folder is None:
        path = directory.path.resolve()
        folder = RunDirectory(path.with_name(f"marian-{path.name}"))
    marian = build_marian(
        config, tokenizers, num_positions=max_positions(config, tokenizers), init_std=init_std
    ).to(device)
    refuse_another_size(ours.model.num_parameters(), count_parameters(marian))
    store, _ = training_store(config.data, tokenizers, directory.stores)
    progress = train_marian(
        marian,
        config,
        store,
        folder,
        initial=replace(finished, step=0, data_position=(0, 0), num_tokens=0, seconds=0.0),
        steps=finished.step if steps is None else steps,
        device=device,
    )
    _refuse_other_batches(directory, finished, progress)

    valid = evaluation_store(config.data.valid, tokenizers)
    likelihood = reference_likelihood(
        [ours.model.to(device)],
        batches_in_order(valid, batch_tokens=LIKELIHOOD_BATCH_TOKENS),
        device=device,
        precision=torch.float32,
    )
    translator = Translator.from_model(ours.model, tokenizers, config, device)

    def our_bleu(search: DecodingConfig) -> float:
        evaluation = Evaluator([ours.model], translator).evaluate(text, [metric], decoding=search)
        return evaluation.scores["bleu"].score

    def marians_bleu(search: DecodingConfig) -> float:
        return score(marian, tokenizers, text, search, metric, device).score

    return {
        "run": str(directory.path),
        "checkpoint": checkpoint,
        "folder": str(folder.path),
        "split": name,
        "searches": {kind: asdict(search) for kind, search in searches.items()},
        "attention": marian.config._attn_implementation,
        "versions": {package: version(package) for package in ("torch", "transformers")},
        "device": str(device),
        "threads": torch.get_num_threads(),
        "tformer": {
            "parameters": ours.model.num_parameters(),
            **_trained(ours.config, load_progress(directory.pointed(checkpoint))),
            "valid_loss": likelihood.loss,
            "bleu": {kind: our_bleu(search) for kind, search in searches.items()},
        },
        "marian": {
            "parameters": count_parameters(marian),
            "init_std": init_std,
            **_trained(config, progress),
            "valid_loss": mean_nll(marian, valid, device),
            "bleu": {kind: marians_bleu(search) for kind, search in searches.items()},
        },
        "signature": str(metric.scorer.get_signature()),
    }


FORMS = {
    "parameters": ",",
    "optimizer": "",
    "learning_rate": "g",
    "steps": ",",
    "target_tokens": ",",
    "minutes": ".1f",
    "target_tokens_per_second": ",.0f",
    "valid_loss": ".4f",
}


def table(result: dict[str, Any]) -> str:
    """Return a table of both, and how they were compared."""
    sides = result["tformer"], result["marian"]
    rows = [["", "tformer", "Marian"]]
    for key, form in FORMS.items():
        rows.append([key.replace("_", " "), *(format(side[key], form) for side in sides)])
    for kind, search in result["searches"].items():
        title = f"BLEU {kind}" + (f" {search['beam_size']}" if kind == "beam" else "")
        rows.append([title, *(f"{side['bleu'][kind]:.2f}" for side in sides)])
    return (
        f"{aligned(rows)}\n{result['split']}, {result['signature']}\n"
        f"tformer: its {result['checkpoint']} checkpoint; Marian: its last weights, "
        f"init_std {sides[1]['init_std']:g}; both saw the same batches in the same order"
    )


def _text_of(config: Config, split: str) -> tuple[str, ParallelText]:
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
    greedy = GreedyConfig(max_length=config.decoding.max_length)
    search = SearchOptions(beam).apply(config)
    is_beam = isinstance(search, BeamConfig)
    return {"greedy": greedy, "beam": search} if is_beam else {"greedy": greedy}


def _trained(config: Config, progress: TrainingProgress) -> dict[str, float | str]:
    return {
        "optimizer": config.training.optimizer.kind,
        "learning_rate": config.training.optimizer.learning_rate,
        "steps": progress.step,
        "target_tokens": progress.num_tokens,
        "minutes": progress.seconds / 60,
        "target_tokens_per_second": progress.num_tokens / progress.seconds,
    }


def _refuse_other_batches(
    directory: RunDirectory, finished: TrainingProgress, progress: TrainingProgress
) -> None:
    if progress.step == finished.step and progress.num_tokens != finished.num_tokens:
        raise CheckpointError(
            str(directory.path),
            f"was trained on other text than its files hold now, with {progress.num_tokens:,} "
            "target tokens in as many steps",
            got=f"{finished.num_tokens:,} target tokens",
            remedy="restore the text, or train the run again",
        )


app = new_app(add_completion=False)


@app.command()
def marian(
    directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder, such as runs/demo.")
    ],
    split: Annotated[str, typer.Option(help="A test set, test for the first one, or valid.")] = (
        "test"
    ),
    checkpoint: Annotated[Literal["last", "best"], typer.Option(help="Ours.")] = "last",
    steps: Annotated[
        int | None, typer.Option(min=1, help="Marian's.", show_default="the run's")
    ] = None,
    beam: Annotated[
        int | None, typer.Option(min=1, help="Beam size.", show_default="the run's")
    ] = None,
    optimizer: Annotated[
        Literal["adam", "adamw", "muon"] | None,
        typer.Option(help="Marian's.", show_default="the run's"),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(min=1e-12, help="Marian's peak.", show_default="the run's")
    ] = None,
    init_std: InitStd = INIT_STD,
    folder: Annotated[
        Path | None, typer.Option(help="Marian's.", show_default="marian-NAME beside the run")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Train transformers' Marian beside a finished run, and compare their translations.

    Marian gets the run's vocabulary, batches in their order, width, layers, heads, activation,
    dropout, tied embeddings, optimizer, schedule, label smoothing and number of steps, in float32.
    Its own are: post-norm, initial weights by transformers, sinusoidal positions, and the dropout
    of embeddings, which is `model.dropout`. Re-running the command resumes.

    Post-norm may want a lower --learning-rate, and a narrow model larger initial weights than
    transformers' 0.02: --init-std of about dim ** -0.5.

    Example: python scripts/bench/marian.py runs/multi30k --learning-rate 1e-3 --init-std 0.07
    """
    tune_allocator()
    result = compare(
        RunDirectory(directory),
        split=split,
        checkpoint=checkpoint,
        steps=steps,
        beam=beam,
        optimizer=optimizer,
        learning_rate=learning_rate,
        init_std=init_std,
        folder=None if folder is None else RunDirectory(folder),
        device=resolve_device(device),
    )
    show(result, as_json, lambda: table(result))


if __name__ == "__main__":
    run(app)
