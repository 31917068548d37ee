"""Texts of which BLEU is wrong, and texts that only look so."""

from pathlib import Path

import pytest
import sentencepiece

from tformer_cli.config.schema.config import BleuConfig, EvaluationConfig
from tformer_cli.evaluation.metrics import build_metric
from tformer_cli.evaluation.score_warnings import subword_warning, tokenized_warning


@pytest.mark.parametrize(
    ("tokenize", "endings", "got"),
    [
        ("auto", [" .", " .", ".", " .", ""], "13a"),
        ("intl", [" ."], "intl"),
        ("auto", [" .", " .", ".", ""], None),
        ("auto", [".", "", "!"], None),
        ("auto", [], None),
        ("none", [" ."], None),
        ("char", [" ."], None),
    ],
)
def test_bleu_that_tokenizes_tokenized_references_is_warned_of(tokenize, endings, got):
    metric = build_metric("bleu", EvaluationConfig(bleu=BleuConfig(tokenize=tokenize)), "de")
    problem = tokenized_warning(metric, [f"Satz{ending}" for ending in endings])
    assert (problem and problem.got) == got


@pytest.mark.parametrize("tokenize", ["auto", "none"])
def test_bleu_of_what_sentencepiece_has_cut_is_warned_of(tokenize, tmp_path):
    lines = [f"Der kleine Hund Nummer {number} schläft." for number in range(40)]
    model = tmp_path / "pieces"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(model), vocab_size=35, minloglevel=2
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=f"{model}.model")
    cut = [" ".join(processor.encode(line, out_type=str)) for line in lines]
    config = EvaluationConfig(bleu=BleuConfig(tokenize=tokenize))
    metric = build_metric("bleu", config, "de")
    assert subword_warning(metric, Path("raw"), lines) is None
    problem = subword_warning(metric, Path("cut"), cut)
    assert (problem is None) == (tokenize == "none")
    if problem is not None:
        assert str(problem) == (
            f"cut: is cut into subwords, which BLEU counts as words ({cut[0].split()[0]}); "
            "join them to words: BLEU is of raw text"
        )
    assert subword_warning(build_metric("chrf", config, "de"), Path("cut"), cut) is None


@pytest.mark.parametrize(
    ("lines", "piece"),
    [
        (["the gu@@ tt@@ ing"], "gu@@"),
        (["a house", "gut@@"], "gut@@"),
        # A text about patches, one address in many lines, and a bar of a chart.
        (["@@ -1,2 +1,2 @@ def f", "mail a@@b.c", "@@@@ x"], None),
        (["x" * 1_000_000], None),
        (["▁ is a bar"] + ["a house"] * 9, None),
        (["load ▁▂▅█▃▁", "▁▁▂"], None),
        (["▁ 两 只 狗"], "▁"),
        ([], None),
    ],
)
def test_subwords_are_told_from_signs_of_a_text(lines, piece):
    problem = subword_warning(build_metric("bleu", EvaluationConfig(), "de"), Path("f"), lines)
    assert (problem and problem.got) == piece
