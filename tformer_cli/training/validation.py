"""Validation during training: loss, BLEU, the score of the best checkpoint, early stopping."""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from tformer_cli.config.renamed import former_repr
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import ParallelText
from tformer_cli.config.schema.model import MaskedEncoderConfig
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.corpus.batch import Batch
from tformer_cli.corpus.noise import Masking
from tformer_cli.corpus.reader import read_pairs, read_rows
from tformer_cli.corpus.store import TokenStore
from tformer_cli.corpus.store_builder import evaluation_store
from tformer_cli.distributed import SINGLE_PROCESS, World
from tformer_cli.errors import DataError
from tformer_cli.evaluation.evaluate import (
    Evaluator,
    Likelihood,
    long_lines_warning,
    loss_batches,
    reference_likelihood,
)
from tformer_cli.evaluation.metrics import Score, build_metric
from tformer_cli.model.network import Network, Seq2Seq
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.translate.translator import Translator


@dataclass(frozen=True, slots=True)
class Validation:
    """What a model makes of the validation text; a masked encoder translates nothing."""

    likelihood: Likelihood  # of the references, or of the masked tokens
    scores: tuple[Score, ...] = ()  # of the translations
    hypotheses: tuple[str, ...] = ()  # the translations, line by line


def validate(
    model: Network,
    tokenizers: Tokenizers,
    config: Config,
    device: torch.device,
    precision: torch.dtype,
    *,
    max_source_sentences: int | None = None,
    world: World = SINGLE_PROCESS,
    on_start: Callable[[int], object] = lambda count: None,
    on_done: Callable[[int], object] = lambda count: None,
) -> Validation:
    """Translate and score the validation text by `training.validation_decoding`.

    A masked encoder is scored by the same masked tokens each time. Lines of more sentences than
    `max_source_sentences` are translated in segments. `on_start` is called with the number of lines
    before the first is done, and `on_done` with the number of those done whenever some are, as if
    all processes were equally fast.
    """
    text = config.data.valid
    if not isinstance(text, ParallelText):
        store = evaluation_store(text, tokenizers, max_length=model.max_length)
        on_start(len(store))
        batches = _masked_batches(store, tokenizers, config, on_done)
        return Validation(
            reference_likelihood([model], batches, device=device, precision=precision, world=world)
        )
    assert isinstance(model, Seq2Seq), "a config with parallel text builds a model that translates"
    translator = Translator.from_model(
        model, tokenizers, config, device, precision, max_source_sentences=max_source_sentences
    )
    evaluation = Evaluator([model], translator, precision).evaluate(
        text,
        [build_metric("bleu", config.evaluation, config.data.target_language)],
        decoding=config.training.validation_decoding,
        world=world,
        on_start=on_start,
        on_done=lambda count: on_done(count * world.size),
    )
    return Validation(
        evaluation.likelihood, tuple(evaluation.scores.values()), evaluation.hypotheses
    )


def check_metric(config: Config) -> None:
    """Refuse a validation metric whose tokenizer is not installed."""
    if isinstance(config.data.valid, ParallelText):
        build_metric("bleu", config.evaluation, config.data.target_language)


def check_validation(
    model: Network,
    tokenizers: Tokenizers,
    config: Config,
    log: Callable[[str], object] = lambda line: None,
) -> None:
    """Refuse a validation text that a validation would fail on; log lines too long for the loss."""
    text = config.data.valid
    store = evaluation_store(text, tokenizers, max_length=model.max_length)
    problem = long_lines_warning(text, store)
    if problem is not None:
        log(str(problem))
    if isinstance(text, ParallelText):
        return
    batches = _masked_batches(store, tokenizers, config, lambda count: None)
    if not any(batch.num_target_tokens for batch in batches):
        raise DataError(
            str(text.text),
            "no tokens that could be masked",
            remedy="name a text of words that the vocabulary knows",
        )


def _masked_batches(
    store: TokenStore, tokenizers: Tokenizers, config: Config, on_done: Callable[[int], object]
) -> Iterator[Batch]:
    assert isinstance(config.model, MaskedEncoderConfig), "monolingual text is for masked encoders"
    masking = Masking(config.model.mask_prob, tokenizers.source.size, config.seed)
    for batch in loss_batches(store):
        yield masking.apply(batch, epoch=0)
        on_done(len(batch.source))


def selection_score(validation: Validation, config: Config) -> float:
    """Return the score that the best checkpoint maximizes: BLEU, or negative loss."""
    if config.training.selection_metric == "loss":
        loss = validation.likelihood.loss
        # NaN compares with nothing; as -inf it is worse than any loss.
        return -math.inf if math.isnan(loss) else -loss
    return validation.scores[0].score


def is_finished(progress: TrainingProgress, training: TrainingConfig) -> bool:
    """Return whether a run has taken all its steps, or early stopping ends it."""
    is_out_of_patience = (
        training.patience is not None and progress.num_bad_validations >= training.patience
    )
    return progress.step >= training.max_steps or is_out_of_patience


def validation_fingerprint(config: Config) -> str:
    """Return a hash of what `selection_score` depends on besides the model."""
    metric = config.training.selection_metric
    decisive = f"({metric!r},)"
    if metric == "bleu":
        # The options include the tokenizer of the target language.
        bleu = build_metric("bleu", config.evaluation, config.data.target_language)
        decoding = former_repr(config.training.validation_decoding)
        decisive = f"({metric!r}, {bleu.options!r}, {decoding})"
    digest = hashlib.sha256(decisive.encode())
    for row in read_rows(config.data.valid):
        digest.update(repr(row).encode())
    return digest.hexdigest()


def sample_translations(validation: Validation, config: Config) -> list[tuple[str, str, str]]:
    """Return source, reference and translation of validation lines at even distances.

    They are the same lines each time. Monolingual text has none.
    """
    valid = config.data.valid
    if not isinstance(valid, ParallelText):
        return []
    pairs = list(read_pairs(valid.source, valid.target))
    count = min(config.training.sample_translations, len(pairs))
    indices = [i * len(pairs) // count for i in range(count)]
    return [(*pairs[index], validation.hypotheses[index]) for index in indices]
