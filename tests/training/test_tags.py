"""Tags: the ids that the model receives in training and in translation, told apart by hand."""

import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from stepping import on_step
from toy import CONFIG, write_toy

from tformer_cli import Translator, synthesize
from tformer_cli.config.load import load_config
from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.errors import CheckpointError, ConfigError, Interrupted, UsageError
from tformer_cli.model.encoder_decoder import EncoderDecoder
from tformer_cli.storage.run_directory import MODEL_FILE, RunDirectory
from tformer_cli.training.trainer import train

CPU = torch.device("cpu")
TWO_TEXTS = """\
  train:
    - {source: train.src, target: train.tgt}
    - {source: valid.src, target: valid.tgt, tags: [made, copied]}
"""
ONE_TEXT = "  train: [{source: train.src, target: train.tgt}]\n"
TAGGED = CONFIG.replace(ONE_TEXT, TWO_TEXTS).replace("validate_every: 12", "validate_every: 24")
MADE, COPIED, EOS = 6, 7, 3


def trained(config_file: Path, folder: Path, *settings: str) -> RunDirectory:
    run = RunDirectory(folder)
    train(load_config(config_file, settings), run, device=CPU)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("tagged")
    return trained(write_toy(folder / "data", pairs=40, config=TAGGED), folder / "run")


