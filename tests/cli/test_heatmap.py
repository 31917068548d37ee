"""`tformer heatmap`: what it writes, what it prints, and when it refuses."""

import json
import shutil
import sys
from string import ascii_lowercase

import pytest
import torch
from toy import CONFIG, write_toy

from tformer_cli.config.load import load_config
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.training.trainer import train

MAGIC = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<?xml", ".html": b"<!DOCTYPE html>"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_heatmap_writes_a_picture_and_says_where(toy_run, tformer, folder):
    result = tformer("heatmap", toy_run, "ab c")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "heatmap.html: written\n", "")
    assert (folder / "heatmap.html").read_bytes().startswith(MAGIC[".html"])


@pytest.mark.parametrize("suffix", MAGIC)
def test_the_name_decides_the_format(toy_run, tformer, folder, suffix):
    file = folder / "deep" / f"ab{suffix}"
    result = tformer("heatmap", toy_run, "ab", "--part", "cross", "-o", file)
    assert result.stdout == f"{file}: written\n"
    assert file.read_bytes().startswith(MAGIC[suffix])


def test_json_is_the_numbers(toy_run, tformer, folder):
    printed = json.loads(tformer("heatmap", toy_run, "ab c", "--json").stdout)
    assert list(printed) == ["source", "target", "maps", "positions"]
    assert (printed["source"], printed["target"]) == (
        "ab c",
        tformer_says(tformer, toy_run, "ab c"),
    )
    source = ["a", "b", " ", "c", "</s>"]
    target = list(printed["target"])
    sides = {
        "encoder": (source, source),
        "decoder": (["<s>", *target], ["<s>", *target]),
        "cross": ([*target, "</s>"], source),
    }
    for maps in printed["maps"]:
        rows, columns = sides.pop(maps["part"])
        assert (maps["rows"], maps["columns"]) == (rows, columns)
        assert (maps["layers"], maps["heads"]) == ([1], [1, 2])
        assert maps["shape"] == [1, 2, len(rows), len(columns)]
        for head in maps["weights"][0]:
            assert len(head) == len(rows)
            assert [sum(row) for row in head] == pytest.approx([1.0] * len(rows), abs=1e-4)
    assert sides == {}
    (table,) = printed["positions"]
    assert (table["kind"], table["stacks"]) == ("vectors", ["encoder", "decoder"])
    assert table["values"][0] == [0.0, 1.0] * 16
    assert list(folder.iterdir()) == []


def tformer_says(tformer, run, line: str) -> str:
    (folder_input := run.parent / "line.src").write_text(f"{line}\n")
    return tformer("translate", run, "--input", folder_input, "--workers", "1").stdout.rstrip("\n")


def test_a_given_translation_is_looked_at(toy_run, tformer):
    printed = json.loads(
        tformer("heatmap", toy_run, "ab", "--target", "GG", "--json", "--part", "cross").stdout
    )
    assert printed["target"] == "GG"
    assert [maps["rows"] for maps in printed["maps"]] == [["G", "G", "</s>"]]
    assert printed["positions"] == []


@pytest.mark.parametrize(
    ("options", "parts", "num_tables"),
    [
        (["--part", "encoder"], ["encoder"], 0),
        (["--part", "positions"], [], 1),
        (["--layer", 1, "--head", 2], ["encoder", "decoder", "cross"], 1),
    ],
)
def test_options_choose_and_change_nothing(toy_run, tformer, options, parts, num_tables):
    whole = json.loads(tformer("heatmap", toy_run, "ab", "--json").stdout)
    chosen = json.loads(tformer("heatmap", toy_run, "ab", "--json", *options).stdout)
    assert [maps["part"] for maps in chosen["maps"]] == parts
    assert len(chosen["positions"]) == num_tables
    for maps in chosen["maps"]:
        (same,) = [one for one in whole["maps"] if one["part"] == maps["part"]]
        for head, weights in zip(maps["heads"], maps["weights"][0], strict=True):
            assert weights == same["weights"][0][head - 1]
    if "--head" in options:
        assert [maps["heads"] for maps in chosen["maps"]] == [[2]] * 3


def test_the_newest_run_is_taken_where_none_is_named(toy_run, tformer, folder):
    shutil.copytree(toy_run, folder / "runs" / "toy")
    assert tformer("heatmap", "ab", "--json").stdout == (
        tformer("heatmap", toy_run, "ab", "--json").stdout
    )


