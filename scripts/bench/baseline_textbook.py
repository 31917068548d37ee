"""Baseline: nn.Transformer as tutorials use it, without a KV cache."""

from collections.abc import Sequence

import torch
from baseline_marian import set_epsilon
from torch import Tensor, nn

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.model.blocks.attention import Attention
from tformer_cli.model.blocks.embeddings import SinusoidalEncoding
from tformer_cli.model.layers import DecoderLayer, EncoderLayer
from tformer_cli.padding import pad_rows
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.vocabulary import BOS_ID, EOS_ID, PAD_ID

MAX_SOURCE_LENGTH = 1024


class TextbookModel(nn.Module):
    """nn.Transformer between tied embeddings; it has two norms more than Marian."""

    table: Tensor

    def __init__(self, config: EncoderDecoderConfig, vocab_size: int, max_length: int) -> None:
        super().__init__()
        self.scale = config.dim**0.5
        self.embedding = nn.Embedding(vocab_size, config.dim, padding_idx=PAD_ID)
        nn.init.normal_(self.embedding.weight, std=config.dim**-0.5)
        self.register_buffer("table", SinusoidalEncoding(config.dim)(torch.arange(max_length)))
        self.dropout = nn.Dropout(config.own_dropout(config.embedding_dropout))
        self.transformer = nn.Transformer(
            d_model=config.dim,
            nhead=config.num_heads,
            num_encoder_layers=config.num_encoder_layers,
            num_decoder_layers=config.num_decoder_layers,
            dim_feedforward=config.feedforward_dim,
            dropout=config.dropout,
            activation=config.activation,
            batch_first=True,
        )
        # torch has one rate for all dropouts.
        for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
            layer.dropout.p = config.own_dropout(config.feedforward_dropout)
            for attention in layer.modules():
                if isinstance(attention, nn.MultiheadAttention):
                    attention.dropout = config.own_dropout(config.attention_dropout)
        self.output = nn.Linear(config.dim, vocab_size, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return logits (B, T, V) for source (B, S) and target (B, T)."""
        hidden_states = self.transformer(
            self._embedded(source),
            self._embedded(target),
            tgt_mask=causal_mask(target.shape[1]),
            src_key_padding_mask=source == PAD_ID,
            tgt_key_padding_mask=target == PAD_ID,
            memory_key_padding_mask=source == PAD_ID,
        )
        return self.output(hidden_states)

    def encode(self, source: Tensor) -> Tensor:
        """Return encoder states (B, S, D) for source (B, S)."""
        return self.transformer.encoder(
            self._embedded(source), src_key_padding_mask=source == PAD_ID
        )

    def next_logits(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Return the logits (N, V) after each prefix (N, T), computed over the whole prefix."""
        hidden_states = self.transformer.decoder(
            self._embedded(target),
            memory,
            tgt_mask=causal_mask(target.shape[1]),
            memory_key_padding_mask=source == PAD_ID,
        )
        return self.output(hidden_states[:, -1])

    def _embedded(self, ids: Tensor) -> Tensor:
        return self.dropout(self.embedding(ids) * self.scale + self.table[: ids.shape[1]])


class TextbookTranslator(TextbookModel):
    """A textbook model with the weights of a trained model of Marian's design."""

    def __init__(self, trained: TrainedModel, max_length: int) -> None:
        config, target = trained.config.model, trained.tokenizers.target
        super().__init__(config, target.size, max(max_length, MAX_SOURCE_LENGTH))
        self.max_length = max_length
        self.suppressed_ids = list(target.suppressed_ids)
        theirs, ours = self.transformer, trained.model
        set_epsilon(self, config.norm_epsilon)
        # A prototype of torch, which warns of it.
        theirs.encoder.use_nested_tensor = False
        # Norms that Marian has not.
        theirs.encoder.norm = theirs.decoder.norm = None
        with torch.no_grad():
            self.embedding.weight.copy_(ours.output.weight)
            for layer, weights in zip(
                [*theirs.encoder.layers, *theirs.decoder.layers],
                [*ours.encoder.layers, *ours.decoder.layers],
                strict=True,
            ):
                _copy_layer(layer, weights)

    @torch.inference_mode()
    def greedy(self, sentences: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return target ids for source ids, EOS and what follows it included."""
        source, _ = pad_rows(sentences)
        memory = self.encode(source)
        rows = torch.full((len(source), 1), BOS_ID)
        ended = torch.zeros(len(source), dtype=torch.bool)
        for _ in range(self.max_length):
            best = self._scores(rows, memory, source).argmax(dim=-1)
            rows = torch.cat((rows, best[:, None]), dim=1)
            ended |= best == EOS_ID
            if ended.all():
                break
        return rows[:, 1:].tolist()

    @torch.inference_mode()
    def beam(self, sentence: Sequence[int], size: int) -> list[int]:
        """Return the translation with the best mean log probability, EOS included."""
        source = torch.tensor([sentence])
        memory = self.encode(source)
        rows, totals = torch.full((1, 1), BOS_ID), torch.zeros(1)
        finished: list[tuple[float, list[int]]] = []
        for length in range(1, self.max_length + 1):
            count = len(rows)
            scores = self._scores(rows, memory.expand(count, -1, -1), source.expand(count, -1))
            log_probs = scores.log_softmax(dim=-1)
            best, indices = (totals[:, None] + log_probs).flatten().topk(size - len(finished))
            tokens = indices % log_probs.shape[1]
            rows = torch.cat((rows[indices // log_probs.shape[1]], tokens[:, None]), dim=1)
            ended = torch.ones_like(tokens) if length == self.max_length else tokens == EOS_ID
            for row in ended.nonzero().flatten().tolist():
                finished.append((best[row].item() / length, rows[row, 1:].tolist()))
            rows, totals = rows[ended == 0], best[ended == 0]
            if len(finished) == size:
                break
        return max(finished)[1]

    def _scores(self, rows: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Return the next logits without suppressed ids, and without EOS at the first position."""
        logits = self.next_logits(rows, memory, source)
        is_first = rows.shape[1] == 1
        logits[:, [*self.suppressed_ids, EOS_ID] if is_first else self.suppressed_ids] = -torch.inf
        return logits


def causal_mask(length: int) -> Tensor:
    """Return (T, T), True where torch's modules may not attend."""
    return torch.ones(length, length, dtype=torch.bool).triu(diagonal=1)


def _copy_layer(theirs: nn.Module, ours: EncoderLayer | DecoderLayer) -> None:
    _copy_attention(theirs.self_attn, ours.self_attention)
    theirs.linear1.load_state_dict(ours.feedforward.up.state_dict())
    theirs.linear2.load_state_dict(ours.feedforward.down.state_dict())
    norms = [ours.self_attention_norm, ours.feedforward_norm]
    if isinstance(ours, DecoderLayer):
        _copy_attention(theirs.multihead_attn, ours.cross_attention)
        norms.insert(1, ours.cross_attention_norm)
    for number, norm in enumerate(norms, start=1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())


def _copy_attention(theirs: nn.MultiheadAttention, ours: Attention) -> None:
    parts = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
    theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())
