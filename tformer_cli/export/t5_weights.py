"""T5's weights by ours, both ways: their names, and rows of the tables.

Special tokens that T5 does not have, such as `<mask>`, get zero embeddings and an output bias that
leaves them no probability.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.errors import CheckpointError
from tformer_cli.export.marian import check_layers, check_num_layers
from tformer_cli.export.marian_settings import RESTORE, SETTINGS_FILE
from tformer_cli.export.marian_weights import (
    ABSENT,
    BIAS,
    OUTPUT,
    SOURCE,
    TARGET,
    Weights,
    check_weights,
    rows_of,
)
from tformer_cli.text.t5 import T5Tokenizer

SHARED, OUTPUT_PROJECTION = "shared.weight", "lm_head.weight"
EMBEDDINGS = (SHARED, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# In the files of T5 1.0, and used by no program.
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


def weight_names(config: EncoderDecoderConfig) -> Iterator[tuple[str, str]]:
    """Yield our name and T5's of each weight, tables of tokens and the output bias excepted."""
    for stack, count in (
        ("encoder", config.num_encoder_layers),
        ("decoder", config.num_decoder_layers),
    ):
        blocks = dict(_block_names(config, has_cross_attention=stack == "decoder"))
        for number in range(count):
            for ours, theirs in blocks.items():
                yield f"{stack}.layers.{number}.{ours}", f"{stack}.block.{number}.layer.{theirs}"
        yield f"{stack}.norm.weight", f"{stack}.final_layer_norm.weight"
        # The first layer's is for all.
        theirs = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield f"{stack}.bias.table.weight", f"{stack}.{theirs}"


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


def output_projection(file: Path, stored: Mapping[str, Tensor], shape: tuple[int, int]) -> str:
    """Check the tables (V, D) of tokens, and return the name of the output projection's.

    It is that of the embeddings if these are tied to it.
    """
    first = next((name for name in EMBEDDINGS if name in stored), SHARED)
    tables = [name for name in (*EMBEDDINGS, OUTPUT_PROJECTION) if name in stored]
    expected = dict.fromkeys([first, *tables], shape)
    check_weights(file, {name: stored[name] for name in tables}, expected)
    for name in tables:
        if name != OUTPUT_PROJECTION and not torch.equal(stored[name], stored[first]):
            what = "has several embedding tables, and T5 has one"
            raise CheckpointError(str(file), what, got=name, remedy=RESTORE)
    projection = stored.get(OUTPUT_PROJECTION, stored[first])
    return first if torch.equal(projection, stored[first]) else OUTPUT_PROJECTION


def to_ours(
    file: Path, stored: Mapping[str, Tensor], tokenizer: T5Tokenizer, config: EncoderDecoderConfig
) -> Weights:
    """Return our weights, shared ones under each of their names, from those of a checked file.

    Raises:
        CheckpointError: they are not those of the config.
    """
    check_num_layers(config, len(stored), file.with_name(SETTINGS_FILE))
    names = dict(weight_names(config))
    outside = {*EMBEDDINGS, OUTPUT_PROJECTION, UNUSED}
    check_layers(file, stored, names, outside, config, (tokenizer.size, tokenizer.size))
    weights = {ours: stored[theirs] for ours, theirs in names.items()}
    rows = torch.tensor(tokenizer.rows)
    embeddings = next(stored[name] for name in EMBEDDINGS if name in stored)
    output = embeddings if config.tie_embeddings == "all" else stored[OUTPUT_PROJECTION]
    weights[SOURCE] = weights[TARGET] = rows_of(embeddings, rows)
    weights[OUTPUT] = rows_of(output, rows)
    weights[BIAS] = torch.where(rows < 0, ABSENT, 0.0)
    return weights


def to_theirs(
    ours: Mapping[str, Tensor], tokenizer: T5Tokenizer, config: EncoderDecoderConfig
) -> Weights:
    """Return T5's weights, shared ones once, from ours under all their names."""
    weights = {theirs: ours[name] for name, theirs in weight_names(config)}
    ids = torch.tensor(tokenizer.rows).argsort()[tokenizer.rows.count(-1) :]
    weights[SHARED] = ours[TARGET][ids]
    if config.tie_embeddings != "all":
        weights[OUTPUT_PROJECTION] = ours[OUTPUT][ids]
    return weights
