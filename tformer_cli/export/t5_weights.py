"""T5's names of our weights, and its tables of tokens."""

from collections.abc import Container, Iterator

import torch

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.errors import CheckpointError
from tformer_cli.export.settings import RESTORE
from tformer_cli.export.weights import OUTPUT, SOURCE, TARGET, Names, StoredWeights

SHARED, OUTPUT_PROJECTION = "shared.weight", "lm_head.weight"
EMBEDDINGS = (SHARED, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# In the files of T5 1.0, and used by no program.
UNUSED_TABLE = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
OUTSIDE = {*EMBEDDINGS, OUTPUT_PROJECTION, UNUSED_TABLE}


def weight_names(config: EncoderDecoderConfig) -> Iterator[tuple[str, str, None]]:
    """Yield our name and T5's of each weight, tables of tokens and the output bias excepted."""
    for stack, count in (
        ("encoder", config.num_encoder_layers),
        ("decoder", config.num_decoder_layers),
    ):
        blocks = dict(_block_names(config, has_cross_attention=stack == "decoder"))
        for number in range(count):
            for ours, theirs in blocks.items():
                layer = f"{stack}.block.{number}.layer"
                yield f"{stack}.layers.{number}.{ours}", f"{layer}.{theirs}", None
        yield f"{stack}.norm.weight", f"{stack}.final_layer_norm.weight", None
        # The first layer's is for all.
        theirs = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield f"{stack}.bias.table.weight", f"{stack}.{theirs}", None


def _block_names(
    config: EncoderDecoderConfig, *, has_cross_attention: bool
) -> Iterator[tuple[str, str]]:
    attentions = {"self_attention": "0.SelfAttention"}
    if has_cross_attention:
        attentions["cross_attention"] = "1.EncDecAttention"
    for ours, theirs in attentions.items():
        for part in ("query", "key", "value", "output"):
            yield f"{ours}.{part}.weight", f"{theirs}.{part[0]}.weight"
        yield f"{ours}_norm.weight", f"{theirs[0]}.layer_norm.weight"
    last = f"{len(attentions)}."
    plain, gated = {"up": "wi", "down": "wo"}, {"gate": "wi_0", "up": "wi_1", "down": "wo"}
    for ours, theirs in (gated if config.is_gated else plain).items():
        yield f"feedforward.{ours}.weight", f"{last}DenseReluDense.{theirs}.weight"
    yield "feedforward_norm.weight", f"{last}layer_norm.weight"


def output_projection(stored: StoredWeights, shape: tuple[int, int]) -> str:
    """Check the tables (V, D) of tokens, and return the name of the output projection's.

    It is that of the embeddings if these are tied to it.
    """
    weights = stored.weights
    first = embeddings(weights)
    tables = {x: weights[x] for x in (*EMBEDDINGS, OUTPUT_PROJECTION) if x in weights}
    stored.check(tables, dict.fromkeys([first, *tables], shape))
    for name in tables:
        if name != OUTPUT_PROJECTION and not torch.equal(tables[name], tables[first]):
            what = "has several embedding tables, and T5 has one"
            raise CheckpointError(str(stored.file), what, got=name, remedy=RESTORE)
    projection = tables.get(OUTPUT_PROJECTION, tables[first])
    return first if torch.equal(projection, tables[first]) else OUTPUT_PROJECTION


def embeddings(stored: Container[str]) -> str:
    """Return the name of the table of embeddings, given the names that a file has."""
    return next((name for name in EMBEDDINGS if name in stored), SHARED)


def t5_names(config: EncoderDecoderConfig, stored: Container[str] = ()) -> Names:
    """Return T5's names of our weights, given the names that a file has."""
    table = embeddings(stored)
    output = table if config.tie_embeddings == "all" else OUTPUT_PROJECTION
    return Names(weight_names(config), {SOURCE: table, TARGET: table, OUTPUT: output}, axis=None)
