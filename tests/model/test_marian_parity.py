"""The whole network against transformers' Marian model with the same weights."""

import torch
from torch import nn
from transformers import MarianConfig, MarianMTModel

from tformer_cli.config.schema.model import EncoderDecoderConfig, LearnedPositions
from tformer_cli.model.attention import Attention
from tformer_cli.model.seq2seq import Seq2Seq, build_model

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
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


def copy_attention(ours: Attention, theirs: nn.Module) -> None:
    pairs = (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("output", "out_proj"))
    for mine, other in pairs:
        getattr(ours, mine).load_state_dict(getattr(theirs, other).state_dict())


def twin_of(theirs: MarianMTModel) -> Seq2Seq:
    ours = build_model(
        EncoderDecoderConfig(
            dim=D,
            num_heads=H,
            feedforward_dim=F,
            num_encoder_layers=2,
            num_decoder_layers=3,
            activation="gelu",
            norm_position="post",
            norm_epsilon=1e-5,
            positions=LearnedPositions(max_length=LONGEST),
            tie="all",
        ),
        source_size=V,
        target_size=V,
        seed=1,
    ).double()
    ours.output.weight.data.copy_(theirs.model.shared.weight)
    for mine, other in ((ours.encoder, theirs.model.encoder), (ours.decoder, theirs.model.decoder)):
        mine.embeddings.positions.weight.data.copy_(other.embed_positions.weight)
        for layer, reference in zip(mine.layers, other.layers, strict=True):
            copy_attention(layer.self_attention, reference.self_attn)
            layer.self_attention_norm.load_state_dict(reference.self_attn_layer_norm.state_dict())
            layer.feedforward.inner.load_state_dict(reference.fc1.state_dict())
            layer.feedforward.outer.load_state_dict(reference.fc2.state_dict())
            layer.feedforward_norm.load_state_dict(reference.final_layer_norm.state_dict())
            if hasattr(reference, "encoder_attn"):
                copy_attention(layer.cross_attention, reference.encoder_attn)
                layer.cross_attention_norm.load_state_dict(
                    reference.encoder_attn_layer_norm.state_dict()
                )
    return ours.eval()


def test_model_equals_marian_with_gradients():
    theirs = marian()
    ours = twin_of(theirs)
    source, target = torch.randint(4, V, (B, S)), torch.randint(4, V, (B, T))
    real = torch.arange(S) < torch.tensor([[5], [3]])
    expected = theirs(
        input_ids=source, attention_mask=real.long(), decoder_input_ids=target
    ).logits.flatten(0, 1)
    actual = ours(source, real, target, torch.ones(B, T, dtype=torch.bool))
    torch.testing.assert_close(actual, expected)
    direction = torch.randn_like(expected)
    (mine,) = torch.autograd.grad((actual * direction).sum(), ours.output.weight)
    (reference,) = torch.autograd.grad((expected * direction).sum(), theirs.model.shared.weight)
    # Both write the row of <pad> as a constant or not; no token of this batch is <pad>.
    torch.testing.assert_close(mine[1:], reference[1:])
