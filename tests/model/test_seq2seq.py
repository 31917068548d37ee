"""The whole network: what may not change its output, its cache, and Marian as a second opinion."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.config.schema.model import (
    EncoderDecoderConfig,
    LearnedPositions,
    SinusoidalPositions,
)
from tformer_cli.model.seq2seq import Seq2Seq, build_model

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
        "tie": "all",
    }
    return EncoderDecoderConfig(**(defaults | changes))


def small_model(**changes) -> Seq2Seq:
    model = build_model(small_config(**changes), source_size=V, target_size=V, seed=5)
    return model.double().eval()


def source() -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.arange(S) < LENGTHS[:, None]
    return torch.randint(6, V, (B, S)) * mask, mask


family = st.builds(
    small_config,
    norm=st.sampled_from(["layer", "rms"]),
    norm_position=st.sampled_from(["pre", "post"]),
    activation=st.sampled_from(["relu", "gelu"]),
    positions=st.sampled_from([SinusoidalPositions(), LearnedPositions(max_length=40)]),
    tie=st.sampled_from(["none", "output", "all"]),
    num_encoder_layers=st.integers(1, 3),
    num_decoder_layers=st.integers(1, 3),
)


def member(config: EncoderDecoderConfig) -> Seq2Seq:
    return build_model(config, source_size=V, target_size=V, seed=7).double().eval()


def all_logits(model: Seq2Seq, ids, mask, target) -> torch.Tensor:
    return model.output(model.decoder(target, model.encode(ids, mask)))


@given(family, st.integers(0, T - 2))
def test_future_target_tokens_never_change_the_past(config, place):
    model, (ids, mask) = member(config), source()
    target = torch.randint(6, V, (B, T))
    changed = target.clone()
    changed[:, place + 1 :] = torch.randint(6, V, (B, T - place - 1))
    before, after = all_logits(model, ids, mask, target), all_logits(model, ids, mask, changed)
    torch.testing.assert_close(before[:, : place + 1], after[:, : place + 1])


@given(family)
def test_padding_content_changes_nothing(config):
    model, (ids, mask) = member(config), source()
    target = torch.randint(6, V, (B, T))
    noise = torch.where(mask, ids, torch.randint(6, V, (B, S)))
    torch.testing.assert_close(
        all_logits(model, ids, mask, target), all_logits(model, noise, mask, target)
    )


@given(family)
def test_the_company_in_a_batch_changes_nothing(config):
    model, (ids, mask) = member(config), source()
    target = torch.randint(6, V, (B, T))
    together = all_logits(model, ids, mask, target)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = all_logits(
            model, ids[row : row + 1, :length], mask[row : row + 1, :length], target[row : row + 1]
        )
        torch.testing.assert_close(together[row : row + 1], alone)


@given(family)
def test_cached_decoding_equals_uncached_step_by_step(config):
    model, (ids, mask) = member(config), source()
    target = torch.randint(6, V, (B, 35))  # more than the cache has columns at first
    memory = model.encode(ids, mask)
    cache = model.start(len(ids))
    model.admit(memory, torch.arange(len(ids)), cache)
    whole = model.output(model.decoder(target, memory))
    for place in range(target.shape[1]):
        step = model.step(target[:, place, None], cache)
        torch.testing.assert_close(step, whole[:, place, None])


def test_forward_gives_the_logits_of_real_positions_row_after_row():
    model, (ids, mask) = small_model(), source()
    target = torch.randint(6, V, (B, T))
    target_mask = torch.arange(T) < torch.tensor([[7], [1], [4]])
    packed = model(ids, mask, target, target_mask)
    whole = all_logits(model, ids, mask, target)
    torch.testing.assert_close(packed[:7], whole[0])
    torch.testing.assert_close(packed[7:8], whole[1, :1])
    torch.testing.assert_close(packed[8:], whole[2, :4])


@pytest.mark.parametrize(("tie", "distinct"), [("none", 3), ("output", 2), ("all", 1)])
def test_tying_shares_the_embedding_matrices(tie, distinct):
    model = small_model(tie=tie)
    matrices = (
        model.encoder.embeddings.tokens.weight,
        model.decoder.embeddings.tokens.weight,
        model.output.weight,
    )
    assert len({matrix.data_ptr() for matrix in matrices}) == distinct
    untied = small_model(tie="none").num_parameters()
    assert model.num_parameters() == untied - (3 - distinct) * V * 12


def test_each_dropout_is_where_the_config_says():
    changes = {
        "dropout": 0.1,
        "embedding_dropout": 0.2,
        "attention_dropout": 0.3,
        "feedforward_dropout": 0.4,
    }
    layer = small_model(**changes).decoder.layers[0]
    assert layer.dropout.share == 0.1
    assert layer.self_attention.dropout == layer.cross_attention.dropout == 0.3
    assert layer.feedforward.dropout.share == 0.4
    assert small_model(**changes).encoder.embeddings.dropout.share == 0.2
    assert small_model(dropout=0.1).decoder.layers[0].self_attention.dropout == 0.1


def test_state_dict_keys_are_the_ones_people_know():
    names = dict(small_model(num_encoder_layers=1, num_decoder_layers=1).named_parameters())
    blocks = [
        f"{name}.{kind}"
        for name in ("query", "key", "value", "output")
        for kind in ("weight", "bias")
    ]
    norm, feedforward = ("weight", "bias"), ("inner", "outer")
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
