"""Baseline: transformers' Marian in the sizes of a config; its training loop and its search."""

import itertools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.corpus.batch import Batch, batches_in_order
from tformer_cli.corpus.store import TokenStore
from tformer_cli.corpus.store_builder import evaluation_store
from tformer_cli.device import autocast, derive_seed
from tformer_cli.errors import TrainingError, UsageError
from tformer_cli.evaluation.likelihood import LIKELIHOOD_BATCH_TOKENS
from tformer_cli.model.blocks.feedforward import PLAIN
from tformer_cli.model.network import Network, Seq2Seq
from tformer_cli.padding import pad_rows
from tformer_cli.search.scoring import length_batches
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.text.vocabulary import BOS_ID, EOS_ID, PAD_ID
from tformer_cli.training.optim import set_learning_rate
from tformer_cli.training.step import StepBatch, TrainState

if TYPE_CHECKING:
    from transformers import MarianMTModel

# Padded source tokens times beam size of a batch of the search.
BATCH_TOKENS = 8192
# transformers' own default, whatever the width.
INIT_STD = 0.02
# Parts of the names of our weights, and of Marian's; a prefix of another stands behind it.
WEIGHT_NAMES = {
    "embeddings.tokens": "embed_tokens",
    "self_attention_norm": "self_attn_layer_norm",
    "self_attention": "self_attn",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "cross_attention": "encoder_attn",
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "output": "out_proj",
    "feedforward_norm": "final_layer_norm",
    "feedforward.up": "fc1",
    "feedforward.down": "fc2",
}


def build_marian(
    config: Config, tokenizers: Tokenizers, *, num_positions: int, init_std: float = INIT_STD
) -> "MarianMTModel":
    """Return Marian in the sizes of a config, with initial weights that follow from its seed."""
    model = config.model
    if not isinstance(model, EncoderDecoderConfig) or model.activation not in PLAIN:
        raise UsageError(
            "model",
            "Marian has no parts for this config",
            got=f"kind: {model.kind}, activation: {model.activation}",
            remedy=f"compare with an encoder_decoder of {' or '.join(PLAIN)}",
        )
    try:
        from transformers import MarianConfig, MarianMTModel
    except ImportError:
        raise UsageError(
            "transformers", "is not installed", remedy="pip install transformers"
        ) from None
    torch.manual_seed(config.seed)
    return MarianMTModel(
        MarianConfig(
            vocab_size=tokenizers.source.size,
            decoder_vocab_size=tokenizers.target.size,
            d_model=model.dim,
            encoder_layers=model.num_encoder_layers,
            decoder_layers=model.num_decoder_layers,
            encoder_attention_heads=model.num_heads,
            decoder_attention_heads=model.num_heads,
            encoder_ffn_dim=model.feedforward_dim,
            decoder_ffn_dim=model.feedforward_dim,
            activation_function=model.activation,
            dropout=model.dropout,
            attention_dropout=model.own_dropout(model.attention_dropout),
            activation_dropout=model.own_dropout(model.feedforward_dropout),
            max_position_embeddings=num_positions,
            init_std=init_std,
            scale_embedding=True,
            share_encoder_decoder_embeddings=model.tie_embeddings == "all",
            tie_word_embeddings=model.tie_embeddings != "none",
            pad_token_id=PAD_ID,
            bos_token_id=BOS_ID,
            decoder_start_token_id=BOS_ID,
            eos_token_id=EOS_ID,
            forced_eos_token_id=None,
            attn_implementation="sdpa",
        )
    )


def count_parameters(marian: nn.Module) -> int:
    """Count the trained parameters; a shared one counts once."""
    return sum(weight.numel() for weight in marian.parameters() if weight.requires_grad)


def refuse_another_size(ours: Network, marian: nn.Module) -> None:
    """Make sure that the two models have nearly the same number of parameters."""
    mine, theirs = ours.num_parameters(), count_parameters(marian)
    if abs(theirs / mine - 1) > 0.01:
        raise UsageError(
            "model",
            f"Marian has no parts for this config and gets {theirs:,} parameters",
            got=f"{mine:,} of ours",
            remedy="compare with a run of sinusoidal positions and plain blocks",
        )


@torch.no_grad()
def marian_like(
    ours: Seq2Seq, config: Config, tokenizers: Tokenizers, *, num_positions: int
) -> "MarianMTModel":
    """Return Marian as the same function as a post-norm model of ours with sinusoidal positions."""
    marian = build_marian(config, tokenizers, num_positions=num_positions)
    for name, weight in ours.named_parameters():
        for mine, theirs in WEIGHT_NAMES.items():
            name = name.replace(mine, theirs)
        marian.get_parameter(f"model.{name}").copy_(weight)
    for part, other in ((ours.encoder, marian.model.encoder), (ours.decoder, marian.model.decoder)):
        table = other.embed_positions.weight
        table.copy_(part.embeddings.positions(torch.arange(len(table))))
    set_epsilon(marian, config.model.norm_epsilon)
    return marian


