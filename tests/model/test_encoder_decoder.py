"""The encoder-decoder: what goes in and comes out, what is tied, where dropout is."""

import pytest
import torch

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.model.build import build_model
from tformer_cli.model.encoder_decoder import EncoderDecoder

B, S, T, V = 3, 5, 7, 23
LENGTHS = torch.tensor([5, 3, 4])


def small_config(**changes) -> EncoderDecoderConfig:
    defaults = {
        "dim": 12,
        "num_heads": 3,
        "feedforward_dim": 17,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "dropout": 0.3,
        "tie_embeddings": "all",
    }
    return EncoderDecoderConfig(**(defaults | changes))


def small_model(**changes) -> EncoderDecoder:
    model = build_model(small_config(**changes), source_size=V, target_size=V, seed=5)
    return model.double().eval()


def source() -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.arange(S) < LENGTHS[:, None]
    return torch.randint(6, V, (B, S)) * mask, mask


def all_logits(model: EncoderDecoder, ids, mask, target) -> torch.Tensor:
    return model.output(model.target_hidden_states(ids, mask, target))


def test_forward_gives_the_logits_of_real_positions_row_after_row():
    model, (ids, mask) = small_model(), source()
    target = torch.randint(6, V, (B, T))
    positions = torch.tensor([*range(7), T, *range(2 * T, 2 * T + 4)])
    packed = model(ids, mask, target, positions)
    whole = all_logits(model, ids, mask, target)
    torch.testing.assert_close(packed[:7], whole[0])
    torch.testing.assert_close(packed[7:8], whole[1, :1])
    torch.testing.assert_close(packed[8:], whole[2, :4])


@pytest.mark.parametrize(("tie", "distinct"), [("none", 3), ("output", 2), ("all", 1)])
def test_tying_shares_the_embedding_matrices(tie, distinct):
    model = small_model(tie_embeddings=tie)
    matrices = (
        model.encoder.embeddings.tokens.weight,
        model.decoder.embeddings.tokens.weight,
        model.output.weight,
    )
    assert len({matrix.data_ptr() for matrix in matrices}) == distinct
    untied = small_model(tie_embeddings="none").num_parameters()
    assert model.num_parameters() == untied - (3 - distinct) * V * 12


def test_each_dropout_is_where_the_config_says():
    changes = {
        "dropout": 0.1,
        "embedding_dropout": 0.2,
        "attention_dropout": 0.3,
        "feedforward_dropout": 0.4,
    }
    layer = small_model(**changes).decoder.layers[0]
    assert layer.dropout.p == 0.1
    assert layer.self_attention.dropout == layer.cross_attention.dropout == 0.3
    assert layer.feedforward.dropout.p == 0.4
    assert small_model(**changes).encoder.embeddings.dropout.p == 0.2
    assert small_model(dropout=0.1).decoder.layers[0].self_attention.dropout == 0.1


def test_state_dict_keys_are_the_ones_people_know():
    names = dict(small_model(num_encoder_layers=1, num_decoder_layers=1).named_parameters())
    blocks = [
        f"{name}.{kind}"
        for name in ("query", "key", "value", "output")
        for kind in ("weight", "bias")
    ]
    norm, feedforward = ("weight", "bias"), ("up", "down")
    expected = {"encoder.embeddings.tokens.weight"}
    for stack, attentions in (
        ("encoder", ("self_attention",)),
        ("decoder", ("self_attention", "cross_attention")),
    ):
        expected |= {f"{stack}.norm.{kind}" for kind in norm}
        for attention in attentions:
            expected |= {f"{stack}.layers.0.{attention}.{block}" for block in blocks}
            expected |= {f"{stack}.layers.0.{attention}_norm.{kind}" for kind in norm}
        expected |= {f"{stack}.layers.0.feedforward_norm.{kind}" for kind in norm}
        expected |= {
            f"{stack}.layers.0.feedforward.{linear}.{kind}"
            for linear in feedforward
            for kind in norm
        }
    assert set(names) == expected


def test_a_network_that_sees_no_source_eos_computes_what_sources_without_it_give():
    blind, seeing = small_model(source_eos=False), small_model()
    ids, mask = source()
    target = torch.randint(6, V, (B, T))
    shorter = torch.arange(S) < LENGTHS[:, None] - 1
    torch.testing.assert_close(
        all_logits(blind, ids, mask, target), all_logits(seeing, ids, shorter, target)
    )
    alone = torch.ones(1, 1, dtype=torch.bool)
    assert all_logits(blind, ids[:1, :1], alone, target[:1]).isfinite().all()
