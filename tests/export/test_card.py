"""The page that goes with an exported model."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from exportable import BASE, lively

from tformer_cli.errors import CheckpointError
from tformer_cli.evaluation.metrics import Score
from tformer_cli.export.card import Card, KnownScore, known_scores, model_card
from tformer_cli.storage.run_directory import RunDirectory

CARD = Card(
    name="toy-en-de",
    license="unknown",
    line="Hello",
    translation="Hallo",
    checks=["greedy: 8 of 8 lines translated alike"],
)
FORM = SimpleNamespace(
    program="CTranslate2",
    packages=lambda trained: ["ctranslate2", "sentencepiece"],
    example=lambda trained, line: f"print({line!r})",
    versions=lambda: {"ctranslate2": "4.8.5"},
)
SCORE = Score("BLEU", 38.1234, "nrefs:1|tok:13a", 1000)
SCORES = {"flickr": [KnownScore(SCORE, "beam 5")]}


@pytest.fixture(scope="module")
def model():
    return lively(BASE)


def front_matter(page: str):
    empty, matter, _ = page.split("---\n", maxsplit=2)
    assert empty == ""
    return yaml.safe_load(matter)


def test_front_matter_is_what_model_hubs_read(model):
    page = model_card(model, FORM, replace(CARD, license="cc-by-4.0"), SCORES)
    assert front_matter(page) == {
        "language": ["en", "de"],
        "license": "cc-by-4.0",
        "library_name": "ctranslate2",
        "pipeline_tag": "translation",
        "tags": ["translation", "ctranslate2", "tformer"],
        "model-index": [
            {
                "name": "toy-en-de",
                "results": [
                    {
                        "task": {"type": "translation"},
                        "dataset": {"name": "flickr", "type": "flickr"},
                        "metrics": [{"type": "bleu", "name": "BLEU", "value": 38.12}],
                    }
                ],
            }
        ],
    }


def test_page_says_what_the_model_is_and_how_to_use_it(model):
    page = model_card(model, FORM, CARD, SCORES)
    for part in (
        "\n# toy-en-de\n",
        f"a Transformer of {model.model.num_parameters():,} parameters after 120 steps",
        "`pip install ctranslate2 sentencepiece`",
        "```python\nprint('Hello')\n```",
        "> Hallo",
        "Training has seen none of more than 256 tokens",
        "| flickr | BLEU | 38.12 | 1,000 | beam 5 | <code>nrefs:1&#124;tok:13a</code> |",
        "- greedy: 8 of 8 lines translated alike",
        "- ctranslate2 4.8.5",
        "- tformer ",
        "To be filled in",
    ):
        assert part in page


def test_page_of_an_imported_model_tells_of_no_training(model):
    page = model_card(replace(model, step=0), FORM, CARD, {})
    assert "parameters that its run did not train. CTranslate2 runs it." in page
    assert "Split lines of more than 256 tokens." in page
    data = page.split("## Data\n\n")[1]
    assert data.startswith(
        "The run has read no text. Its config names, for a training:\n\n"
        "- `data.train.0`: `text.en`, `text.de`"
    )
    assert "steps of training" not in page
    assert "Training has seen" not in page


def test_page_names_the_data_and_no_folder_of_this_machine(model):
    config = model.config
    training = replace(config.training, init_from=Path("/secret/runs/first"))
    with_ancestor = replace(config, training=training)
    page = model_card(replace(model, config=with_ancestor), FORM, CARD, {})
    assert "- `data.train.0`: `text.en`, `text.de`" in page
    assert "init_from: first" in page
    assert "secret" not in page


def test_page_tells_phrases_from_the_lines_of_their_text(model):
    data = model.config.data
    train = (*data.train, replace(data.train[0], extract="phrases"))
    config = replace(model.config, data=replace(data, train=train))
    page = model_card(replace(model, config=config), FORM, CARD, {})
    assert (
        "- `data.train.0`: `text.en`, `text.de`\n"
        "- `data.train.1`: `text.en`, `text.de`, the phrase pairs\n"
    ) in page


def test_network_is_there_as_a_config_has_it(model):
    page = model_card(model, FORM, CARD, {})
    config = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    assert config["model"]["dim"] == BASE.dim
    assert config["decoding"]["max_length"] == 15
    assert list(config) == ["seed", "tokenizer", "model", "training", "decoding"]


def test_names_that_are_not_utf8_are_escaped(model):
    scores = {"news\udcff.en": SCORES["flickr"]}
    page = model_card(model, FORM, replace(CARD, name="a\udcffb"), scores)
    assert page.encode().decode() == page
    assert "# a\\udcffb\n" in page
    assert "| news\\udcff.en | BLEU |" in page
    (result,) = front_matter(page)["model-index"][0]["results"]
    assert result["dataset"]["name"] == "news\udcff.en"


def test_without_scores_the_page_says_how_to_get_some(model):
    page = model_card(model, FORM, CARD, {})
    assert "None yet: `tformer eval` before the export puts them here." in page
    assert "model-index" not in front_matter(page)


def test_an_empty_translation_is_quoted_too(model):
    page = model_card(model, FORM, replace(CARD, translation=""), {})
    assert "It prints:\n\n> \n" in page


def written(run: RunDirectory, name: str, **changes) -> None:
    run.eval.mkdir(parents=True, exist_ok=True)
    score = {"name": "BLEU", "score": 30.0, "signature": "s", "num_sentences": 5}
    content = {"scores": [score, score | {"name": "TER"}], "num_models": 1} | changes
    (run.eval / f"{name}.json").write_text(json.dumps(content))


def files_of(folder: Path) -> SimpleNamespace:
    return SimpleNamespace(run=RunDirectory(folder), fingerprint="own")


def test_scores_are_those_of_the_model_alone(tmp_path):
    files = files_of(tmp_path)
    assert known_scores(files) == {}
    search = {"kind": "beam", "beam_size": 4, "length_penalty": 0.5, "no_repeat_ngram_size": 3}
    written(files.run, "flickr", models=["own"], decoding=search)
    written(files.run, "earlier")
    written(files.run, "mbr", decoding=search | {"kind": "sample"}, mbr={"metric": "chrf"})
    written(files.run, "other", models=["other"])
    written(files.run, "ensemble", num_models=2, models=["own", "other"])
    expected = [Score("BLEU", 30.0, "s", 5), Score("TER", 30.0, "s", 5)]
    searches = {
        "earlier": "not recorded",
        "flickr": "beam 4, length penalty 0.5, no repeated 3-grams",
        "mbr": "sample, no repeated 3-grams, MBR",
    }
    assert known_scores(files) == {
        name: [KnownScore(score, search) for score in expected] for name, search in searches.items()
    }


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"scores": [{"name": "BLEU"}]}'])
def test_damaged_evaluation_is_named(content, tmp_path):
    files = files_of(tmp_path)
    files.run.eval.mkdir()
    file = files.run.eval / "flickr.json"
    file.write_text(content)
    with pytest.raises(CheckpointError) as raised:
        known_scores(files)
    message = str(raised.value)
    assert message.startswith(f"{file}: is no evaluation (")
    assert message.endswith("; remove it, or run `tformer eval` again")
