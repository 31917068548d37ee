"""Maps in words against what is recorded of the ids behind them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.config.schema.model import (
    AlibiPositions,
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    LearnedPositions,
    MaskedEncoderConfig,
    ModelConfig,
)
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.errors import DataError, UsageError
from tformer_cli.model.build import build_network
from tformer_cli.model.inspection.attention_recorder import attention_maps
from tformer_cli.model.network import Network
from tformer_cli.plotting.attention_maps import AttentionMaps
from tformer_cli.text.special_tokens import BOS_ID, EOS_ID, FIRST_TAG_ID, SEP_ID
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers
from tformer_cli.translate.sentence_maps import sentence_maps

SHAPE = {"dim": 12, "num_heads": 3, "feedforward_dim": 16}
TRANSLATES = EncoderDecoderConfig(**SHAPE, num_encoder_layers=1, num_decoder_layers=2)
STREAM = DecoderOnlyConfig(**SHAPE, num_layers=2)
MASKED = MaskedEncoderConfig(**SHAPE, num_layers=2)


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    return build_tokenizers(CharConfig(), lambda: [("abcdef", "ABC")] * 3, seed=1)


def config_of(model: ModelConfig) -> Config:
    text = TrainingText(source=Path("a"), target=Path("b"))
    valid = ParallelText(source=Path("c"), target=Path("d"))
    data = DataConfig(train=(text,), valid=valid)
    return Config(data=data, model=model, decoding=GreedyConfig(max_length=5))


def network_of(model: ModelConfig, tokenizers: Tokenizers) -> Network:
    sizes = {"source_size": tokenizers.source.size, "target_size": tokenizers.target.size}
    return build_network(model, **sizes, seed=2).eval()


def maps_of(
    model: ModelConfig, tokenizers: Tokenizers, text: str, target: str | None = None
) -> AttentionMaps:
    return sentence_maps(network_of(model, tokenizers), tokenizers, config_of(model), text, target)


def recorded(network: Network, source: list[int], target: list[int]):
    ids = torch.tensor([source])
    with torch.no_grad():
        return attention_maps(
            network, ids, torch.ones_like(ids, dtype=torch.bool), torch.tensor([target])
        )


def test_a_source_begins_with_the_token_of_the_target_language(tokenizers):
    config = config_of(TRANSLATES)
    (text,) = config.data.train
    texts = (text, replace(text, target_language="fr"))
    config = replace(config, data=replace(config.data, train=texts))
    network = network_of(TRANSLATES, tokenizers)
    with pytest.raises(UsageError, match="`to`: is required, since the model has several"):
        sentence_maps(network, tokenizers, config, "bad")
    for number, to in enumerate(config.data.targets):
        found = sentence_maps(network, tokenizers, config, "bad", "CAB", to=to)
        encoder, _, _ = found.maps
        assert encoder.rows == (f"<tag_{FIRST_TAG_ID + number}>", "b", "a", "d", "</s>")
        source = [FIRST_TAG_ID + number, *tokenizers.source.encode("bad"), EOS_ID]
        target = [BOS_ID, *tokenizers.target.encode("CAB")]
        expected, *_ = recorded(network, source, target)
        rows = [layer.self_attention[0] for layer in expected]
        np.testing.assert_allclose(encoder.weights, torch.stack(rows), atol=1e-6)


def test_an_encoder_decoder_has_three_kinds_of_maps(tokenizers):
    found = maps_of(TRANSLATES, tokenizers, "bad", "CAB")
    source, target = ("b", "a", "d", "</s>"), ("C", "A", "B")
    assert (found.source, found.target) == ("bad", "CAB")
    assert [(one.part, one.rows, one.columns) for one in found.maps] == [
        ("encoder", source, source),
        ("decoder", ("<s>", *target), ("<s>", *target)),
        ("cross", (*target, "</s>"), source),
    ]
    source_ids = [*tokenizers.source.encode("bad"), EOS_ID]
    encoder, decoder = recorded(
        network_of(TRANSLATES, tokenizers),
        source_ids,
        [BOS_ID, *tokenizers.target.encode("CAB")],
    )
    expected = [
        [layer.self_attention for layer in encoder],
        [layer.self_attention for layer in decoder],
        [layer.cross_attention for layer in decoder],
    ]
    for one, layers in zip(found.maps, expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(one.weights), torch.cat(layers))
        assert one.layers == tuple(range(1, len(layers) + 1))
        assert one.heads == (1, 2, 3)


def test_a_decoder_alone_has_one_stream(tokenizers):
    (one,) = maps_of(STREAM, tokenizers, "bad", "AB").maps
    assert one.part == "decoder"
    assert one.rows == one.columns == ("b", "a", "d", "</s>", "<sep>", "A", "B")
    (layers,) = recorded(
        network_of(STREAM, tokenizers),
        [*tokenizers.source.encode("bad"), EOS_ID],
        [SEP_ID, *tokenizers.target.encode("AB")],
    )
    expected = torch.cat([layer.self_attention for layer in layers])
    torch.testing.assert_close(torch.from_numpy(one.weights), expected)


def test_a_masked_encoder_reads_one_text(tokenizers):
    found = maps_of(MASKED, tokenizers, "fed")
    assert (found.target, [one.part for one in found.maps]) == (None, ["encoder"])
    assert found.maps[0].rows == found.maps[0].columns == ("f", "e", "d", "</s>")
    assert [one.stacks for one in found.positions] == [("encoder",)]


@pytest.mark.parametrize("model", [TRANSLATES, STREAM], ids=["encoder_decoder", "decoder_only"])
def test_the_runs_own_search_finds_the_translation(tokenizers, model):
    found = maps_of(model, tokenizers, "abcdef")
    again = maps_of(model, tokenizers, "abcdef", found.target)
    assert found.target
    for one, other in zip(found.maps, again.maps, strict=True):
        assert (one.rows, one.columns) == (other.rows, other.columns)
        np.testing.assert_allclose(one.weights, other.weights, rtol=1e-5, atol=1e-6)


def test_what_both_stacks_know_of_places_comes_once(tokenizers):
    waves = maps_of(TRANSLATES, tokenizers, "bad", "A").positions
    assert [(one.stacks, one.kind) for one in waves] == [(("encoder", "decoder"), "vectors")]
    falling = EncoderDecoderConfig(**SHAPE, positions=AlibiPositions(), sliding_window=3)
    found = maps_of(falling, tokenizers, "bad", "A").positions
    # A decoder has no distances behind.
    assert [(one.stacks, one.kind) for one in found] == [
        (("encoder",), "bias"),
        (("decoder",), "bias"),
    ]


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        ("", None, "`sentence`: has no token ('')"),
        ("a\udcff", None, "`sentence`: is not UTF-8 ('a\\udcff')"),
        ("a", "\udcff", "`target`: is not UTF-8 ('\\udcff')"),
    ],
)
def test_what_is_no_sentence_is_refused(tokenizers, text, target, message):
    with pytest.raises(UsageError) as caught:
        maps_of(TRANSLATES, tokenizers, text, target)
    assert str(caught.value) == message


def test_a_target_for_what_does_not_translate_is_refused(tokenizers):
    with pytest.raises(UsageError) as caught:
        maps_of(MASKED, tokenizers, "fed", "A")
    assert str(caught.value) == (
        "`target`: has no effect on a network that does not translate; leave it out"
    )


@pytest.mark.parametrize(
    ("text", "target", "where"), [("abcde", "A", "`sentence`"), ("a", "ABCAB", "the translation")]
)
def test_a_sentence_beyond_learned_positions_is_refused(tokenizers, text, target, where):
    model = EncoderDecoderConfig(**SHAPE, positions=LearnedPositions(max_length=5))
    with pytest.raises(DataError) as caught:
        maps_of(model, tokenizers, text, target)
    assert str(caught.value) == (
        f"{where}: is longer than the 5 positions that the model has learned "
        "(6 tokens); split it, or train with model.positions: {kind: sinusoidal}"
    )