@pytest.fixture
def config_file(run: RunDirectory) -> Path:
    return run.path.parent / "data" / "toy.yaml"


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The source ids that the encoder receives, without padding."""
    rows: list[list[int]] = []
    hidden_states, prefill = EncoderDecoder.hidden_states, EncoderDecoder.prefill

    def spied(method):
        def called(self, source, source_mask, *arguments, **options):
            pairs = zip(source, source_mask, strict=True)
            rows.extend(ids[mask].tolist() for ids, mask in pairs)
            return method(self, source, source_mask, *arguments, **options)

        return called

    monkeypatch.setattr(EncoderDecoder, "hidden_states", spied(hidden_states))
    monkeypatch.setattr(EncoderDecoder, "prefill", spied(prefill))
    return rows


def ids_of(line: str, vocabulary: list[str]) -> list[int]:
    return [vocabulary.index(character) for character in line]


def test_training_sees_each_text_with_its_own_tags(config_file, tmp_path, received, run):
    trained(config_file, tmp_path / "run", "training.max_steps=12", "training.validate_every=12")
    tokenizer = Translator.load(run.path, backend="native").tokenizers.source
    vocabulary = tokenizer.tokens(range(tokenizer.size))
    lines = {
        name: (config_file.parent / f"{name}.src").read_text().splitlines()
        for name in ("train", "valid")
    }
    plain = {(*ids_of(line, vocabulary), EOS) for line in lines["train"]}
    tagged = {(MADE, COPIED, *ids_of(line, vocabulary), EOS) for line in lines["valid"]}
    # Validation translates the lines of `valid` without tags.
    untagged = {(*ids_of(line, vocabulary), EOS) for line in lines["valid"]}
    seen = set(map(tuple, received))
    assert tagged <= seen
    assert plain <= seen
    assert seen <= plain | tagged | untagged


def test_a_source_begins_with_the_tags_that_are_asked_for(run, received):
    translator = Translator.load(run.path, backend="native", max_source_length=6)
    tokenizer = translator.tokenizers.source
    vocabulary = tokenizer.tokens(range(tokenizer.size))
    pieces = ["ab cd", "ab cd", "efg"]

    def inputs(**options: object) -> list[list[int]]:
        received.clear()
        translator.translate(["ab cd", "", "ab cd efg"], **options)
        return sorted(received)

    def expected(*tags: int) -> list[list[int]]:
        return sorted([*tags, *ids_of(piece, vocabulary), EOS] for piece in pieces)

    assert inputs() == expected()
    assert inputs(tags=["copied"]) == expected(COPIED)
    assert inputs(tags=["made", "copied"]) == expected(MADE, COPIED)


def test_the_command_asks_for_the_same_tag(run, tformer):
    lines = ["ab cd", "feg", "", "g"]
    own = Translator.load(run.path, backend="native")
    command = tformer("translate", run.path, "--tag", "copied", stdin="\n".join(lines) + "\n")
    assert command.stdout.splitlines() == own.translate(lines, tags=["copied"])
    found, plain = (
        [x.log_prob for (x,) in own.nbest(lines, 1, tags=tags)] for tags in (["copied"], [])
    )
    assert found[0] != plain[0]
    assert found[2] == plain[2] == 0


def test_each_line_that_becomes_a_pair_begins_with_the_tags_that_are_asked_for(
    run, received, tmp_path
):
    (tmp_path / "text").write_text("ab cd\n\nefg\n")
    tokenizer = Translator.load(run.path, backend="native").tokenizers.source
    vocabulary = tokenizer.tokens(range(tokenizer.size))
    for tags, ids in (((), ()), (("copied", "made"), (COPIED, MADE))):
        received.clear()
        options = {"real": "source", "tags": iter(tags), "backend": "native"}
        synthesize([run.path], tmp_path / "text", tmp_path / "pairs", **options)
        expected = [[*ids, *ids_of(line, vocabulary), EOS] for line in ("ab cd", "efg")]
        assert sorted(received) == sorted(expected)


@pytest.mark.parametrize("command", ["distill", "back-translate"])
def test_a_tag_of_pairs_is_known_before_an_output_is_begun(run, tformer, tmp_path, command):
    (tmp_path / "text").write_text("ab cd\n")
    words = (command, run.path, "-i", tmp_path / "text", "-o", tmp_path / "new" / "pairs")
    result = tformer(*words, "--tag", "mode")
    message = "--tag: no training text has this tag (mode); choose from: made, copied\n"
    assert (result.exit_code, result.stderr) == (2, message)
    assert not (tmp_path / "new").exists()
    assert tformer(*words, "--tag", "made").exit_code == 0


def test_a_text_for_the_tags_of_pairs_is_refused(run, tmp_path):
    (tmp_path / "text").write_text("ab\n")
    with pytest.raises(UsageError, match="`tags`: must be a list of texts"):
        synthesize([run.path], tmp_path / "text", tmp_path / "pairs", real="source", tags="made")


def test_ctranslate2_receives_the_same_tags(run):
    pytest.importorskip("ctranslate2")
    lines = ["ab cd", "feg", "", "ga b"]
    scores = [
        [best.log_prob for (best,) in translator.nbest(lines, 1, tags=["made"])]
        for translator in (
            Translator.load(run.path, backend=backend) for backend in ("native", "ctranslate2")
        )
    ]
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)


def test_limits_by_the_length_of_the_source_do_not_count_tags(run):
    translator = Translator.load(run.path, backend="native")
    search = GreedyConfig(max_length_ratio=0.5)
    for tags in ([], ["made", "copied"]):
        (best,) = translator.nbest(["abcdabcd"], 1, decoding=search, tags=tags).__next__()
        assert not best.finished
        assert len(best.tokens) == 5


def test_unknown_tags_are_refused(run, tformer):
    result = tformer("translate", run.path, "--tag", "mode", stdin="ab\n")
    assert (result.exit_code, result.stderr) == (
        2,
        "--tag: no training text has this tag (mode); choose from: made, copied\n",
    )


def test_a_run_without_tags_knows_none(toy_run, tformer):
    result = tformer("translate", toy_run, "--tag", "made", stdin="ab\n")
    assert (result.exit_code, result.stderr) == (
        2,
        "--tag: no training text has this tag (made); leave it out\n",
    )


def test_an_ensemble_knows_the_tags_that_all_number_alike(run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run.path, other)
    config = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(config.replace("[made, copied]", "[made, other]"))
    translator = Translator.load(run.path, ensemble=[other])
    assert translator.translate(["ab"], tags=["made"])
    with pytest.raises(UsageError, match=r"choose from: made$"):
        translator.translate(["ab"], tags=["copied"])
    (other / "config.yaml").write_text(config.replace("[made, copied]", "[other, copied]"))
    assert Translator.load(run.path, ensemble=[other]).tags == ()


def test_tags_need_learned_positions_of_their_own(run):
    translator = Translator.load(run.path)
    preprocessor = replace(translator.preprocessor, max_source_length=8, max_positions=10)
    assert preprocessor.encode_tags(["made"], translator.tags) == (MADE,)
    with pytest.raises(UsageError) as caught:
        preprocessor.encode_tags(["made", "copied"], translator.tags)
    assert str(caught.value) == (
        "`tags`: leaves a line fewer than 9 learned positions (made, copied); "
        "lower `max_source_length` by 1"
    )


def test_a_training_with_tags_resumes_to_the_same_bits(config_file, run, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        on_step(patch, 9, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted):
            trained(config_file, tmp_path / "run")
    resumed = trained(config_file, tmp_path / "run")
    one, two = (load_file(each.pointed("last") / MODEL_FILE) for each in (run, resumed))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_changed_tags_end_a_training_and_changed_names_do_not(config_file, tmp_path):
    short = (
        "training.max_steps=3",
        "training.validate_every=3",
        "training.schedule.warmup_steps=1",
    )
    trained(config_file, tmp_path / "run", *short)
    trained(config_file, tmp_path / "run", *short, "data.train.1.tags=[new, newer]")
    assert Translator.load(tmp_path / "run", backend="native").tags == ("new", "newer")
    with pytest.raises(CheckpointError, match="the training text or its tokenizer has changed"):
        trained(config_file, tmp_path / "run", *short, "data.train.1.tags=[new]")


def test_a_fine_tuned_run_numbers_its_tags_as_the_first(config_file, run, tmp_path):
    settings = (f"training.init_from={run.path}", "training.max_steps=1")
    settings += ("training.validate_every=1", "training.schedule.warmup_steps=1")
    with pytest.raises(ConfigError) as caught:
        trained(config_file, tmp_path / "run", *settings, "data.train.1.tags=[copied, made]")
    assert str(caught.value) == (
        f"data.train: copied is not the tag number 2, as in {run.path} (copied, made); "
        "let the tags appear in the order of that run, or rename this one"
    )
    trained(config_file, tmp_path / "run", *settings, "data.train.1.tags=[made, new]")
