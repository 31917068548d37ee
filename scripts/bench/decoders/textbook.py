"""How tutorials translate: nn.Transformer over the whole prefix again for every token."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from trainers.contestants import TextbookModel

from tformer_cli.model.blocks.attention import Attention
from tformer_cli.model.layers import DecoderLayer, EncoderLayer
from tformer_cli.padding import pad_rows
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.vocabulary import BOS_ID, EOS_ID, PAD_ID

# Longest source sentence, in tokens.
MAX_SOURCE_LENGTH = 1024


class TextbookTranslator(TextbookModel):
    """The model of a textbook with trained weights, and its two searches."""

    def __init__(self, trained: TrainedModel, max_length: int) -> None:
        """Take over the weights of a model of Marian's design.

        Args:
            trained: the model.
            max_length: of translations.
        """
        config, target = trained.config.model, trained.tokenizers.target
        super().__init__(config, target.size, max(max_length, MAX_SOURCE_LENGTH))
        self.max_length = max_length
        self.suppressed_ids = list(target.suppressed_ids)
        # A prototype, which warns of it.
        self.transformer.encoder.use_nested_tensor = False
        # Norms that Marian has not.
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        with torch.no_grad():
            self.embedding.weight.copy_(trained.model.output.weight)
            for theirs, mine in (
                (self.transformer.encoder, trained.model.encoder),
                (self.transformer.decoder, trained.model.decoder),
            ):
                for layer, weights in zip(theirs.layers, mine.layers, strict=True):
                    _copy_layer(layer, weights)

    @torch.inference_mode()
    def greedy(self, sentences: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return target ids for source ids, `</s>` and what follows it included."""
        source, _ = pad_rows(sentences)
        memory = self._read(source)
        return greedy(
            lambda rows: self._logits(rows, memory, source),
            len(sentences),
            self.max_length,
            self.suppressed_ids,
        )

    @torch.inference_mode()
    def beam(self, sentence: Sequence[int], size: int) -> list[int]:
        """Return the translation with the best mean log probability, `</s>` included."""
        source = torch.tensor([sentence])
        memory = self._read(source)
        rows, totals = torch.full((1, 1), BOS_ID), torch.zeros(1)
        found: list[tuple[float, list[int]]] = []
        for length in range(1, self.max_length + 1):
            count = len(rows)
            logits = self._logits(rows, memory.expand(count, -1, -1), source.expand(count, -1))
            log_probs = _allowed(logits, self.suppressed_ids, length).log_softmax(dim=-1)
            best, places = (totals[:, None] + log_probs).flatten().topk(size - len(found))
            tokens = places % log_probs.shape[1]
            rows = torch.cat((rows[places // log_probs.shape[1]], tokens[:, None]), dim=1)
            leaving = torch.ones_like(tokens) if length == self.max_length else tokens == EOS_ID
            for place in leaving.nonzero().flatten().tolist():
                found.append((best[place].item() / length, rows[place, 1:].tolist()))
            rows, totals = rows[leaving == 0], best[leaving == 0]
            if len(found) == size:
                break
        return max(found)[1]

    def _read(self, source: Tensor) -> Tensor:
        states: Tensor = self.transformer.encoder(
            self._embedded(source), src_key_padding_mask=source == PAD_ID
        )
        return states

    def _logits(self, rows: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Return what follows each row, (N, V)."""
        length = rows.shape[1]
        states = self.transformer.decoder(
            self._embedded(rows),
            memory,
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(diagonal=1),
            memory_key_padding_mask=source == PAD_ID,
        )
        logits: Tensor = self.output(states[:, -1])
        return logits


@torch.inference_mode()
def greedy(
    logits_after: Callable[[Tensor], Tensor],
    count: int,
    max_length: int,
    suppressed_ids: Sequence[int],
) -> list[list[int]]:
    """Write rows token by token until each has ended.

    Args:
        logits_after: what follows each row: (N, V) for (N, T).
        count: number of rows.
        max_length: of a row, `</s>` included.
        suppressed_ids: what no row contains.

    Returns:
        The rows, `</s>` and what follows it included.
    """
    rows, ended = torch.full((count, 1), BOS_ID), torch.zeros(count, dtype=torch.bool)
    for length in range(1, max_length + 1):
        best = _allowed(logits_after(rows), suppressed_ids, length).argmax(dim=-1)
        rows = torch.cat((rows, best[:, None]), dim=1)
        ended |= best == EOS_ID
        if ended.all():
            break
    return rows[:, 1:].tolist()


def _allowed(logits: Tensor, suppressed_ids: Sequence[int], length: int) -> Tensor:
    impossible = [*suppressed_ids, EOS_ID] if length == 1 else list(suppressed_ids)
    logits[:, impossible] = -torch.inf
    return logits


def _copy_layer(theirs: nn.Module, mine: EncoderLayer | DecoderLayer) -> None:
    _copy_attention(theirs.self_attn, mine.self_attention)
    theirs.linear1.load_state_dict(mine.feedforward.up.state_dict())
    theirs.linear2.load_state_dict(mine.feedforward.down.state_dict())
    norms = [mine.self_attention_norm, mine.feedforward_norm]
    if isinstance(mine, DecoderLayer):
        _copy_attention(theirs.multihead_attn, mine.cross_attention)
        norms.insert(1, mine.cross_attention_norm)
    for number, norm in enumerate(norms, start=1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())


def _copy_attention(theirs: nn.MultiheadAttention, mine: Attention) -> None:
    parts = (mine.query, mine.key, mine.value)
    theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
    theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    theirs.out_proj.load_state_dict(mine.output.state_dict())
