"""Confidence: the quality that is expected of a translation, by what its search knows of it."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tformer_cli.errors import Problem
from tformer_cli.storage.atomic import read_json, write_json
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import ModelFiles
from tformer_cli.translate.postprocess import Translation

# Decimals of a confidence: more depend on the batch.
CONFIDENCE_DECIMALS = 3
NUM_FEATURES = 4
# Steps of confidence, as in Guo et al. 2017.
NUM_BINS = 10
CALIBRATE = "run `tformer calibrate` again"


@dataclass(frozen=True, slots=True)
class Bin:
    """Translations of similar confidence: how many, and their mean confidence and quality."""

    num_sentences: int
    confidence: float
    quality: float


@dataclass(frozen=True, slots=True)
class Reliability:
    """How far confidences are from quality, which is sentence chrF from 0 to 1, on a text.

    Attributes:
        num_sentences: number of translations.
        quality: mean quality.
        confidence: mean confidence.
        ece: expected calibration error.
        raw_ece: that of the probability per token, exp(log probability / tokens).
        bins: translations by confidence, in steps of equal width; none is empty.
    """

    num_sentences: int
    quality: float
    confidence: float
    ece: float
    raw_ece: float
    bins: tuple[Bin, ...]


@dataclass(frozen=True, slots=True)
class ConfidenceModel:
    """A logistic regression of the quality of translations, for one model and its search.

    Of all that costs nothing, the log probability per token predicts quality best (Fomicheva et al.
    2020, section 4).

    Attributes:
        fingerprint: of the model and the search.
        bias: of the regression.
        weights: of `features`; none is negative.
        length_ratio: usual log of the length of a translation divided by that of its source.
        reliability: by the name of a text.
    """

    fingerprint: str
    bias: float
    weights: tuple[float, ...]
    length_ratio: float
    reliability: Mapping[str, Reliability] = field(default_factory=dict)

    def confidence(self, source: str, translation: Translation) -> float | None:
        """Return the expected quality; None if there is nothing to translate, or no score."""
        if not source.strip() or not math.isfinite(translation.log_prob):
            return None
        return self.expected_quality(source, translation)

    def expected_quality(self, source: str, translation: Translation) -> float:
        """Return the expected sentence chrF, 0 to 1, of a translation with scores and defects."""
        pairs = zip(self.weights, features(source, translation, self.length_ratio), strict=True)
        total = self.bias + sum(weight * value for weight, value in pairs)
        return round((1 + math.tanh(total / 2)) / 2, CONFIDENCE_DECIMALS)

    def save(self, run: RunDirectory) -> None:
        """Write confidence.json into a run folder."""
        write_json(run.confidence_file, asdict(self))


def features(source: str, translation: Translation, length_ratio: float) -> tuple[float, ...]:
    """Return what grows with the quality of a translation.

    The log of its probability per token, and that probability; and, negated, the distance of its
    length from the usual one, and the number of its defects.
    """
    log_prob = translation.log_prob / (len(translation.tokens) + 1)
    distance = abs(log_length_ratio(source, translation.text) - length_ratio)
    return log_prob, math.exp(log_prob), -distance, -float(len(translation.defects))


def log_length_ratio(source: str, text: str) -> float:
    """Return the log of the length of a translation, in characters, divided by its source's."""
    return math.log((len(text) + 1) / (len(source) + 1))


def fingerprint_of(files: ModelFiles) -> str:
    """Return a hash of a model and the search of its run."""
    return hashlib.sha256(f"{files.fingerprint} {files.config.decoding}".encode()).hexdigest()


def load_confidence(
    files: ModelFiles, log: Callable[[str], object] = lambda line: None
) -> ConfidenceModel | None:
    """Return what `calibrate` left in a run; None if it was for another checkpoint or search.

    `log` is then called with a message; but not if the run has never been calibrated.
    """
    file = files.run.confidence_file
    if not file.exists():
        return None
    try:
        model = _parse(read_json(file))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = "is not what tformer calibrate has written"
        log(str(Problem(str(file), what, got=str(error), remedy=CALIBRATE)))
        return None
    if model.fingerprint != fingerprint_of(files):
        what = "is of another checkpoint or search, so translations have no confidence"
        log(str(Problem(str(file), what, remedy=CALIBRATE)))
        return None
    return model


def _parse(content: dict[str, Any]) -> ConfidenceModel:
    """Return the model in a JSON document, or raise one of several errors."""
    reliability = {
        name: Reliability(**text | {"bins": tuple(Bin(**each) for each in text["bins"])})
        for name, text in content["reliability"].items()
    }
    bias, length_ratio, *weights = numbers = [
        float(number) for number in (content["bias"], content["length_ratio"], *content["weights"])
    ]
    if len(weights) != NUM_FEATURES or not all(map(math.isfinite, numbers)):
        raise ValueError("wrong weights")
    return ConfidenceModel(content["fingerprint"], bias, tuple(weights), length_ratio, reliability)
