"""Data diversification: which models are trained on which text, and what a second call does."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import diversify
import pytest
from toy import CONFIG, write_languages, write_toy

from tformer_cli import Translator, train
from tformer_cli.config.load import load_config
from tformer_cli.config.schema.training import TagsFirstConfig
from tformer_cli.errors import DataError, TformerError, UsageError
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.translate.teachers import Teachers

ROOT = Path(__file__).parents[2]
LANGUAGES = "data:\n  source_language: en\n  target_language: de\n"


def toy_config(folder: Path) -> Path:
    config = CONFIG.replace("data:\n", LANGUAGES).replace("max_steps: 24", "max_steps: 6")
    config = config.replace("validate_every: 12", "validate_every: 6")
    config = config.replace("tokenizer: {kind: char}", "tokenizer: {kind: char, lowercase: source}")
    return write_toy(folder, pairs=40, config=config)


def test_a_model_of_the_other_direction_has_all_sides_exchanged(tmp_path):
    config = load_config(toy_config(tmp_path))
    reverse = diversify.reversed_config(config)
    assert (reverse.data.source_language, reverse.data.target_language) == ("de", "en")
    assert reverse.tokenizer.lowercase == "target"
    for text, other in zip(
        config.data.texts().values(), reverse.data.texts().values(), strict=True
    ):
        assert (text.source, text.target) == (other.target, other.source)
    again = diversify.reversed_config(reverse)
    assert (again.data, again.tokenizer) == (config.data, config.tokenizer)
    # A tokenizer that lowercases the target asks for it.
    assert (config.evaluation.bleu.lowercase, reverse.evaluation.bleu.lowercase) == (False, True)


def test_a_model_of_the_other_direction_trains_all_its_weights(tmp_path):
    config = load_config(toy_config(tmp_path), ["training.freeze=[encoder]"])
    first = TagsFirstConfig(tags=("[new]",), steps=6)
    own = replace(config.training, init_from=tmp_path, tags_first=first)
    training = diversify.reversed_config(replace(config, training=own)).training
    assert (training.init_from, training.freeze, training.tags_first) == (None, (), None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{source: train.src, target: train.tgt}", "{pairs: a.tsv}", "data.train.0: must be two"),
        ("{source: test.src, target: test.tgt}", "{pairs: a.tsv}", "data.test.toy: must be two"),
        (
            "{source: valid.src, target: valid.tgt}",
            "[{source: valid.src, target: valid.tgt}]",
            "data.valid: must be a text, not a list; name one",
        ),
        (
            "tokenizer: {kind: char, lowercase: source}",
            "tokenizer: {kind: marian}",
            "tokenizer.kind: must be learned from the corpus, for teachers of both directions",
        ),
        (
            LANGUAGES,
            f"{LANGUAGES}  prefixes: {{de: 'to German '}}\n",
            "data.prefixes: must be null, for teachers of both directions",
        ),
    ],
)
def test_a_corpus_that_cannot_be_reversed_is_refused_before_a_training(tmp_path, old, new, message):
    file = toy_config(tmp_path)
    (tmp_path / "a.tsv").write_text("a\tb\n")
    file.write_text(file.read_text().replace(old, new))
    config = load_config(file)
    with pytest.raises(UsageError, match=message):
        diversify.diversify(config, config, tmp_path / "new", 1, "cpu")
    assert not (tmp_path / "new").exists()


def test_another_corpus_of_the_last_model_is_refused_before_a_training(tmp_path):
    file = toy_config(tmp_path)
    config, last = load_config(file), load_config(file, ["data.train.0.weight=2"])
    with pytest.raises(UsageError) as raised:
        diversify.diversify(config, last, tmp_path / "new", 1, "cpu")
    assert str(raised.value) == (
        "data.train: must be that of the teachers; change it for the teachers too, by --set"
    )
    assert not (tmp_path / "new").exists()


def test_several_directions_are_refused_before_a_training(tmp_path):
    config = load_config(write_languages(tmp_path))
    with pytest.raises(UsageError) as raised:
        diversify.diversify(config, config, tmp_path / "new", 1, "cpu")
    assert str(raised.value) == (
        "data.train: must be of one direction (aa -> bb, bb -> aa, aa -> cc); "
        "write a config for each"
    )
    assert not (tmp_path / "new").exists()


def test_a_run_that_cannot_be_resumed_is_refused_with_the_options_of_the_script(tmp_path):
    file = toy_config(tmp_path / "data")
    final = tmp_path / "new" / "final"
    train(load_config(file), final, device="cpu")
    other = load_config(file, ["training.max_steps=12"])
    with pytest.raises(TformerError) as raised:
        diversify.trained(other, final, "cpu", anew=f"{final} removed")
    assert list(map(str, raised.value.problems)) == [
        f"{final}: training.max_steps was 6 when this run began (12); change it back, start over "
        f"with {final} removed, or train its weights further: --set training.init_from=RUN "
        "--folder NEW"
    ]
    (tmp_path / "new" / "forward-1").mkdir()
    (tmp_path / "new" / "forward-1" / "mine").write_text("")
    with pytest.raises(TformerError) as raised:
        diversify.diversify(other, other, tmp_path / "new", 1, "cpu")
    (problem,) = raised.value.problems
    assert problem.remedy == "name another folder with --folder"


def test_pairs_that_are_there_are_named_since_another_search_changes_nothing(tmp_path, capsys):
    (text,) = load_config(toy_config(tmp_path / "data")).data.train
    for name in ("pairs.jsonl", "pairs.source", "pairs.target"):
        (tmp_path / name).write_text("a\n")
    pairs = diversify.translated(text, [], tmp_path / "pairs", "source", "cpu")
    assert pairs.source == tmp_path / "pairs.source"
    assert f"{tmp_path}/pairs.jsonl: is there already" in capsys.readouterr().out


def test_teachers_that_translate_to_empty_lines_alone_are_refused(tmp_path, monkeypatch):
    (text,) = load_config(toy_config(tmp_path / "data")).data.train
    teacher = train(load_config(tmp_path / "data" / "toy.yaml"), tmp_path / "one", device="cpu")
    monkeypatch.setattr(Teachers, "choose", lambda teachers, lines: [])
    for _ in ("translated", "there already"):
        with pytest.raises(DataError) as raised:
            diversify.translated(text, [teacher], tmp_path / "pairs", "source", "cpu")
        assert str(raised.value) == (
            f"{tmp_path}/pairs.jsonl: has no pair, since all translations of {text.source} are "
            f"empty ({teacher}); train these teachers longer, in another --folder"
        )


def test_a_text_with_tags_is_translated_with_them(tmp_path):
    file = toy_config(tmp_path / "data")
    own = "{source: train.src, target: train.tgt}"
    file.write_text(file.read_text().replace(own, f"{own[:-1]}, tags: ['[phrase]']}}"))
    config = load_config(file, ["training.max_steps=60", "training.validate_every=60"])
    (text,) = config.data.train
    teacher = train(config, tmp_path / "teacher", device="cpu")
    pairs = diversify.translated(text, [teacher], tmp_path / "pairs", "source", "cpu")
    sources = text.source.read_text().splitlines()
    translator = Translator.load(teacher)
    with_tag, without = (translator.translate(sources, tags=x) for x in (["[phrase]"], []))
    assert pairs.target.read_text().splitlines() == [x for x in with_tag if x.strip()] != without


def test_teachers_translate_no_phrases_but_all_models_are_trained_on_them(tmp_path, monkeypatch):
    config = load_config(toy_config(tmp_path / "data"))
    (text,) = config.data.train
    phrases = replace(text, extract="phrases", tags=("[phrase]",))
    config = replace(config, data=replace(config.data, train=(text, phrases)))
    trained_on, translated = [], []

    def trained(own, run, device, *, anew):
        trained_on.append(own.data.train)
        return run

    def translate(own, teachers, prefix, real, device):
        translated.append((own, real))
        return replace(own, source=tmp_path / real)

    monkeypatch.setattr(diversify, "trained", trained)
    monkeypatch.setattr(diversify, "translated", translate)
    diversify.diversify(config, config, tmp_path / "new", 1, "cpu")
    assert translated == [(text, "source"), (text, "target")]
    forward, backward, last = trained_on
    assert forward == (text, phrases)
    assert backward == tuple(map(diversify.reversed_text, forward))
    synthetic = (replace(text, source=tmp_path / side) for side in ("source", "target"))
    assert last == (text, phrases, *synthetic)


@pytest.mark.slow
def test_the_last_model_is_trained_on_the_corpus_and_on_what_both_directions_write(
    tmp_path, monkeypatch
):
    file = toy_config(tmp_path / "data")
    config, last = load_config(file), load_config(file, ["model.dropout=0.3"])
    folder = tmp_path / "new"
    final = diversify.diversify(config, last, folder, 2, "cpu")
    (original,) = config.data.train
    trained_on = load_config(RunDirectory(final).config_file)
    assert (trained_on.seed, trained_on.model) == (config.seed, last.model)
    assert trained_on.data.train[0] == original
    (forward, backward) = trained_on.data.train[1:]
    sides = [original.source.read_text().splitlines(), original.target.read_text().splitlines()]
    for direction, text, real, side in (
        ("forward", forward, forward.source, 0),
        ("backward", backward, backward.target, 1),
    ):
        machine = text.target if side == 0 else text.source
        teachers = [folder / f"{direction}-{number}" for number in (1, 2)]
        translations = [Translator.load(teacher).translate(sides[side]) for teacher in teachers]
        expected = [
            (line, each[index])
            for index, line in enumerate(sides[side])
            for each in translations
            if each[index].strip()
        ]
        pairs = zip(real.read_text().splitlines(), machine.read_text().splitlines(), strict=True)
        assert list(pairs) == expected
        configs = [load_config(RunDirectory(teacher).config_file) for teacher in teachers]
        assert [each.seed for each in configs] == [config.seed + 1, config.seed + 2]
        assert [each.model for each in configs] == [config.model, config.model]

    # The same call changes nothing, nor does it from within the folder.
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*-text-*")}
    steps = (final / "last").read_text()
    assert diversify.diversify(config, last, folder, 2, "cpu") == final
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*-text-*")} == before
    assert (final / "last").read_text() == steps
    config_file = RunDirectory(final).config_file
    written = config_file.read_text()
    monkeypatch.chdir(tmp_path)
    diversify.diversify(config, last, Path("new"), 2, "cpu")
    assert config_file.read_text() == written


@pytest.mark.slow
def test_the_demo_is_diversified_in_some_steps_by_one_command(tmp_path):
    small = ["training.max_steps=4", "training.validate_every=4", "training.save_every=4"]
    small += ["training.schedule.warmup_steps=1", "model.dim=32", "model.feedforward_dim=64"]
    small += ["decoding.max_length=4", "training.validation_decoding.max_length=4"]
    for side in ("en", "de"):
        lines = (ROOT / "data" / "demo" / f"train.{side}").read_text("utf-8").splitlines(True)
        for split in ("train", "valid", "test"):
            (tmp_path / f"{split}.{side}").write_text("".join(lines[:300]), encoding="utf-8")
    words = [f"--set={setting}" for setting in [f"data.root={tmp_path}", *small]]
    command = [sys.executable, ROOT / "scripts" / "diversify.py", ROOT / "configs" / "demo.yaml"]
    done = subprocess.run(
        [
            *(*command, "--folder", tmp_path / "all", "--teachers", "1", "--device", "cpu", *words),
            *("--set-last", "training.max_steps=5"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"next: tformer compare {tmp_path}/all/forward-1 {tmp_path}/all/final" in done.stderr
    steps = {run: (tmp_path / "all" / run / "last").read_text() for run in ("forward-1", "final")}
    assert steps == {"forward-1": "step-000004\n", "final": "step-000005\n"}
    rows = (tmp_path / "all" / "backward-text-0-by-1.jsonl").read_text("utf-8").splitlines()
    assert json.loads(rows[0])["teacher"] == str(tmp_path / "all" / "backward-1")
