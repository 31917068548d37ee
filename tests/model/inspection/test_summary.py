"""What is said of a network, beside the network itself."""

import re
from functools import partial
from itertools import product

import torch
from family import decoder_onlys, encoder_decoders, masked_encoders, translating
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.config.schema.model import DecoderOnlyConfig, EncoderDecoderConfig
from tformer_cli.model.build import build_model, build_network
from tformer_cli.model.inspection.summary import (
    ModuleSummary,
    cache_size,
    meta_model,
    parameters_by_part,
    summarize_modules,
)

V = 23
members = st.one_of(encoder_decoders, decoder_onlys, masked_encoders)
TINY = EncoderDecoderConfig(
    dim=12, num_heads=3, feedforward_dim=14, num_encoder_layers=3, num_decoder_layers=1
)


def sketch(config):
    return meta_model(config, source_size=V, target_size=V)


def unfolded(name: str) -> list[str]:
    """The names that a folded one stands for: a.0-1 is a.0 and a.1."""
    choices = [
        [str(number) for number in range(int(found[1]), int(found[2]) + 1)]
        if (found := re.fullmatch(r"(\d+)-(\d+)", step))
        else [step]
        for step in name.split(".")
    ]
    return [".".join(steps) for steps in product(*choices)]


def shapes(root: ModuleSummary) -> dict[str, tuple[int, ...]]:
    return {
        f"{full}.{weight}": shape
        for name, part in root.walk()
        for full in unfolded(name)
        for weight, shape in part.shapes.items()
    }


@given(members)
def test_tree_has_every_weight_of_the_network(config):
    network = build_network(config, source_size=V, target_size=V, seed=1)
    weights = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    assert shapes(summarize_modules(network)) == weights
    assert shapes(summarize_modules(sketch(config))) == weights


@given(members)
def test_parameters_add_up(config):
    network = sketch(config)
    total = build_network(config, source_size=V, target_size=V, seed=1).num_parameters()
    assert summarize_modules(network).num_parameters == total
    assert sum(parameters_by_part(network).values()) == total


def test_skeleton_takes_no_memory():
    assert all(weight.is_meta for weight in sketch(TINY).parameters())


@given(members)
def test_skeleton_needs_no_help_of_linspace(config):
    # A program that has loaded a model by transformers is left with such a linspace.
    original = torch.linspace
    torch.linspace = partial(original, device="cpu")
    try:
        network = sketch(config)
    finally:
        torch.linspace = original
    assert all(tensor.is_meta for tensor in (*network.parameters(), *network.buffers()))


def test_layers_that_are_alike_are_one_part():
    encoder, decoder, output = summarize_modules(sketch(TINY)).children
    assert [(part.name, part.kind, part.count) for part in encoder.children] == [
        ("embeddings", "Embeddings", 1),
        ("layers.0-2", "EncoderLayer", 3),
        ("norm", "LayerNorm", 1),
    ]
    assert (decoder.children[1].name, decoder.children[1].count) == ("layers.0", 1)
    assert (output.kind, output.shapes) == ("Linear", {"weight": (V, 12)})


def test_layers_that_differ_stand_apart():
    network = sketch(TINY)
    network.encoder.layers[1].feedforward.up = torch.nn.Linear(12, 14, bias=False)
    names = [part.name for part in summarize_modules(network).children[0].children]
    assert names == ["embeddings", "layers.0", "layers.1", "layers.2", "norm"]


def test_shared_weights_name_where_they_come_first():
    parts = dict(summarize_modules(sketch(TINY)).walk())
    first = "encoder.embeddings.tokens"
    shared = {name for name, part in parts.items() if part.shared_with == first}
    assert shared == {"decoder.embeddings.tokens", "output"}
    assert parts[first].num_parameters == V * 12
    assert parts["output"].num_parameters == 0


def test_parameters_by_part_follow_the_data():
    counts = parameters_by_part(sketch(TINY))
    assert list(counts) == ["embeddings", "encoder", "decoder", "output"]
    assert (counts["embeddings"], counts["output"]) == (V * 12, 0)
    own = parameters_by_part(sketch(DecoderOnlyConfig(dim=12, num_heads=3, tie_embeddings="none")))
    assert (own["embeddings"], own["output"]) == (V * 12, V * 12)


@given(translating)
def test_kept_numbers_are_those_of_a_cache(config):
    model = build_model(config, source_size=V, target_size=V, seed=1).eval()
    source = torch.randint(6, V, (2, 5))
    real = torch.ones_like(source, dtype=torch.bool)
    cache = model.init_cache(2)
    cache.insert(torch.arange(2), model.prefill(source, real), model.attended_source(real))
    for _ in range(3):
        model.decode_step(torch.randint(6, V, (2, 1)), cache)
    found = cache_size(sketch(config))
    assert cache.length == 3
    assert found.target_token == sum(
        layer.keys[0, :, 0].numel() + layer.values[0, :, 0].numel() for layer in cache.layers
    )
    assert found.source_token == sum(
        layer.source_keys[0, :, :, 0].numel() + layer.source_values[0, :, 0].numel()
        for layer in cache.layers
    )
