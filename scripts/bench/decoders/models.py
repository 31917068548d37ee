"""The models that translate in decode.py, all of Marian's design, and the text they translate."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from train import NETWORK, TRAINING, benchmark_config
from train import SIZES as TRAINING_SIZES
from trainers.contestants import CPU

from tformer_cli.config.load import dump_config
from tformer_cli.config.schema.config import BleuConfig, Config, EvaluationConfig
from tformer_cli.config.schema.data import ParallelText
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.training import CosineSchedule, MuonConfig
from tformer_cli.corpus.pipeline import training_pairs
from tformer_cli.corpus.reader import read_pairs
from tformer_cli.errors import UsageError
from tformer_cli.model.build import build_model
from tformer_cli.storage.atomic import write_text
from tformer_cli.storage.checkpoint import save_average
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers
from tformer_cli.text.vocabulary import EOS_ID
from tformer_cli.training.trainer import train

TEST_SET = "test_2016_flickr"
SIZES = TRAINING_SIZES | {
    "base": replace(
        NETWORK,
        dim=512,
        num_encoder_layers=6,
        num_decoder_layers=6,
        num_heads=8,
        feedforward_dim=2048,
    )
}
# A deep and wide network with norms behind the blocks diverges at the rate of the others.
LEARNING_RATES = {"tiny": 3e-3, "small": 3e-3, "base": 1e-3}


def decoding_config(folder: Path, size: str, vocab_size: int, steps: int) -> Config:
    """Return what a model of one of the sizes is trained by.

    Raises:
        UsageError: the folder lacks a file of the corpus.
    """
    config = benchmark_config(folder, "tiny", vocab_size)
    source, target = (
        folder.resolve() / f"{TEST_SET}.lc.norm.tok.{language}.gz" for language in ("en", "de")
    )
    return replace(
        config,
        data=replace(config.data, test={TEST_SET: ParallelText(source=source, target=target)}),
        # Few steps overfit little, and norms behind the blocks want a long warm-up.
        model=replace(SIZES[size], dropout=0.1),
        training=replace(
            TRAINING,
            optimizer=MuonConfig(learning_rate=LEARNING_RATES[size]),
            batch_tokens=2048,
            schedule=CosineSchedule(warmup_steps=steps // 4),
            max_steps=steps,
            validate_every=steps,
            save_every=100,
            keep_checkpoints=1,
        ),
        # The text is in tokens already.
        evaluation=EvaluationConfig(bleu=BleuConfig(tokenize="none")),
    )


def trained(configs: dict[str, Config], models: Path) -> Iterator[tuple[str, Path]]:
    """Train what is not trained yet; yield the name and the folder of each run.

    Raises:
        TformerError: a training fails, or its folder belongs to another one.
    """
    for size, config in configs.items():
        folder = models / f"{size}-{config.training.max_steps}"
        train(config, RunDirectory(folder), device=CPU)
        yield size, folder


def untrained(configs: dict[str, Config]) -> Iterator[tuple[str, Config, Tokenizers]]:
    """Yield each config with its name and the tokenizers, which are the same for all."""
    first = next(iter(configs.values()))
    tokenizers = build_tokenizers(first.tokenizer, lambda: training_pairs(first.data), first.seed)
    for size, config in configs.items():
        yield size, config, tokenizers


def described(folder: Path) -> tuple[str, Config, Tokenizers]:
    """Return the name, the config and the tokenizers of a run.

    Raises:
        TformerError: it has none.
    """
    known = load_trained_model(RunDirectory(folder))
    return folder.name, known.config, known.tokenizers


def write_endless(config: Config, tokenizers: Tokenizers, folder: RunDirectory) -> None:
    """Write a run whose model has its first weights, and never writes `</s>`."""
    model = build_model(
        config.model,
        source_size=tokenizers.source.size,
        target_size=tokenizers.target.size,
        seed=config.seed,
    )
    with torch.no_grad():
        # So its logit is zero, and of all the others one is above.
        model.output.weight[EOS_ID] = 0
    tokenizers.save(folder.tokenizer)
    save_average(folder.checkpoint(0), model, TrainingProgress.initial("", {}))
    folder.point("last", folder.checkpoint(0))
    write_text(folder.config_file, dump_config(config))


def refuse_another_design(model: EncoderDecoderConfig) -> None:
    """Make sure that all contestants can be a network.

    Raises:
        UsageError: it is not of Marian's design.
    """
    design, marians = (
        (config.norm_position, config.norm, config.positions.kind, config.tie_embeddings)
        for config in (model, NETWORK)
    )
    if design != marians:
        raise UsageError(
            "--run",
            f"its norms, positions and ties must be Marian's ({', '.join(marians)})",
            got=", ".join(design),
            remedy="name another run, or use --sizes",
        )


def pairs_to_translate(config: Config) -> list[tuple[str, str]]:
    """Return the pairs of the first test set, or of the validation text where there is none."""
    text = next(iter(config.data.test.values()), config.data.valid)
    return list(read_pairs(text.source, text.target))
