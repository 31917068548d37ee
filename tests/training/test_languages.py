"""Many languages in one run: the tokens of target languages, told apart by hand; validation."""

import contextlib
import json
import shutil
import signal
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import fmean

import pytest
import sacrebleu
import torch
from safetensors.torch import load_file
from stepping import on_step
from toy import CONFIG, MANY, MANY_TEXTS, write_languages
from train_states import train_state

from tformer_cli import Translator, calibrate, report, tune
from tformer_cli.api import evaluate, score
from tformer_cli.config.load import as_plain, load_config, to_yaml, training_item
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig, SamplingConfig
from tformer_cli.config.schema.fields import check
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.corpus.reader import read_texts
from tformer_cli.errors import CheckpointError, ConfigError, Interrupted, UsageError
from tformer_cli.evaluation.evaluate import Evaluator
from tformer_cli.export.format import beam_of
from tformer_cli.export.run import export_run
from tformer_cli.model.encoder_decoder import EncoderDecoder
from tformer_cli.serve.model import ServedModel
from tformer_cli.storage.run_directory import MODEL_FILE, RunDirectory
from tformer_cli.text.tokenizer import build_tokenizers
from tformer_cli.training.setup import load_data
from tformer_cli.training.trainer import train
from tformer_cli.translate.synthesis import synthesize
from tformer_cli.translate.teachers import Teachers

CPU = torch.device("cpu")
IDS = {"bb": 6, "aa": 7, "cc": 8}
MADE, EOS = 9, 3
SHORT = (
    "training.max_steps=2",
    "training.validate_every=2",
    "training.save_every=2",
    "training.schedule.warmup_steps=1",
)


def trained(config_file: Path, folder: Path, *settings: str) -> RunDirectory:
    run = RunDirectory(folder)
    train(load_config(config_file, settings), run, device=CPU)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("many")
    return trained(write_languages(folder / "data"), folder / "run")


