"""Baselines: transformers' Marian and M2M-100 by a config; their training loop and their search."""

import importlib.util
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig
from tformer_cli.corpus.batch import Batch
from tformer_cli.corpus.bucketing import batches_in_order
from tformer_cli.corpus.prefetch import chunks
from tformer_cli.corpus.store import TokenStore
from tformer_cli.device import autocast, derive_seed
from tformer_cli.errors import ConfigError, Problem, TrainingError, UsageError
from tformer_cli.evaluation.likelihood import LIKELIHOOD_BATCH_TOKENS
from tformer_cli.export.marian_settings import FIXED, config_json, unsupported_by_marian
from tformer_cli.export.marian_weights import table_names, weight_names
from tformer_cli.model.network import Seq2Seq
from tformer_cli.padding import pad_rows
from tformer_cli.search.engine import Engine, Hypothesis, Job, OnDone, OnWarning
from tformer_cli.text.special_tokens import BOS_ID, EOS_ID, PAD_ID
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.training.optim import set_learning_rate
from tformer_cli.training.step import StepBatch, TrainState

if TYPE_CHECKING:
    from transformers import M2M100ForConditionalGeneration, MarianMTModel

    TransformersModel = MarianMTModel | M2M100ForConditionalGeneration

# Keys of our config with one value in every Marian model; the others differ in no weight.
FIXED_KEYS = {key: FIXED[key] for key in FIXED if key not in ("norm_position", "norm_epsilon")}
SPECIAL_IDS = {
    "pad_token_id": PAD_ID,
    "bos_token_id": BOS_ID,
    "decoder_start_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
}


def build_marian(config: Config, tokenizers: Tokenizers) -> "MarianMTModel":
    """Return Marian in the sizes of a config, with initial weights that follow from its seed.

    They have a standard deviation of dim ** -0.5, by which a narrow Marian learns better than by
    the 0.02 that transformers gives to every width.

    Raises:
        ConfigError: Marian has no parts for the config.
        UsageError: transformers is not installed.
    """
    settings = _settings(config, tokenizers)
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(config.seed)
    return MarianMTModel(MarianConfig(**settings))


def build_m2m100(config: Config, tokenizers: Tokenizers) -> "M2M100ForConditionalGeneration":
    """Return M2M-100, which is Marian with pre-norm, as `build_marian` does.

    Raises:
        ConfigError: M2M-100 has no parts for the config.
        UsageError: transformers is not installed.
    """
    tie = config.model.tie_embeddings
    if tie != "all":
        what = "must be all for M2M-100"
        raise ConfigError([Problem("model.tie_embeddings", what, tie)])
    settings = _settings(config, tokenizers)
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    torch.manual_seed(config.seed)
    return M2M100ForConditionalGeneration(M2M100Config(**settings))


def _settings(config: Config, tokenizers: Tokenizers) -> dict[str, Any]:
    """Return the settings of a network of transformers, in the sizes of a config."""
    unsupported = unsupported_by_marian(config, FIXED_KEYS)
    if problems := [problem for problem in unsupported if problem.where.startswith("model.")]:
        raise ConfigError(problems)
    if importlib.util.find_spec("transformers") is None:
        raise UsageError("transformers", "is not installed", remedy="pip install transformers")
    settings = config_json(config, tokenizers.source.size, tokenizers.target.size) | SPECIAL_IDS
    own = {"init_std": config.model.dim**-0.5, "attn_implementation": "sdpa"}
    # M2M-100 drops layers unless it is told not to.
    own |= {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
    # Those of a saved model, which a config of transformers has by itself.
    names = ("model_type", "architectures")
    return {key: value for key, value in settings.items() if key not in names} | own


@torch.no_grad()
def marian_like(ours: Seq2Seq, config: Config, tokenizers: Tokenizers) -> "MarianMTModel":
    """Return Marian as the same function as a post-norm model of ours with sinusoidal positions."""
    marian = build_marian(config, tokenizers)
    names = {mine: theirs for mine, theirs, _ in weight_names(config.model)}
    names |= table_names(config.model)
    for name, weight in ours.named_parameters():
        marian.get_parameter(names[name]).copy_(weight)
    # Ours alternate sines and cosines, Marian's do not; with our positions our weights fit.
    for part, other in ((ours.encoder, marian.model.encoder), (ours.decoder, marian.model.decoder)):
        table = other.embed_positions.weight
        table.copy_(part.embeddings.positions(torch.arange(len(table))))
    for module in marian.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = config.model.norm_epsilon
    return marian


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
    config, started = state.config, time.perf_counter()
    max_norm = math.inf if config.clip_norm is None else config.clip_norm
    for batch in batches:
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
        started = time.perf_counter()


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
def mean_nll(marian: "TransformersModel", store: TokenStore) -> float:
    """Return the cross-entropy per target token without label smoothing, in nats."""
    marian.eval()
    nll, num_tokens = 0.0, 0
    for batch in batches_in_order(store, batch_tokens=LIKELIHOOD_BATCH_TOKENS):
        nll += loss_sum(marian, batch.to(marian.device), smoothing=0.0).item()
        num_tokens += batch.num_target_tokens
    return nll / num_tokens


class MarianEngine(Engine):
    """Marian by transformers' own search, which has no patience, in batches of similar length."""

    def __init__(
        self, marian: "TransformersModel", suppressed_ids: Sequence[int], batch_size: int
    ) -> None:
        self.marian = marian.eval()
        self.suppressed_ids = list(suppressed_ids)
        self.batch_size = batch_size
        self.scorer = None

    def decode(self, job: Job, on_done: OnDone, on_warning: OnWarning) -> list[list[Hypothesis]]:
        return [
            [Hypothesis(tuple(ids), math.nan, math.nan, finished=True)]
            for requests in chunks(job.requests, self.batch_size)
            for ids in self.generate([request.source for request in requests], job.config)
        ]

    @torch.inference_mode()
    def generate(
        self, sentences: Sequence[Sequence[int]], search: DecodingConfig
    ) -> Iterator[list[int]]:
        """Yield target ids without BOS, EOS and padding, for a batch of source ids with EOS."""
        from transformers import GenerationConfig

        beam = search if isinstance(search, BeamConfig) else BeamConfig(beam_size=1)
        source, mask = pad_rows(sentences)
        rows = self.marian.generate(
            input_ids=source.to(self.marian.device),
            attention_mask=mask.long().to(self.marian.device),
            generation_config=GenerationConfig(
                do_sample=False,
                num_beams=beam.beam_size,
                length_penalty=beam.length_penalty,
                no_repeat_ngram_size=search.no_repeat_ngram_size,
                max_new_tokens=search.max_length,
                min_new_tokens=search.min_length,
                suppress_tokens=self.suppressed_ids,
                **SPECIAL_IDS,
            ),
        )
        for row in rows.tolist():
            yield list(itertools.takewhile(lambda i: i != EOS_ID, row[1:]))
