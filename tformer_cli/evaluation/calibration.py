"""Calibration of a run: its confidences are fitted to the quality of its validation text."""

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tformer_cli.corpus.reader import read_texts
from tformer_cli.errors import DataError, Problem
from tformer_cli.evaluation.evaluate import texts_of_split, warn_of_overlap
from tformer_cli.evaluation.metrics import build_metric
from tformer_cli.evaluation.resampling import Array
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import check_translates, find_model
from tformer_cli.translate.confidence import (
    NUM_BINS,
    Bin,
    ConfidenceModel,
    Reliability,
    features,
    fingerprint_of,
    log_length_ratio,
)
from tformer_cli.translate.postprocess import Translation
from tformer_cli.translate.translator import Translator

# Parts of the validation text, each rated by what was fitted to the others.
NUM_FOLDS = 5
# Of a Gaussian prior on each parameter, which matters only for a few lines.
PRIOR_PRECISION = 1.0
MAX_STEPS = 100


class RatedLine(NamedTuple):
    """A line, its translation, and the sentence chrF of that, 0 to 1."""

    source: str
    translation: Translation
    quality: float


def calibrate(
    run: str | os.PathLike[str],
    *,
    checkpoint: str = "best",
    device: str = "auto",
    workers: int | None = 1,
    log: Callable[[str], object] = lambda line: None,
    on_start: Callable[[int], object] = lambda count: None,
    on_done: Callable[[int], object] = lambda count: None,
    on_warning: Callable[[Problem], object] = lambda problem: None,
) -> ConfidenceModel:
    """Fit the confidences of a run to its validation text, and write confidence.json into it.

    From then on translations by this checkpoint and the run's own search have a `confidence`.
    Several validation texts, each in its direction, are fitted to together. The test sets of the
    config are not fitted to: they show how reliable it is elsewhere.

    Examples:
        >>> calibrate("runs/demo").reliability["valid"].ece  # doctest: +SKIP
        0.013

    Args:
        run: the run folder.
        checkpoint: best, last, a step, or a name such as step-000400.
        device: auto, cpu, cuda, cuda:N or mps.
        workers: processes that share the work on a CPU, one thread each; None for one a core.
        log: called with a line when an export is written, or CTranslate2 does not do.
        on_start: called with the number of lines of each text.
        on_done: called with the number of lines whenever some are translated.
        on_warning: as for `evaluate`.

    Returns:
        What rates translations, with its reliability on each text: on the validation text by
        cross-fitting, under the name `valid`, or of several `valid.en-de` and so on.

    Raises:
        TformerError: the run or a text is unusable, or there is no such device.
    """
    files = find_model(RunDirectory(Path(run)), checkpoint)
    config = files.config
    check_translates(files.run, config)
    valid = texts_of_split(config, "valid")
    texts = valid | (texts_of_split(config, "test") if config.data.test else {})
    pairs = {name: list(read_texts([text])) for name, text in texts.items()}
    num_lines = {name: sum(map(has_source, each)) for name, each in pairs.items()}
    num_valid = sum(num_lines[name] for name in valid)
    if num_valid < NUM_FOLDS:
        what = f"must have at least {NUM_FOLDS} lines to calibrate by"
        first, *_ = valid.values()
        remedy = "use a longer validation text"
        raise DataError(str(first.source_file), what, got=str(num_valid), remedy=remedy)
    warn_of_overlap(config.data, texts, on_warning)
    loaded = Translator.load(run, checkpoint=checkpoint, device=device, workers=workers, log=log)
    # Its confidence is about to be replaced.
    translator = Translator(loaded.engine, loaded.tokenizers, loaded.config, **loaded.limits)

    def rate(name: str) -> list[RatedLine]:
        sources, references = zip(*pairs[name], strict=True)
        source_language, target_language = config.data.direction_of(texts[name])
        on_start(len(sources))
        translated = translator.into(target_language, source_language).nbest(
            sources,
            1,
            inspected=True,
            name=str(texts[name].source_file),
            on_done=on_done,
            on_warning=on_warning,
        )
        best = [translation for (translation,) in translated]
        chrf = build_metric("chrf", config.evaluation, target_language)
        statistics = chrf.statistics({"": [each.text for each in best]}, [references])
        (scores,) = statistics.sentence_scores()
        rows = zip(sources, best, (score / 100 for score in scores), strict=True)
        return [RatedLine(*row) for row in rows if has_source(row)]

    lines = {name: rate(name) for name, count in num_lines.items() if count}
    fitted = {name: each for name, each in lines.items() if name in valid}
    together = list(itertools.chain.from_iterable(fitted.values()))
    model = fit(together, fingerprint_of(files))
    confidences = iter(cross_fitted(together))
    crossed = {n: list(itertools.islice(confidences, len(each))) for n, each in fitted.items()}
    reliability = {
        name: reliability_of(crossed.get(name) or rated(model, each), each)
        for name, each in lines.items()
    }
    model = replace(model, reliability=reliability)
    model.save(files.run)
    return model


