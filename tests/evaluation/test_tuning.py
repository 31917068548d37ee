"""The choice of a search: each trial is what `evaluate` says of it, and no test text is read."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sacrebleu

from tformer_cli import BeamConfig, GreedyConfig, TformerError, Translator, evaluate, tune
from tformer_cli.config.load import load_config, save_decoding
from tformer_cli.config.schema.config import EvaluationConfig
from tformer_cli.evaluation.compare import compare_systems, mean_p_value
from tformer_cli.evaluation.metrics import Score, build_metric
from tformer_cli.evaluation.tuning import Trial, Tuning, best_trial
from tformer_cli.search.native_engine import NativeEngine


def run_with(decoding, toy_run: Path, folder: Path) -> Path:
    """A copy of the toy run with another search."""
    shutil.copytree(toy_run, folder)
    save_decoding(folder / "config.yaml", decoding)
    return folder


def penalties(tuning: Tuning, beam_size: int) -> list[float]:
    searches = [trial.decoding for trial in tuning.trials]
    return sorted(
        one.length_penalty
        for one in searches
        if one.beam_size == beam_size and one.no_repeat_ngram_size == 0
    )


def trial(score: float, **search) -> Trial:
    return Trial(BeamConfig(**search), Score("BLEU", score, "", 1))


@pytest.mark.parametrize("backend", ["native", "auto"])
def test_each_trial_is_what_evaluate_says_of_its_search(toy_run, backend):
    tuning = tune(toy_run, beam_sizes=[2, 3], metric="chrf", device="cpu", backend=backend)
    assert len({one.score.score for one in tuning.trials}) > 2, "equal scores show little"
    for one in tuning.trials[::4]:
        expected = evaluate(
            toy_run, split="valid", metrics=["chrf"], decoding=one.decoding, device="cpu"
        )
        assert one.score == expected["valid"].scores["chrf"]
    assert tuning.own.decoding == load_config(toy_run / "config.yaml").decoding


def test_a_grid_is_refined_around_its_best(toy_run):
    tuning = tune(toy_run, beam_sizes=[3], device="cpu", backend="native")
    assert tuning.own.decoding.beam_size == 2
    scores = {
        one.decoding.length_penalty: one.score.score
        for one in tuning.trials[1:]
        if one.decoding.no_repeat_ngram_size == 0
    }
    expected = {0.0, 0.4, 0.8, 1.2, 1.6, 2.0}
    for distance in (0.2, 0.1):
        best = max(sorted(expected, key=list(scores).index), key=lambda x: round(scores[x], 2))
        near = {round(best - distance, 1), round(best + distance, 1)}
        expected |= {penalty for penalty in near if penalty >= 0}
    assert penalties(tuning, 3) == sorted(expected)


@pytest.mark.parametrize("size", [3, 4])
def test_a_limit_of_repeated_ngrams_that_is_better_is_chosen_and_refined(toy_run, tmp_path, size):
    data = toy_run.parent / "data"
    run, source, target = (tmp_path / name for name in ("run", "valid.src", "valid.tgt"))
    shutil.copytree(toy_run, run)
    config = run / "config.yaml"
    text = config.read_text().replace(str(data / "valid.src"), str(source))
    config.write_text(text.replace(str(data / "valid.tgt"), str(target)))
    lines = [line * 2 for line in (data / "valid.src").read_text().split()]
    source.write_text("".join(f"{line}\n" for line in lines))
    translator = Translator.load(run, device="cpu", backend="native")
    limited = replace(translator.config.decoding, no_repeat_ngram_size=size)
    wanted = translator.translate(lines, decoding=limited)
    assert wanted != translator.translate(lines), "the model repeats nothing"
    target.write_text("".join(f"{line}\n" for line in wanted))
    tuning = tune(run, metric="chrf", device="cpu", backend="native")
    assert tuning.best.score.score == pytest.approx(100)
    assert tuning.best.decoding.no_repeat_ngram_size == size
    found = {one.decoding.no_repeat_ngram_size: [] for one in tuning.trials}
    for one in tuning.trials:
        found[one.decoding.no_repeat_ngram_size].append(one.decoding.length_penalty)
    assert set(found) == {0, 3, 4}
    assert len(found.pop(0)) >= 9
    assert len(found.pop(size)) >= 6
    # Of the other size the best length penalty without a limit is tried alone.
    ((_,),) = found.values()


def test_our_own_engine_searches_once_for_all_length_penalties(toy_run, monkeypatch):
    searches = []
    decode = NativeEngine.decode

    def watched(engine, job, *rest):
        searches.append(job.config)
        return decode(engine, job, *rest)

    monkeypatch.setattr(NativeEngine, "decode", watched)
    done: list[int] = []
    tuning = tune(toy_run, device="cpu", backend="native", on_done=done.append)
    assert len(tuning.trials) >= 9
    tried = [one.decoding for one in tuning.trials]
    assert len(searches) == len(
        {(one.no_repeat_ngram_size, one.length_penalty == 0) for one in tried}
    )
    assert sum(done) == 12 * len(tuning.trials)


def test_the_highest_score_wins_and_of_a_tie_the_first():
    own = trial(30.001, length_penalty=1.0)
    tie, better = trial(30.004, length_penalty=0.8), trial(30.01, length_penalty=0.6)
    assert best_trial([own, tie]) is own
    assert best_trial([own, tie, better]) is better


def test_what_is_not_beam_search_is_compared_with_a_beam_of_5(toy_run, tmp_path):
    greedy = GreedyConfig(max_length=20)
    tuning = tune(run_with(greedy, toy_run, tmp_path / "run"), device="cpu", backend="native")
    assert tuning.own.decoding == greedy
    assert {one.decoding.beam_size for one in tuning.trials[1:]} == {5}
    assert {one.decoding.max_length for one in tuning.trials} == {20}


def test_a_beam_of_1_is_greedy_search_once(toy_run):
    tuning = tune(toy_run, beam_sizes=[1], device="cpu", backend="native")
    assert [one.decoding.kind for one in tuning.trials] == ["beam", *["greedy"] * 3]


def test_a_size_that_the_search_forbids_is_refused_before_the_first_trial(toy_run, tmp_path):
    groups = BeamConfig(beam_size=2, num_beam_groups=2, max_length=20)
    run = run_with(groups, toy_run, tmp_path / "run")
    done: list[int] = []
    with pytest.raises(TformerError, match="num_beam_groups: must divide beam_size 3"):
        tune(run, beam_sizes=[2, 3], device="cpu", backend="native", on_done=done.append)
    assert done == []


def test_test_sets_are_not_read(toy_run, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(toy_run.parent / "data", data)
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace(str(toy_run.parent / "data"), str(data)))
    before = tune(run, device="cpu", backend="native")
    for file in data.glob("test.*"):
        file.unlink()
    assert tune(run, device="cpu", backend="native") == before
    for file in data.glob("valid.*"):
        file.unlink()
    with pytest.raises(TformerError) as caught:
        tune(run, device="cpu", backend="native")
    assert (
        str(caught.value)
        == f"{data}/valid.src: no such file; put it there, or correct the path in the config"
    )


def test_problems_of_a_line_are_told_once(toy_run, tmp_path):
    run, source = tmp_path / "run", tmp_path / "valid.src"
    shutil.copytree(toy_run, run)
    data = toy_run.parent / "data"
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace(str(data / "valid.src"), str(source)))
    lines = (data / "valid.src").read_text().splitlines()
    source.write_text("\n".join([*lines[:-1], "ab cd, " * 60]) + "\n")
    warnings = []
    tune(run, device="cpu", backend="native", on_warning=warnings.append)
    assert [one.where for one in warnings] == ["data.valid", f"{source}:12"]


def test_yaml_sets_the_search_and_leaves_defaults_out(toy_run, tmp_path):
    best = trial(31.0, beam_size=5, length_penalty=0.8, no_repeat_ngram_size=3)
    tuning = Tuning((), (trial(30.0), best), best, 0.01)
    assert tuning.yaml == (
        "decoding:\n  kind: beam\n  beam_size: 5\n  length_penalty: 0.8\n"
        "  no_repeat_ngram_size: 3\n"
    )
    file = tmp_path / "config.yaml"
    whole = (toy_run / "config.yaml").read_text()
    file.write_text(whole[: whole.index("\ndecoding:\n") + 1] + tuning.yaml)
    assert load_config(file).decoding == best.decoding


def test_a_saved_search_replaces_the_former_and_nothing_else(toy_run, tmp_path):
    search = BeamConfig(beam_size=7, length_penalty=0.3)
    run = run_with(search, toy_run, tmp_path / "run")
    before, now = (load_config(folder / "config.yaml") for folder in (toy_run, run))
    assert now == replace(before, decoding=search)
    save_decoding(run / "config.yaml", before.decoding)
    assert (run / "config.yaml").read_bytes() == (toy_run / "config.yaml").read_bytes()
    # Paths stay relative, and a section that was absent is added.
    file = tmp_path / "short.yaml"
    file.write_text("data:  # comment\n  train: [{source: a, target: b}]\ntraining: {patience: }\n")
    save_decoding(file, GreedyConfig())
    assert file.read_text().startswith(
        "data:\n  train: [{source: a, target: b}]\ntraining: {patience: null}\ndecoding:\n"
    )


def test_the_p_value_is_that_of_resampling_sentence_by_sentence():
    chooser = random.Random(5)
    references = [" ".join(chooser.choices("abcdefgh", k=7)) for _ in range(12)]

    def changed(share: float) -> list[str]:
        return [
            " ".join(word if chooser.random() > share else "x" for word in line.split())
            for line in references
        ]

    texts = [(changed(0.3), changed(0.22)), (changed(0.25), changed(0.2))]
    samples = np.random.default_rng(12345).choice(12, size=(1000, 12), replace=True)

    def differences_of(systems) -> np.ndarray:
        """The differences of all lines, then of each sample."""

        def score(text, lines) -> float:
            hypotheses, expected = ([each[i] for i in lines] for each in (text, references))
            return sacrebleu.corpus_chrf(hypotheses, [expected]).score

        return np.array(
            [score(systems[1], lines) - score(systems[0], lines) for lines in (range(12), *samples)]
        )

    metric = build_metric("chrf", EvaluationConfig(), "de")
    differences, statistics = [], []
    for systems in texts:
        differences.append(differences_of(systems))
        names = dict(zip("ab", systems, strict=True))
        statistics.append(metric.statistics(names, [references]))
    for count in (1, 2):
        observed, *resampled = np.abs(np.mean(differences[:count], axis=0))
        num_larger = int((resampled - np.mean(resampled) > observed).sum())
        assert mean_p_value(statistics[:count]) == (num_larger + 1) / 1001
        assert 0.002 < (num_larger + 1) / 1001 < 0.5
    (_, compared) = compare_systems("text", statistics[:1]).scores["chrf"]
    assert compared.contrast.p_bootstrap == mean_p_value(statistics[:1])


def test_other_metrics_are_refused(toy_run):
    with pytest.raises(TformerError) as caught:
        tune(toy_run, metric="ter")
    assert str(caught.value) == "`metric`: must be one of bleu, chrf (ter)"
