"""The whole network against transformers' Marian model with the same weights."""

import torch
from model.parity import assert_same, called, randomized, renamed, under
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from tformer_cli.config.schema.model import EncoderDecoderConfig, LearnedPositions
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq

B, S, T, V, D, H, F, LONGEST = 2, 5, 7, 23, 12, 3, 17, 19


def marian() -> MarianMTModel:
    model = MarianMTModel(
        MarianConfig(
            vocab_size=V,
            d_model=D,
            encoder_layers=2,
            decoder_layers=3,
            encoder_attention_heads=H,
            decoder_attention_heads=H,
            encoder_ffn_dim=F,
            decoder_ffn_dim=F,
            max_position_embeddings=LONGEST,
            activation_function="gelu",
            scale_embedding=True,
            pad_token_id=0,
            eos_token_id=3,
            decoder_start_token_id=2,
            bos_token_id=2,
        )
    )
    return randomized(model, 0.3).double().eval()


def ours() -> Seq2Seq:
    config = EncoderDecoderConfig(
        dim=D,
        num_heads=H,
        feedforward_dim=F,
        num_encoder_layers=2,
        num_decoder_layers=3,
        activation="gelu",
        norm_position="post",
        norm_epsilon=1e-5,
        positions=LearnedPositions(max_length=LONGEST),
        tie_embeddings="all",
    )
    return build_model(config, source_size=V, target_size=V, seed=1).double().eval()


def attention(mine: str, other: str) -> dict[str, str]:
    parts = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    return {f"{mine}.{part}": f"{other}.{name}" for part, name in parts.items()}


SHARED = attention("self_attention", "self_attn") | {
    "self_attention_norm": "self_attn_layer_norm",
    "feedforward.up": "fc1",
    "feedforward.down": "fc2",
    "feedforward_norm": "final_layer_norm",
}
ACROSS = attention("cross_attention", "encoder_attn") | {
    "cross_attention_norm": "encoder_attn_layer_norm"
}


def weights_of(theirs: MarianMTModel) -> dict[str, Tensor]:
    """Return the weights of our network that is the same."""
    weights = {"encoder.embeddings.tokens.weight": theirs.model.shared.weight}
    for name, names in (("encoder", SHARED), ("decoder", SHARED | ACROSS)):
        stack = theirs.model.get_submodule(name)
        weights |= under(name, renamed(stack, {"embeddings.positions": "embed_positions"}))
        for number, layer in enumerate(stack.layers):
            weights |= under(f"{name}.layers.{number}", renamed(layer, names))
    return weights


def test_model_equals_marian_with_gradients():
    theirs = marian()
    source, target = torch.randint(4, V, (B, S)), torch.randint(4, V, (B, T))
    real = torch.arange(S) < torch.tensor([[5], [3]])
    expected = theirs(
        input_ids=source, attention_mask=real.long(), decoder_input_ids=target
    ).logits.flatten(0, 1)
    everywhere = torch.arange(B * T)
    said = called(ours(), weights_of(theirs), source, real, target, everywhere)
    # Their waves are no weights, whatever stands there.
    trained = [weight for weight in theirs.parameters() if weight.requires_grad]
    assert_same(said, expected, trained)
