"""Those who train in train.py: tformer, transformers' Marian and a textbook loop.

All train one network, Marian, which ours can be configured to be: norms behind the blocks, sine
and cosine positions, one table of embeddings that is the output too. Ours and Marian start from the
same weights and see the same batches. Dropout is where MarianConfig has it by default: on
embeddings with positions and on the output of each block, not on attention weights and not inside
the feed-forward blocks.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from peers.marian import build_marian, copy_weights, longest, mean_nll
from peers.marian_training import take_step
from torch import Tensor, nn

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.training import CosineSchedule
from tformer_cli.corpus.batch import Batch, collate
from tformer_cli.corpus.bucketing import DataPosition
from tformer_cli.corpus.pipeline import (
    batches_in_order,
    epoch_plans,
    evaluation_store,
    training_micro_batches,
)
from tformer_cli.corpus.store import TokenStore
from tformer_cli.device import derive_seed
from tformer_cli.evaluation.evaluate import LIKELIHOOD_BATCH_TOKENS, reference_likelihood
from tformer_cli.model.blocks.embeddings import SinusoidalEncoding
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.text.vocabulary import PAD_ID
from tformer_cli.training.step import StepBatch, StepReport, TrainState, train_steps

CPU = torch.device("cpu")


class Step(NamedTuple):
    """One optimiser step.

    Attributes:
        num_tokens: target tokens that carry a loss: `</s>` does, `<s>` and padding do not.
        num_positions: the same with padding.
        loss: smoothed cross-entropy a target token before the step, in nats.
    """

    num_tokens: int
    num_positions: int
    loss: float


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be learnt, and how."""

    config: Config
    tokenizers: Tokenizers
    store: TokenStore
    precision: torch.dtype

    def our_model(self) -> Seq2Seq:
        """Return our model with its first weights."""
        return build_model(
            self.config.model,
            source_size=self.tokenizers.source.size,
            target_size=self.tokenizers.target.size,
            seed=self.config.seed,
        )

    def train_state(self, model: nn.Module) -> TrainState:
        """Return a model with our optimiser and schedule."""
        return TrainState.of(
            model,
            self.config.training,
            device=CPU,
            precision=self.precision,
            seed=self.config.seed,
        )

    def bucketed_batches(self) -> Iterator[Batch]:
        """Yield our batches for ever."""
        batch_tokens = self.config.training.batch_tokens
        plans = epoch_plans(self.store, batch_tokens=batch_tokens, seed=self.config.seed)
        for (batch,), _ in training_micro_batches(
            self.store, plans, accumulate=1, data_position=DataPosition()
        ):
            yield batch

    def random_batches(self) -> Iterator[Batch]:
        """Yield batches of as many sentences as have `batch_tokens` target tokens on average."""
        mean_length = float(np.mean(self.store.target_lengths + 1))
        rows = max(1, round(self.config.training.batch_tokens / mean_length))
        random = np.random.default_rng(self.config.seed)
        while True:
            order = random.permutation(len(self.store))
            for start in range(0, len(order), rows):
                yield collate(self.store.examples(order[start : start + rows]))

    def lasting(self, steps: int) -> "Task":
        """Return the task with a learning rate that rises and falls within some steps."""
        schedule = CosineSchedule(warmup_steps=steps // 10)
        training = replace(self.config.training, schedule=schedule, max_steps=steps)
        return replace(self, config=replace(self.config, training=training))


class Ours:
    """tformer's model in its loop."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.train_state = task.train_state(task.our_model())

    def batches(self) -> Iterator[Batch]:
        return self.task.bucketed_batches()

    def steps(self, batches: Iterator[Batch]) -> Iterator[Step]:
        batches, fed = itertools.tee(batches)
        groups = (StepBatch([batch], DataPosition(), DataPosition()) for batch in fed)
        reports = train_steps(self.train_state, groups)
        for batch, report in zip(batches, reports, strict=False):
            assert isinstance(report, StepReport)
            yield Step(report.num_tokens, batch.target_out.numel(), report.loss)

    def valid_loss(self) -> float:
        valid = evaluation_store(self.task.config.data.valid, self.task.tokenizers)
        return reference_likelihood(
            self.train_state.model,
            batches_in_order(valid, batch_tokens=LIKELIHOOD_BATCH_TOKENS),
            device=CPU,
            precision=self.task.precision,
        ).loss


class Marian:
    """transformers' Marian model in a loop as good as ours."""

    def __init__(self, task: Task) -> None:
        self.task = task
        config, tokenizers = task.config, task.tokenizers
        model = build_marian(config, tokenizers, num_positions=longest(config, tokenizers))
        copy_weights(task.our_model(), model)
        self.train_state = task.train_state(model)

    def batches(self) -> Iterator[Batch]:
        return self.task.bucketed_batches()

    def steps(self, batches: Iterator[Batch]) -> Iterator[Step]:
        for number, batch in enumerate(batches, start=1):
            taken = take_step(self.train_state, [batch], number)
            yield Step(taken.num_tokens, batch.target_out.numel(), taken.loss)

    def valid_loss(self) -> float:
        valid = evaluation_store(self.task.config.data.valid, self.task.tokenizers)
        return mean_nll(self.train_state.model, valid, CPU)


class Textbook:
    """torch's nn.Transformer in the loop that tutorials teach."""

    def __init__(self, task: Task) -> None:
        self.task = task
        config, size = task.config, task.tokenizers.target.size
        torch.manual_seed(derive_seed(config.seed, "textbook"))
        self.model = TextbookModel(config.model, size, config.data.filters.max_length + 1)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.training.optimizer.learning_rate
        )
        self.criterion = nn.CrossEntropyLoss(
            ignore_index=PAD_ID, label_smoothing=config.training.label_smoothing
        )

    def batches(self) -> Iterator[Batch]:
        return self.task.random_batches()

    def steps(self, batches: Iterator[Batch]) -> Iterator[Step]:
        self.model.train()
        for batch in batches:
            logits = self.model(batch.source, batch.target_in)
            loss = self.criterion(logits.flatten(0, 1), batch.target_out.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            num_tokens = int((batch.target_out != PAD_ID).sum())
            yield Step(num_tokens, batch.target_out.numel(), loss.item())


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
        # torch has one rate for all places.
        for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
            layer.dropout.p = config.own_dropout(config.feedforward_dropout)
            for attention in layer.modules():
                if isinstance(attention, nn.MultiheadAttention):
                    attention.dropout = config.own_dropout(config.attention_dropout)
        self.output = nn.Linear(config.dim, vocab_size, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return logits (B, T, V) for source (B, S) and target (B, T)."""
        length = target.shape[1]
        states = self.transformer(
            self._embedded(source),
            self._embedded(target),
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(diagonal=1),
            src_key_padding_mask=source == PAD_ID,
            tgt_key_padding_mask=target == PAD_ID,
            memory_key_padding_mask=source == PAD_ID,
        )
        logits: Tensor = self.output(states)
        return logits

    def _embedded(self, ids: Tensor) -> Tensor:
        embedded = self.embedding(ids) * self.scale + self.table[: ids.shape[1]]
        dropped: Tensor = self.dropout(embedded)
        return dropped


CONTESTANTS = {"ours": Ours, "hf": Marian, "textbook": Textbook}
