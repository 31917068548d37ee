import json
import math
import os
import threading
from pathlib import Path

import pytest
import torch

from tformer_cli import Translator, api
from tformer_cli.cli.eval import _tabbed_line
from tformer_cli.errors import DataError, Problem, UsageError
from tformer_cli.search import teacher_forcing
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.text.special_tokens import BOS_ID, EOS_ID
from tformer_cli.translate import score as score_module

PAIRS = [
    ("ab cd", "DC BA"),
    ("", "A"),
    ("feg", "GEF"),
    ("a", ""),
    ("   ", "\t"),
    ("bcd ef ag", "GA FE DCB"),
    ("ab", "xyz"),
]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The options that name the texts."""
    return written(tmp_path, PAIRS)


def written(folder: Path, pairs: list[tuple[str, str]]) -> list[str]:
    names = folder / "text.src", folder / "text.tgt"
    for file, lines in zip(names, zip(*pairs, strict=True), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines))
    return ["--source", str(names[0]), "--target", str(names[1])]


@torch.inference_mode()
def by_hand(run: Path, source: str, target: str) -> float:
    """The log probability over what may come next, in float64, with no batch around it."""
    trained = load_trained_model(RunDirectory(run))
    model, tokenizers = trained.model.double(), trained.tokenizers
    ids = torch.tensor([[*tokenizers.source.encode(source), EOS_ID]])
    row = [BOS_ID, *tokenizers.target.encode(target), EOS_ID]
    logits = model.output(model.decoder(torch.tensor([row[:-1]]), model.encode(ids, ids >= 0)))[0]
    logits[:, list(tokenizers.target.suppressed_ids)] = -math.inf
    logits[0, EOS_ID] = -math.inf
    return logits.log_softmax(-1)[range(len(row) - 1), row[1:]].sum().item()


def test_each_line_is_the_log_probability_of_its_pair(toy_run, tformer, files):
    result = tformer("score", toy_run, *files)
    assert (result.exit_code, result.stderr) == (0, "")
    found = [float(line) for line in result.stdout.split("\n")[:-1]]
    assert found[4] == 0.0
    # An empty source, an empty target, letters that training has not seen.
    assert [index for index, log_prob in enumerate(found) if math.isinf(log_prob)] == [1, 3, 6]
    for index in (0, 2, 5):
        assert found[index] == pytest.approx(by_hand(toy_run, *PAIRS[index]), abs=1e-4)


@pytest.mark.parametrize("beam", [1, 2])
def test_translations_score_as_the_search_says(toy_run, tformer, tmp_path, beam):
    text = "ab cd\n\nfeg\na\nbcd ef ag\n   \ngg f\n"
    output = tformer("translate", toy_run, "--json", "--beam", beam, stdin=text).stdout
    lines = [json.loads(line) for line in output.splitlines()]
    found = [(line["source"], line["translations"][0]) for line in lines]
    assert all(best["finished"] for _, best in found)
    files = written(tmp_path, [(source, best["text"]) for source, best in found])
    scores = tformer("score", toy_run, *files).stdout.split()
    assert [float(score) for score in scores] == pytest.approx(
        [best["log_prob"] for _, best in found], abs=1e-4
    )


def test_a_translation_that_was_cut_is_told_and_lacks_the_end_alone(toy_run, tformer, tmp_path):
    options = ("--json", "--set", "decoding.max_length=2")
    output = tformer("translate", toy_run, *options, stdin="ab cd\nbcd ef ag\n").stdout
    lines = [json.loads(line) for line in output.splitlines()]
    found = [(line["source"], line["translations"][0]) for line in lines]
    assert [best["finished"] for _, best in found] == [False, False]
    files = written(tmp_path, [(source, best["text"]) for source, best in found])
    scores = [
        json.loads(x) for x in tformer("score", toy_run, *files, "--json").stdout.splitlines()
    ]
    for (_, best), score in zip(found, scores, strict=True):
        *others, end = score["token_log_probs"]
        assert best["log_prob"] == pytest.approx(sum(others), abs=1e-4)
        assert end < -1e-3


def test_tokens_stand_between_tabs_with_their_log_probabilities(toy_run, tformer, files):
    output = tformer("score", toy_run, *files, "--per-token").stdout
    rows = [line.split("\t") for line in output.split("\n")[:-1]]
    assert [row[0] for row in rows] == tformer("score", toy_run, *files).stdout.split()
    for (_, target), (total, *fields) in zip(PAIRS, rows, strict=True):
        tokens, log_probs = fields[::2], [float(field) for field in fields[1::2]]
        known = [c if c in "ABCDEFG " else "<unk>" for c in target.strip("\t")]
        assert tokens == [*known, "</s>"]
        assert float(total) == pytest.approx(sum(log_probs), abs=1e-5)


def test_tabs_and_backslashes_in_tokens_are_escaped():
    pair = score_module.ScoredPair("a", "\t\\t", ("\t", "\\t", "</s>"), (-1.0, -0.5, -0.25))
    assert _tabbed_line(pair, per_token=True) == (
        "-1.750000\t\\t\t-1.000000\t\\\\t\t-0.500000\t</s>\t-0.250000\n"
    )


def test_json_holds_texts_tokens_and_no_infinity(toy_run, tformer, files):
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    output = tformer("score", toy_run, *files, "--json").stdout
    found = [json.loads(line, parse_constant=refuse) for line in output.split("\n")[:-1]]
    assert [(line["source"], line["target"]) for line in found] == PAIRS
    plain = tformer("score", toy_run, *files).stdout.split()
    for line, log_prob in zip(found, plain, strict=True):
        assert [*line] == [
            "source", "target", "log_prob", "num_tokens", "tokens", "token_log_probs"
        ]  # fmt: skip
        assert len(line["tokens"]) == len(line["token_log_probs"]) == line["num_tokens"]
        if math.isinf(float(log_prob)):
            assert line["log_prob"] is None
            assert None in line["token_log_probs"]
        else:
            assert line["log_prob"] == sum(line["token_log_probs"])
            assert line["log_prob"] == pytest.approx(float(log_prob), abs=1e-6)
    assert found[6]["tokens"] == ["<unk>", "<unk>", "<unk>", "</s>"]
    assert found[6]["token_log_probs"][:3] == [None] * 3
    assert found[6]["token_log_probs"][3] < 0


def test_company_changes_nothing(toy_run, tformer, files, monkeypatch):
    together = [float(score) for score in tformer("score", toy_run, *files).stdout.split()]
    monkeypatch.setattr(teacher_forcing, "BATCH_TOKENS", 1)
    monkeypatch.setattr(score_module, "WINDOW_PAIRS", 3)
    alone = [float(score) for score in tformer("score", toy_run, *files).stdout.split()]
    assert alone == pytest.approx(together, abs=1e-4)


def test_output_file_equals_stdout(toy_run, tformer, files, tmp_path):
    file = tmp_path / "new folder" / "scores"
    assert tformer("score", toy_run, *files, "-o", file).stdout == ""
    assert file.read_text() == tformer("score", toy_run, *files).stdout


@pytest.mark.parametrize("index", [1, 3])
def test_scores_do_not_replace_a_text(toy_run, tformer, files, index):
    before = Path(files[index]).read_text()
    result = tformer("score", toy_run, *files, "-o", files[index])
    assert (result.exit_code, result.stderr) == (
        2,
        f"--output: is also {files[index - 1]} ({files[index]}); name another file\n",
    )
    assert Path(files[index]).read_text() == before


def test_scores_that_are_named_gzip_are_refused(toy_run, tformer, files, tmp_path):
    result = tformer("score", toy_run, *files, "-o", tmp_path / "scores.gz")
    assert (result.exit_code, result.stderr) == (
        2,
        f"--output: is written as plain text ({tmp_path}/scores.gz); drop .gz from its name\n",
    )


def test_no_pairs_give_no_lines(toy_run, tformer, tmp_path):
    source, target = tmp_path / "empty.en", tmp_path / "empty.de"
    for empty in (source, target):
        empty.touch()
    result = tformer("score", toy_run, "--source", source, "--target", target)
    assert (result.exit_code, result.stdout) == (0, "")


def test_a_pipe_is_read_once(toy_run, tformer, files, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = Path(files[3]).read_text()
    writer = threading.Thread(target=pipe.write_text, args=(text,), daemon=True)
    writer.start()
    result = tformer("score", toy_run, *files[:3], pipe)
    writer.join()
    assert (result.exit_code, result.stdout) == (0, tformer("score", toy_run, *files).stdout)


def test_unequal_files_are_refused_with_both_counts_and_nothing_is_scored(
    toy_run, tformer, tmp_path
):
    files = written(tmp_path, [("a", "A"), ("b", "B"), ("c", "C")])
    source, target = files[1::2]
    Path(target).write_text("A\n")
    output = tmp_path / "scores"
    for options in ([], ["-o", output]):
        result = tformer("score", toy_run, *files, *options)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == (
            f"{source}:2: has no counterpart in {target} (3 and 1 lines); "
            "line n of one file must translate line n of the other\n"
        )
    assert not output.exists()


@pytest.mark.parametrize(
    ("source", "target", "named"),
    [("a\n", "\udcff\n", "text.tgt"), ("\udcff\n", "A\n", "text.src")],
)
def test_a_bad_line_is_named(toy_run, tformer, tmp_path, source, target, named):
    files = written(tmp_path, [("a", "A")])
    for file, content in zip(files[1::2], (source, target), strict=True):
        Path(file).write_bytes(content.encode("utf-8", "surrogateescape"))
    result = tformer("score", toy_run, *files)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{tmp_path / named}:1: not UTF-8 (byte 0xff at column 1)")


def test_a_missing_file_is_named(toy_run, tformer, tmp_path):
    result = tformer("score", toy_run, "--source", tmp_path / "x", "--target", tmp_path / "y")
    assert (result.exit_code, result.stderr) == (
        2,
        f"{tmp_path / 'x'}: no such file; name a text that is there\n",
    )


def test_per_token_and_json_contradict_each_other(toy_run, tformer, files):
    result = tformer("score", toy_run, *files, "--per-token", "--json")
    assert (result.exit_code, result.stderr) == (
        2,
        "--per-token: has no effect with --json; leave it out: JSON has the tokens\n",
    )


def test_torchrun_is_refused(toy_run, tformer, files, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = tformer("score", toy_run, *files)
    assert (result.exit_code, result.stderr) == (
        2,
        "tformer score: is for one process (2 processes); drop torchrun\n",
    )


def test_a_checkpoint_is_scored_by_its_own_weights(toy_run, tformer, files):
    names = sorted(folder.name for folder in (toy_run / "checkpoints").iterdir())
    outputs = {tformer("score", toy_run, *files, "--checkpoint", name).stdout for name in names}
    assert len(outputs) == len(names) > 1


def test_an_export_for_ctranslate2_scores_as_its_run(toy_run, tformer, files):
    pytest.importorskip("ctranslate2")
    (folder,) = (toy_run / "exports").glob("*-ctranslate2-*-float32")
    result = tformer("score", folder, *files)
    assert (result.exit_code, result.stderr) == (0, "")
    own = tformer("score", toy_run, *files).stdout.split()
    found = list(map(float, result.stdout.split()))
    assert found == pytest.approx(list(map(float, own)), abs=1e-4)


def test_python_and_command_line_score_alike(toy_run, tformer, files):
    translator = Translator.load(toy_run)
    found = list(translator.score(*zip(*PAIRS, strict=True)))
    assert [(pair.source, pair.target) for pair in found] == PAIRS
    printed = tformer("score", toy_run, *files).stdout.split()
    assert [pair.log_prob for pair in found] == pytest.approx([*map(float, printed)], abs=1e-4)
    with pytest.raises(UsageError, match=r"`targets`: must have an item .* \(none for line 2\)"):
        list(translator.score(["a", "b"], ["A"]))


def test_python_scores_files_as_it_scores_lines(toy_run, files):
    counts: dict[str, list[int]] = {"start": [], "done": []}
    source, target = files[1::2]
    found = api.score(
        toy_run, source, target, on_start=counts["start"].append, on_done=counts["done"].append
    )
    assert counts == {"start": [len(PAIRS)], "done": []}
    assert list(found) == list(Translator.load(toy_run).score(*zip(*PAIRS, strict=True)))
    assert sum(counts["done"]) == len(PAIRS)


def test_python_refuses_unequal_files_before_it_loads_the_model(toy_run, tmp_path):
    source, target = written(tmp_path, PAIRS)[1::2]
    Path(target).write_text("A\n")
    with pytest.raises(DataError, match="has no counterpart"):
        api.score(tmp_path / "no-run", source, target)


def test_python_is_warned_of_a_pair_that_is_too_long(toy_run, monkeypatch):
    monkeypatch.setattr(score_module, "MAX_TOKENS", 8)
    warnings: list[Problem] = []
    translator = Translator.load(toy_run)
    sources = ["a", "abcdefg" * 4]
    short, long = translator.score(sources, ["A", "A"], on_warning=warnings.append)
    assert math.isfinite(short.log_prob)
    assert math.isnan(long.log_prob)
    assert [warning.where for warning in warnings] == ["source:2"]
