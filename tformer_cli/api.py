"""The Python interface: whole trainings and evaluations, by names and paths.

Each function does what the command of its name does, with the same files and the same errors.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.device import resolve_device
from tformer_cli.errors import Problem, UsageError, reject_str
from tformer_cli.evaluation.evaluate import (
    Evaluation,
    Evaluator,
    texts_of_split,
    warn_of_overlap,
)
from tformer_cli.evaluation.metrics import MetricName
from tformer_cli.storage.run_directory import RunDirectory, run_of_config
from tformer_cli.training import trainer as training
from tformer_cli.translate.mbr import MBR


def train(
    config: str | os.PathLike[str] | Config,
    run: str | os.PathLike[str] | None = None,
    *,
    settings: Sequence[str] = (),
    device: str = "auto",
    fresh: bool = False,
) -> Path:
    """Train a model to the end, or resume its training from the last checkpoint.

    Example:
        >>> train("configs/demo.yaml", settings=["training.max_steps=100"])  # doctest: +SKIP
        PosixPath('runs/demo')

    Args:
        config: a YAML file, or what `load_config` returned.
        run: the run folder; `runs/NAME` for `NAME.yaml` where it is None.
        settings: changed keys of the file, such as `training.max_steps=100`.
        device: auto, cpu, cuda, cuda:N or mps.
        fresh: forget what the run folder holds and begin again.

    Returns:
        The run folder, for `evaluate` and `Translator.load`.

    Raises:
        TformerError: the config is wrong, a file cannot be used, the config changed since the run
            began, another process trains there, the training diverged, or memory does not suffice.
            SIGINT and SIGTERM raise its subclass Interrupted: the run is saved, and the same call
            resumes it.
    """
    reject_str(settings=settings)
    if isinstance(config, Config):
        if run is None:
            raise UsageError(
                "`run`", "is required for a config without a file", remedy="name a folder"
            )
        if settings:
            raise UsageError(
                "`settings`",
                "have no effect on a config without a file",
                remedy="pass them to load_config",
            )
        parsed, directory = config, RunDirectory(Path(run))
    else:
        file = Path(config)
        parsed = load_config(file, settings)
        directory = run_of_config(file, None if run is None else Path(run))
    training.train(parsed, directory, device=resolve_device(device), fresh=fresh)
    return directory.path


def evaluate(
    run: str | os.PathLike[str],
    *,
    metrics: Sequence[MetricName] = ("bleu",),
    split: str = "test",
    decoding: DecodingConfig | None = None,
    mbr: MBR | None = None,
    ensemble: Sequence[str | os.PathLike[str]] = (),
    checkpoint: str = "best",
    device: str = "auto",
    precision: str = "float32",
    workers: int = 1,
    on_warning: Callable[[Problem], object] = lambda problem: None,
) -> dict[str, Evaluation]:
    """Translate test sets and score them against their raw references, by sacrebleu.

    The translations and scores are also written to eval/ in the run folder.

    Example:
        >>> evaluate("runs/demo")["demo"].scores["bleu"].score  # doctest: +SKIP
        97.45

    Args:
        run: the run folder.
        metrics: bleu, chrf, ter.
        split: valid, test (all test sets of the config), or the name of one.
        decoding: the search; the run's own where it is None.
        mbr: how to choose among what the search finds; by its own score where it is None.
        ensemble: further runs of the same tokenizers.
        checkpoint: best, last, or a name such as step-000400.
        device: auto, cpu, cuda, cuda:N or mps.
        precision: auto, float32, bfloat16, float16, or on a CPU int8.
        workers: processes that share the work on a CPU, a thread each.
        on_warning: called with each text that training has seen, and with each source line that
            is split or truncated.

    Returns:
        The evaluation of each test set, by name.

    Raises:
        TformerError: the run or a text cannot be used, or there is no such split, device or search.
    """
    reject_str(metrics=metrics, ensemble=ensemble)
    evaluator = Evaluator.load(
        [RunDirectory(Path(folder)) for folder in (run, *ensemble)],
        checkpoint=checkpoint,
        device=device,
        precision=precision,
        workers=workers,
    )
    texts = texts_of_split(evaluator.config, split)
    built = evaluator.metrics(metrics)
    warn_of_overlap(evaluator.config.data, texts, on_warning)
    return {
        name: evaluator.evaluate(
            name, text, built, decoding=decoding, mbr=mbr, on_warning=on_warning
        )
        for name, text in texts.items()
    }
