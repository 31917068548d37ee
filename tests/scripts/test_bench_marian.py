"""Marian as a baseline: its loss, its ties, exact resuming, a search without reserved ids."""

import itertools
import sys
from dataclasses import replace

import baseline_marian
import pytest
import torch
from baseline_marian import MarianEngine, build_m2m100, build_marian
from safetensors.torch import load_file
from torch import nn
from toy import write_toy
from training_runs import Marian
from transformers import MarianMTModel

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig
from tformer_cli.config.schema.model import LearnedPositions
from tformer_cli.config.schema.training import MuonConfig, OptimizerConfig
from tformer_cli.corpus.bucketing import batches_in_order
from tformer_cli.corpus.reader import read_texts
from tformer_cli.corpus.store_builder import evaluation_store
from tformer_cli.errors import CheckpointError, ConfigError, TrainingError, UsageError
from tformer_cli.search.engine import Request
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.special_tokens import EOS_ID
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers
from tformer_cli.training.loss import smoothed_nll_sum


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    settings = [
        "training.max_steps=2",
        "training.validate_every=1",
        "training.schedule.warmup_steps=1",
        "training.validation_decoding.max_length=5",
    ]
    return load_config(write_toy(tmp_path_factory.mktemp("toy") / "data", pairs=60), settings)


@pytest.fixture(scope="module")
def tokenizers(config: Config) -> Tokenizers:
    return build_tokenizers(config.tokenizer, lambda: read_texts(config.data.train), config.seed)


@pytest.mark.parametrize("batch_size", [1, 2, 8])
@pytest.mark.parametrize(
    "search", [GreedyConfig(max_length=9), BeamConfig(beam_size=3, max_length=9)]
)
def test_search_never_writes_reserved_ids(search, batch_size, config, tokenizers):
    model = build_marian(config, tokenizers)
    suppressed = list(tokenizers.target.suppressed_ids)
    # Without suppression nothing else would be written.
    model.final_logits_bias[:, suppressed] = 50.0
    requests = [
        Request((*tokenizers.source.encode(line), EOS_ID)) for line in ("g", "abc de", "a b c")
    ]
    engine = MarianEngine(model, suppressed, batch_size)
    for (best,) in engine.translate(requests, search, scored=False):
        assert 1 <= len(best.token_ids) <= 9
        assert not {*suppressed, EOS_ID} & set(best.token_ids)


@pytest.mark.parametrize("kind", [GreedyConfig, BeamConfig])
def test_search_repeats_no_ngram_of_the_limit(kind, config, tokenizers):
    model = build_marian(config, tokenizers)
    letters = tokenizers.target.encode("ab")
    # Without a limit nothing else would be written.
    model.final_logits_bias[:, letters] = 50.0
    engine = MarianEngine(model, tokenizers.target.suppressed_ids, 8)
    requests = [Request((*tokenizers.source.encode("g"), EOS_ID))]
    search = kind(max_length=9, no_repeat_ngram_size=2)
    ((best,),) = engine.translate(requests, search, scored=False)
    pairs = list(itertools.pairwise(best.token_ids))
    assert len(pairs) == len(set(pairs)) > 1


@pytest.mark.parametrize("build", [build_marian, build_m2m100])
def test_loss_equals_ours_on_the_same_logits(build, config, tokenizers):
    model = build(config, tokenizers).eval()
    store = evaluation_store(config.data.valid, tokenizers)
    batch = next(batches_in_order(store, batch_tokens=200))
    logits = model(
        input_ids=batch.source,
        attention_mask=batch.source_mask.long(),
        decoder_input_ids=batch.target_in,
    ).logits
    assert not batch.target_mask.all()
    states = logits[batch.target_mask]
    as_it_is = nn.Linear(states.shape[1], states.shape[1], bias=False)
    nn.init.eye_(as_it_is.weight)
    expected = smoothed_nll_sum(states, as_it_is, batch.target_out[batch.target_mask], 0.1)
    torch.testing.assert_close(baseline_marian.loss_sum(model, batch, 0.1), expected.loss)
    torch.testing.assert_close(baseline_marian.loss_sum(model, batch, 0.0), expected.nll)


def num_trained(marian: MarianMTModel) -> int:
    """Its trained parameters; a shared one counts once."""
    return sum(weight.numel() for weight in marian.parameters() if weight.requires_grad)


