"""Lines that no model can take as a whole in reasonable time: n lines in, n lines out."""

import json
import math

import pytest

LONG = "abcde " * 1000


@pytest.fixture
def texts(tmp_path):
    source, target = tmp_path / "long.src", tmp_path / "long.tgt"
    source.write_text(f"abc\n{LONG}\nabd\nabe\n", encoding="utf-8")
    target.write_text(f"CBA\nX\n{LONG}\nEBA\n", encoding="utf-8")
    return source, target


def test_score_gives_a_line_for_each_pair_and_nan_for_long_ones(toy_run, tformer, texts):
    source, target = texts
    result = tformer("score", toy_run, "--source", source, "--target", target)
    scores = [float(line) for line in result.stdout.splitlines()]
    assert [math.isnan(score) for score in scores] == [False, True, True, False]
    for line in (2, 3):
        what = "has a side of more than 4096 tokens, and the pair is not scored"
        assert f"{source}:{line}: {what} (" in result.stderr
    short = [text.with_suffix(".short" + text.suffix) for text in texts]
    for text, other in zip(texts, short, strict=True):
        lines = text.read_text(encoding="utf-8").splitlines()
        other.write_text(f"{lines[0]}\n{lines[3]}\n", encoding="utf-8")
    alone = tformer("score", toy_run, "--source", short[0], "--target", short[1])
    assert [float(line) for line in alone.stdout.splitlines()] == pytest.approx(
        [scores[0], scores[3]], abs=1e-4
    )
    found = tformer("score", toy_run, "--source", source, "--target", target, "--json")
    log_probs = [json.loads(line)["log_prob"] for line in found.stdout.splitlines()]
    assert [log_prob is None for log_prob in log_probs] == [False, True, True, False]


def test_eval_translates_long_lines_and_leaves_them_out_of_the_loss(toy_run, tformer, texts):
    source, target = texts
    options = ("--beam", 1, "--json", "--workers", 1)
    result = tformer("eval", toy_run, "--source", source, "--reference", target, *options)
    found = json.loads(result.stdout)[source.name]
    assert found["num_sentences"] == 4
    # Three letters and the end of each of the two short pairs.
    assert found["num_tokens"] == 8
    said = f"{source}, {target}: lines of 4096 tokens or more are left out of the loss (2 of 4)"
    assert said in result.stderr
