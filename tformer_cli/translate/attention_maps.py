"""A sentence in, what a network looks at out: attention maps with the tokens of their rows."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.corpus.pipeline import too_long_error
from tformer_cli.errors import UsageError
from tformer_cli.model.inspection.position_tables import position_tables
from tformer_cli.model.inspection.record import LayerMaps, attention_maps
from tformer_cli.model.network import Network, Seq2Seq
from tformer_cli.plotting.attention_maps import AttentionMaps, Part, PartMaps, PositionTable
from tformer_cli.search.engine import NativeEngine
from tformer_cli.search.request import Request, SpecialTokens
from tformer_cli.text.tokenizer import Tokenizer, Tokenizers
from tformer_cli.text.vocabulary import EOS_ID
from tformer_cli.translate.preprocess import special_tokens

# Places that a table of positions shows at least, where the network knows so many.
MIN_POSITIONS = 64


@torch.inference_mode()
def sentence_maps(
    network: Network,
    tokenizers: Tokenizers,
    config: Config,
    sentence: str,
    target: str | None = None,
) -> AttentionMaps:
    """Return what a network on the CPU looks at while it reads a sentence and translates it.

    Args:
        network: in evaluation mode; is left as it is.
        tokenizers: of the network.
        config: of its run, which says how it translates.
        sentence: in the source language.
        target: a translation to write; where it is None the run's own search finds one.

    Raises:
        UsageError: the sentence is empty or no text, or there is a target for a network that does
            not translate.
        DataError: the sentence or the translation is longer than the positions that it has learnt.
    """
    source_ids = [*_ids(tokenizers.source, "`sentence`", sentence), EOS_ID]
    if len(source_ids) == 1:
        raise UsageError("`sentence`", "has no token in it", got=repr(sentence))
    _check_length(network, "`sentence`", len(source_ids))
    if isinstance(network, Seq2Seq):
        roles = special_tokens(tokenizers.target, config.model)
        if target is None:
            target_ids = _translation(network, roles, config.decoding, source_ids)
        else:
            target_ids = _ids(tokenizers.target, "`target`", target)
        _check_length(network, "the translation", len(target_ids) + 1)
        return _of_pair(network, tokenizers, roles, sentence, (source_ids, target_ids))
    if target is not None:
        what = "has no effect on a network that does not translate"
        raise UsageError("`target`", what, remedy="leave it out")
    return _of_text(network, tokenizers.source, sentence, source_ids)


def _of_text(
    network: Network, tokenizer: Tokenizer, sentence: str, ids: Sequence[int]
) -> AttentionMaps:
    """Return what a network that reads one text alone looks at."""
    (layers,) = _layers(network, ids, ids)
    tokens = tokenizer.tokens(ids)
    maps = _maps("encoder", [layer.self_attention for layer in layers], tokens, tokens)
    return AttentionMaps(sentence, None, (maps,), _positions(network, ["encoder"], len(ids)))


def _of_pair(
    network: Seq2Seq,
    tokenizers: Tokenizers,
    roles: SpecialTokens,
    sentence: str,
    pair: tuple[Sequence[int], Sequence[int]],
) -> AttentionMaps:
    """Return what a network looks at while it reads a source and writes a target.

    Args:
        network: that translates.
        tokenizers: of the network.
        roles: of their ids.
        sentence: the source.
        pair: its ids with the end token, and those of the target without it.
    """
    source_ids, target_ids = pair
    read_ids = [roles.bos, *target_ids]
    source = tokenizers.source.tokens(source_ids)
    read = tokenizers.target.tokens(read_ids)
    stacks = _layers(network, source_ids, read_ids)
    own = [[layer.self_attention for layer in layers] for layers in stacks]
    across = [layer.cross_attention for layer in stacks[-1] if layer.cross_attention is not None]
    if across:
        written = tokenizers.target.tokens([*target_ids, roles.eos])
        maps = [
            _maps("encoder", own[0], source, source),
            _maps("decoder", own[1], read, read),
            _maps("cross", across, written, source),
        ]
        names, length = ["encoder", "decoder"], max(len(source), len(read))
    else:
        stream = [*source, *read]
        maps = [_maps("decoder", own[0], stream, stream)]
        names, length = ["decoder"], len(stream)
    text = tokenizers.target.decode(target_ids)
    return AttentionMaps(sentence, text, tuple(maps), _positions(network, names, length))


def _ids(tokenizer: Tokenizer, where: str, text: str) -> list[int]:
    """Return the ids of a text from a command line, which may be any bytes.

    Raises:
        UsageError: it is no text.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(where, "is not UTF-8", got=ascii(text)) from None
    return tokenizer.encode(text)


def _check_length(network: Network, where: str, length: int) -> None:
    if network.max_length is not None and length > network.max_length:
        raise too_long_error(where, length, network.max_length)


def _translation(
    model: Seq2Seq, roles: SpecialTokens, decoding: DecodingConfig, source_ids: Sequence[int]
) -> Sequence[int]:
    """Return the ids of the translation that a search finds best."""
    engine = NativeEngine(model, roles, device=torch.device("cpu"))
    ((best,),) = engine.translate([Request(source_ids)], decoding)
    return best.token_ids


def _layers(
    network: Network, source_ids: Sequence[int], target_ids: Sequence[int]
) -> list[list[LayerMaps]]:
    """Return where each layer of each stack looks over one sentence."""
    source, target = torch.tensor([source_ids]), torch.tensor([target_ids])
    return attention_maps(network, source, torch.ones_like(source, dtype=torch.bool), target)


def _maps(
    part: Part, layers: Sequence[Tensor], rows: Sequence[str], columns: Sequence[str]
) -> PartMaps:
    weights = torch.cat(list(layers))  # a batch of one for each layer: (layers, H, T, S)
    layer_numbers, heads = (tuple(range(1, count + 1)) for count in weights.shape[:2])
    numbers = weights.numpy(force=True)
    return PartMaps(part, tuple(rows), tuple(columns), layer_numbers, heads, numbers)


def _positions(network: Network, names: Sequence[str], length: int) -> tuple[PositionTable, ...]:
    """Return the tables of all stacks; equal ones are listed once."""
    tables: list[PositionTable] = []
    for name, stack in zip(names, network.stacks(), strict=True):
        for table in position_tables(stack, max(length, MIN_POSITIONS)):
            for index, other in enumerate(tables):
                if table.equals(other):
                    tables[index] = replace(other, stacks=(*other.stacks, name))
                    break
            else:
                tables.append(replace(table, stacks=(name,)))
    return tuple(tables)
