"""Evaluate models on parallel text, in training and by `tformer eval`: translations and loss."""

import contextlib
import hashlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from tformer_cli.choices import MetricName
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.config.schema.text import Bitext, Direction, PlainText, Text, has_phrases
from tformer_cli.corpus.lines import read_lines
from tformer_cli.corpus.overlap import overlap_warnings
from tformer_cli.corpus.reader import read_texts
from tformer_cli.corpus.store_builder import evaluation_store
from tformer_cli.device import resolve_device, resolve_precision
from tformer_cli.distributed import SINGLE_PROCESS, World
from tformer_cli.errors import DataError, Problem, UsageError, reject_str
from tformer_cli.evaluation.likelihood import (
    Likelihood,
    long_lines_warning,
    loss_batches,
    reference_likelihood,
)
from tformer_cli.evaluation.metrics import Metric, Score, build_metric
from tformer_cli.evaluation.score_warnings import reference_warning
from tformer_cli.model.network import Seq2Seq
from tformer_cli.process import tune_allocator
from tformer_cli.storage.atomic import (
    file_checksum,
    json_number,
    read_json,
    write_json,
    write_text,
)
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import ModelFiles, load_ensemble
from tformer_cli.translate.options import MBR
from tformer_cli.translate.preprocess import common_tags
from tformer_cli.translate.translator import Translator