@pytest.mark.parametrize(("tie", "tables"), [("all", 1), ("output", 2), ("none", 3)])
def test_marian_ties_what_the_run_ties(tie, tables, config, tokenizers):
    tied = replace(config, model=replace(config.model, tie_embeddings=tie))
    model, alone = (build_marian(each, tokenizers) for each in (tied, config))
    added = num_trained(model) - num_trained(alone)
    assert added == (tables - 1) * tokenizers.source.size * config.model.dim


def test_first_weights_have_the_deviation_of_the_width(config, tokenizers):
    weight = build_marian(config, tokenizers).model.encoder.layers[0].fc1.weight
    assert weight.std().item() == pytest.approx(config.model.dim**-0.5, rel=0.1)


@pytest.mark.parametrize(
    "change",
    [{"positions": LearnedPositions(max_length=300)}, {"num_kv_heads": 1}, {"activation": "geglu"}],
)
def test_a_model_that_marian_has_no_parts_for_is_refused(change, config, tokenizers):
    other = replace(config, model=replace(config.model, **change))
    with pytest.raises(ConfigError) as raised:
        build_marian(other, tokenizers)
    assert [problem.where for problem in raised.value.problems] == [
        f"model.{key}" for key in change
    ]


def test_m2m100_ties_all_embeddings_and_normalizes_first(config, tokenizers):
    model, marian = build_m2m100(config, tokenizers), build_marian(config, tokenizers)
    # The norms after the last layers of both stacks.
    assert num_trained(model) - num_trained(marian) == 4 * config.model.dim
    rates = model.config.encoder_layerdrop, model.config.decoder_layerdrop
    assert rates == (0.0, 0.0)
    other = replace(config, model=replace(config.model, tie_embeddings="output"))
    with pytest.raises(ConfigError) as raised:
        build_m2m100(other, tokenizers)
    assert str(raised.value) == "model.tie_embeddings: must be all for M2M-100 (output)"


def with_optimizer(config: Config, optimizer: OptimizerConfig) -> Config:
    return replace(config, training=replace(config.training, optimizer=optimizer))


@pytest.mark.parametrize("change", ["learning rate", "text", "no pointer"])
def test_folder_of_another_training_is_refused(change, config, tmp_path):
    run = RunDirectory(tmp_path / "hf-1")
    Marian(config, run).train()
    other = config
    if change == "learning rate":
        other = with_optimizer(config, replace(config.training.optimizer, learning_rate=1e-3))
    if change == "text":
        train = replace(config.data.train[0], source=config.data.valid.source)
        train = replace(train, target=config.data.valid.target)
        other = replace(config, data=replace(config.data, train=(train,)))
    if change == "no pointer":
        (run.path / "last").unlink()
    with pytest.raises(CheckpointError) as raised:
        Marian(other, run).train()
    assert str(raised.value) == (
        f"{run.path}: holds a Marian that was trained otherwise; "
        "remove it, or name another --folder"
    )


def test_muon_moves_the_layers_of_marian_and_not_its_embeddings(config, tokenizers, tmp_path):
    run = RunDirectory(tmp_path / "hf-1")
    Marian(with_optimizer(config, MuonConfig()), run).train()
    saved = load_file(run.checkpoint(2) / "optimizer.safetensors")
    turned = {name.removesuffix("/momentum") for name in saved if name.endswith("/momentum")}
    layers = {
        name
        for name, weight in build_marian(config, tokenizers).named_parameters()
        if ".layers." in name and weight.dim() == 2
    }
    assert turned == layers


def test_divergence_is_named(config, tmp_path, monkeypatch):
    monkeypatch.setattr(
        baseline_marian, "loss_sum", lambda model, *_: next(model.parameters()).sum() * torch.inf
    )
    run = RunDirectory(tmp_path / "hf-1")
    with pytest.raises(TrainingError) as raised:
        Marian(config, run).train()
    assert str(raised.value).startswith("step 1 of Marian: the training diverged (loss ")
    assert str(raised.value).endswith("; remove its folder, and give a lower learning rate")
    assert run.pointed("last") is None


def test_missing_transformers_is_one_line(config, tokenizers, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError) as raised:
        build_marian(config, tokenizers)
    assert str(raised.value) == "transformers: is not installed; pip install transformers"
