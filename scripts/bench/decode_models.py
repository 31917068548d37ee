"""Models of decode.py, all of Marian's design, and the text they translate."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cli import CPU
from train import NETWORK, TRAINING, benchmark_config, multi30k_text, network
from train import SIZES as TRAINING_SIZES

from tformer_cli.config.schema.config import BleuConfig, Config, EvaluationConfig
from tformer_cli.config.schema.data import ParallelText
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.training import CosineSchedule, MuonConfig
from tformer_cli.corpus.reader import read_pairs
from tformer_cli.errors import UsageError
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.training.trainer import train

TEST_SET = "test_2016_flickr"
SIZES = TRAINING_SIZES | {"base": network(512, 6, 8, 2048)}
# A deep and wide post-norm network diverges at the learning rate of the others.
LEARNING_RATES = {"tiny": 3e-3, "small": 3e-3, "base": 1e-3}


def decoding_config(folder: Path, size: str, vocab_size: int, steps: int) -> Config:
    """Return the config of a model to translate with."""
    config = benchmark_config(folder, "tiny", vocab_size)
    test = {TEST_SET: ParallelText(**multi30k_text(folder, TEST_SET))}
    return replace(
        config,
        data=replace(config.data, test=test),
        # Few steps overfit little, and a post-norm network wants a long warm-up.
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
        # The text is tokenized already.
        evaluation=EvaluationConfig(bleu=BleuConfig(tokenize="none")),
    )


def trained(configs: dict[str, Config], models: Path) -> Iterator[tuple[str, Path]]:
    """Train what is not trained yet; yield the name and the folder of each run."""
    for size, config in configs.items():
        folder = models / f"{size}-{config.training.max_steps}"
        train(config, RunDirectory(folder), device=CPU)
        yield size, folder


def refuse_another_design(model: EncoderDecoderConfig) -> None:
    """Make sure that all baselines can be a network."""
    design, marians = (
        (config.norm_position, config.norm, config.positions.kind, config.tie_embeddings)
        for config in (model, NETWORK)
    )
    if design != marians:
        raise UsageError(
            "--run",
            f"its norms, positions and ties must be Marian's: {', '.join(marians)}",
            got=", ".join(design),
            remedy="name another run, or use --sizes",
        )


def pairs_to_translate(config: Config) -> list[tuple[str, str]]:
    """Return the pairs of the first test set, or of the validation text where there is none."""
    text = next(iter(config.data.test.values()), config.data.valid)
    return list(read_pairs(text.source, text.target))
