"""`tformer report`: its page against the files of the run and the numbers of other commands."""

import json
import shutil

import pytest
import sacrebleu
from pages import Reader

import tformer_cli
from tformer_cli.config.schema.text import ParallelText

# As NLLB names them.
CODES = [
    *("--set", "data.source_language=arb_Arab"),
    *("--set", "data.target_language=zho_Hant", "--set", "evaluation.bleu.tokenize=13a"),
]


@pytest.fixture(scope="module")
def run(toy_run, tmp_path_factory):
    """A run that nothing has evaluated."""
    folder = tmp_path_factory.mktemp("report") / "run"
    shutil.copytree(toy_run, folder, ignore=shutil.ignore_patterns("eval", "exports"))
    return folder


@pytest.fixture
def report(run, tformer, tmp_path):
    """Write a page, and return what it shows and what was printed."""

    def write(*words):
        file = tmp_path / "page.html"
        result = tformer("report", run, "--output", file, *words)
        assert result.exit_code == 0, result.stderr
        return Reader(file.read_text(encoding="utf-8")).content(), result

    return write


def lines(file):
    return file.read_text(encoding="utf-8").splitlines()


def test_scores_and_sentences_are_those_of_eval(run, toy_run, report, tformer):
    content, result = report()
    printed = json.loads(tformer("eval", run, "--bleu", "--chrf", "--json").stdout)["toy"]
    (scores, terms) = content["tables"]
    for row, score in zip(scores["rows"], printed["scores"], strict=True):
        assert row[:2] == [score["name"], f"{score['score']:.2f}"]
        assert f"{score['name']} = {score['score']:.2f}" in result.stdout
        assert f"95% interval: {row[2]}" in result.stdout
    assert [row[0] for row in terms["rows"]] == ["numbers", "addresses", "placeholders", "names"]
    data = toy_run.parent / "data"
    texts = [data / "test.src", data / "test.tgt", run / "eval" / "toy.hyp.txt"]
    rows = list(zip(*map(lines, texts), strict=True))
    shown = [
        (each["source"], *each["references"], "".join(each["hypotheses"][0]))
        for each in content["sentences"]
    ]
    assert shown == rows
    for sentence, (_, reference, hypothesis) in zip(content["sentences"], rows, strict=True):
        chrf = sacrebleu.sentence_chrf(hypothesis, [reference]).score
        assert sentence["scores"] == [round(chrf, 1)]


def test_the_calibration_of_a_run_is_shown_until_it_is_outdated(run, tformer, tmp_path):
    calibrated, page = tmp_path / "run", tmp_path / "page.html"
    shutil.copytree(run, calibrated)
    printed = json.loads(tformer("calibrate", calibrated, "--json").stdout)
    content = json.loads(tformer("report", calibrated, "--json", "--output", page).stdout)
    assert content["reliability"] == printed
    _, texts, bins, _ = Reader(page.read_text(encoding="utf-8")).content()["tables"]
    assert [row[0] for row in texts["rows"]] == ["valid", "toy"]
    for row, each in zip(texts["rows"], printed.values(), strict=True):
        keys = "quality", "confidence", "ece", "raw_ece"
        assert row[1:] == [str(each["num_sentences"]), *(f"{each[key]:.3f}" for key in keys)]
    assert bins["title"] == "Confidence: toy"
    assert [int(row[1]) for row in bins["rows"]] == [
        each["num_sentences"] for each in printed["toy"]["bins"]
    ]
    for low, _, _, confidence in bins["rows"]:
        assert float(low) <= float(confidence) <= float(low) + 0.1
    config = calibrated / "config.yaml"
    config.write_text(config.read_text().replace("length_penalty: 1.0", "length_penalty: 0.5"))
    result = tformer("report", calibrated, "--json")
    content = json.loads(result.stdout)
    assert content["facts"]["search"] == "beam 2, length penalty 0.5"
    assert content["reliability"] == {}
    assert "confidence.json: is of another checkpoint or search" in result.stderr


def test_lists_and_breakdowns_are_of_the_same_lines(report):
    content, result = report()
    lists = {each["name"]: each for each in content["lists"]}
    scores = [sentence["scores"][0] for sentence in content["sentences"]]
    best = [scores[line] for line, _ in lists["best"]["lines"]]
    assert best == sorted(scores, reverse=True)
    assert [line for line, _ in lists["worst"]["lines"]][::-1] == [
        line for line, _ in lists["best"]["lines"]
    ]
    for name, each in lists.items():
        if name not in ("worst", "best", "samples"):
            assert f"{name}: {each['total']}\n" in result.stdout
    for breakdown in content["breakdowns"]:
        assert sum(bucket["num_sentences"] for bucket in breakdown["buckets"]) == 10


def test_curves_are_those_of_the_training(run, report):
    content, _ = report()
    logged = [json.loads(line) for line in lines(run / "metrics.jsonl")]
    loss, bleu = content["charts"]
    valid = [each for each in logged if each["kind"] == "valid"]
    assert loss["curves"]["validation"] == [[each["step"], each["loss"]] for each in valid]
    assert bleu["curves"] == {"validation": [[each["step"], each["bleu"]] for each in valid]}