def has_source(row: Sequence[object]) -> bool:
    """Return whether the source of a row, which comes first, is more than whitespace."""
    return str(row[0]).strip() != ""


def fit(lines: Sequence[RatedLine], fingerprint: str = "") -> ConfidenceModel:
    """Return the regression of the quality of some lines.

    A feature whose weight would be negative is left out. So a confidence never falls as the log
    probability rises, or as there are fewer defects.
    """
    ratios = [log_length_ratio(each.source, each.translation.text) for each in lines]
    ratio = float(np.mean(ratios))
    rows = np.array([features(each.source, each.translation, ratio) for each in lines])
    qualities = np.array([each.quality for each in lines])
    used = list(range(rows.shape[1]))
    while True:
        bias, *fitted = logistic_regression(rows[:, used], qualities)
        if min(fitted, default=0.0) >= 0:
            break
        del used[int(np.argmin(fitted))]
    weights = np.zeros(rows.shape[1])
    weights[used] = fitted
    return ConfidenceModel(fingerprint, bias, tuple(weights.tolist()), ratio)


def logistic_regression(rows: Array, targets: Array) -> list[float]:
    """Return the bias and the weights of a fractional logistic regression, by Newton's method.

    Targets are shares instead of classes (Papke and Wooldridge 1996). Each parameter has a Gaussian
    prior.

    Args:
        rows: features `(N, F)`.
        targets: from 0 to 1 `(N,)`.
    """
    inputs = np.column_stack([np.ones(len(rows)), rows])
    prior = PRIOR_PRECISION * np.eye(inputs.shape[1])
    weights = np.zeros(inputs.shape[1])
    for _ in range(MAX_STEPS):
        means = (1 + np.tanh(inputs @ weights / 2)) / 2
        gradient = inputs.T @ (targets - means) - prior @ weights
        step = np.linalg.solve((inputs.T * (means * (1 - means))) @ inputs + prior, gradient)
        weights += step
        if np.abs(step).max() < 1e-9:
            break
    return [float(weight) for weight in weights]


def rated(model: ConfidenceModel, lines: Sequence[RatedLine]) -> list[float]:
    """Return the confidence of each line."""
    return [model.expected_quality(each.source, each.translation) for each in lines]


def cross_fitted(lines: Sequence[RatedLine]) -> list[float]:
    """Return the confidence of each line, by what is fitted to the other folds."""
    confidences = [0.0] * len(lines)
    for fold in range(NUM_FOLDS):
        others = [line for index, line in enumerate(lines) if index % NUM_FOLDS != fold]
        confidences[fold::NUM_FOLDS] = rated(fit(others), lines[fold::NUM_FOLDS])
    return confidences


def reliability_of(confidences: Sequence[float], lines: Sequence[RatedLine]) -> Reliability:
    """Return how far confidences are from the quality of their lines."""
    qualities = [each.quality for each in lines]
    raw = [features(each.source, each.translation, 0.0)[1] for each in lines]
    bins, raw_bins = bins_of(confidences, qualities), bins_of(raw, qualities)
    return Reliability(
        num_sentences=len(lines),
        quality=float(np.mean(qualities)),
        confidence=float(np.mean(confidences)),
        ece=calibration_error(bins),
        raw_ece=calibration_error(raw_bins),
        bins=bins,
    )


def bins_of(confidences: Sequence[float], qualities: Sequence[float]) -> tuple[Bin, ...]:
    """Return the bins of confidences that are not empty, the lowest first."""
    pairs = np.array([confidences, qualities])
    indices = np.minimum(pairs[0] * NUM_BINS, NUM_BINS - 1).astype(int)
    members = [pairs[:, indices == index] for index in np.unique(indices)]
    return tuple(Bin(each.shape[1], *each.mean(axis=1).tolist()) for each in members)


def calibration_error(bins: Sequence[Bin]) -> float:
    """Return the expected calibration error of bins (Guo et al. 2017, equation 3)."""
    distances = [each.num_sentences * abs(each.confidence - each.quality) for each in bins]
    return sum(distances) / sum(each.num_sentences for each in bins)
