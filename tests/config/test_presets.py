"""The configs of published models and of ways to build one: what each of them claims."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.config.schema.model import RotaryPositions, SinusoidalPositions
from tformer_cli.config.schema.training import AdamConfig, InverseSquareRootSchedule
from tformer_cli.model.inspection.flops import count_flops
from tformer_cli.model.inspection.summary import (
    cache_size,
    meta_model,
    parameters_by_part,
    summarize_modules,
)
from tformer_cli.model.network import Network
from tformer_cli.training.schedules import build_schedule

CONFIGS = Path(__file__).parents[2] / "configs"


def preset(name: str) -> Config:
    return load_config(CONFIGS / f"{name}.yaml")


def network_of(config: Config) -> Network:
    size = config.tokenizer.vocab_size
    return meta_model(config.model, source_size=size, target_size=size)


def weight_names(network: Network) -> Iterator[str]:
    for _, part in summarize_modules(network).walk():
        yield from part.shapes


def table_of_networks() -> dict[str, list[str]]:
    """The cells behind the name and the network of each row of the table of networks."""
    text = (CONFIGS.parent / "docs" / "how-to" / "look-inside.md").read_text(encoding="utf-8")
    section = text.split("\n## Structure\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:2] == "| "]
    return {row[0]: row[2:] for row in rows[1:]}


@pytest.mark.parametrize("name", table_of_networks())
def test_the_guide_tells_the_sizes(name):
    config = preset(name)
    network = network_of(config)
    flops = count_flops(config.model, config.tokenizer.vocab_size).of_target_token(32, 32)
    cache = 4 * cache_size(network).target_token / 1024
    cells = [f"{network.num_parameters() / 1e6:.1f} M", f"{flops / 1e6:.1f} M", f"{cache:g} KiB"]
    assert table_of_networks()[name] == cells


def test_the_guide_has_every_preset():
    others = {"modern", "deep-shallow", "t5-like", "decoder-only", "multi30k"}
    assert set(table_of_networks()) == {*PAPER, *others}


def speed(config: Config) -> float:
    """Operations of a token of the translation, in short sentences."""
    return count_flops(config.model, config.tokenizer.vocab_size).of_target_token(15, 15)


# Of table 3 in Vaswani et al. 2017: base and big.
PAPER = {
    "vaswani-base": {"dim": 512, "feedforward_dim": 2048, "num_heads": 8, "dropout": 0.1},
    "vaswani-big": {"dim": 1024, "feedforward_dim": 4096, "num_heads": 16, "dropout": 0.3},
}
PAPER_MILLIONS = {"vaswani-base": 65, "vaswani-big": 213}
PAPER_STEPS = {"vaswani-base": 100_000, "vaswani-big": 300_000}


@pytest.mark.parametrize("name", PAPER)
def test_vaswani_has_the_parameters_of_the_paper(name):
    config = preset(name)
    dim, inner = PAPER[name]["dim"], PAPER[name]["feedforward_dim"]
    attention, norm = 4 * (dim * dim + dim), 2 * dim
    feedforward = 2 * dim * inner + inner + dim
    expected = {
        "embeddings": 37_000 * dim,
        "encoder": 6 * (attention + feedforward + 2 * norm),
        "decoder": 6 * (2 * attention + feedforward + 3 * norm),
        "output": 0,
    }
    assert parameters_by_part(network_of(config)) == expected
    # The paper counts in millions, and its vocabulary has about 37,000 tokens.
    assert sum(expected.values()) == pytest.approx(PAPER_MILLIONS[name] * 1e6, rel=0.03)


@pytest.mark.parametrize("name", PAPER)
def test_vaswani_is_the_network_of_the_paper(name):
    model = preset(name).model
    assert {key: getattr(model, key) for key in PAPER[name]} == PAPER[name]
    assert (model.num_encoder_layers, model.num_decoder_layers) == (6, 6)
    assert (model.norm, model.norm_position, model.activation) == ("layer", "post", "relu")
    assert (model.positions, model.tie_embeddings) == (SinusoidalPositions(), "all")


@pytest.mark.parametrize("name", PAPER)
def test_vaswani_learns_as_in_the_paper(name):
    config = preset(name)
    training, dim = config.training, config.model.dim
    assert isinstance(training.optimizer, AdamConfig)
    assert (training.optimizer.betas, training.optimizer.epsilon) == ((0.9, 0.98), 1e-9)
    assert (training.label_smoothing, training.clip_norm) == (0.1, None)
    assert (training.batch_tokens, training.max_steps) == (25_000, PAPER_STEPS[name])
    assert training.schedule == InverseSquareRootSchedule(warmup_steps=4000)
    rate = build_schedule(
        training.schedule, peak=training.optimizer.learning_rate, max_steps=training.max_steps
    )
    for step in (1, 1000, 4000, 4001, 100_000):
        # Equation 3.
        expected = dim**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert rate(step) == pytest.approx(expected, rel=1e-3)
    assert config.decoding == BeamConfig(beam_size=4, length_penalty=0.6)


@pytest.mark.parametrize("name", ["modern", "deep-shallow", "t5-like", "decoder-only"])
def test_ways_to_build_a_model_compare_with_multi30k(name):
    config, plain = preset(name), preset("multi30k")
    tokenizer = replace(config.tokenizer, algorithm="bpe")
    assert replace(config, model=plain.model, tokenizer=tokenizer) == plain
    names = ("dropout", "attention_dropout", "feedforward_dropout", "dim")
    for name in names:
        assert getattr(config.model, name) == getattr(plain.model, name)


@pytest.mark.parametrize("name", ["modern", "t5-like"])
def test_as_many_parameters_as_multi30k(name):
    expected = network_of(preset("multi30k")).num_parameters()
    assert network_of(preset(name)).num_parameters() == pytest.approx(expected, rel=0.01)


def test_modern_is_what_ctranslate2_can_run():
    model = preset("modern").model
    assert (model.norm, model.norm_position, model.activation) == ("rms", "pre", "swiglu")
    assert model.positions == RotaryPositions()
    assert not model.bias
    # It has neither of these.
    assert (model.latent, model.qk_norm, model.sliding_window) == (None, False, None)


def test_modern_has_half_the_cache_and_no_biases():
    network, plain = network_of(preset("modern")), network_of(preset("multi30k"))
    assert [2 * count for count in cache_size(network)] == list(cache_size(plain))
    assert set(weight_names(network)) == {"weight"}


def test_deep_shallow_moves_work_from_writing_to_reading():
    config, plain = preset("deep-shallow"), preset("multi30k")
    assert (config.model.num_encoder_layers, config.model.num_decoder_layers) == (12, 1)
    assert speed(config) < 0.65 * speed(plain)
    assert (
        3 * cache_size(network_of(config)).target_token
        == cache_size(network_of(plain)).target_token
    )


def test_t5_like_knows_distances_and_has_no_biases():
    network = network_of(preset("t5-like"))
    parts = dict(summarize_modules(network).walk())
    for stack in ("encoder", "decoder"):
        assert parts[f"{stack}.bias.table"].shapes == {"weight": (32, 4)}
        assert f"{stack}.embeddings.positions" not in parts
    assert set(weight_names(network)) == {"weight"}
    model = preset("t5-like").model
    assert (model.initialization, model.activation) == ("t5", "geglu")


def test_decoder_only_has_one_stack():
    network = network_of(preset("decoder-only"))
    assert list(parameters_by_part(network)) == ["embeddings", "stream", "output"]
    assert preset("decoder-only").model.source_attention == "bidirectional"
