"""The training benchmark: one network, the same tokens, results by hand."""

import gzip
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import harness
import numpy as np
import pytest
import torch
import train
import train_baselines
from baseline_textbook import TextbookModel
from flops import training_flops
from harness import CONDITIONS, Condition, columns_table, play_rounds, two_digits
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from toy import sentence, translation
from train import (
    GEMM,
    NETWORK,
    SIZES,
    app,
    benchmark_config,
    cells,
    summary,
    training_worker,
)
from train_baselines import (
    BASELINES,
    Marian,
    Measurement,
    Ours,
    Step,
    Task,
    Textbook,
    measure,
    steps_of,
)
from typer.testing import CliRunner

from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.corpus.batch import Batch
from tformer_cli.corpus.reader import read_texts
from tformer_cli.errors import TrainingError, UsageError
from tformer_cli.model.build import build_model
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.vocabulary import PAD_ID

SMALLEST = replace(
    NETWORK, dim=12, num_encoder_layers=1, num_decoder_layers=2, num_heads=2, feedforward_dim=14
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with the file names of Multi30k."""
    folder = tmp_path_factory.mktemp("multi30k")
    chooser = random.Random(1)
    for split, count in (("train", 120), ("val", 12)):
        lines = [sentence(chooser) for _ in range(count)]
        for language, text in (("en", lines), ("de", map(translation, lines))):
            with gzip.open(folder / f"{split}.lc.norm.tok.{language}.gz", "wt") as file:
                file.writelines(f"{line}\n" for line in text)
    return folder


@pytest.fixture(scope="module")
def task(folder: Path) -> Task:
    """A network of the benchmark in small, on characters and in batches of 300 tokens."""
    config = benchmark_config(folder, "tiny", 300)
    config = replace(
        config,
        tokenizer=CharConfig(),
        model=SMALLEST,
        training=replace(config.training, batch_tokens=300),
    )
    return Task.of(config)


def without_dropout(task: Task) -> Task:
    return replace(task, config=replace(task.config, model=replace(SMALLEST, dropout=0.0)))


def sentence_tokens(task: Task, batch: Batch) -> int:
    """The characters of the sentences of a batch, and their ends."""
    lines = [target for _, target in read_texts(task.config.data.train)]
    return sum(len(lines[index]) + 1 for index in batch.indices.tolist())


@pytest.mark.slow
def test_json_has_the_results_of_each_size(folder, monkeypatch):
    monkeypatch.setattr(train, "WARM_UP_STEPS", 1)
    options = (
        "--sizes tiny --seconds 0.1 --rounds 1 --threads 1 --precision float32 --vocab-size 300 "
        "--conditions tuned"
    )
    printed = CliRunner().invoke(
        app,
        ["--data", str(folder), *options.split(), "--quality-tokens", "9", "--json"],
        catch_exceptions=False,
    )
    results = json.loads(printed.stdout)
    assert results.keys() == {"tiny tuned"}
    tiny = results["tiny tuned"]
    assert tiny["ratio_hf"] == pytest.approx(tiny["ours"] / tiny["hf"])
    assert tiny["ratio_textbook"] == pytest.approx(tiny["ours"] / tiny["textbook"])
    # Without bfloat16 each is at its best in float32.
    assert tiny["ours_best"] == tiny["ours"]
    assert tiny["hf_best"] == tiny["hf"]
    assert tiny["ratio_hf_best"] == tiny["ratio_hf"]
    # On a loaded machine a product may come out slower than a step.
    assert tiny["gemm_share"] > 0
    assert tiny["rss_mib"].keys() == {"ours", "hf", "textbook"}
    assert all(100 < mib < 10_000 for mib in tiny["rss_mib"].values())
    # One batch has more than the nine tokens asked for.
    assert 9 < tiny["valid_loss"]["target_tokens"] <= 4096
    assert tiny["valid_loss"]["ours"] == pytest.approx(tiny["valid_loss"]["hf"], rel=1e-2)
    assert printed.stderr.startswith("tiny tuned\nround 1/1: ours ")


def test_all_count_the_same_tokens_of_the_same_batches(task):
    batches = list(itertools.islice(task.bucketed_batches(), 3))
    expected = [sentence_tokens(task, batch) for batch in batches]
    for baseline in BASELINES.values():
        steps = steps_of(batches, baseline(task).losses)
        assert [measure(steps, 0.0).num_tokens for _ in batches] == expected


def test_ours_and_marian_see_the_same_batches_in_turn(task):
    ours, marian = (kind(task).batches() for kind in (Ours, Marian))
    for mine, theirs in itertools.islice(zip(ours, marian, strict=False), 5):
        assert torch.equal(mine.source, theirs.source)
        assert torch.equal(mine.target_out, theirs.target_out)


def test_ours_and_marian_learn_the_same(task):
    """The same weights, the same updates: equal losses step after step, and on the valid text."""
    alike = without_dropout(task).with_schedule(4, 0)
    ours, marian = Ours(alike), Marian(alike)
    batches = 4 * [next(alike.bucketed_batches())]
    mine, theirs = (list(baseline.losses(batches)) for baseline in (ours, marian))
    assert mine == pytest.approx(theirs, rel=1e-4)
    assert mine[-1] < mine[0]
    assert ours.valid_loss() == pytest.approx(marian.valid_loss(), rel=1e-4)


@pytest.mark.parametrize("kind", [Ours, Marian])
def test_lower_precision_changes_the_loss_by_rounding(kind, task):
    exact = without_dropout(task)
    rounded = replace(exact, precision=torch.bfloat16)
    loss, rounded_loss = (
        next(baseline.losses(baseline.batches())) for baseline in (kind(exact), kind(rounded))
    )
    assert loss == pytest.approx(rounded_loss, rel=0.02)
    assert loss != rounded_loss


def test_random_batches_hold_every_sentence_once_an_epoch(task):
    mean_length = np.mean(task.store.target_lengths + 1)
    rows = round(300 / mean_length)
    per_epoch = -(-len(task.store) // rows)
    epochs = list(itertools.islice(task.random_batches(), 2 * per_epoch))
    seen = [batch.indices.tolist() for batch in epochs]
    first, second = (
        list(itertools.chain(*epoch)) for epoch in (seen[:per_epoch], seen[per_epoch:])
    )
    assert sorted(first) == sorted(second) == list(range(len(task.store)))
    assert first != second
    assert {len(batch) for batch in seen[: per_epoch - 1]} == {rows}


def test_textbook_takes_the_mean_over_real_tokens(task):
    textbook = Textbook(without_dropout(task))
    batch = next(textbook.batches())
    logits = textbook.model(batch.source, batch.target_in)[batch.target_mask]
    targets = batch.target_out[batch.target_mask]
    expected = functional.cross_entropy(logits, targets, label_smoothing=0.1)
    assert not batch.target_mask.all()
    (loss,) = textbook.losses([batch])
    assert loss == pytest.approx(expected.item(), rel=1e-4)


def test_textbook_never_sees_the_future():
    model = TextbookModel(SMALLEST, 23, 9).eval()
    source, target = torch.randint(4, 23, (3, 5)), torch.randint(4, 23, (3, 7))
    changed = target.clone()
    changed[:, 4:] = PAD_ID
    torch.testing.assert_close(model(source, changed)[:, :4], model(source, target)[:, :4])


def test_textbook_drops_where_marian_does():
    model = TextbookModel(replace(SMALLEST, dropout=0.3), 23, 9)
    layer = model.transformer.decoder.layers[0]
    assert [layer.dropout.p, layer.self_attn.dropout, layer.multihead_attn.dropout] == [0, 0, 0]
    dropouts = (model.dropout, layer.dropout1, layer.dropout2, layer.dropout3)
    assert {dropout.p for dropout in dropouts} == {0.3}


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_operations_are_those_that_torch_counts(size):
    config, vocab_size = replace(SIZES[size], dropout=0.0), 31
    model = build_model(config, source_size=vocab_size, target_size=vocab_size, seed=1)
    source, target = torch.randint(4, 31, (1, 5)), torch.randint(4, 31, (1, 7))
    real = torch.ones(1, 5, dtype=torch.bool)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(source, real, target, torch.arange(7)).sum().backward()
    expected = training_flops(config, vocab_size, np.array([5]), np.array([7]))
    assert counter.get_total_flops() == pytest.approx(expected)


def test_summary_takes_medians_of_speeds_and_of_the_rounds_own_ratios():
    # The machine is half as fast in the second round.
    speeds = {
        "ours": [400.0, 200.0, 360.0],
        "hf": [200.0, 100.0, 240.0],
        "textbook": [100.0, 25.0, 120.0],
        "ours bfloat16": [450.0, 210.0, 480.0],
        "hf bfloat16": [150.0, 50.0, 120.0],
        GEMM: [0.004, 0.002, 0.004],
    }
    assert summary(speeds, 2000.0) == {
        "ours": 360.0,
        "hf": 200.0,
        "textbook": 100.0,
        "ours_best": 450.0,
        "hf_best": 200.0,
        "ratio_hf": 2.0,
        "ratio_hf_best": 2.1,
        "ratio_textbook": 4.0,
        "gemm_share": pytest.approx(0.2),
        "rounds": {
            "ours": [400.0, 200.0, 360.0],
            "hf": [200.0, 100.0, 240.0],
            "textbook": [100.0, 25.0, 120.0],
            "ours_best": [450.0, 210.0, 480.0],
            "hf_best": [200.0, 100.0, 240.0],
            "ratio_hf": [2.0, 2.0, 1.5],
            "ratio_hf_best": [2.25, 2.1, 2.0],
            "ratio_textbook": [4.0, 8.0, 3.0],
        },
    }


def test_a_turn_takes_steps_until_its_seconds_have_passed(task, monkeypatch):
    batches = list(itertools.islice(task.bucketed_batches(), 3))
    # A batch takes a second by this clock, and its step two.
    clock = itertools.accumulate(itertools.cycle([1.0, 2.0]), initial=0.0)
    monkeypatch.setattr(train_baselines.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(train_baselines, "peak_memory", lambda _: 3 * 2**20)
    steps = steps_of(batches, lambda fed: (0.5 for _ in fed))
    measured = measure(steps, seconds=4.0)
    num_tokens = sum(batch.num_target_tokens for batch in batches[:2])
    assert measured == Measurement(num_tokens, seconds=6.0, rss_mib=3.0)
    assert measured.tokens_per_second == num_tokens / 6.0
    assert next(steps) == Step(batches[2], loss=0.5, seconds=3.0, loading_seconds=1.0)


def test_table_reads_as_a_column_a_size():
    size = {
        "rounds": {
            "ours": [5234.4, 5000.0, 5400.0],
            "ours_best": [5234.4, 5000.0, 5400.0],
            "hf": [3732.0],
            "hf_best": [3732.0],
            "textbook": [1138.0],
            "ratio_hf": [1.402, 1.3],
            "ratio_hf_best": [1.333],
            "ratio_textbook": [4.6, 12.4],
        },
        "gemm_share": 0.437,
        "rss_mib": {"ours": 1024.0, "hf": 1536.0, "textbook": 4300.0},
        "valid_loss": {"ours": 2.00004, "hf": 2.01, "target_tokens": 5},
    }
    rows = [
        ("target tokens/s: tformer", "5,200 (5,000-5,400)"),
        ("  at its best", "5,200 (5,000-5,400)"),
        ("  transformers' Marian", "3,700 (3,700-3,700)"),
        ("  Marian at its best", "3,700 (3,700-3,700)"),
        ("  textbook", "1,100 (1,100-1,100)"),
        ("tformer / Marian", "1.4 (1.3-1.4)"),
        ("  each at its best", "1.3 (1.3-1.3)"),
        ("tformer / textbook", "8.5 (4.6-12)"),
        ("share of GEMM peak", "44%"),
        ("peak MiB: tformer", "1,024"),
        ("peak MiB: transformers' Marian", "1,536"),
        ("peak MiB: textbook", "4,300"),
        ("valid loss: tformer", "2.0000"),
        ("valid loss: transformers' Marian", "2.0100"),
    ]

    def lines(width: int, rows: list[tuple[str, str]]) -> list[str]:
        head = f"{'':<{width}}{'tiny':>22}{'small':>22}"
        return [head, *(f"{title:<{width}}{cell:>22}{cell:>22}" for title, cell in rows)]

    table = columns_table("", dict.fromkeys(("tiny", "small"), cells(size)))
    assert table.split("\n") == lines(32, rows)
    without = cells(size | {"valid_loss": None})
    table = columns_table("", {"tiny": without, "small": without})
    assert table.split("\n") == lines(30, rows[:-2])


def test_baseline_that_fails_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with (
        training_worker("hf", RunDirectory(tmp_path), threads=1) as worker,
        pytest.raises(TrainingError) as raised,
    ):
        worker.ask(seconds=0.1)
    assert str(raised.value) == "hf: has failed (exit code 1); see its output above"


def test_folder_without_the_corpus_is_refused(folder, tmp_path):
    (tmp_path / "val.lc.norm.tok.en.gz").touch()
    with pytest.raises(UsageError) as raised:
        benchmark_config(tmp_path, "tiny", 300)
    assert str(raised.value) == (
        "--data: the folder has no train.lc.norm.tok.en.gz, train.lc.norm.tok.de.gz, "
        f"val.lc.norm.tok.de.gz ({tmp_path}); scripts/get_multi30k.py fetches the corpus"
    )


def test_unknown_size_is_named(folder):
    result = CliRunner().invoke(app, ["--data", str(folder), "--sizes", "tiny,large"])
    assert str(result.exception) == "--sizes: no such size (large); choose from: tiny, small"


@pytest.mark.parametrize(
    ("number", "text"),
    [(5234.4, "5,200"), (0.8449, "0.84"), (9.96, "10"), (0.0996, "0.10"), (1.04, "1.0"), (0, "0")],
)
def test_numbers_have_two_digits(number, text):
    assert two_digits(number) == text


def test_every_second_round_goes_backwards(capsys):
    order: list[str] = []

    def turn(name: str) -> float:
        order.append(name)
        return len(order)

    speeds = play_rounds("abc", 3, turn, "steps")
    assert order == list("abccbaabc")
    assert speeds == {"a": [1, 6, 7], "b": [2, 5, 8], "c": [3, 4, 9]}
    assert capsys.readouterr().err.splitlines()[1] == "round 2/3: c 4.0, b 5.0, a 6.0 steps"


def test_a_process_returns_its_result_or_says_what_failed(capfd):
    assert harness.run_in_process("builtins.dict", a=[1, "x"]) == {"a": [1, "x"]}
    # What a function prints is no result.
    assert harness.run_in_process("builtins.print", end="progress") is None
    with pytest.raises(TrainingError) as raised:
        harness.run_in_process("math.sqrt", x=4)
    assert str(raised.value).startswith("math.sqrt: has failed (TypeError: math.sqrt() takes")
    printed = capfd.readouterr()
    assert "Traceback" in printed.err
    assert "progress" in printed.err
    assert printed.out == ""


def reports(condition: Condition, code: str) -> list[dict]:
    """The settings of a process of a condition before and after it runs some code."""
    code = f"import json; before = report()\n{code}\nprint(json.dumps([before, report()]))"
    done = subprocess.run(
        [sys.executable, "-c", f"from allocation import report\n{code}"],
        env=harness.environment(condition) | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_process_of_a_condition_has_its_environment_and_its_allocator(condition, monkeypatch):
    """A variable of the user changes nothing: all of a column are measured alike."""
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    report, _ = reports(condition, "")
    is_tuned = condition == "tuned"
    assert report.pop("keeps_freed_memory") in (is_tuned, None)
    assert report == (harness.SETTINGS if is_tuned else dict.fromkeys(harness.SETTINGS))


def test_the_allocator_of_the_variables_is_that_of_tune_allocator():
    code = "from tformer_cli.process import tune_allocator; tune_allocator()"
    keep = [report["keeps_freed_memory"] for report in reports("default", code)]
    assert keep in ([False, True], [None, None])


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["train_baselines", "transformers.models.marian.modeling_marian", "ctranslate2"]
)
def test_no_baseline_gives_itself_settings_when_it_is_imported(module):
    before, after = reports("default", f"import {module}")
    assert after == before