@pytest.fixture
def config_file(run: RunDirectory) -> Path:
    return run.path.parent / "data" / "many.yaml"


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The source ids that the encoder receives, without padding."""
    rows: list[list[int]] = []
    for name in ("hidden_states", "prefill"):
        method = getattr(EncoderDecoder, name)

        def called(self, source, source_mask, *arguments, method=method, **options):
            rows.extend(ids[mask].tolist() for ids, mask in zip(source, source_mask, strict=True))
            return method(self, source, source_mask, *arguments, **options)

        monkeypatch.setattr(EncoderDecoder, name, called)
    return rows


def lines_of(config_file: Path, name: str) -> list[str]:
    return (config_file.parent / name).read_text().splitlines()


def ids_of(line: str, run: RunDirectory) -> list[int]:
    tokenizer = Translator.load(run.path, backend="native").tokenizers.source
    vocabulary = tokenizer.tokens(range(tokenizer.size))
    return [vocabulary.index(character) for character in line]


# ------------------------------------------------ what the model receives


def test_an_epoch_holds_each_text_with_the_token_of_its_target_language(config_file, tmp_path):
    config = load_config(config_file)
    tokenizers = build_tokenizers(config.tokenizer, lambda: read_texts(config.data.train), 3)
    data = load_data(config, tokenizers, tmp_path, lambda line: None)
    vocabulary = tokenizers.source.tokens(range(tokenizers.source.size))

    def ids(line: str) -> tuple[int, ...]:
        return tuple(vocabulary.index(character) for character in line)

    expected = Counter(
        ((*tags, *ids(source), EOS), (*ids(target), EOS))
        for pair, tags in (
            ("aa bb", (IDS["bb"],)),
            ("bb aa", (IDS["aa"],)),
            ("aa cc", (IDS["cc"], MADE)),
        )
        for source, target in zip(
            *(lines_of(config_file, f"train.{side}") for side in pair.split()), strict=True
        )
    )
    state = train_state()
    num_batches = len(data.unidirectional.plans[0])
    found = Counter(
        (tuple(source[mask].tolist()), tuple(target[target_mask].tolist()))
        for step in islice(data._batches(state, state.progress), num_batches)
        for part in step.micro_batches
        for source, mask, target, target_mask in zip(
            part.source, part.source_mask, part.target_out, part.target_mask, strict=True
        )
    )
    assert found == expected


def test_validation_and_translation_ask_for_the_target_language(
    config_file, run, tmp_path, received
):
    trained(config_file, tmp_path / "run", *SHORT)
    for source, target in (("aa", "bb"), ("bb", "aa")):
        for line in lines_of(config_file, f"valid.{source}"):
            # Once for the loss, once for the translation.
            assert received.count([IDS[target], *ids_of(line, run), EOS]) >= 2
    translator = Translator.load(run.path, backend="native")
    for target, token in IDS.items():
        received.clear()
        translator.translate(["ab", ""], to=target)
        translator.into(target).translate(["ab", ""])
        assert received == [[token, *ids_of("ab", run), EOS]] * 2
    received.clear()
    translator.translate(["ab"], to="cc", tags=["made"])
    assert received == [[IDS["cc"], MADE, *ids_of("ab", run), EOS]]


@pytest.mark.parametrize("tag", ["<2cc>", "<2bb>"])
def test_no_tag_of_a_line_is_another_target_language(run, tmp_path, tag):
    text = tmp_path / "text"
    text.write_text("ab\n")
    options = {"real": "source", "to": "cc", "tags": ["made", tag], "backend": "native"}
    with pytest.raises(UsageError) as raised:
        synthesize([run.path], text, tmp_path / "pairs", **options)
    assert str(raised.value) == (
        f"`tags`: is the tag of a target language ({tag}); "
        "leave it out, since `to` chooses the language"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_a_distilled_text_is_of_one_direction(run):
    translator = Translator.load(run.path, backend="native")
    directions = [("cc", "aa"), ("cc", "bb"), ("bb", "aa")]
    made_from = [
        Teachers(["run"], [translator.into(*each)], None, 1, None, ()).fingerprint()
        for each in directions
    ]
    assert [each["languages"] for each in made_from] == [["aa -> cc"], ["bb -> cc"], ["aa -> bb"]]


def test_confidences_are_those_of_each_text_in_its_direction(run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "run")
    reliability = calibrate(copy, device="cpu").reliability
    data = load_config(copy / "config.yaml").data
    texts = {**data.valid_texts, **data.test}
    assert len(data.valid_texts) > 1
    assert reliability.keys() == texts.keys()
    for name, text in texts.items():
        source, target = data.direction_of(text)
        lines, references = zip(*read_texts([text]), strict=True)
        translator = Translator.load(copy, device="cpu").into(target, source)
        best = [first for (first,) in translator.nbest(lines, 1, inspected=True)]
        pairs = zip(best, references, strict=True)
        chrf = [sacrebleu.sentence_chrf(each.text, [line]).score / 100 for each, line in pairs]
        assert reliability[name].quality == pytest.approx(fmean(chrf))
        if name in data.test:
            mean = fmean(each.confidence for each in best)
            assert reliability[name].confidence == pytest.approx(mean)


def test_a_search_is_tuned_by_the_mean_of_directions(config_file, tmp_path):
    steps = (f"training.{key}=150" for key in ("max_steps", "validate_every", "save_every"))
    run = trained(config_file, tmp_path / "run", *steps).path
    tuning = tune(run, metric="chrf", device="cpu", backend="native")
    directions = load_config(run / "config.yaml").data.valid_texts
    assert len(tuning.texts) == len(directions) > 1
    assert len({trial.score.score for trial in tuning.trials}) > 1
    for trial in (tuning.own, tuning.best):
        options = {"metrics": ["chrf"], "decoding": trial.decoding, "device": "cpu"}
        scored = evaluate(run, split="valid", **options)
        assert scored.keys() == directions.keys()
        mean = fmean(each.scores["chrf"].score for each in scored.values())
        assert trial.score.score == pytest.approx(mean)


def test_a_test_set_is_evaluated_in_its_direction_even_without_training_text(run, received):
    evaluate(run.path, split="bb-cc")
    expected = [
        [IDS["cc"], *ids_of(line, run), EOS]
        for line in lines_of(run.path.parent / "data" / "x", "test.bb")
    ]
    assert {tuple(ids) for ids in received} == {tuple(ids) for ids in expected}


def test_scoring_is_of_the_language_that_is_asked_for(run, tmp_path, received):
    for side, text in (("source", "ab\n\n"), ("target", "12\n\n")):
        (tmp_path / side).write_text(text)
    files = tmp_path / "source", tmp_path / "target"
    translator = Translator.load(run.path, to="cc", backend="native")
    named = [pair.log_prob for pair in translator.score(["ab", ""], ["12", ""])]
    asked = [pair.log_prob for pair in translator.score(["ab", ""], ["12", ""], to="bb")]
    assert [pair.log_prob for pair in score(run.path, *files, to="cc")] == named
    ids = ids_of("ab", run)
    assert received == [[IDS[target], *ids, EOS] for target in ("cc", "bb", "cc")]
    assert named[0] != asked[0]
    assert named[1] == asked[1] == 0


# ------------------------------------------------ validation by direction


def test_the_best_checkpoint_has_the_highest_mean_of_all_directions(run):
    lines = map(json.loads, run.metrics_file.read_text().splitlines())
    validations = [line for line in lines if line["kind"] == "valid"]
    for line in validations:
        assert list(line["directions"]) == ["aa-bb", "bb-aa"]
        for figure in ("bleu", "loss"):
            mean = fmean(each[figure] for each in line["directions"].values())
            assert line[figure] == pytest.approx(mean)
    best = max(validations, key=lambda line: (line["bleu"], line["step"]))
    assert run.pointed("best") == run.checkpoint(best["step"])
    log = run.log_file.read_text()
    figures = [f"{name} {each['bleu']:.2f}" for name, each in best["directions"].items()]
    assert f"  BLEU {best['bleu']:.2f}  {'  '.join(figures)}" in log


def test_each_direction_has_the_bleu_of_its_own_translations(run, config_file):
    search = load_config(config_file).training.validation_decoding
    found = evaluate(run.path, split="valid", decoding=search, checkpoint="last")
    *_, last = map(json.loads, run.metrics_file.read_text().splitlines())
    for name, side in (("aa-bb", "bb"), ("bb-aa", "aa")):
        hypotheses = (run.eval / f"valid.{name}.hyp.txt").read_text().splitlines()
        bleu = sacrebleu.corpus_bleu(hypotheses, [lines_of(config_file, f"valid.{side}")])
        assert found[f"valid.{name}"].scores["bleu"].score == pytest.approx(bleu.score)
        assert last["directions"][name]["bleu"] == pytest.approx(bleu.score)


# ------------------------------------------------ what is refused


@pytest.mark.parametrize("command", ["translate", "score"])
def test_a_command_needs_one_of_the_target_languages(run, config_file, tformer, command):
    files = [f"{config_file.parent}/test.{side}" for side in ("aa", "cc")]
    words = [] if command == "translate" else ["--source", files[0], "--target", files[1]]
    for to, problem in (
        ([], "is required, since the model has several target languages"),
        (["--to", "dd"], "is no target language of the model (dd)"),
    ):
        result = tformer(command, run.path, *words, *to, stdin="ab\n")
        message = f"--to: {problem}; choose from: bb, aa, cc\n"
        assert (result.exit_code, result.stderr) == (2, message)
    result = tformer(command, run.path, *words, "--to", "cc", stdin="ab\n")
    assert result.exit_code == 0


def test_the_command_translates_as_the_library(run, tformer):
    expected = Translator.load(run.path).translate(["ab cd"], to="aa")
    result = tformer("translate", run.path, "--to", "aa", stdin="ab cd\n")
    assert result.stdout.splitlines() == expected


def test_eval_of_a_text_needs_its_language_and_a_split_has_it(run, config_file, tformer):
    files = ["--source", config_file.parent / "test.aa", "--reference"]
    result = tformer("eval", run.path, *files, config_file.parent / "test.cc")
    assert result.stderr.startswith("--to: is required, since")
    result = tformer("eval", run.path, *files, config_file.parent / "test.cc", "--to", "cc")
    named = tformer("eval", run.path, "--split", "aa-cc")
    assert result.stdout.splitlines()[1] == named.stdout.splitlines()[1]
    result = tformer("eval", run.path, "--to", "cc")
    assert result.stderr == (
        "--to: needs --source: a split has its own languages (cc); leave it out\n"
    )


def test_a_model_of_one_target_language_takes_it_and_no_other(toy_run):
    translator = Translator.load(toy_run)
    assert translator.translate(["ab"], to="target") == translator.translate(["ab"])
    with pytest.raises(UsageError, match=r"\(fr\); choose from: target$"):
        translator.translate(["ab"], to="fr")


TEXT = {"source": Path("s"), "target": Path("t")}
ONE = DataConfig(train=(TrainingText(**TEXT),), valid=ParallelText(**TEXT))
FRENCH = TrainingText(**TEXT, target_language="fr")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (
            replace(ONE, valid=ParallelText(**TEXT, target_language="de")),
            "valid.target_language: is no target language of data.train (de); choose from: target",
        ),
        (
            replace(ONE, train=(*ONE.train, replace(FRENCH, tags=("<2fr>",)))),
            "train.1.tags: is the tag of a target language (<2fr>); leave it out",
        ),
        (
            replace(ONE, valid=(ONE.valid, ONE.valid)),
            "valid: must be a text, or a list of one text for each direction (valid.source-target);"
            " give each its source_language and target_language",
        ),
        (
            replace(ONE, target_language="a/b", valid=(ONE.valid,)),
            "valid: must be the name of a file, without a folder or a control character "
            '("valid.source-a/b"); rename it',
        ),
        (
            replace(ONE, train=tuple(replace(FRENCH, target_language=f"x{i}") for i in range(11))),
            "train: has more than the 10 tags that a vocabulary reserves",
        ),
    ],
)
def test_languages_that_contradict_each_other_are_refused(data, complaint):
    assert any(str(problem).startswith(complaint) for problem in check(data))


def test_both_directions_first_contradicts_tokens_of_one(config_file):
    with pytest.raises(ConfigError, match="must be null with several target languages"):
        load_config(config_file, ["training.bidirectional_steps=1"])


def test_both_directions_first_need_one_source_language():
    two = replace(ONE, train=(*ONE.train, replace(ONE.train[0], source_language="fr")))
    first = TrainingConfig(bidirectional_steps=1)
    assert not any(check(Config(data=ONE, training=first)))
    (problem,) = check(Config(data=two, training=first))
    assert str(problem) == (
        "training.bidirectional_steps: must be null with several source languages, "
        "which no tag names as targets (source, fr); name each text in both directions"
    )


def test_a_run_of_many_languages_is_fine_tuned_on_several(config_file, run, tmp_path):
    pretrained = f"training.init_from={run.path}"
    one = CONFIG.replace("{source: test.src", "{source: test.aa").replace(".src", ".aa")
    one = one.replace(".tgt", ".bb")
    file = config_file.with_name("one.yaml")
    file.write_text(one)
    with pytest.raises(ConfigError) as caught:
        trained(file, tmp_path / "run", pretrained, *SHORT)
    assert str(caught.value) == (
        f"data.train: needs several target languages, as in {run.path} (target); "
        "add a text of another one, with a small weight"
    )
    trained(config_file, tmp_path / "run", pretrained, *SHORT)


# ------------------------------------------------ one direction is as it was


def test_a_single_direction_has_no_token_wherever_its_languages_are_named(toy_run):
    config = load_config(RunDirectory(toy_run).config_file)
    keys = "source", "target"
    languages = {"source_language": "de", "target_language": "en"}
    (text,) = config.data.train
    named = replace(
        config.data,
        train=(replace(text, **languages),),
        valid=replace(config.data.valid, **languages),
        test={},
    )
    assert not list(check(replace(config, data=named)))
    for data, expected in ((config.data, keys), (named, ("de", "en"))):
        assert (data.directions, data.tags) == ((expected,), ())
        assert data.max_length == data.filters.max_length
    # What names no language is written as ever.
    assert as_plain(text).keys() == {*keys, "weight", "tags"}
    assert as_plain(named.train[0]).keys() == {*keys, "weight", "tags", *languages}


# ------------------------------------------------ sampling by temperature


def test_a_training_with_a_temperature_resumes_to_the_same_bits(config_file, tmp_path, monkeypatch):
    settings = ("data.sampling.temperature=3", "data.train.1.weight=0.3")
    whole = trained(config_file, tmp_path / "whole", *settings)
    with monkeypatch.context() as patch:
        on_step(patch, 9, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted):
            trained(config_file, tmp_path / "run", *settings)
    resumed = trained(config_file, tmp_path / "run", *settings)
    one, two = (load_file(each.pointed("last") / MODEL_FILE) for each in (whole, resumed))
    assert all(torch.equal(one[name], two[name]) for name in one)
    with pytest.raises(CheckpointError, match="the training text or its tokenizer has changed"):
        trained(config_file, tmp_path / "run", "data.sampling.temperature=2", *settings[1:])


def test_a_temperature_needs_several_directions(config_file):
    one = replace(ONE, sampling=SamplingConfig(temperature=5))
    assert list(map(str, check(one))) == [
        "sampling: has no effect on texts of one direction (source -> target); leave it out"
    ]
    with pytest.raises(ConfigError, match="temperature: must be at least 1"):
        load_config(config_file, ["data.sampling.temperature=0.5"])


# ------------------------------------------------ exports


def test_ctranslate2_receives_the_token_too(run):
    pytest.importorskip("ctranslate2")
    lines = ["ab cd", "feg", "", "ga b"]
    for to in IDS:
        one, two = (
            [best.log_prob for (best,) in translator.nbest(lines, 1, to=to)]
            for translator in (
                Translator.load(run.path, backend=backend) for backend in ("native", "ctranslate2")
            )
        )
        assert one == pytest.approx(two, abs=1e-3)


def test_an_export_is_checked_with_the_token_and_its_example_has_it(run, tmp_path, capsys):
    pytest.importorskip("ctranslate2")
    folder = tmp_path / "exported"
    export_run(run, folder, "ctranslate2")
    card = (folder / "README.md").read_text()
    assert "Translates aa into bb, bb into aa, aa into cc:" in card
    code = card.partition("```python\n")[2].partition("```")[0]
    assert "['<tag_6>', *" in code
    own = Translator.load(run.path)
    for target in own.direction.targets:
        (token,) = own.tokenizers.source.tokens(own.into(target).tag_ids())
        assert f"{token!r} ({target})" in code
    with contextlib.chdir(folder):
        exec(code, {})
    printed = capsys.readouterr().out.rstrip("\n")
    line = (run.path.parent / "data" / "valid.aa").read_text().splitlines()[0]
    search = beam_of(own.config.decoding)
    assert printed == Translator.load(folder).translate([line], to="bb", decoding=search)[0]
    assert f"> {printed}\n" in card


def test_a_plain_folder_keeps_the_languages(run, tmp_path):
    export_run(run, tmp_path / "plain", "safetensors")
    plain = Translator.load(tmp_path / "plain")
    assert plain.direction.targets == ("bb", "aa", "cc")
    own = Translator.load(run.path)
    assert plain.translate(["ab cd"], to="cc") == own.translate(["ab cd"], to="cc")
    with pytest.raises(ConfigError, match=r"must be of one target language in a Marian model"):
        export_run(run, tmp_path / "marian", "marian")
    pytest.importorskip("ctranslate2")
    with pytest.raises(ConfigError, match=r"must be of one target language in an Argos package"):
        export_run(run, tmp_path / "argos", "argos")


def test_a_server_has_the_direction_it_is_given_or_all(run):
    def served(**options) -> ServedModel:
        return ServedModel(run, "best", lambda: Translator.load(run.path, **options))

    assert served(to="cc").directions == (("aa", "cc"),)
    assert served(to="bb", source_language="cc").directions == (("cc", "bb"),)
    every = served()
    assert every.directions == (("aa", "bb"), ("bb", "aa"), ("aa", "cc"))
    texts = ["ab cd", ""]
    for source, target in every.directions:
        expected = Translator.load(run.path, to=target).translate(texts)
        translator = every.into((source, target))
        assert translator.translate(texts) == expected
        assert translator.engine is every.translator.engine
        assert every.into((source, target)) is translator


def test_no_attribute_of_a_translator_changes_once_it_is_set(run, tmp_path, monkeypatch):
    def set_once(translator: Translator, name: str, value: object) -> None:
        assert name not in vars(translator)
        vars(translator)[name] = value

    monkeypatch.setattr(Translator, "__setattr__", set_once)
    copied = RunDirectory(shutil.copytree(run.path, tmp_path / "copied"))
    options = {"ensemble": [copied.path], "device": "cpu"}
    loaded = Translator.load(run.path, to="cc", max_source_length=7, **options)
    other = loaded.into("bb", "cc")
    for translator, languages in ((loaded, ("aa", "cc")), (other, ("cc", "bb"))):
        assert translator.direction.languages == languages
        assert translator.preprocessor.max_source_length == 7
        assert [files.run for files in translator.files] == [run, copied]
    Evaluator.load(run.path, **options)


def test_a_report_counts_rare_words_in_the_sources_of_their_language(run, config_file):
    folder = config_file.parent
    counts = Counter((folder / "train.bb").read_text().lower().split())
    lines = (folder / "valid.bb").read_text().lower().splitlines()
    rarest = [min(counts[word] for word in line.split()) for line in lines]
    expected = {
        "0": sum(count == 0 for count in rarest),
        "1 to 9": sum(0 < count < 10 for count in rarest),
    }
    made = report(run.path, split="valid.bb-aa")
    buckets = {name: scores["bleu"][0].score for name, scores in made.by_frequency.items()}
    assert {name: score.num_sentences for name, score in buckets.items()} == expected


def test_an_ensemble_that_numbers_a_language_differently_is_refused(run, tmp_path):
    other = shutil.copytree(run.path, tmp_path / "other")
    config = load_config(other / "config.yaml")
    bb, aa, cc = config.data.train
    data = replace(config.data, train=(bb, replace(cc, tags=()), aa))
    (other / "config.yaml").write_text(to_yaml(as_plain(replace(config, data=data))))
    for call in (
        lambda: evaluate(run.path, split="aa-cc", ensemble=[other]),
        lambda: Translator.load(run.path, to="cc", ensemble=[other]).translate(["ab"]),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert str(caught.value) == (
            "`ensemble`: has runs that number this target language differently (cc); "
            "name runs with the same target languages in the same order"
        )
    assert Translator.load(run.path, to="bb", ensemble=[other]).translate(["ab"])


def test_saved_translations_into_another_language_are_not_used(run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "run")
    evaluate(copy, split="aa-cc")
    messages: list[str] = []
    report(copy, split="aa-cc", log=messages.append)
    assert messages == []
    config = load_config(copy / "config.yaml")
    text = replace(config.data.test["aa-cc"], target_language="bb")
    data = replace(config.data, test={"aa-cc": text})
    (copy / "config.yaml").write_text(to_yaml(as_plain(replace(config, data=data))))
    report(copy, split="aa-cc", log=messages.append)
    assert messages == [f"{copy}: translating aa-cc"]


@pytest.mark.parametrize(("real", "direction"), [("source", "aa cc"), ("target", "cc aa")])
def test_synthetic_text_names_its_languages(run, tmp_path, received, real, direction):
    (tmp_path / "text").write_text("ab cd\n")
    output = tmp_path / "out"
    made = synthesize(
        [run.path], tmp_path / "text", output, real=real, to="cc", backend="native", workers=1
    )
    item = training_item(made.text)
    assert [item["source_language"], item["target_language"]] == direction.split()
    assert received == [[IDS["cc"], *ids_of("ab cd", run), EOS]]


@pytest.mark.parametrize(("real", "direction"), [("source", "cc aa"), ("target", "aa cc")])
def test_synthetic_text_names_the_source_language_that_is_chosen_alone(tmp_path, real, direction):
    texts = """\
  source_language: bb
  target_language: aa
  train:
    - {source: train.bb, target: train.aa}
    - {source: train.cc, target: train.aa, source_language: cc}
  valid: {source: valid.bb, target: valid.aa}
"""
    file = write_languages(tmp_path / "data", config=MANY.replace(MANY_TEXTS, texts))
    teacher = trained(file, tmp_path / "teacher", *SHORT)
    made = synthesize(
        [teacher.path],
        tmp_path / "data" / "valid.cc",
        tmp_path / "out",
        real=real,
        source_language="cc",
    )
    item = training_item(made.text)
    assert [item["source_language"], item["target_language"]] == direction.split()


def test_synthetic_text_without_its_language_is_refused_before_it_is_begun(run, tmp_path):
    (tmp_path / "text").write_text("ab cd\n")
    with pytest.raises(UsageError, match="`to`: is required"):
        synthesize([run.path], tmp_path / "text", tmp_path / "out", real="source", workers=1)
    assert [file.name for file in tmp_path.iterdir()] == ["text"]
