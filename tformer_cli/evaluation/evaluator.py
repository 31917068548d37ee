"""Scores of a run on its test sets, which `tformer eval` and the Python interface share."""

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig, ParallelText, Text
from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.corpus.held_out import overlap_warnings
from tformer_cli.corpus.reader import read_texts
from tformer_cli.device import resolve_device, resolve_precision
from tformer_cli.errors import DataError, Problem, UsageError
from tformer_cli.evaluation.evaluate import Evaluation, evaluate, save_evaluation
from tformer_cli.evaluation.metrics import MetricName, build_metric
from tformer_cli.process import tune_allocator
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import TrainedModel, load_ensemble
from tformer_cli.translate.mbr import MBR
from tformer_cli.translate.translator import Translator

# Pairs of the training text that a text is compared with: they take two seconds.
MAX_COMPARED = 200_000


@dataclass(frozen=True, slots=True)
class Evaluator:
    """The model of a run, or an ensemble of several, ready to translate and to be scored.

    Attributes:
        run: the run folder; its eval/ receives the translations.
        models: the model of the run, then the rest of the ensemble.
        translator: over the same models.
        device: where the models are.
        precision: number format of matrix products.
    """

    run: RunDirectory
    models: Sequence[TrainedModel]
    translator: Translator
    device: torch.device
    precision: torch.dtype

    @classmethod
    def load(
        cls,
        runs: Sequence[RunDirectory],
        *,
        checkpoint: str = "best",
        device: str = "auto",
        precision: str = "float32",
    ) -> "Evaluator":
        """Load a run, or several as an ensemble; the first one's config is in force.

        Raises:
            CheckpointError: a run or checkpoint is missing or damaged, or the runs do not go
                together.
            DeviceError: this machine does not have the device or the precision.
        """
        models = load_ensemble(runs, checkpoint)
        place = resolve_device(device)
        number_format = resolve_precision(precision, place)
        tune_allocator()
        first, *others = models
        translator = Translator.from_model(
            first.model,
            first.tokenizers,
            first.config,
            place,
            number_format,
            others=[other.model for other in others],
            max_source_sentences=first.max_source_sentences,
        )
        return cls(runs[0], models, translator, place, number_format)

    @property
    def config(self) -> Config:
        """The config of the run."""
        return self.models[0].config

    @property
    def step(self) -> int:
        """Optimizer steps after which the checkpoint was taken."""
        return self.models[0].step

    def evaluate(
        self,
        name: str,
        text: ParallelText,
        metrics: Sequence[MetricName],
        *,
        decoding: DecodingConfig | None = None,
        mbr: MBR | None = None,
        on_done: Callable[[int], object] = lambda count: None,
        on_warning: Callable[[Problem], object] = lambda problem: None,
    ) -> Evaluation:
        """Translate a text, score the translations, and write both to eval/ in the run folder.

        Args:
            name: of the text; the files are eval/NAME.hyp.txt and eval/NAME.json.
            text: source and references.
            metrics: bleu, chrf, ter.
            decoding: the search; the run's own where it is None.
            mbr: how to choose among what the search finds; by its own score where it is None.
            on_done: called with the number of lines whenever some are translated.
            on_warning: called with each source line that is split or truncated, and once if memory
                runs out and less is translated at a time.

        Raises:
            DataError: a file cannot be read, the line counts differ, or there are no lines.
            ConfigError: the tokenizer of a metric is not installed.
        """
        data, first, others = self.config.data, self.models[0], self.models[1:]
        evaluation = evaluate(
            first.model,
            self.translator,
            text,
            [build_metric(one, self.config.evaluation, data.target_language) for one in metrics],
            decoding=decoding,
            mbr=mbr,
            others=[other.model for other in others],
            device=self.device,
            precision=self.precision,
            on_done=on_done,
            on_warning=on_warning,
        )
        save_evaluation(evaluation, self.run.eval, name)
        return evaluation


def warn_of_overlap(
    data: DataConfig, texts: Mapping[str, Text], on_warning: Callable[[Problem], object]
) -> None:
    """Tell of texts that the training text contains to a considerable part.

    That is what its first pairs say, as far as its files are there.

    Args:
        data: with the training text.
        texts: that are to be translated and scored, by name.
        on_warning: called with each of them that is contained.
    """
    there = [text for text in data.train if all(file.is_file() for file in text.files.values())]
    pairs = itertools.islice(read_texts(there), MAX_COMPARED)
    # No score depends on the training text, so its faults are none of an evaluation.
    with contextlib.suppress(DataError):
        for warning in overlap_warnings(pairs, texts, data.unit):
            on_warning(warning)


def texts_of_split(config: Config, split: str | None) -> dict[str, ParallelText]:
    """Return texts of a config by name.

    Args:
        config: of a run that translates.
        split: `valid`, `test` (all test sets, the default), or the name of one.

    Raises:
        UsageError: there is no such split.
        DataError: the files are no longer where they were.
    """
    texts = _named(config, split)
    for text in texts.values():
        for file in text.files.values():
            if not file.is_file():
                raise DataError(
                    str(file),
                    "no such file",
                    remedy="put it there, or name another `text`",
                )
    return texts


def _named(config: Config, split: str | None) -> dict[str, ParallelText]:
    if split == "valid":
        valid = config.data.valid
        assert isinstance(valid, ParallelText), "what translates is trained on translations"
        return {"valid": valid}
    if split in config.data.test:
        return {split: config.data.test[split]}
    if split in (None, "test") and config.data.test:
        return dict(config.data.test)
    there = ", ".join(["valid", *config.data.test])
    raise UsageError(
        "`split`",
        "the config has no such split" if split else "the config has no test set",
        got=split,
        remedy=f"choose from: {there}",
    )
