"""A whole decoder-only network against transformers' GPT-2 with the same weights."""

import math

import pytest
import torch
from model.parity import assert_same, called, loaded, randomized, renamed, under
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from tformer_cli.config.schema.model import DecoderOnlyConfig, LearnedPositions
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq

B, S, T, V, D, H, F, LONGEST = 3, 5, 7, 23, 12, 3, 17, 19


def gpt2() -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=V,
        n_positions=LONGEST,
        n_embd=D,
        n_layer=2,
        n_head=H,
        n_inner=F,
        activation_function="gelu",
        bos_token_id=2,
        eos_token_id=3,
    )
    return randomized(GPT2LMHeadModel(config)).double().eval()


def ours_like(theirs: GPT2LMHeadModel) -> Seq2Seq:
    config = DecoderOnlyConfig(
        dim=D,
        num_heads=H,
        num_layers=2,
        feedforward_dim=F,
        activation="gelu",
        norm_epsilon=theirs.config.layer_norm_epsilon,
        positions=LearnedPositions(max_length=LONGEST),
        dropout=0.0,
        # Their output is the table of embeddings; ours are multiplied by the root of the width.
        tie_embeddings="none",
    )
    return build_model(config, source_size=V, target_size=V, seed=1).double().eval()


def linear(name: str, theirs: nn.Module) -> dict[str, Tensor]:
    """Return a map whose weights stand the other way round over there."""
    return {f"{name}.weight": theirs.weight.T, f"{name}.bias": theirs.bias}


def layer_weights(block: nn.Module) -> dict[str, Tensor]:
    weights = renamed(block, {"self_attention_norm": "ln_1", "feedforward_norm": "ln_2"})
    in_three = block.attn.c_attn.weight.T.chunk(3), block.attn.c_attn.bias.chunk(3)
    for name, weight, bias in zip(("query", "key", "value"), *in_three, strict=True):
        weights |= under(f"self_attention.{name}", {"weight": weight, "bias": bias})
    return (
        weights
        | linear("self_attention.output", block.attn.c_proj)
        | linear("feedforward.up", block.mlp.c_fc)
        | linear("feedforward.down", block.mlp.c_proj)
    )


def weights_of(theirs: GPT2LMHeadModel) -> dict[str, Tensor]:
    """Return the weights of our network that is the same."""
    table = theirs.transformer.wte.weight
    names = {"embeddings.positions": "wpe", "norm": "ln_f"}
    weights = {"output.weight": table, "stream.embeddings.tokens.weight": table / math.sqrt(D)}
    weights |= under("stream", renamed(theirs.transformer, names))
    for number, block in enumerate(theirs.transformer.h):
        weights |= under(f"stream.layers.{number}", layer_weights(block))
    return weights


def test_logits_of_targets_equal_those_of_gpt2_with_gradients():
    theirs = gpt2()
    ids = torch.randint(6, V, (B, S + T))
    source, target = ids.split([S, T], dim=1)
    expected = theirs(input_ids=ids).logits[:, S:].flatten(0, 1)
    real, positions = torch.ones_like(source, dtype=torch.bool), torch.arange(B * T)
    said = called(ours_like(theirs), weights_of(theirs), source, real, target, positions)
    assert_same(said, expected, theirs.parameters())


@pytest.mark.parametrize("length", [1, 3, S])
@torch.no_grad()
def test_padding_behind_a_source_and_a_cache_change_nothing(length):
    theirs = gpt2()
    ours = loaded(ours_like(theirs), weights_of(theirs))
    source, target = torch.randint(6, V, (B, S)), torch.randint(6, V, (B, T))
    real = (torch.arange(S) < length).expand(B, S)
    stream = torch.cat((source[:, :length], target), dim=1)
    expected = theirs(input_ids=stream).logits[:, length:]
    said = ours(source, real, target, torch.arange(target.numel()))
    torch.testing.assert_close(said.view(B, T, V), expected)
    cache = ours.init_cache(B)
    cache.insert(torch.arange(B), ours.prefill(source, real), real)
    steps = [ours.decode_step(target[:, position, None], cache) for position in range(T)]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected)
