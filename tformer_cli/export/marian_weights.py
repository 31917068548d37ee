"""Names of Marian's weights in transformers, and models whose embeddings it does not scale.

Our start token stands for Marian's pad, with which its targets begin.
"""

import math
from collections.abc import Container, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.export.marian_settings import OUR_IDS
from tformer_cli.export.weights import BIAS, LOGITS_BIAS, OUTPUT, SIDES, SOURCE, TARGET, Names
from tformer_cli.model.network import Seq2Seq
from tformer_cli.text.special_tokens import NUM_SPECIAL

# Modules of a layer by ours: Marian's name, and the axis of the weight that has a component of
# hidden states each. What writes hidden states (axis 0) has such a bias, too.
MODULES = {
    "self_attention.query": ("self_attn.q_proj", 1),
    "self_attention.key": ("self_attn.k_proj", 1),
    "self_attention.value": ("self_attn.v_proj", 1),
    "self_attention.output": ("self_attn.out_proj", 0),
    "self_attention_norm": ("self_attn_layer_norm", 0),
    "feedforward.up": ("fc1", 1),
    "feedforward.down": ("fc2", 0),
    "feedforward_norm": ("final_layer_norm", 0),
}
# Those of the decoder alone.
CROSS_MODULES = {
    "cross_attention.query": ("encoder_attn.q_proj", 1),
    "cross_attention.key": ("encoder_attn.k_proj", 1),
    "cross_attention.value": ("encoder_attn.v_proj", 1),
    "cross_attention.output": ("encoder_attn.out_proj", 0),
    "cross_attention_norm": ("encoder_attn_layer_norm", 0),
}
# Tables of a row per token.
SHARED = "model.shared.weight"
SOURCE_EMBEDDINGS = "model.encoder.embed_tokens.weight"
TARGET_EMBEDDINGS = "model.decoder.embed_tokens.weight"
OUTPUT_PROJECTION = "lm_head.weight"
TABLES = {SHARED, SOURCE_EMBEDDINGS, TARGET_EMBEDDINGS, OUTPUT_PROJECTION}
# Marian's weights outside the layers; sinusoids are the same in every model.
OUTSIDE = TABLES | {LOGITS_BIAS} | {f"model.{side}.embed_positions.weight" for side in SIDES}
# Logit bias of suppressed tokens in Marian's model.
SUPPRESSED = -1e9


def marian_names(config: EncoderDecoderConfig, stored: Container[str] = TABLES) -> Names:
    """Return Marian's names of our weights, given the names that a file has."""
    return Names(weight_names(config), table_names(config, stored), axis=1)


def weight_names(config: EncoderDecoderConfig) -> Iterator[tuple[str, str, int | None]]:
    """Yield the weights inside the layers.

    Each has our name, Marian's name, and its axis of hidden-state components, if any.
    """
    for stack, count, modules in (
        ("encoder", config.num_encoder_layers, MODULES),
        ("decoder", config.num_decoder_layers, MODULES | CROSS_MODULES),
    ):
        for number in range(count):
            layer = f"{stack}.layers.{number}"
            for ours, (theirs, axis) in modules.items():
                our_name, their_name = f"{layer}.{ours}", f"model.{layer}.{theirs}"
                yield f"{our_name}.weight", f"{their_name}.weight", axis
                yield f"{our_name}.bias", f"{their_name}.bias", 0 if axis == 0 else None


def table_names(config: EncoderDecoderConfig, stored: Container[str] = TABLES) -> dict[str, str]:
    """Return Marian's name of each of our (V, D) tables, given the names that a file has."""
    if config.tie_embeddings == "all":
        return dict.fromkeys(
            (SOURCE, TARGET, OUTPUT), SHARED if SHARED in stored else TARGET_EMBEDDINGS
        )
    source, target = (
        name if name in stored else SHARED for name in (SOURCE_EMBEDDINGS, TARGET_EMBEDDINGS)
    )
    output = target if config.tie_embeddings == "output" else OUTPUT_PROJECTION
    return {SOURCE: source, TARGET: target, OUTPUT: output}


def shared_ids(size: int) -> Tensor:
    """Return our ids (n,) of the tokens that Marian has too, for a vocabulary of ours."""
    return torch.tensor([*OUR_IDS.values(), *range(NUM_SPECIAL, size)])


def suppressed_bias(ours: Mapping[str, Tensor], suppressed_ids: Sequence[int]) -> Tensor:
    """Return the output bias (V,) that leaves suppressed tokens no probability."""
    bias = ours[BIAS].clone() if BIAS in ours else torch.zeros(len(ours[OUTPUT]))
    bias[list(suppressed_ids)] = SUPPRESSED
    return bias


@torch.no_grad()
def scale_down(model: Seq2Seq, config: EncoderDecoderConfig) -> None:
    """Let a model of weights for embeddings that are not multiplied by sqrt(D) multiply them.

    If the output projection shares them, the last norm compensates.
    """
    root = math.sqrt(config.dim)
    for table in {stack.embeddings.tokens.weight for stack in model.stacks()}:
        table.mul_(1 / root)
    if config.tie_embeddings != "none":
        for weight in model.stacks()[-1].each_layer()[-1].feedforward_norm.parameters():
            weight.mul_(root)
