#!/usr/bin/env python
"""Compare variants of the Transformer, one change at a time from a modern base."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from cli import (
    CPU,
    MULTI30K,
    ROOT,
    AsJson,
    Data,
    Folder,
    Rounds,
    Threads,
    hardware,
    names_in,
    resumable,
    show,
)
from harness import log, mean_and_deviation, play_rounds, ratios, run_in_process, seconds_of
from train import training_worker
from training_runs import Ours, train_in_process

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.load import check_data_files, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.config.schema.model import (
    AlibiPositions,
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    LatentConfig,
    LearnedPositions,
    ModelConfig,
    NoPositions,
    RotaryPositions,
    SinusoidalPositions,
    T5Positions,
)
from tformer_cli.config.schema.tokenizer import SubwordConfig
from tformer_cli.config.schema.training import CosineSchedule, MuonConfig, TrainingConfig
from tformer_cli.corpus.reader import read_pairs
from tformer_cli.model.build import build_network
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.translate.translator import Translator

CONFIG = ROOT / "configs" / "multi30k.yaml"
BASE = EncoderDecoderConfig(
    dim=128,
    num_encoder_layers=4,
    num_decoder_layers=4,
    num_heads=4,
    num_kv_heads=2,
    feedforward_dim=256,
    activation="swiglu",
    norm="rms",
    norm_position="pre",
    bias=False,
    positions=RotaryPositions(),
    dropout=0.2,
    attention_dropout=0.0,
    feedforward_dropout=0.1,
)
# Shared by both languages; the number of parameters, and so the widths, depend on it.
VOCAB_SIZE = 8000
FLOAT_BYTES = 4
# What is timed, in target tokens a second.
KINDS = ("training", "decoding")
# Length of every timed translation, about that of a caption, so that a variant that has not learned
# to end its sentences writes as much as the others.
NUM_TOKENS = 16
SEARCH = GreedyConfig(min_length=NUM_TOKENS - 1, max_length=NUM_TOKENS)

Change = Callable[[EncoderDecoderConfig], ModelConfig]


def changed(**keys: object) -> Change:
    """Return a change of some keys."""
    return lambda config: replace(config, **keys)


def decoder_only(config: EncoderDecoderConfig) -> ModelConfig:
    """Return a prefix LM of as many layers."""
    own = {"kind", "tie_embeddings"}
    names = (DecoderOnlyConfig.__dataclass_fields__.keys() & config.__dataclass_fields__) - own
    return DecoderOnlyConfig(
        **{name: getattr(config, name) for name in names},
        num_layers=config.num_encoder_layers + config.num_decoder_layers,
        source_attention="bidirectional",
    )


CHANGES: Mapping[str, Change] = {
    "base": changed(),
    "sinusoidal": changed(positions=SinusoidalPositions()),
    "learned": changed(positions=LearnedPositions(max_length=256)),
    "alibi": changed(positions=AlibiPositions()),
    "t5": changed(positions=T5Positions()),
    "no-positions": changed(positions=NoPositions()),
    "multi-head": changed(num_kv_heads=None),
    "multi-query": changed(num_kv_heads=1),
    "latent": changed(num_kv_heads=None, latent=LatentConfig(kv_lora_rank=48, rope_head_dim=16)),
    "window": changed(sliding_window=8),
    "qk-norm": changed(qk_norm=True),
    "relu": changed(activation="relu"),
    "layer-norm": changed(norm="layer"),
    "post-norm": changed(norm_position="post"),
    "deep-norm": changed(norm_position="deep"),
    "one-stream": decoder_only,
    "deep-shallow": changed(num_encoder_layers=7, num_decoder_layers=1),
}


@cache
def variant(name: str) -> ModelConfig:
    """Return a variant with about as many parameters as the base, by its feed-forward width."""
    config = CHANGES[name](BASE)
    lowest, next_lowest = (
        num_parameters(replace(config, feedforward_dim=width)) for width in (8, 9)
    )
    width = 8 + round((num_parameters(BASE) - lowest) / (next_lowest - lowest))
    assert 8 <= width < 4 * BASE.feedforward_dim, f"{name} has no width with as many parameters"
    return replace(config, feedforward_dim=width)


def num_parameters(config: ModelConfig) -> int:
    """Count the parameters of a network."""
    with torch.device("meta"):
        network = build_network(config, source_size=VOCAB_SIZE, target_size=VOCAB_SIZE, seed=1)
    return network.num_parameters()


def training(steps: int) -> TrainingConfig:
    """Return how every variant is trained."""
    return TrainingConfig(
        optimizer=MuonConfig(learning_rate=6e-3),
        schedule=CosineSchedule(warmup_steps=max(1, steps // 6)),
        batch_tokens=1024,
        max_steps=steps,
        validate_every=steps,
        validation_decoding=GreedyConfig(),
        save_every=min(steps, 100),
        selection_metric="loss",
    )


def trainings(
    text: Config, folder: Path, names: Sequence[str], seeds: Sequence[int], steps: int
) -> Iterator[tuple[str, Ours]]:
    """Yield variants with their trainings NAME-SEED of a folder, those of a seed together.

    Text and evaluation are those of the config `text`.
    """
    tokenizer = SubwordConfig(algorithm="bpe", vocab_size=VOCAB_SIZE, shared=True)
    learning = training(steps)
    for seed in seeds:
        for name in names:
            model = variant(name)
            config = replace(text, seed=seed, tokenizer=tokenizer, model=model, training=learning)
            yield name, Ours(config, RunDirectory(folder / f"{name}-{seed}"))


def speeds(
    runs: Mapping[str, RunDirectory], *, rounds: int, lines: int, seconds: float, threads: int
) -> dict[str, list[float]]:
    """Let variants take turns, named `NAME training` and `NAME decoding`; return their speeds."""

    def turn(entry: str) -> float:
        name, kind = entry.split()
        if kind == "training":
            with training_worker("ours", runs[name], threads=threads) as worker:
                measured = worker.ask(seconds=seconds)
            return measured["num_tokens"] / measured["seconds"]
        arguments = {"folder": str(runs[name].path), "num_lines": lines, "threads": threads}
        return run_in_process("ablation.decoding_speed", **arguments)

    entries = [f"{name} {kind}" for name in runs for kind in KINDS]
    return play_rounds(entries, rounds, turn, "target tokens/s")


def decoding_speed(folder: str, num_lines: int, threads: int) -> float:
    """Return target tokens per second, with NUM_TOKENS of each line of the test set."""
    torch.set_num_threads(threads)
    trained = load_trained_model(RunDirectory(Path(folder)))
    text = next(iter(trained.config.data.test.values()))
    lines = [source for source, _ in read_pairs(text.source, text.target)][:num_lines]
    translator = Translator.from_model(trained.model, trained.tokenizers, trained.config, CPU)
    translator.translate(lines[:8], decoding=SEARCH)
    seconds = seconds_of(lambda: translator.translate(lines, decoding=SEARCH))
    return NUM_TOKENS * len(lines) / seconds


def cache_bytes(directory: RunDirectory) -> int:
    """Return the KV cache of a target token over all layers, in bytes of float32."""
    stack = load_trained_model(directory).model.stacks()[-1]
    return FLOAT_BYTES * sum(shape.size for shape in stack.kv_shapes())


def relative_speeds(turns: Sequence[Sequence[float]]) -> list[float]:
    """Return the speeds of variants, each with one per round, as multiples of the first's.

    Each is divided by the median of its round, because the machine drifts, and the median of that
    over the rounds counts: one bad turn, of the first variant too, changes nothing.
    """
    usual = [median(speeds) for speeds in zip(*turns, strict=True)]
    medians = [median(ratios(speeds, usual)) for speeds in turns]
    return [speed / medians[0] for speed in medians]


HEAD = (
    "| member | parameters | loss | BLEU | training | decoding | cache bytes a token |\n"
    "|---|---|---|---|---|---|---|"
)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table in Markdown; speeds are multiples of those of the first row."""
    speeds = {
        kind: [f"{speed:.2f}" for speed in relative_speeds([row[kind] for row in rows])]
        for kind in KINDS
    }
    lines = [HEAD]
    for number, row in enumerate(rows):
        cells = [
            row["name"],
            f"{row['parameters']:,}",
            mean_and_deviation(row["valid_losses"], ".3f"),
            mean_and_deviation(row["test_bleus"]),
            *(speeds[kind][number] for kind in KINDS),
            f"{row['cache_bytes']:,}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


app = new_app(add_completion=False)


@app.command()
def ablation(
    folder: Folder,
    data: Data = MULTI30K,
    members: Annotated[str, typer.Option(help="Variants besides the base.")] = ",".join(CHANGES),
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each: seeds 1, 2, ...")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of each.")] = 500,
    rounds: Rounds = 5,
    lines: Annotated[int, typer.Option(min=1, help="Lines translated in a turn.")] = 500,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds of training in a turn.")] = 4.0,
    threads: Threads = 2,
    as_json: AsJson = False,
) -> None:
    """Compare variants of the Transformer, one change at a time from a modern base.

    The base is pre-norm with RMSNorm, rotary positions, SwiGLU and grouped-query attention (two key
    heads for four query heads), without biases. All variants have the same number of parameters, by
    their feed-forward width, and the same text, batches and Muon steps. Loss is that of the
    validation text, BLEU that of the test set, both with their standard deviation over the seeds.
    Speeds are multiples of the base's, medians over the rounds, in which variants take turns and
    all translations have the same number of tokens.

    Re-running the command resumes; it trains and scores only what is missing in DIR.

    Example: python scripts/bench/ablation.py --folder runs/ablation --members alibi,latent
    """
    names = list(dict.fromkeys(("base", *names_in("--members", members, CHANGES, "member"))))
    text = load_config(CONFIG, [f"data.root={data.resolve()}"])
    check_data_files(text.data)
    torch.set_num_threads(threads)
    # By seed, the losses of the validation text are means per token, in nats.
    rows = {
        name: {"name": name, "parameters": num_parameters(variant(name))}
        | {"valid_losses": [], "test_bleus": []}
        for name in names
    }
    runs: dict[str, RunDirectory] = {}
    with resumable(folder):
        for name, training in trainings(text, folder, names, range(1, seeds + 1), steps):
            if not training.is_over():
                train_in_process(training, threads=threads)
            checkpoint, progress = list(training.best_checkpoints())[-1]
            score = training.score(checkpoint, next(iter(text.data.test)))
            rows[name]["valid_losses"].append(-progress.score)
            rows[name]["test_bleus"].append(score.score)
            runs.setdefault(name, training.run)
            log(f"{training.run.path.name}: loss {-progress.score:.3f}, BLEU {score.score:.2f}")
        turns = speeds(runs, rounds=rounds, lines=lines, seconds=seconds, threads=threads)
    for name, row in rows.items():
        row["cache_bytes"] = cache_bytes(runs[name])
        row |= {kind: turns[f"{name} {kind}"] for kind in KINDS}
    result = list(rows.values())
    note = f"\n{steps} steps, {seeds} seeds, BLEU {score.signature}; {hardware(threads)}"
    show(result, as_json, lambda: table(result), note)


if __name__ == "__main__":
    run(app)
