"""An encoder that learns from text alone, and a translation model that begins with it."""

import json
import shutil
import signal
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from stepping import on_step
from torch.nn import functional
from toy import MASKED, write_toy

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.corpus.batch import collate
from tformer_cli.corpus.noise import Masking
from tformer_cli.corpus.store import Example
from tformer_cli.errors import CheckpointError, DataError, Interrupted
from tformer_cli.plotting.curves import read_history
from tformer_cli.storage.run_directory import MODEL_FILE, RunDirectory
from tformer_cli.storage.trained_model import load_trained_model, load_trained_network
from tformer_cli.text.tokenizer import Tokenizers, load_tokenizers
from tformer_cli.training.average import average_checkpoints
from tformer_cli.training.dry_run import dry_run
from tformer_cli.training.logging import TrainingLogger
from tformer_cli.training.step import train_steps
from tformer_cli.training.trainer import Trainer, train
from tformer_cli.training.validation import validate

CPU = torch.device("cpu")
SHORT = ("training.max_steps=8", "training.validate_every=4", "training.save_every=2")


@pytest.fixture
def masked(masked_run: Path) -> RunDirectory:
    return RunDirectory(masked_run)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "data", config=MASKED)


def trained(config_file: Path, folder: Path, *overrides: str) -> RunDirectory:
    run = RunDirectory(folder)
    train(load_config(config_file, overrides), run, device=CPU)
    return run


def set_up(config: Config, tokenizers: Tokenizers, folder: Path) -> Trainer:
    run = RunDirectory(folder / "run")
    logger = TrainingLogger(None, config.training)
    return Trainer.setup(config, run, tokenizers, device=CPU, logger=logger)


