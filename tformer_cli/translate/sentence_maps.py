"""Attention maps of a network over one sentence, with the tokens of their rows and columns."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tformer_cli.config.schema.config import Config
from tformer_cli.corpus.store_builder import too_long_error
from tformer_cli.errors import UsageError, check_utf8
from tformer_cli.model.inspection.attention_recorder import (
    LayerMaps,
    attention_maps,
    position_tables,
)
from tformer_cli.model.network import Network, Seq2Seq
from tformer_cli.plotting.attention_maps import AttentionMaps, MapKind, PartMaps, PositionTable
from tformer_cli.search.engine import Request, SpecialTokens
from tformer_cli.search.native_engine import NativeEngine
from tformer_cli.text.special_tokens import tag_ids
from tformer_cli.text.tokenizer import Tokenizers, with_eos
from tformer_cli.translate.direction import TranslationDirection

# Positions of a position table at least, if the network knows so many.
MIN_SHOWN_POSITIONS = 64


@torch.inference_mode()
def sentence_maps(
    network: Network,
    tokenizers: Tokenizers,
    config: Config,
    sentence: str,
    target: str | None = None,
    *,
    to: str | None = None,
    source_language: str | None = None,
) -> AttentionMaps:
    """Return the attention maps and position tables of a network on the CPU, in evaluation mode.

    The network reads the `target` (teacher forcing); None is the translation that the search of
    its `config` finds. The languages are as for `Translator.load`; the source begins with what
    tells the network of them.
    """
    check_utf8("`sentence`", sentence)
    encoded = tokenizers.source.encode(sentence)
    if not encoded:
        raise UsageError("`sentence`", "has no token", got=repr(sentence))
    direction = TranslationDirection.first(config.data, tokenizers).into(to, source_language)
    language_ids, names = direction.start_of_source()
    first = (*language_ids, *tag_ids(names, config.data.tags))
    source_ids = [*first, *with_eos(encoded)]
    _check_length(network, "`sentence`", len(source_ids))
    source = tokenizers.source.tokens(source_ids)
    if not isinstance(network, Seq2Seq):
        if target is not None:
            what = "has no effect on a network that does not translate"
            raise UsageError("`target`", what, remedy="leave it out")
        (own,) = _record(network, source_ids, source_ids)
        maps = [_part_maps("encoder", own, source)]
        return AttentionMaps(sentence, None, tuple(maps), _tables(network, maps))
    special = SpecialTokens(*tokenizers.special_ids(config.model.kind))
    if target is None:
        engine = NativeEngine(network, special, device=torch.device("cpu"))
        request = Request(source_ids, start=direction.target_ids, num_tags=len(first))
        ((best,),) = engine.translate([request], config.decoding)
        target_ids: Sequence[int] = best.token_ids
    else:
        check_utf8("`target`", target)
        target_ids = [*direction.target_ids, *tokenizers.target.encode(target)]
    _check_length(network, "the translation", len(target_ids) + 1)
    read, written = (
        tokenizers.target.tokens(ids)
        for ids in ([special.bos, *target_ids], [*target_ids, special.eos])
    )
    stacks = _record(network, source_ids, [special.bos, *target_ids])
    if len(stacks) == 1:
        # A decoder-only network reads the source and the target as one sequence.
        maps = [_part_maps("decoder", stacks[0], [*source, *read])]
    else:
        cross = [layer.cross_attention for layer in stacks[1] if layer.cross_attention is not None]
        maps = [
            _part_maps("encoder", stacks[0], source),
            _part_maps("decoder", stacks[1], read),
            _maps("cross", cross, written, source),
        ]
    translation = tokenizers.target.decode(target_ids)
    return AttentionMaps(sentence, translation, tuple(maps), _tables(network, maps))


def _check_length(network: Network, where: str, length: int) -> None:
    if network.max_length is not None and length > network.max_length:
        raise too_long_error(where, length, network.max_length)


def _record(
    network: Network, source_ids: Sequence[int], target_ids: Sequence[int]
) -> list[list[LayerMaps]]:
    """Return the attention maps of each layer of each stack for one sentence."""
    source, target = torch.tensor([source_ids]), torch.tensor([target_ids])
    return attention_maps(network, source, torch.ones_like(source, dtype=torch.bool), target)


def _part_maps(part: MapKind, layers: Sequence[LayerMaps], tokens: Sequence[str]) -> PartMaps:
    return _maps(part, [layer.self_attention for layer in layers], tokens, tokens)


def _maps(
    part: MapKind, layers: Sequence[Tensor], rows: Sequence[str], columns: Sequence[str]
) -> PartMaps:
    weights = torch.cat(list(layers))  # a batch of one for each layer: (layers, H, T, S)
    layer_numbers, heads = (tuple(range(1, count + 1)) for count in weights.shape[:2])
    numbers = weights.numpy(force=True)
    return PartMaps(part, tuple(rows), tuple(columns), layer_numbers, heads, numbers)


def _tables(network: Network, maps: Sequence[PartMaps]) -> tuple[PositionTable, ...]:
    """Return the position tables of all stacks, named by their self-attention.

    Tables of the same numbers are listed once.
    """
    stacks = zip([part.part for part in maps], network.stacks(), strict=False)
    length = max(MIN_SHOWN_POSITIONS, *(len(part.rows) for part in maps))
    tables: dict[tuple[object, ...], PositionTable] = {}
    for name, stack in stacks:
        for table in position_tables(stack, length):
            key = (table.kind, table.rows, table.columns, table.values.tobytes())
            earlier = tables.get(key, table)
            tables[key] = replace(earlier, stacks=(*earlier.stacks, name))
    return tuple(tables.values())
