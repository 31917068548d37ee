"""Operations by formula, beside those that torch counts while a network computes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from family import decoder_onlys, encoder_decoders, masked_encoders
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from tformer_cli.config.schema.model import (
    EncoderDecoderConfig,
    LatentConfig,
    MaskedEncoderConfig,
    RotaryPositions,
)
from tformer_cli.model.build import build_network
from tformer_cli.model.inspection.flops import count_flops

B, V = 2, 23

# To count is slow; any member has most of what can go wrong.
few = settings(max_examples=12)


def counted(config, source_length: int, target_length: int) -> tuple[int, int]:
    """Operations that torch sees in a forward pass over a sentence, and with the backward pass."""
    network = build_network(config, source_size=V, target_size=V, seed=1)
    source = torch.randint(6, V, (B, source_length))
    target = torch.randint(6, V, (B, target_length))
    source_mask, positions = torch.ones_like(source).bool(), torch.arange(B * target_length)
    if isinstance(config, MaskedEncoderConfig):
        target = source
    with FlopCounterMode(display=False) as counter:
        loss = network(source, source_mask, target, positions).sum()
        forward = counter.get_total_flops()
        loss.backward()
    return forward // B, counter.get_total_flops() // B


@few
@given(st.one_of(encoder_decoders, decoder_onlys), st.integers(1, 6), st.integers(1, 6))
def test_operations_are_those_that_torch_counts(config, source_length, target_length):
    needed, lengths = count_flops(config, V), (source_length, target_length)
    assert (needed.forward(*lengths), needed.training(*lengths)) == counted(config, *lengths)


@few
@given(masked_encoders, st.integers(1, 6), st.data())
def test_a_masked_encoder_projects_only_what_it_is_asked_for(config, length, data):
    lengths = length, data.draw(st.integers(1, length))
    needed = count_flops(config, V)
    assert (needed.forward(*lengths), needed.training(*lengths)) == counted(config, *lengths)


@given(st.one_of(encoder_decoders, decoder_onlys), st.integers(1, 99), st.integers(1, 99))
def test_a_sentence_takes_what_its_tokens_take(config, source_length, target_length):
    needed, lengths = count_flops(config, V), (source_length, target_length)
    of_source, of_target = needed.of_source_token(*lengths), needed.of_target_token(*lengths)
    assert needed.forward(*lengths) == source_length * of_source + target_length * of_target


def test_many_sentences_are_counted_at_once():
    needed = count_flops(EncoderDecoderConfig(), V)
    source, target = np.array([3, 5, 7]), np.array([2, 11, 4])
    each = [needed.training(*lengths) for lengths in zip([3, 5, 7], [2, 11, 4], strict=True)]
    assert needed.training(source, target).tolist() == each


@pytest.mark.parametrize("num_kv_heads", [1, 2])
def test_shared_heads_save_projections_and_no_looks(num_kv_heads):
    own = EncoderDecoderConfig(dim=24, num_heads=4)
    needed = count_flops(own, V)
    shared = count_flops(replace(own, num_kv_heads=num_kv_heads), V)
    assert shared.source < needed.source
    assert shared.target_to_target == needed.target_to_target


def test_a_latent_makes_looks_dearer():
    """Every head looks at a whole latent: the cache shrinks, the work grows."""
    own = EncoderDecoderConfig(dim=24, num_heads=4, positions=RotaryPositions())
    narrow = replace(own, latent=LatentConfig(kv_lora_rank=12, rope_head_dim=2))
    assert count_flops(narrow, V).target_to_target > count_flops(own, V).target_to_target