def reports(run: RunDirectory, kind: str) -> list[dict[str, float]]:
    lines = map(json.loads, run.metrics_file.read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def weights(run: RunDirectory) -> dict[str, torch.Tensor]:
    return load_file(run.pointed("last") / MODEL_FILE)


def test_a_run_says_what_it_learns_from(masked):
    lines = [line.split(" ", 2)[-1] for line in masked.log_file.read_text().splitlines()]
    assert lines[1:3] == [
        "training text: 300 lines: 300 kept",
        "source: 5.2 tokens a sentence (median 5, 99% up to 11, longest 11)",
    ]
    assert lines[3].startswith("source: 9,376 parameters, vocabulary 24, 8 steps in epoch 0, ")


def test_the_loss_falls(masked):
    first, last = (report["loss"] for report in reports(masked, "valid"))
    assert last < first < torch.log(torch.tensor(24.0))
    assert masked.pointed("best").name == "step-000008"
    assert not masked.samples.exists()


def test_a_run_that_was_interrupted_goes_on_to_the_same_end(masked, toy, tmp_path, monkeypatch):
    for step in (3, 6):
        with monkeypatch.context() as patch:
            on_step(patch, step, lambda: signal.raise_signal(signal.SIGTERM))
            with pytest.raises(Interrupted):
                trained(toy, tmp_path / "run", *SHORT)
    run = trained(toy, tmp_path / "run", *SHORT)
    whole = weights(masked)
    assert whole.keys() == weights(run).keys()
    for name, weight in weights(run).items():
        assert torch.equal(weight, whole[name]), name
    assert reports(run, "valid") == reports(masked, "valid")


@pytest.fixture
def tokenizers(masked: RunDirectory) -> Tokenizers:
    return load_tokenizers(masked.tokenizer)


def test_cutting_a_batch_masks_the_same_tokens(toy, tokenizers, tmp_path):
    def rows(*overrides: str) -> list[tuple[int, list[int], list[bool]]]:
        trainer = set_up(load_config(toy, overrides), tokenizers, tmp_path)
        with_batches = islice(trainer.data.batches(trainer.state), 10)
        return [
            (int(index), source[real].tolist(), asked[real].tolist())
            for group in with_batches
            for batch in group.micro_batches
            for index, source, real, asked in zip(
                batch.indices, batch.source, batch.source_mask, batch.target_mask, strict=True
            )
        ]

    assert rows() == rows("training.gradient_accumulation_steps=3")


def test_every_epoch_masks_other_tokens(toy, tokenizers, tmp_path):
    trainer = set_up(load_config(toy), tokenizers, tmp_path)
    masks: dict[int, set[tuple[bool, ...]]] = {}
    for group in islice(trainer.data.batches(trainer.state), 40):
        for batch in group.micro_batches:
            for index, asked in zip(batch.indices.tolist(), batch.target_mask, strict=True):
                masks.setdefault(index, set()).add(tuple(asked.nonzero().flatten().tolist()))
    assert sum(map(len, masks.values())) > 2 * len(masks)


def test_the_loss_of_a_step_is_that_of_torch(toy, tokenizers, tmp_path):
    config = load_config(toy, ["model.dropout=0", "training.gradient_accumulation_steps=2"])
    trainer = set_up(config, tokenizers, tmp_path)
    group = next(iter(trainer.data.batches(trainer.state)))
    losses, num_asked = 0.0, 0
    with torch.no_grad():
        for batch in group.micro_batches:
            states = trainer.state.model.encoder(batch.source, batch.source_mask).states
            logits = trainer.state.model.output(states)
            asked = torch.where(batch.target_mask, batch.target_out, -100)
            losses += functional.cross_entropy(
                logits.transpose(1, 2),
                asked,
                ignore_index=-100,
                reduction="sum",
                label_smoothing=config.training.label_smoothing,
            ).item()
            num_asked += int((asked >= 0).sum())
    (report,) = train_steps(trainer.state, [group])
    assert report.num_tokens == num_asked
    assert report.loss == pytest.approx(losses / num_asked, rel=1e-5)


def test_validation_is_the_likelihood_of_tokens_behind_masks_that_stay(masked):
    """Line by line, without padding."""
    network = load_trained_network(masked, "last")
    config, tokenizers, model = network.config, network.tokenizers, network.model
    masking = Masking(mask_prob=0.15, vocabulary_size=tokenizers.source.size, seed=config.seed)
    nll, num_right, num_asked = 0.0, 0, 0
    for position, line in enumerate(config.data.valid.text.read_text().splitlines()):
        ids = tokenizers.source.encode(line)
        batch = masking.apply(collate([Example(position, ids, ids)]), epoch=0)
        with torch.no_grad():
            logits = model.output(model.encoder(batch.source, batch.source_mask).states)
        for column in batch.target_mask[0].nonzero().flatten().tolist():
            assert column < len(ids)
            truth = torch.tensor(ids[column])
            nll += functional.cross_entropy(logits[0, column], truth).item()
            num_right += int(logits[0, column].argmax() == truth)
            num_asked += 1
    found = validate(model, tokenizers, config, CPU, torch.float32)
    assert found.likelihood.num_tokens == num_asked
    assert found.likelihood.loss == pytest.approx(nll / num_asked, rel=1e-5)
    assert found.likelihood.accuracy == pytest.approx(num_right / num_asked)
    assert (found.scores, found.hypotheses) == ((), ())
    assert reports(masked, "valid")[-1]["loss"] == pytest.approx(found.likelihood.loss, rel=1e-6)


def test_a_validation_text_without_anything_to_mask_is_refused(toy, tmp_path):
    (toy.parent / "valid.src").write_text("???\n\n!\n")
    with pytest.raises(DataError) as caught:
        trained(toy, tmp_path / "run", *SHORT)
    assert str(caught.value) == (
        f"{toy.parent}/valid.src: no tokens that could be masked; "
        "name a text of words that the vocabulary knows"
    )


def test_lines_too_long_to_validate_are_counted(toy, tmp_path, capsys):
    valid = toy.parent / "valid.src"
    short = trained(toy, tmp_path / "short", *SHORT)
    valid.write_text(valid.read_text() + 2 * f"{'a' * 4096}\n")
    long = trained(toy, tmp_path / "long", *SHORT)
    for one, other in zip(reports(long, "valid"), reports(short, "valid"), strict=True):
        # Sentences of equal length lie in another order then, so their losses round otherwise.
        assert one == other | {key: pytest.approx(other[key]) for key in ("loss", "perplexity")}
    what = "lines of 4096 tokens or more are left out of the loss (2 of 14)"
    assert capsys.readouterr().err.count(f"{valid}: {what}\n") == 1
    valid.write_text(f"{'a' * 4096}\n")
    with pytest.raises(DataError) as caught:
        trained(toy, tmp_path / "run", *SHORT)
    assert str(caught.value) == (
        f"{valid}: every line has 4096 tokens or more; nothing is left for the loss; "
        "split the lines"
    )


def test_averaging_names_a_validation_text_that_has_nothing_left(toy, tmp_path):
    run = trained(toy, tmp_path / "run", *SHORT)
    (toy.parent / "valid.src").write_text("???\n")
    with pytest.raises(DataError) as caught:
        average_checkpoints(run, "last", 2, device=CPU)
    assert str(caught.value).startswith(f"{toy.parent}/valid.src: no tokens that could be masked")


def test_its_checkpoints_are_averaged_and_its_curves_drawn(masked, tmp_path):
    copy = RunDirectory(tmp_path / "copy")
    shutil.copytree(masked.path, copy.path)
    found = average_checkpoints(copy, "last", 2, device=CPU)
    assert found.score == -found.validation.likelihood.loss
    one, two = (load_file(member / MODEL_FILE) for member in found.members)
    for name, mean in load_file(found.checkpoint / MODEL_FILE).items():
        torch.testing.assert_close(mean, (one[name] + two[name]) / 2)
    curves = read_history(masked, "step").curves
    assert [step for step, _ in curves["valid_loss"]] == [4, 8]
    assert "valid_bleu" not in curves


def test_what_translates_refuses_it(masked):
    with pytest.raises(CheckpointError) as caught:
        load_trained_model(masked)
    assert str(caught.value) == (
        f"{masked.path}: does not translate (model.kind masked_encoder); "
        "train an encoder_decoder that begins with it: training.init_from"
    )


def test_a_dry_run_takes_its_steps(toy, tmp_path):
    found = dry_run(load_config(toy), RunDirectory(tmp_path / "run"), device=CPU)
    assert (found.num_pairs, found.sample.kept) == (300, 300)
    assert found.tokens_per_second > 0
