"""`tformer import`: a Marian model becomes a run, which does what runs do."""

import json
from pathlib import Path

import pytest
import torch

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.config.schema.tokenizer import SubwordConfig
from tformer_cli.export.marian import MarianFormat
from tformer_cli.model.build import build_model
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import TrainedModel, load_trained_model
from tformer_cli.text.tokenizer import build_tokenizers

PAIRS = [("the old dog sleeps", "der alte Hund schläft"), ("a cat", "eine Katze")] * 20
NOWHERE = {"source": Path("source"), "target": Path("target")}


@pytest.fixture(scope="module")
def opus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as transformers saves it, and a corpus."""
    folder = tmp_path_factory.mktemp("marian")
    tokenizer = SubwordConfig(vocab_size=45, byte_fallback=False)
    tokenizers = build_tokenizers(tokenizer, lambda: PAIRS, 1)
    shape = EncoderDecoderConfig(
        dim=12,
        num_heads=3,
        feedforward_dim=17,
        num_encoder_layers=1,
        num_decoder_layers=1,
        norm_position="post",
        norm_epsilon=1e-5,
    )
    size = tokenizers.source.size
    model = build_model(shape, source_size=size, target_size=size, seed=1).eval()
    data = DataConfig(
        source_language="en",
        target_language="de",
        train=(TrainingText(**NOWHERE),),
        valid=ParallelText(**NOWHERE),
    )
    config = Config(data=data, tokenizer=tokenizer, model=shape)
    MarianFormat().save(TrainedModel(config, tokenizers, model, step=0), folder / "opus")
    for name in ("train", "valid"):
        for language, lines in zip(("en", "de"), zip(*PAIRS, strict=True), strict=True):
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def run(opus: Path, tmp_path: Path, tformer) -> Path:
    result = tformer("import", opus / "opus", tmp_path / "run")
    assert result.exit_code == 0, result.stderr
    return tmp_path / "run"


def test_import_says_what_it_has_made(opus, tmp_path, tformer):
    run = tmp_path / "a run"
    result = tformer("import", opus / "opus", run, "--source-language", "fr")
    trained = load_trained_model(RunDirectory(run))
    assert result.stdout == (
        f"{run}: fr -> de, {trained.model.num_parameters():,} parameters, vocabulary 45\n"
    )
    assert result.stderr.endswith(f"next: tformer translate '{run}'\n")


def test_an_imported_run_translates_evaluates_and_scores(opus, run, tformer):
    translated = tformer("translate", run, "--workers", 1, stdin="a cat\n\nthe dog\n")
    assert translated.exit_code == 0, translated.stderr
    assert translated.stdout.count("\n") == 3
    texts = ["--source", opus / "valid.en", "--reference", opus / "valid.de"]
    evaluated = tformer("eval", run, "--workers", 1, "--json", *texts)
    assert evaluated.exit_code == 0, evaluated.stderr
    scores = json.loads(evaluated.stdout)["valid.en"]["scores"]
    assert [score["name"] for score in scores] == ["BLEU"]


def test_an_imported_run_is_trained_on(opus, run, tmp_path, tformer):
    on = tmp_path / "on"
    settings = {
        "data.root": opus,
        "training.max_steps": 3,
        "training.validate_every": 3,
        "training.schedule.warmup_steps": 1,
        "training.batch_tokens": 300,
        "data.filters.max_length": 60,
        "training.validation_decoding": "{kind: greedy, max_length: 9}",
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    result = tformer(
        "train", run / "config.yaml", "--init-from", run, "--run", on, "--device", "cpu", *words
    )
    assert result.exit_code == 0, result.stderr
    before, after = (load_trained_model(RunDirectory(path)) for path in (run, on))
    assert after.step == 3
    assert after.tokenizers.fingerprint == before.tokenizers.fingerprint
    moved = [
        (one - other).abs().max()
        for one, other in zip(before.model.parameters(), after.model.parameters(), strict=True)
    ]
    assert 0 < torch.stack(moved).max() < 0.02


def test_an_imported_run_has_no_text_of_its_own(run, tformer):
    result = tformer("train", run / "config.yaml", "--device", "cpu")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0].endswith(
        f": data.train.0.source: no such file ({run}/train.en); correct the path, or set data.root"
    )
    result = tformer("eval", run, "--split", "valid", "--device", "cpu")
    assert result.exit_code == 2
    assert result.stderr == (
        f"{run}/valid.en: no such file; put it there, or name another --source and --reference\n"
    )


def test_an_imported_run_goes_back_where_it_came_from(opus, run, tmp_path, tformer):
    result = tformer(
        "export",
        run,
        tmp_path / "back",
        "--format",
        "marian",
        "--check-file",
        opus / "valid.en",
        "--check-lines",
        3,
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout == (
        "greedy: 3 of 3 lines translated alike\n"
        f"{tmp_path}/back: written for transformers (see {tmp_path}/back/README.md)\n"
    )
    for name in ("vocab.json", "source.spm", "config.json", "tokenizer_config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (opus / "opus" / name).read_bytes()


def test_marian_has_no_rounded_numbers(run, tmp_path, tformer):
    result = tformer("export", run, tmp_path / "x", "--format", "marian", "--quantization", "int8")
    assert result.exit_code == 2
    assert result.stderr == ("--quantization: must be float32 with --format marian (int8)\n")


def test_a_mistake_is_one_line(tmp_path, tformer):
    result = tformer("import", tmp_path / "nothing", tmp_path / "run")
    assert result.exit_code == 2
    assert result.stderr == (f"{tmp_path}/nothing: no such folder; name the folder of a model\n")