def test_json_and_html_need_no_matplotlib(toy_run, tformer, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert tformer("heatmap", toy_run, "ab", "--json").exit_code == 0
    assert tformer("heatmap", toy_run, "ab").exit_code == 0
    result = tformer("heatmap", toy_run, "ab", "-o", "ab.png")
    assert (result.exit_code, result.stderr) == (
        2,
        "tformer heatmap: needs matplotlib, which is not installed; "
        "write .html, or install it with: pip install 'tformer[plot]'\n",
    )


def test_a_token_that_looks_like_a_tag_is_a_text_in_html(toy_run, tformer, folder):
    tformer("heatmap", toy_run, "<script>alert('a')</script>", "-o", "a.html")
    page = (folder / "a.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(&#x27;a&#x27;)&lt;/script&gt;" in page
    assert "<script>alert" not in page


def test_what_no_font_has_is_said_once(toy_run, tformer, folder, monkeypatch):
    monkeypatch.setattr(
        "tformer_cli.plotting.heatmap._characters",
        lambda file: frozenset(ascii_lowercase),
    )
    words = ("heatmap", toy_run, "ab", "--target", "", "--part", "cross", "-o", "heatmap.png")
    result = tformer(*words)
    assert (result.exit_code, result.stdout) == (0, "heatmap.png: written\n")
    assert result.stderr == (
        "heatmap.png: has boxes for characters that no installed font has (</>); "
        "install a font that has them, or write .svg or .html\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--output", "a.pdf", "ab"],
            "--output: must end in .png, .svg or .html (a.pdf)",
        ),
        ([""], "SENTENCE: has no token ('')"),
        (["--layer", 2, "ab"], "--layer: must be at most 1, the number of layers (2)"),
        (["--head", 3, "ab"], "--head: must be at most 2, the number of heads (3)"),
        (
            ["--part", "positions", "--head", 1, "ab"],
            "--head: has no effect on --part positions; leave it out",
        ),
        (
            ["the", "old dog"],
            "SENTENCE: must be one argument ({run} the old dog); put it in quotes",
        ),
    ],
)
def test_heatmap_refuses_what_it_cannot_draw(toy_run, tformer, folder, arguments, message):
    result = tformer("heatmap", toy_run, *arguments)
    assert result.exit_code == 2
    assert result.stderr == f"{message.format(run=toy_run)}\n"
    assert list(folder.iterdir()) == []


def test_a_decoder_alone_has_no_other_part(tformer, tmp_path):
    one_stack = "kind: decoder_only\n  num_layers: 2"
    config = CONFIG.replace("num_encoder_layers: 1\n  num_decoder_layers: 1", one_stack)
    for key in ("max_steps: 24", "validate_every: 12", "save_every: 6", "warmup_steps: 5"):
        config = config.replace(key, f"{key.split()[0]} 1")
    run = RunDirectory(tmp_path / "run")
    train(
        load_config(write_toy(tmp_path, pairs=20, config=config)), run, device=torch.device("cpu")
    )
    printed = json.loads(tformer("heatmap", run.path, "ab", "--target", "B", "--json").stdout)
    assert [maps["rows"] for maps in printed["maps"]] == [["a", "b", "</s>", "<sep>", "B"]]
    assert printed["maps"][0]["shape"] == [2, 2, 5, 5]
    result = tformer("heatmap", run.path, "ab", "--part", "cross")
    assert (result.exit_code, result.stderr) == (
        2,
        "--part: must be one that the network has (cross); use decoder or positions\n",
    )


def test_a_network_without_positions_has_no_such_part(toy_run, tformer, monkeypatch):
    nothing = "tformer_cli.translate.sentence_maps.position_tables"
    monkeypatch.setattr(nothing, lambda stack, num_places: [])
    result = tformer("heatmap", toy_run, "ab", "--part", "positions")
    assert (result.exit_code, result.stderr) == (
        2,
        "--part: must be one that the network has (positions); use encoder or decoder or cross\n",
    )


def test_the_languages_are_those_of_the_model(toy_run, tformer):
    result = tformer("heatmap", toy_run, "ab", "--to", "fr")
    assert (result.exit_code, result.stderr) == (
        2,
        "--to: is no target language of the model (fr); choose from: target\n",
    )


def test_heatmap_refuses_a_run_that_is_not_there(tformer):
    result = tformer("heatmap", "no/run", "ab")
    assert result.exit_code == 2
    assert result.stderr == (
        "no/run: no such run folder; name the folder of a run, such as runs/demo\n"
    )


def test_a_run_without_a_sentence_is_no_sentence(toy_run, tformer):
    result = tformer("heatmap", toy_run)
    assert result.exit_code == 2
    assert result.stderr == (
        f"SENTENCE: is missing (the folder {toy_run}); add the sentence, in quotes\n"
    )
