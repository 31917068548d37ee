"""Scores against sacrebleu's own command line."""

import gzip
import importlib
import json
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.error import URLError

import pytest
import sacrebleu

from tformer_cli.config.schema.config import BleuConfig, ChrfConfig, EvaluationConfig
from tformer_cli.config.schema.text import ParallelText
from tformer_cli.errors import ConfigError
from tformer_cli.evaluation.metrics import build_metric

ROOT = Path(__file__).parent.parent.parent
HYPOTHESES = [
    "Der Hund schläft .",
    "Eine Katze trinkt Milch.",
    "",
    "Zwei Kinder spielen im Garten!",
]
REFERENCES = ["Der Hund schläft.", "Die Katze trinkt die Milch.", "Nichts.", "Zwei kinder spielen."]
SETTINGS = [
    EvaluationConfig(),
    EvaluationConfig(
        bleu=BleuConfig(tokenize="intl", lowercase=True), chrf=ChrfConfig(word_order=2)
    ),
    EvaluationConfig(bleu=BleuConfig(tokenize="char")),
]


def run_sacrebleu(command: str) -> dict:
    words = shlex.split(command)
    assert words[0] == "sacrebleu"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "sacrebleu", *words[1:], "-w", "8"],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
@pytest.mark.parametrize("config", SETTINGS, ids=["default", "changed", "characters"])
def test_score_equals_the_command_line_printed_beside_it(name, config, tmp_path):
    hypothesis_file, reference_file = tmp_path / "a hyp.txt", tmp_path / "ref.txt"
    hypothesis_file.write_text("".join(f"{line}\n" for line in HYPOTHESES), encoding="utf-8")
    reference_file.write_text("".join(f"{line}\n" for line in REFERENCES), encoding="utf-8")
    metric = build_metric(name, config, "de")
    score = metric.score(HYPOTHESES, REFERENCES)
    printed = run_sacrebleu(metric.command(reference_file, hypothesis_file))
    assert score.score == pytest.approx(printed["score"], abs=1e-6)
    assert score.name == printed["name"]
    assert score.signature == printed["signature"]
    assert score.num_sentences == 4


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        *(("de", "13a"), ("zh", "zh"), ("zh_CN", "zh"), ("source", "13a")),
        *(("deu_Latn", "13a"), ("cmn", "zh"), ("yue_Hant", "zh")),
    ],
)
def test_auto_tokenizer_goes_by_the_target_language(language, tokenizer):
    metric = build_metric("bleu", EvaluationConfig(), language)
    assert f"|tok:{tokenizer}|" in metric.score(["a"], ["a"]).signature
    assert metric.options == ("-tok", tokenizer)


@pytest.mark.parametrize(
    ("language", "module", "split", "joined"),
    [("ja", "MeCab", "私 は 猫 が 好き です 。", "私は猫が好きです。"),
     ("ko", "mecab_ko", "나 는 고양이 를 좋아한다 .", "나는 고양이를 좋아한다.")],
)  # fmt: skip
def test_mecab_splits_words(language, module, split, joined):
    pytest.importorskip(module)
    metric = build_metric("bleu", EvaluationConfig(), language)
    assert metric.options == ("-tok", f"{language}-mecab")
    assert metric.scorer.tokenizer(joined) == split
    assert f"|tok:{language}-mecab-" in metric.score([joined], [joined]).signature


@pytest.mark.parametrize("tokenizer", ["spm", "flores200"])
def test_model_that_cannot_be_downloaded_is_named(tokenizer, monkeypatch, tmp_path):
    def refuse(url, path):
        raise URLError("no route to host")

    spm = importlib.import_module("sacrebleu.tokenizers.tokenizer_spm")
    monkeypatch.setattr(spm, "SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr(spm, "download_file", refuse)
    with pytest.raises(ConfigError) as raised:
        build_metric("bleu", EvaluationConfig(bleu=BleuConfig(tokenize=tokenizer)), "de")
    assert str(raised.value) == (
        "evaluation.bleu.tokenize: needs a model that sacrebleu cannot download "
        f"({tokenizer}: <urlopen error no route to host>); connect to the internet, or choose "
        "another tokenizer"
    )


@pytest.mark.parametrize("language", ["ja", "ko"])
def test_missing_mecab_is_named_with_its_extra(language, monkeypatch):
    tokenizer = f"{language}-mecab"
    module = importlib.import_module(f"sacrebleu.tokenizers.tokenizer_{language}_mecab")
    monkeypatch.setattr(module, "MeCab", None)
    with pytest.raises(ConfigError) as raised:
        build_metric("bleu", EvaluationConfig(), language)
    assert str(raised.value) == (
        "evaluation.bleu.tokenize: needs MeCab and its dictionary, which are not installed "
        f"({tokenizer}); pip install 'tformer[{language}]'"
    )
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert extras["optional-dependencies"][language] == [f"sacrebleu[{language}]"]


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("bleu", sacrebleu.sentence_bleu),
        ("chrf", sacrebleu.sentence_chrf),
        ("ter", sacrebleu.sentence_ter),
    ],
)
def test_a_sentence_is_scored_as_sacrebleu_scores_it_alone(name, score, caplog):
    metric = build_metric(name, EvaluationConfig(), "de")
    hypotheses, references = [*HYPOTHESES, "Ein Hund"], [*REFERENCES, "Der Hund"]
    before = metric.score(hypotheses, references)
    statistics = metric.statistics({"a": hypotheses}, [references, hypotheses[::-1]])
    (scores,) = statistics.sentence_scores()
    assert scores == [
        score(hypothesis, list(lines)).score
        for hypothesis, *lines in zip(hypotheses, references, hypotheses[::-1], strict=True)
    ]
    assert metric.score(hypotheses, references) == before
    assert caplog.records == []


@pytest.mark.parametrize("tokenize", ["13a", "none"])
def test_tokenized_text_is_scored_without_a_word_of_sacrebleu(tokenize, caplog):
    lines = [f"Satz {number} ." for number in range(150)]
    others = [f"Ein Satz {number} ." for number in range(150)]
    metric = build_metric("bleu", EvaluationConfig(bleu=BleuConfig(tokenize=tokenize)), "de")
    ours = metric.score(others, lines)
    assert caplog.records == []
    theirs = sacrebleu.BLEU(tokenize=tokenize)
    assert ours.score == theirs.corpus_score(others, [lines]).score
    assert ours.signature == str(theirs.get_signature())
    assert "forgot to detokenize" in caplog.text


def test_score_reads_as_one_line():
    score = build_metric("bleu", EvaluationConfig(), "de").score(REFERENCES, REFERENCES)
    assert str(score) == f"BLEU = 100.00  ({score.signature})"


def test_gzip_references_work_in_the_printed_command(tmp_path):

    reference_file, hypothesis_file = tmp_path / "ref.gz", tmp_path / "hyp.txt"
    with gzip.open(reference_file, "wt", encoding="utf-8") as references:
        references.writelines(f"{line}\n" for line in REFERENCES)
    hypothesis_file.write_text("".join(f"{line}\n" for line in HYPOTHESES), encoding="utf-8")
    text = ParallelText(source=tmp_path / "source", target=reference_file)
    metric = build_metric("bleu", EvaluationConfig(), "de")
    printed = run_sacrebleu(metric.command(text.target, hypothesis_file))
    assert printed["score"] == pytest.approx(metric.score(HYPOTHESES, REFERENCES).score, abs=1e-6)