# Pairs of the training text with which a test set is compared, which takes two seconds.
MAX_COMPARED = 200_000


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of a model on a text.

    Attributes:
        scores: by metric: bleu, chrf, ter.
        likelihood: of the references.
        hypotheses: the translation of each line.
        decoding: the search.
        mbr: minimum-Bayes-risk decoding, if any.
        num_models: models of the ensemble; 1 without one.
        step: optimizer steps of the (first) checkpoint.
        models: fingerprints of the files of the models, if they have some.
        text: source and references.
        metrics: what computed the scores.
        fingerprint: hash of the translations and of all that determined them.
    """

    scores: Mapping[MetricName, Score]
    likelihood: Likelihood
    hypotheses: tuple[str, ...]
    decoding: DecodingConfig
    mbr: MBR | None
    num_models: int
    step: int
    models: tuple[str, ...]
    text: Bitext
    metrics: tuple[Metric, ...]
    fingerprint: str

    def as_json(self) -> dict[str, object]:
        """Return everything but the translations as plain data."""
        return {
            "scores": [asdict(score) for score in self.scores.values()],
            "loss": json_number(self.likelihood.loss),
            "perplexity": json_number(self.likelihood.perplexity),
            "accuracy": self.likelihood.accuracy,
            "num_tokens": self.likelihood.num_tokens,
            "num_sentences": len(self.hypotheses),
            "decoding": asdict(self.decoding),
            "mbr": None if self.mbr is None else asdict(self.mbr),
            "num_models": self.num_models,
            "step": self.step,
            "models": list(self.models),
            "fingerprint": self.fingerprint,
        }


@dataclass(frozen=True, slots=True)
class Evaluator:
    """A model, or an ensemble, with its translator."""

    models: Sequence[Seq2Seq]  # those of the translator
    translator: Translator
    precision: torch.dtype = torch.float32  # of the likelihood of the references
    step: int = 0  # of the (first) checkpoint
    fingerprints: tuple[str, ...] = ()  # of the files of the models, if they have some

    @classmethod
    def load(
        cls,
        run: str | os.PathLike[str],
        *,
        ensemble: Sequence[str | os.PathLike[str]] = (),
        checkpoint: str = "best",
        device: str = "auto",
        precision: str | None = None,
        workers: int | None = 1,
    ) -> "Evaluator":
        """Load a run, or several as an ensemble; arguments and errors as for `Translator.load`."""
        reject_str(ensemble=ensemble)
        runs = [RunDirectory(Path(path)) for path in (run, *ensemble)]
        trained = load_ensemble(runs, checkpoint)
        first = trained[0]
        models = [each.model for each in trained]
        resolved = resolve_device(device)
        dtype = resolve_precision(precision, resolved)
        tune_allocator()
        translator = Translator.from_model(
            first.model,
            first.tokenizers,
            first.config,
            resolved,
            dtype,
            others=models[1:],
            tags=common_tags([each.config.data.tags for each in trained]),
            workers=workers,
            max_source_sentences=first.max_source_sentences,
        )
        fingerprints = tuple(each.files.fingerprint for each in trained if each.files is not None)
        return cls(models, translator, dtype, first.step, fingerprints)

    def evaluate(
        self,
        text: Bitext,
        metrics: Sequence[Metric],
        *,
        decoding: DecodingConfig | None = None,
        mbr: MBR | None = None,
        world: World = SINGLE_PROCESS,
        on_start: Callable[[int], object] = lambda count: None,
        on_done: Callable[[int], object] = lambda count: None,
        on_warning: Callable[[Problem], object] = lambda problem: None,
    ) -> Evaluation:
        """Translate a source text, and compare it with the raw references.

        The processes of `world` share the lines; each of them returns the whole evaluation.
        `on_start` is called with the number of lines of the text, `on_warning` as by a translator,
        for lines without loss, and for references that are tokenized or cut into subwords.
        """
        config = self.translator.config
        languages = config.data.direction_of(text)
        translator = self.translator.into(*languages[::-1])
        store = evaluation_store(
            text,
            translator.tokenizers,
            max_length=self.models[0].max_length,
            tags=translator.tag_ids(),
            target_tags=translator.direction.target_ids,
        )
        problem = long_lines_warning(text, store)
        if problem is not None:
            on_warning(problem)
        likelihood = reference_likelihood(
            self.models,
            loss_batches(store, start_id=translator.tokenizers.start_id(config.model.kind)),
            device=torch.device(translator.device),
            precision=self.precision,
            world=world,
        )
        sources, references = zip(*read_texts([text]), strict=True)
        on_start(len(sources))
        search = config.decoding if decoding is None else decoding
        translations = translator.nbest(
            world.shard(sources),
            1,
            decoding=search,
            mbr=mbr,
            scored=False,
            name=str(text.source_file),
            first_line=1 + world.rank,
            line_stride=world.size,
            on_done=on_done,
            on_warning=on_warning,
        )
        hypotheses = tuple(world.gather_shards([best.text for best, *_ in translations]))
        for metric in metrics:
            problem = reference_warning(metric, text.target_file, references)
            if problem is not None:
                on_warning(problem)
        scores = {metric.name: metric.score(hypotheses, references) for metric in metrics}
        return Evaluation(
            scores=scores,
            likelihood=likelihood,
            hypotheses=hypotheses,
            decoding=search,
            mbr=mbr,
            num_models=len(self.models),
            step=self.step,
            models=self.fingerprints,
            text=text,
            metrics=tuple(metrics),
            fingerprint=translation_fingerprint(
                self.fingerprints, text, languages, search, mbr, self.precision, hypotheses
            ),
        )


def evaluate_texts(
    evaluator: Evaluator,
    run: RunDirectory,
    texts: Mapping[str, Bitext],
    metrics: Sequence[MetricName],
    *,
    decoding: DecodingConfig | None = None,
    mbr: MBR | None = None,
    on_start: Callable[[int], object],
    on_done: Callable[[int], object],
    on_warning: Callable[[Problem], object],
) -> dict[str, Evaluation]:
    """Evaluate texts by name, and save what comes of each in a run folder."""
    config = evaluator.translator.config
    warn_of_overlap(config.data, texts, on_warning)
    evaluations = {}
    for name, text in texts.items():
        _, language = config.data.direction_of(text)
        evaluations[name] = evaluator.evaluate(
            text,
            [build_metric(metric, config.evaluation, language) for metric in metrics],
            decoding=decoding,
            mbr=mbr,
            on_start=on_start,
            on_done=on_done,
            on_warning=on_warning,
        )
        save_evaluation(evaluations[name], run, name)
    return evaluations


def translation_fingerprint(
    models: tuple[str, ...],
    text: Bitext,
    languages: Direction,
    decoding: DecodingConfig,
    mbr: MBR | None,
    precision: torch.dtype,
    hypotheses: tuple[str, ...],
) -> str:
    """Return a hash of translations and of all that determined them; models by fingerprint."""
    source = file_checksum(text.source_file), text.reading
    content = (models, source, languages, decoding, mbr, precision, hypotheses)
    return hashlib.sha256(f"{content!r}".encode()).hexdigest()


def save_evaluation(evaluation: Evaluation, run: RunDirectory, name: str) -> None:
    """Write eval/NAME.hyp.txt and eval/NAME.json into a run folder."""
    translations = "".join(f"{line}\n" for line in evaluation.hypotheses)
    write_text(hypothesis_file(run, name), translations)
    write_json(run.eval / f"{name}.json", evaluation.as_json())


def hypothesis_file(run: RunDirectory, name: str) -> Path:
    """Return the file for the translations of a text."""
    return run.eval / f"{name}.hyp.txt"


def saved_hypotheses(
    files: ModelFiles, name: str, text: Bitext, precision: torch.dtype
) -> tuple[str, ...] | None:
    """Return the saved translations of a text if they are those of this model by its own search."""
    try:
        fingerprint = read_json(files.run.eval / f"{name}.json")["fingerprint"]
        hypotheses = tuple(read_lines(hypothesis_file(files.run, name)))
    except (OSError, ValueError, KeyError, TypeError, DataError):
        return None
    config = files.config
    models, languages = (files.fingerprint,), config.data.direction_of(text)
    expected = translation_fingerprint(
        models, text, languages, config.decoding, None, precision, hypotheses
    )
    return hypotheses if fingerprint == expected else None


def own_translations(
    files: ModelFiles,
    name: str,
    metrics: Sequence[MetricName],
    *,
    compared: Sequence[Path] = (),
    device: str,
    workers: int | None,
    log: Callable[[str], object],
    on_start: Callable[[int], object],
    on_done: Callable[[int], object],
    on_warning: Callable[[Problem], object],
) -> tuple[str, ...]:
    """Return the translations of a text by a run's own search.

    They are those that `tformer eval` has saved, if there are; others are made and saved with their
    scores, but never over a file that they are compared with.
    """
    text = texts_of_split(files.config, name)[name]
    precision = resolve_precision(None, resolve_device(device))
    saved = saved_hypotheses(files, name, text, precision)
    if saved is not None:
        return saved
    for file in compared:
        if file.resolve() == hypothesis_file(files.run, name).resolve():
            what = f"would be replaced by the translations of {files.run.path}"
            raise UsageError(str(file), what, remedy="copy it, and name the copy")
    log(f"{files.run.path}: translating {name}")
    evaluator = Evaluator.load(files.run.path, device=device, workers=workers)
    evaluations = evaluate_texts(
        evaluator,
        files.run,
        {name: text},
        metrics,
        on_start=on_start,
        on_done=on_done,
        on_warning=on_warning,
    )
    return evaluations[name].hypotheses


def warn_of_overlap(
    data: DataConfig, texts: Mapping[str, Text], on_warning: Callable[[Problem], object]
) -> None:
    """Warn of texts that share many lines with the beginning of the training text."""
    # Texts that stand for their phrase pairs are mostly read already, for their lines.
    texts_in_order = sorted(data.train, key=has_phrases)
    existing = [x for x in texts_in_order if all(file.is_file() for file in x.files.values())]
    pairs = itertools.islice(read_texts(existing), MAX_COMPARED)
    # Errors of the training text do not matter here: no score depends on it.
    with contextlib.suppress(DataError):
        for warning in overlap_warnings(pairs, texts, data.unit):
            on_warning(warning)


def texts_of_split(
    config: Config,
    split: str | None,
    remedy: str = "put it there, or correct the path in the config",
) -> dict[str, Bitext]:
    """Return the texts of a split by name: `valid`, `test` (all test sets), or that of one.

    Raises:
        UsageError: there is no such split.
        DataError: a file does not exist, with a remedy.
    """
    test = dict(config.data.test)
    valid = {n: x for n, x in config.data.valid_texts.items() if not isinstance(x, PlainText)}
    splits = {name: {name: text} for name, text in (test | valid).items()}
    splits |= {"test": test, "valid": valid}
    texts = test if split is None else splits.get(split)
    if not texts:
        is_test = split in (None, "test")
        what = "the config has no test set" if is_test else "the config has no such split"
        names = ", ".join({"valid": "", **valid, **test})
        raise UsageError("`split`", what, got=split, remedy=f"choose from: {names}")
    for file in itertools.chain.from_iterable(text.files.values() for text in texts.values()):
        if not file.is_file():
            raise DataError(str(file), "no such file", remedy=remedy)
    return texts
