"""Confidences: fitted to known regressions, binned as NumPy does, and tied to their checkpoint."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli import TformerError, Translator, calibrate
from tformer_cli.config.load import save_decoding
from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig
from tformer_cli.evaluation.calibration import (
    RatedLine,
    bins_of,
    calibration_error,
    cross_fitted,
    fit,
    logistic_regression,
    rated,
    reliability_of,
)
from tformer_cli.evaluation.tables import confidence_tables
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import find_model
from tformer_cli.text.defects import Defect
from tformer_cli.translate.confidence import ConfidenceModel, Reliability, load_confidence
from tformer_cli.translate.options import MBR
from tformer_cli.translate.postprocess import Translation

SHARES = st.floats(0, 1)


def line(log_prob: float, quality: float = 0.5, *, text: str = "abcd", num_defects=0) -> RatedLine:
    """A line of four letters with a translation of one token and EOS."""
    defects = (Defect("loops"),) * num_defects
    return RatedLine(
        "abcd", Translation(text, ("a",), 0.0, log_prob, True, defects=defects), quality
    )


@given(st.lists(st.tuples(SHARES, SHARES), min_size=1, max_size=60))
def test_the_calibration_error_is_that_of_numpys_histograms(pairs):
    confidences, qualities = np.array(pairs).T
    edges = np.minimum(np.arange(11) / 10, 1)
    # Where rounding leaves open on which side of an edge a confidence is, none is drawn.
    confidences = np.where(np.isin((confidences * 1e9).round() % 1e8, [0]), 0.05, confidences)
    counts, _ = np.histogram(confidences, edges)
    sums = [np.histogram(confidences, edges, weights=each)[0] for each in (confidences, qualities)]
    expected = np.abs(sums[0] - sums[1]).sum() / len(pairs)
    bins = bins_of(list(confidences), list(qualities))
    assert calibration_error(bins) == pytest.approx(expected, abs=1e-9)
    assert [each.num_sentences for each in bins] == [count for count in counts if count]


def test_a_confidence_of_one_is_in_the_last_bin():
    (last,) = bins_of([1.0, 0.95], [0.0, 0.5])
    assert (last.num_sentences, last.confidence, last.quality) == (2, 0.975, 0.25)


@pytest.mark.parametrize("tenths", range(11))
def test_a_row_of_a_bin_is_named_by_where_it_begins(tenths):
    bins = bins_of([tenths / 10] * 6, [0.5] * 6)
    reliability = Reliability(6, 0.5, tenths / 10, 0.1, 0.1, bins)
    _, table = confidence_tables({"toy": reliability}, "toy")
    assert [name for name, *_ in table.rows] == [f"{min(tenths, 9) / 10:.1f}"]


def test_a_regression_finds_the_weights_that_its_targets_were_drawn_by():
    generator = np.random.default_rng(1)
    rows = generator.normal(size=(40_000, 3))
    expected = [-0.5, 1.5, 0.0, 0.7]
    means = 1 / (1 + np.exp(-(expected[0] + rows @ expected[1:])))
    # Shares with these means, as far from them as sentence chrF is.
    shares = generator.beta(4 * means, 4 * (1 - means))
    assert logistic_regression(rows, shares) == pytest.approx(expected, abs=0.03)


@given(st.lists(st.tuples(st.floats(-20, 0), st.integers(0, 5), SHARES), min_size=2, max_size=20))
def test_a_confidence_never_falls_as_the_log_probability_rises_or_defects_go(drawn):
    lines = [line(log_prob, quality, num_defects=count) for log_prob, count, quality in drawn]
    model = fit(lines)
    by_log_prob = rated(model, [line(-x / 4) for x in range(80, -1, -1)])
    by_defects = rated(model, [line(-1.0, num_defects=count) for count in range(5, -1, -1)])
    by_length = rated(model, [line(-1.0, text="a" * length) for length in (400, 90, 30)])
    assert by_log_prob == sorted(by_log_prob)
    assert by_defects == sorted(by_defects)
    longest = math.log(31 / 5)
    assert model.length_ratio < longest
    assert by_length == sorted(by_length)
    assert all(0 <= each <= 1 for each in by_log_prob + by_defects + by_length)


def test_a_feature_that_speaks_against_quality_is_left_out():
    lines = [line(-x, x / 20, num_defects=x % 3) for x in range(20)]
    assert fit(lines).weights[:2] == (0.0, 0.0)


def test_cross_fitting_rates_a_line_without_its_own_quality():
    lines = [line(-x / 10, (40 - x) / 40) for x in range(40)]
    confidences = cross_fitted(lines)
    for index in (3, 17):
        others = [each for number, each in enumerate(lines) if (number - index) % 5]
        assert [confidences[index]] == rated(fit(others), [lines[index]])
        changed = [*lines[:index], lines[index]._replace(quality=0.0), *lines[index + 1 :]]
        assert cross_fitted(changed)[index] == confidences[index]
        assert cross_fitted(changed) != confidences


def test_the_error_of_the_probability_is_that_of_the_probability():
    lines = [line(2 * math.log(0.35), 0.5), line(2 * math.log(0.85), 0.75)]
    assert reliability_of([0.5, 0.75], lines).raw_ece == pytest.approx((0.15 + 0.1) / 2)
    assert reliability_of([0.5, 0.75], lines).ece == 0


@pytest.fixture(scope="module")
def run(toy_run, tmp_path_factory) -> Path:
    """The toy run, calibrated."""
    folder = tmp_path_factory.mktemp("calibration") / "run"
    shutil.copytree(toy_run, folder)
    calibrate(folder, device="cpu")
    return folder


@pytest.fixture
def copy(run, tmp_path) -> Path:
    """A copy of the calibrated run, to be changed."""
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run"


def model_of(run: Path) -> ConfidenceModel:
    model = load_confidence(find_model(RunDirectory(run)))
    assert model is not None
    return model


def test_reliability_is_that_of_the_translations_that_follow(run, toy_run):
    data = toy_run.parent / "data"
    lines = (data / "test.src").read_text().splitlines()
    references = (data / "test.tgt").read_text().splitlines()
    best = [
        first for (first,) in Translator.load(run, device="cpu").nbest(lines, 1, inspected=True)
    ]
    qualities = [
        sacrebleu.sentence_chrf(each.text, [reference]).score / 100
        for each, reference in zip(best, references, strict=True)
    ]
    reliability = model_of(run).reliability
    assert set(reliability) == {"valid", "toy"}
    assert reliability["toy"].quality == pytest.approx(np.mean(qualities))
    assert reliability["toy"].confidence == pytest.approx(np.mean([x.confidence for x in best]))
    assert reliability["toy"].bins == bins_of([x.confidence for x in best], qualities)


def test_calibrating_again_changes_nothing(copy):
    content = (copy / "confidence.json").read_bytes()
    calibrate(copy, device="cpu")
    assert (copy / "confidence.json").read_bytes() == content


@pytest.mark.parametrize("backend", ["native", "auto"])
def test_confidences_are_the_same_in_batches_of_any_size(run, toy_run, backend):
    lines = (toy_run.parent / "data" / "train.src").read_text().splitlines()[:40]
    translator = Translator.load(run, device="cpu", backend=backend)
    together = [
        [each.confidence for each in best] for best in translator.nbest(lines, 2, inspected=True)
    ]
    alone = [
        [each.confidence for each in best]
        for text in lines
        for best in translator.nbest([text], 2, inspected=True)
    ]
    assert together == alone
    assert len({first for first, _ in together}) > 10


def test_a_line_of_whitespace_has_no_confidence_and_shifts_no_other(run):
    ab, empty, cd = (
        best for (best,) in Translator.load(run).nbest(["ab", " ", "cd"], 1, inspected=True)
    )
    assert empty.confidence is None
    (alone,) = (best for (best,) in Translator.load(run).nbest(["cd"], 1, inspected=True))
    assert cd.confidence == alone.confidence is not None
    assert ab.confidence is not None


@pytest.mark.parametrize(
    "options",
    [
        {"decoding": GreedyConfig(max_length=20)},
        {"decoding": BeamConfig(beam_size=3, max_length=20)},
        {"mbr": MBR()},
        {"scored": False},
    ],
    ids=str,
)
def test_what_was_not_calibrated_has_no_confidence(run, options):
    ((best,),) = Translator.load(run, backend="native").nbest(
        ["ab cd"], 1, inspected=True, **options
    )
    assert best.confidence is None


def test_an_ensemble_has_no_confidence(run, toy_run):
    ((best,),) = Translator.load(run, ensemble=[toy_run]).nbest(["ab cd"], 1, inspected=True)
    assert best.confidence is None


def test_defects_of_a_span_to_keep_lower_a_confidence(run):
    model = replace(model_of(run), weights=(1.0, 1.0, 0.1, 0.5))
    translator = Translator.load(run, backend="native")
    translator.load_confidence = lambda: model
    ((best,),) = translator.nbest(["ab {name} cd"], 1, inspected=True)
    assert best.defects
    assert best.confidence == model.confidence("ab {name} cd", best)
    assert best.confidence < model.confidence("ab {name} cd", replace(best, defects=()))


OUTDATED = (
    "confidence.json: is of another checkpoint or search, so translations have no confidence; "
    "run `tformer calibrate` again"
)


def test_another_checkpoint_is_refused_once(run):
    log: list[str] = []
    best = find_model(RunDirectory(run)).checkpoint
    (other, *_) = [each.name for each in RunDirectory(run).step_checkpoints() if each.name != best]
    translator = Translator.load(run, checkpoint=other, backend="native", log=log.append)
    assert list(translator.nbest(["ab cd"], 1))
    assert log == []
    for (best,) in translator.nbest(["ab cd", "ef"], 1, inspected=True):
        assert best.confidence is None
    assert log == [f"{run}/{OUTDATED}"]


def test_another_search_of_the_run_is_refused(copy):
    save_decoding(copy / "config.yaml", BeamConfig(beam_size=3, max_length=20))
    log: list[str] = []
    assert load_confidence(find_model(RunDirectory(copy)), log.append) is None
    assert log == [f"{copy}/{OUTDATED}"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: [],
        lambda content: content | {"weights": [1.0]},
        lambda content: content | {"bias": math.nan},
        lambda content: content | {"bias": "x"},
        lambda content: content | {"reliability": {"valid": {}}},
        lambda content: {key: content[key] for key in content if key != "fingerprint"},
    ],
)
def test_a_file_that_was_changed_is_refused(copy, damage):
    file = copy / "confidence.json"
    file.write_text(json.dumps(damage(json.loads(file.read_text()))))
    log: list[str] = []
    assert load_confidence(find_model(RunDirectory(copy)), log.append) is None
    (text,) = log
    assert text.startswith(f"{file}: is not what tformer calibrate has written (")
    assert text.endswith("); run `tformer calibrate` again")


def test_a_run_that_was_never_calibrated_says_nothing(toy_run):
    log: list[str] = []
    assert load_confidence(find_model(RunDirectory(toy_run)), log.append) is None
    assert log == []


@pytest.mark.parametrize(("content", "count"), [("ab\n\ncd\n", 2), ("", 0)])
def test_a_few_lines_are_not_enough(copy, tmp_path, content, count):
    config = copy / "config.yaml"
    for suffix in ("src", "tgt"):
        (tmp_path / f"few.{suffix}").write_text(content)
    text = config.read_text()
    valid = text.index("  valid:")
    for suffix in ("src", "tgt"):
        start = text.index(": ", text.index("source:" if suffix == "src" else "target:", valid))
        end = text.index("\n", start)
        text = f"{text[:start]}: {tmp_path}/few.{suffix}{text[end:]}"
    config.write_text(text)
    message = rf"few.src: must have at least 5 lines to calibrate by \({count}\); use a longer"
    with pytest.raises(TformerError, match=message):
        calibrate(copy, device="cpu")
