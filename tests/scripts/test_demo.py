"""The sentences that README, help and `scripts/demo` show: a trained demo translates them right."""

import inspect
import re
from pathlib import Path

import pytest
import torch

import tformer_cli
from tformer_cli import Translator
from tformer_cli.cli.plot import heatmap
from tformer_cli.cli.translate import translate
from tformer_cli.config.load import load_config
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.training.trainer import train

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEMO = re.findall(r'^    "(.+)"$', (ROOT / "scripts" / "demo").read_text("utf-8"), re.MULTILINE)


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
    return {*DEMO, *of_readme, *(sentence for sentences in found for sentence in sentences)}


def test_what_is_shown_is_of_the_test_set_with_its_reference():
    known = references()
    assert len(DEMO) == 5
    assert shown() - known.keys() == set()
    pairs = "".join(f"    {sentence}\n    {known[sentence]}\n" for sentence in DEMO)
    assert pairs in README
    assert f"['{known[DEMO[0]]}']" in (inspect.getdoc(Translator) or "")


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