def test_the_validation_text_is_a_split(run, toy_run, report):
    content, _ = report("--split", "valid")
    sources = [sentence["source"] for sentence in content["sentences"]]
    assert sources == lines(toy_run.parent / "data" / "valid.src")
    assert (run / "eval" / "valid.hyp.txt").is_file()


def test_python_returns_what_the_page_shows(run, report):
    content, _ = report()
    result = tformer_cli.report(run, device="cpu")
    assert isinstance(result, tformer_cli.Report)
    assert {name: len(findings) for name, findings in result.lists.items()} == {
        each["name"]: each["total"] for each in content["lists"]
    }
    assert set(result.defects) == set(result.lists) - {"worst", "best", "samples"}
    assert list(result.by_length) == [
        bucket["name"] for bucket in content["breakdowns"][0]["buckets"]
    ]


def test_json_has_the_numbers_and_sentences_of_the_page(
    run, report, tformer, tmp_path, monkeypatch
):
    content, result = report("--json")
    data = json.loads(result.stdout)
    (tmp_path / "page.html").unlink()
    monkeypatch.chdir(tmp_path)
    assert json.loads(tformer("report", run, "--json").stdout) == data
    assert not list(tmp_path.glob("*.html"))
    (plotted,) = json.loads(tformer("plot", run, "--json").stdout)["runs"]
    names = ("train_loss", "valid_loss", "valid_bleu")
    assert data["curves"] == {name: plotted["curves"][name] for name in names}
    tables = data["by_length"], data["by_frequency"]
    for breakdown, table in zip(content["breakdowns"], tables, strict=True):
        assert {
            bucket["name"]: [[score] for (score,) in bucket["scores"].values()]
            for bucket in breakdown["buckets"]
        } == {
            name: [[[one["score"]["score"], *one["interval"]]] for one in scores.values()]
            for name, scores in table.items()
        }
    for each in content["lists"]:
        assert [line for line, _ in each["lines"]] == [
            finding["line"] for finding in data["lists"][each["name"]]
        ]
    assert content["sentences"] == [
        {
            "line": line,
            "source": each["source"],
            "references": [each["reference"]],
            "hypotheses": [[each["translation"]]],
            "scores": [round(each["chrf"], 1)],
        }
        for line, each in enumerate(data["sentences"])
    ]


def test_without_training_text_and_curves_the_rest_is_there(run, tformer, tmp_path):
    alone = tmp_path / "alone"
    shutil.copytree(run, alone)
    (alone / "metrics.jsonl").unlink()
    config = (alone / "config.yaml").read_text()
    assert "train.src" in config
    (alone / "config.yaml").write_text(config.replace("train.src", "gone.src"))
    result = tformer_cli.report(alone, device="cpu")
    assert (result.page.charts, result.by_frequency) == ([], {})
    assert result.by_length


@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_browser_is_told_the_languages_by_their_tags(run, tformer, tmp_path, command):
    page, systems = tmp_path / "page.html", [tmp_path / "one", tmp_path / "two"]
    for system in systems:
        shutil.copytree(run, system)
        config = system / "config.yaml"
        config.write_text(tformer("config", "show", config, *CODES).stdout)
    shown = systems if command == "compare" else systems[:1]
    assert tformer(command, *shown, "--output", page).exit_code == 0
    assert Reader(page.read_text(encoding="utf-8")).content()["languages"] == ["ar", "zh-Hant"]


def test_mistakes_are_one_clear_line(run, masked_run, tformer, tmp_path):
    result = tformer("report", run, "--output", "page.pdf")
    assert (result.exit_code, result.stderr) == (2, "--output: must end in .html (page.pdf)\n")
    result = tformer("report", run, "--split", "tset")
    message = "--split: the config has no such split (tset); choose from: valid, toy\n"
    assert (result.exit_code, result.stderr) == (2, message)
    assert tformer("report", masked_run).exit_code == 2
    two = tmp_path / "two"
    shutil.copytree(run, two)
    config = tformer_cli.load_config(two / "config.yaml")
    text = config.data.test["toy"]
    assert isinstance(text, ParallelText)
    (two / "config.yaml").write_text(
        (two / "config.yaml")
        .read_text()
        .replace(
            "  test:\n",
            f"  test:\n    more:\n      source: {text.source}\n      target: {text.target}\n",
        )
    )
    message = "--split: must be one of several texts; choose from: valid, more, toy\n"
    assert tformer("report", two).stderr == message


@pytest.mark.parametrize("command", ["report", "compare"])
@pytest.mark.parametrize("side", ["train.src", "test.tgt"])
def test_a_page_replaces_no_text_of_a_run(run, toy_run, tformer, tmp_path, command, side):
    page = tmp_path / "page.html"
    shutil.copy(toy_run.parent / "data" / side, page)
    content = page.read_bytes()
    runs = [tmp_path / "one", tmp_path / "two"]
    for each in runs:
        shutil.copytree(run, each)
        config = (each / "config.yaml").read_text()
        text = str(toy_run.parent / "data" / side)
        assert text in config
        (each / "config.yaml").write_text(config.replace(text, str(page)))
    result = tformer(command, *(runs if command == "compare" else runs[:1]), "--output", page)
    message = f"--output: would replace the text ({page}); choose another name\n"
    assert (result.exit_code, result.stderr) == (2, message)
    assert page.read_bytes() == content