def set_epsilon(model: nn.Module, epsilon: float) -> None:
    """Give all norms of a baseline the epsilon of ours."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = epsilon


def max_positions(config: Config, tokenizers: Tokenizers) -> int:
    """Return the positions that training, validation and all test sets need."""
    lengths = [config.data.filters.max_length, config.decoding.max_length]
    for text in (config.data.valid, *config.data.test.values()):
        store = evaluation_store(text, tokenizers)
        lengths += [int(store.source_lengths.max()), int(store.target_lengths.max())]
    return max(lengths) + 1


def loss_sum(marian: nn.Module, batch: Batch, smoothing: float) -> Tensor:
    """Return the cross-entropy summed over the target tokens of a batch, in nats."""
    output = marian(
        input_ids=batch.source,
        attention_mask=batch.source_mask.long(),
        decoder_input_ids=batch.target_in,
        use_cache=False,
    )
    return functional.cross_entropy(
        output.logits.flatten(0, 1).float(),
        batch.target_out.flatten(),
        ignore_index=PAD_ID,
        label_smoothing=smoothing,
        reduction="sum",
    )


def marian_steps(state: TrainState, batches: Iterable[StepBatch]) -> Iterator[float]:
    """Take an optimizer step per batch, as our `train_steps`; yield its loss."""
    config, remaining = state.config, iter(batches)
    max_norm = math.inf if config.clip_norm is None else config.clip_norm
    while True:
        started = time.perf_counter()
        batch = next(remaining, None)
        if batch is None:
            return
        num_tokens = sum(part.num_target_tokens for part in batch.micro_batches)
        loss = _accumulate_gradients(state, batch.micro_batches, num_tokens)
        grad_norm = clip_grad_norm_(state.model.parameters(), max_norm).item()
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise TrainingError(
                f"step {state.step + 1} of Marian",
                "the training diverged",
                got=f"loss {loss}, gradient norm {grad_norm}",
                remedy="remove its folder, and give a lower learning rate",
            )
        set_learning_rate(state.optimizer, state.scheduler(state.step + 1))
        state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        state.progress = replace(
            state.progress,
            score=None,
            step=state.step + 1,
            data_position=(batch.next_position.epoch, batch.next_position.batch),
            num_tokens=state.progress.num_tokens + num_tokens,
            seconds=state.progress.seconds + time.perf_counter() - started,
        )
        yield loss


def _accumulate_gradients(state: TrainState, batches: Sequence[Batch], num_tokens: int) -> float:
    """Leave the gradient of a step in the weights; return its loss."""
    marian = state.model.train()
    # Dropout is a function of the step, as in our loop, so that resuming is exact.
    torch.manual_seed(derive_seed(state.seed, "dropout", state.step + 1))
    loss = 0.0
    for batch in batches:
        with autocast(state.device, state.precision):
            total = loss_sum(marian, batch.to(state.device), state.config.label_smoothing)
        part = total / num_tokens
        part.backward()
        loss += part.item()
    return loss


@torch.inference_mode()
def mean_nll(marian: "MarianMTModel", store: TokenStore) -> float:
    """Return the cross-entropy per target token without label smoothing, in nats."""
    marian.eval()
    nll, num_tokens = 0.0, 0
    for batch in batches_in_order(store, batch_tokens=LIKELIHOOD_BATCH_TOKENS):
        nll += loss_sum(marian, batch.to(marian.device), smoothing=0.0).item()
        num_tokens += batch.num_target_tokens
    return nll / num_tokens


@torch.inference_mode()
def generate(
    marian: "MarianMTModel",
    sentences: Sequence[Sequence[int]],
    search: DecodingConfig,
    suppressed_ids: Sequence[int],
) -> list[list[int]]:
    """Translate a batch by transformers' own search, which has no patience.

    `sentences` are source ids, EOS included; returned are target ids without BOS, EOS and padding.
    """
    from transformers import GenerationConfig

    beam = search if isinstance(search, BeamConfig) else BeamConfig(beam_size=1)
    source, mask = pad_rows(sentences)
    rows = marian.generate(
        input_ids=source.to(marian.device),
        attention_mask=mask.long().to(marian.device),
        generation_config=GenerationConfig(
            do_sample=False,
            num_beams=beam.beam_size,
            length_penalty=beam.length_penalty,
            max_new_tokens=search.max_length,
            min_new_tokens=search.min_length,
            suppress_tokens=list(suppressed_ids),
            decoder_start_token_id=BOS_ID,
            bos_token_id=BOS_ID,
            eos_token_id=EOS_ID,
            pad_token_id=PAD_ID,
        ),
    )
    return [list(itertools.takewhile(lambda i: i != EOS_ID, row[1:])) for row in rows.tolist()]


def translate(
    marian: "MarianMTModel", tokenizers: Tokenizers, lines: Sequence[str], search: DecodingConfig
) -> list[str]:
    """Translate lines of text, in batches of similar length; an empty line stays empty."""
    marian.eval()
    target, encoded = tokenizers.target, tokenizers.source.encode_batch(lines)
    sentences = [[*ids, EOS_ID] if ids else [] for ids in encoded]
    translations: list[list[int]] = [[] for _ in lines]
    beam = search.beam_size if isinstance(search, BeamConfig) else 1
    lengths, beams = [len(sentence) for sentence in sentences], [beam] * len(lines)
    for indices in length_batches(lengths, beams, BATCH_TOKENS):
        batch = [sentences[index] for index in indices]
        rows = generate(marian, batch, search, target.suppressed_ids)
        for index, row in zip(indices, rows, strict=True):
            translations[index] = row
    return [target.decode(ids) for ids in translations]
