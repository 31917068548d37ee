"""A run with one more target language: all that it knew stays to the bit."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from exportable import BASE, CHARACTERS
from hypothesis import given
from hypothesis import strategies as st
from m2m import save_m2m
from t5 import CASES, save_t5
from toy import write_languages

from tformer_cli import Translator
from tformer_cli.config.load import load_config
from tformer_cli.config.schema.model import DecoderOnlyConfig
from tformer_cli.config.schema.text import PairsFile, ParallelText, TrainingText
from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.errors import TformerError
from tformer_cli.export.extend import extend_run
from tformer_cli.export.run import import_run, write_run
from tformer_cli.model.build import build_model
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import TrainedModel, load_trained_model
from tformer_cli.text.tokenizer import build_tokenizers
from tformer_cli.training.trainer import train

MODELS = {
    "tied": BASE,
    "tied output": replace(BASE, tie_embeddings="output"),
    "untied": replace(BASE, tie_embeddings="none"),
    "decoder only": DecoderOnlyConfig(dim=24, num_heads=3, feedforward_dim=17, num_layers=2),
}
OLD = ["bb", "aa", "cc"]
IDS = {"bb": 6, "aa": 7, "cc": 8, "dd": 10}  # a tag of the text has 9
NAMES = [(name, like) for name in MODELS for like in (*OLD, None)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("many")
    run = RunDirectory(folder / "run")
    train(load_config(write_languages(folder / "data")), run, device=torch.device("cpu"))
    return run


def untrained(folder: Path, name: str) -> RunDirectory:
    config_file = write_languages(folder / "data")
    config = replace(load_config(config_file), model=MODELS[name], tokenizer=CharConfig())
    tokenizers = build_tokenizers(config.tokenizer, lambda: CHARACTERS, seed=1)
    size = tokenizers.source.size
    model = build_model(config.model, source_size=size, target_size=size, seed=1)
    run = RunDirectory(folder / "run")
    write_run(TrainedModel(config, tokenizers, model, step=3), run.path)
    return run


def new_text(run: RunDirectory) -> ParallelText:
    data = run.path.parent / "data"
    return ParallelText(source=data / "train.aa", target=data / "train.cc")


def extended(run: RunDirectory, output: Path, like: str | None = None) -> RunDirectory:
    tag = extend_run(run, RunDirectory(output), new_text(run), ("aa", "dd"), like=like)
    assert tag == "<2dd>"
    return RunDirectory(output)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> dict[tuple[str, str | None], tuple[TrainedModel, TrainedModel]]:
    """Each model before and after, by its name and by the language that the new one is like."""
    result = {}
    for name in MODELS:
        run = untrained(tmp_path_factory.mktemp("model"), name)
        for like in (*OLD, None):
            output = extended(run, run.path.with_name(f"like-{like}"), like)
            result[name, like] = load_trained_model(run), load_trained_model(output)
    return result


@pytest.mark.parametrize(("name", "like"), NAMES)
def test_one_row_of_the_weights_is_new(pairs, name, like):
    before, after = pairs[name, like]
    assert after.config.data.tags == (*before.config.data.tags, "<2dd>")
    assert after.tokenizers.fingerprint == before.tokenizers.fingerprint
    old, new = before.model.source_embeddings, after.model.source_embeddings
    rows = torch.stack([old[IDS[language]] for language in OLD if like in (language, None)])
    torch.testing.assert_close(new[IDS["dd"]], rows.mean(dim=0))
    with torch.no_grad():
        new[IDS["dd"]] = old[IDS["dd"]]
    for weight, other in zip(before.model.parameters(), after.model.parameters(), strict=True):
        assert torch.equal(weight, other)
    with torch.no_grad():
        new[IDS["dd"]] = rows.mean(dim=0)


ORDINARY = st.lists(st.integers(16, 30), min_size=1, max_size=9)


@pytest.mark.parametrize(("name", "like"), NAMES)
@given(language=st.sampled_from(OLD), source=ORDINARY, target=ORDINARY)
def test_logits_stay_and_the_new_code_has_those_that_it_is_like(
    pairs, name, like, language, source, target
):
    before, after = (trained.model for trained in pairs[name, like])
    is_old = torch.arange(before.source_embeddings.shape[0]) != IDS["dd"]
    old = logits_of(before, [IDS[language], *source], target)
    new = logits_of(after, [IDS[language], *source], target)
    assert torch.equal(old[..., is_old], new[..., is_old])
    if like is not None:
        asked = logits_of(after, [IDS["dd"], *source], target)
        assert torch.equal(logits_of(after, [IDS[like], *source], target), asked)


def logits_of(model, source: list[int], target: list[int]) -> torch.Tensor:
    sources = torch.tensor([source])
    with torch.inference_mode():
        states = model.target_hidden_states(
            sources, torch.ones_like(sources, dtype=torch.bool), torch.tensor([target])
        )
        return model.output(states)


def test_translations_and_their_scores_stay(run, tmp_path):
    lines = (run.path.parent / "data" / "test.aa").read_text().splitlines()
    original = Translator.load(run.path, backend="native")
    new = Translator.load(extended(run, tmp_path / "new", "cc").path, backend="native")
    for asked, language in (*zip(OLD, OLD, strict=True), ("dd", "cc")):
        nbest = original.nbest(lines, 2, to=language)
        assert list(new.nbest(lines, 2, to=asked)) == list(nbest)


def test_a_language_after_another_and_a_file_of_pairs(run, tmp_path):
    first = extended(run, tmp_path / "first")
    file = tmp_path / "pairs.tsv"
    file.write_text("ab\tAB\n")
    text = PairsFile(pairs=file, source_field="1", target_field="2")
    second = RunDirectory(tmp_path / "second")
    extend_run(first, second, text, ("bb", "ee"), like="dd")
    data = load_config(second.config_file).data
    assert data.tags == ("<2bb>", "<2aa>", "<2cc>", "made", "<2dd>", "<2ee>")
    assert data.directions[-2:] == (("aa", "dd"), ("bb", "ee"))
    embeddings = load_trained_model(second).model.source_embeddings
    assert torch.equal(embeddings[10], embeddings[11])


@pytest.mark.parametrize(
    ("language", "like", "complaint"),
    [
        ("cc", None, "`target_language`: is a target language of the run already (cc)"),
        ("dd", "xx", "`like`: is no target language of the model (xx); choose from: bb, aa, cc"),
    ],
)
def test_languages_that_cannot_be_are_refused(run, tmp_path, language, like, complaint):
    output = RunDirectory(tmp_path / "new")
    with pytest.raises(TformerError) as caught:
        extend_run(run, output, new_text(run), ("aa", language), like=like)
    assert str(caught.value).startswith(complaint)
    assert not output.path.exists()


def test_a_run_without_codes_a_full_vocabulary_and_a_missing_text_are_refused(
    run, toy_run, tmp_path
):
    def complaint(run: RunDirectory, text: ParallelText, language: str = "dd") -> str:
        with pytest.raises(TformerError) as caught:
            extend_run(run, RunDirectory(tmp_path / "none"), text, ("aa", language))
        assert not (tmp_path / "none").exists()
        return str(caught.value)

    text = new_text(run)
    assert complaint(RunDirectory(toy_run), text).startswith(
        f"{toy_run}: has a single target language, so its sources begin with no tag (target)"
    )
    assert "missing.aa" in complaint(run, replace(text, source=tmp_path / "missing.aa"))
    short, empty = tmp_path / "short.aa", tmp_path / "empty.dd"
    short.write_text("a\n", encoding="utf-8")
    assert "has no counterpart in" in complaint(run, replace(text, source=short))
    short.write_text("", encoding="utf-8")
    empty.touch()
    assert "no lines; name a file" in complaint(run, replace(text, source=short, target=empty))
    for number in range(6):
        output = RunDirectory(tmp_path / f"{number}")
        extend_run(run, output, text, ("aa", f"x{number}"))
        run = output
    assert "has more than the 10 tags that a vocabulary reserves" in complaint(run, text)


@pytest.mark.parametrize(
    ("save", "complaint"),
    [
        (partial(save_t5, **CASES["madlad"]), "has a prefix for each target language, and no tags"),
        (partial(save_m2m, name="m2m"), "has languages as tokens of an imported vocabulary, and"),
    ],
    ids=["madlad", "m2m"],
)
def test_imported_models_without_tags_are_refused(save, complaint, run, tmp_path, monkeypatch):
    monkeypatch.setenv("TQDM_DISABLE", "1")
    save(tmp_path / "folder")
    imported = RunDirectory(tmp_path / "run")
    import_run(tmp_path / "folder", imported)
    for like in (None, "de"):
        with pytest.raises(TformerError) as caught:
            extend_run(
                imported, RunDirectory(tmp_path / "new"), new_text(run), ("en", "es"), like=like
            )
        assert str(caught.value).startswith(f"{imported.path}: {complaint}")


def test_the_command_names_the_tag_and_what_to_run_next(run, tformer, tmp_path, monkeypatch):
    for side, code in (("aa", "en"), ("cc", "es")):
        content = (run.path.parent / "data" / f"train.{side}").read_bytes()
        (tmp_path / f"train.{code}").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    result = tformer("extend", run.path, "new", "train.en", "train.es", "--like", "aa")
    assert result.stdout == "new: written; sources into es begin with <2es>\n"
    assert result.stderr == ("next: tformer train new/config.yaml --init-from new --run new-es\n")
    text = load_config(tmp_path / "new" / "config.yaml").data.train[-1]
    assert text == TrainingText(
        source=tmp_path / "train.en",
        target=tmp_path / "train.es",
        source_language="en",
        target_language="es",
    )
    result = tformer("extend", run.path, "new", "train.en", "train.es")
    assert (result.exit_code, result.stderr.split(": ")[0]) == (2, "new")
    result = tformer("extend", "new", "again", "train.en", "train.es")
    assert result.stderr == (
        "--target-language: is a target language of the run already (es); "
        "train it further: --init-from RUN\n"
    )
