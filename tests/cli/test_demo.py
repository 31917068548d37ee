"""`tformer demo`, and the sentences that it, README and help show: they are translated right."""

import inspect
import re
import shlex
import signal
from pathlib import Path

import pytest
import torch
from stepping import on_step
from toy import CONFIG, write_toy

import tformer_cli
from tformer_cli import Translator
from tformer_cli.cli.demo import SENTENCES
from tformer_cli.cli.plot import heatmap
from tformer_cli.cli.translate import translate
from tformer_cli.config import starter
from tformer_cli.config.load import load_config
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.training.trainer import train

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, and a package that brings a toy as its demo."""
    shipped = tmp_path / "shipped"
    write_toy(shipped / "data" / "demo").unlink()
    (shipped / "configs").mkdir()
    config = CONFIG.replace("data:\n", "data:\n  root: ../data/demo\n")
    (shipped / "configs" / "demo.yaml").write_text(config)
    monkeypatch.setattr(starter, "_SHIPPED", shipped)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def shown_commands(stderr: str) -> list[list[str]]:
    lines = [line.removeprefix("$ ") for line in stderr.splitlines() if line.startswith("$ ")]
    return [shlex.split(line) for line in lines]


def test_it_prints_what_its_commands_print_where_they_are_typed(tformer, folder, monkeypatch):
    demo = tformer("demo")
    assert demo.exit_code == 0, demo.stderr
    assert [file.name for file in folder.iterdir()] == ["tformer-demo"]
    change, *commands = shown_commands(demo.stderr)
    assert change == ["cd", "tformer-demo"]
    monkeypatch.chdir(change[1])
    assert [words[:2] for words in commands] == [
        ["tformer", name] for name in ("train", "eval", "translate", "translate")
    ]
    assert [words[-1] for words in commands[2:]] == list(SENTENCES)
    assert demo.stdout == "".join(tformer(*words[1:]).stdout for words in commands)
    assert "BLEU = " in demo.stdout
    assert Path.cwd() != folder


def test_it_resumes_and_ends_in_the_folder_where_it_began(tformer, folder, monkeypatch):
    with monkeypatch.context() as patch:
        on_step(patch, 16, lambda: signal.raise_signal(signal.SIGTERM))
        assert tformer("demo", "--folder", "a b").exit_code == 128 + signal.SIGTERM
    assert Path.cwd() == folder
    again = tformer("demo", "--folder", "a b")
    assert again.exit_code == 0, again.stderr
    assert "runs/demo: resuming after step 16\n" in again.stderr
    assert "$ cd 'a b'\n" in again.stderr
    assert Path.cwd() == folder
    # Finished, it is only shown, from inside as well.
    monkeypatch.chdir("a b")
    finished = tformer("demo", "--folder", ".")
    assert finished.stdout == again.stdout
    assert "cd " not in finished.stderr
    assert "runs/demo: finished at step 24\n" in finished.stderr


def test_it_replaces_no_config_of_the_user(tformer, folder):
    own = folder / "tformer-demo" / "configs" / "demo.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("seed: 2\n")
    demo = tformer("demo")
    assert (demo.exit_code, demo.stderr) == (
        2,
        "tformer-demo/configs/demo.yaml: already exists with other content; name another folder\n",
    )
    assert [file for file in folder.rglob("*") if file.is_file()] == [own]


def references() -> dict[str, str]:
    """The reference of each sentence of the demo's own test set."""
    sides = [(ROOT / "data" / "demo" / f"test.{end}").read_text("utf-8") for end in ("en", "de")]
    return dict(zip(*(side.splitlines() for side in sides), strict=True))


def shown() -> set[str]:
    """Every sentence that is shown as one that the demo translates."""
    texts = [tformer_cli, Translator, translate, heatmap]
    found = [re.findall(r'"([A-Z][a-z\' ]+[.?])"', inspect.getdoc(text) or "") for text in texts]
    assert all(found), "each of them has an example"
    of_readme = re.findall(r'\["([A-Z][a-z\' ]+[.?])"\]', README)
    return {*SENTENCES, *of_readme, *(sentence for sentences in found for sentence in sentences)}


def test_what_is_shown_is_of_the_test_set_with_its_reference():
    known = references()
    assert shown() - known.keys() == set()
    for sentence in SENTENCES:
        command = f"$ tformer translate runs/demo {shlex.quote(sentence)}"
        assert f"    {command}\n    {known[sentence]}\n" in README
    assert f"['{known[SENTENCES[0]]}']" in (inspect.getdoc(Translator) or "")


def test_the_demo_knows_as_many_words_as_the_readme_says():
    words = re.findall(r"[\w']+", (ROOT / "data" / "demo" / "train.en").read_text("utf-8").lower())
    (said,) = re.findall(r"The demo knows about (\d+) English words", README)
    assert abs(len(set(words)) - int(said)) < 10


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(1, marks=pytest.mark.slow),
        pytest.param(2, marks=pytest.mark.exhaustive),
        pytest.param(3, marks=pytest.mark.exhaustive),
    ],
)
def test_a_trained_demo_translates_what_is_shown(seed, tmp_path):
    config = load_config(ROOT / "configs" / "demo.yaml", [f"seed={seed}"])
    run = RunDirectory(tmp_path / "run")
    train(config, run, device=torch.device("cpu"))
    known, sentences = references(), sorted(shown())
    translations = Translator.load(run.path).translate(sentences)
    assert translations == [known[sentence] for sentence in sentences]
