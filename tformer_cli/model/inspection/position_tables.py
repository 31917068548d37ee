"""What a stack knows of the places of its tokens, as tables to look at."""

import math

import torch
from torch import Tensor, nn

from tformer_cli.model.blocks.bias import FAR, DistanceBias
from tformer_cli.model.stack import Stack
from tformer_cli.plotting.attention_maps import PositionTable


@torch.no_grad()
def position_tables(stack: Stack, num_places: int) -> list[PositionTable]:
    """Return the tables of a stack over its first places; there may be none.

    Args:
        stack: is left as it is.
        num_places: fewer come where the stack has not learnt so many.
    """
    absolute = stack.embeddings.positions
    if isinstance(absolute, nn.Embedding):
        num_places = min(num_places, absolute.num_embeddings)
    places = torch.arange(num_places, device=stack.embeddings.tokens.weight.device)
    tables = []
    if absolute is not None:
        tables.append(_vectors(absolute(places)))
    if stack.rotary is not None:
        frequencies = stack.rotary.frequencies
        cosines = stack.rotary(places).cosines[:, : len(frequencies)]
        tables.append(
            PositionTable(
                "turns",
                (),
                tuple(range(len(places))),
                tuple(frequencies.tolist()),
                cosines.numpy(force=True),
            )
        )
    if stack.bias is not None:
        tables.append(_bias(stack.bias, places, sees_behind=not stack.is_causal))
    return tables


def _vectors(vectors: Tensor) -> PositionTable:
    num_places, dim = vectors.shape
    numbers = vectors.numpy(force=True)
    return PositionTable("vectors", (), tuple(range(num_places)), tuple(range(dim)), numbers)


def _bias(bias: DistanceBias, places: Tensor, *, sees_behind: bool) -> PositionTable:
    before = -places.flip(0)
    distances = torch.cat((before, places[1:])) if sees_behind else before
    values = bias.of_distance(distances[None, None])[..., 0, :]  # (H or 1, distances)
    values = values.reshape(-1, len(distances))
    heads = range(1, len(values) + 1) if len(values) > 1 else ()
    hidden = values.masked_fill(values <= FAR / 2, -math.inf)
    columns = tuple(distances.tolist())
    return PositionTable("bias", (), tuple(heads), columns, hidden.numpy(force=True))
