"""Validation during training: loss, BLEU, the score of the best checkpoint, early stopping."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Self

import torch

from tformer_cli.config.renamed import former_repr
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.model import MaskedEncoderConfig
from tformer_cli.config.schema.text import Bitext, PlainText
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.corpus.batch import Batch
from tformer_cli.corpus.noise import Masking
from tformer_cli.corpus.reader import read_rows, read_texts
from tformer_cli.corpus.store import TokenStore
from tformer_cli.corpus.store_builder import evaluation_store
from tformer_cli.distributed import SINGLE_PROCESS, World
from tformer_cli.errors import DataError
from tformer_cli.evaluation.analysis import even_lines
from tformer_cli.evaluation.evaluate import Evaluator
from tformer_cli.evaluation.likelihood import (
    Likelihood,
    long_lines_warning,
    loss_batches,
    reference_likelihood,
)
from tformer_cli.evaluation.metrics import Metric, Score, build_metric
from tformer_cli.evaluation.score_warnings import reference_warning
from tformer_cli.model.network import Network, Seq2Seq
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.translate.translator import Translator


@dataclass(frozen=True, slots=True)
class Validation:
    """What a model makes of the validation text; a masked encoder translates nothing.

    Of a list of texts, loss, accuracy and score are the means of its directions.
    """

    likelihood: Likelihood  # of the references, or of the masked tokens
    scores: tuple[Score, ...] = ()  # of the translations
    hypotheses: tuple[str, ...] = ()  # the translations, line by line
    directions: Mapping[str, "Validation"] = field(default_factory=dict)  # of a list, by name

    @classmethod
    def mean(cls, directions: Mapping[str, "Validation"]) -> Self:
        """Return the mean of some validations, each of which has one score."""
        each = directions.values()
        scores = [score for validation in each for score in validation.scores]
        likelihood = Likelihood(
            loss=fmean(x.likelihood.loss for x in each),
            accuracy=fmean(x.likelihood.accuracy for x in each),
            num_tokens=sum(x.likelihood.num_tokens for x in each),
        )
        hypotheses = tuple(line for x in each for line in x.hypotheses)
        return cls(likelihood, (Score.mean(scores),), hypotheses, directions)


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
    `max_source_sentences` are translated in segments. Of each text, `on_start` is called with the
    number of lines before the first is done, and `on_done` with the number of those done whenever
    some are, as if all processes were equally fast.
    """
    text = config.data.valid
    if isinstance(text, PlainText):
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
    evaluator = Evaluator([model], translator, precision)
    validations = {}
    for name, (parallel, bleu) in _metrics(config).items():
        evaluation = evaluator.evaluate(
            parallel,
            [bleu],
            decoding=config.training.validation_decoding,
            world=world,
            on_start=on_start,
            on_done=lambda count: on_done(count * world.size),
        )
        validations[name.removeprefix("valid.")] = Validation(
            evaluation.likelihood, tuple(evaluation.scores.values()), evaluation.hypotheses
        )
    return Validation.mean(validations) if isinstance(text, tuple) else validations["valid"]


def check_metric(config: Config) -> None:
    """Refuse a validation metric whose tokenizer is not installed."""
    _metrics(config)


def _metrics(config: Config) -> dict[str, tuple[Bitext, Metric]]:
    """Return each parallel validation text, by name, with BLEU for its target language."""
    data = config.data
    return {
        name: (text, build_metric("bleu", config.evaluation, data.direction_of(text)[1]))
        for name, text in _parallel_texts(config).items()
    }


def _parallel_texts(config: Config) -> dict[str, Bitext]:
    """Return each parallel validation text, by name."""
    texts = config.data.valid_texts.items()
    return {name: text for name, text in texts if not isinstance(text, PlainText)}


def check_validation(
    model: Network,
    tokenizers: Tokenizers,
    config: Config,
    log: Callable[[str], object] = lambda line: None,
) -> None:
    """Refuse a validation text that a validation would fail on.

    Lines too long for the loss are logged, and references of which BLEU would be wrong.
    """
    data = config.data
    stores = {}
    for name, text in data.valid_texts.items():
        tags, target_tags = tokenizers.first_ids(data, text)
        store = evaluation_store(
            text, tokenizers, max_length=model.max_length, tags=tags, target_tags=target_tags
        )
        stores[name] = store
        problem = long_lines_warning(text, store)
        if problem is not None:
            log(str(problem))
    for text, bleu in _metrics(config).values():
        references = [target for _, target in read_texts([text])]
        problem = reference_warning(bleu, text.target_file, references)
        if problem is not None:
            log(str(problem))
    if not isinstance(data.valid, PlainText):
        return
    batches = _masked_batches(stores["valid"], tokenizers, config, lambda count: None)
    if not any(batch.num_target_tokens for batch in batches):
        raise DataError(
            str(data.valid.text),
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


def scored(progress: TrainingProgress, score: float, training: TrainingConfig) -> TrainingProgress:
    """Return the progress after a validation: the best so far, and how many were no better.

    Of equal scores the later one is the best, and counts for early stopping all the same.
    Validations in both directions do not, which would leave the wanted direction alone without a
    step.
    """
    before = progress.best_score
    progress = replace(progress, score=score)
    if before is None or score >= before:
        progress = replace(progress, best_step=progress.step, best_score=score)
    if before is None or score > before:
        return replace(progress, num_bad_validations=0)
    if training.is_bidirectional(progress.step):
        return progress
    return replace(progress, num_bad_validations=progress.num_bad_validations + 1)


def is_finished(progress: TrainingProgress, training: TrainingConfig) -> bool:
    """Return whether a run has taken all its steps, or early stopping ends it."""
    is_out_of_patience = (
        training.patience is not None and progress.num_bad_validations >= training.patience
    )
    return progress.step >= training.max_steps or is_out_of_patience


def validation_fingerprint(config: Config) -> str:
    """Return a hash of what `selection_score` depends on besides the model."""
    metric = config.training.selection_metric
    # Some tokenizers of BLEU load a model.
    metrics = _metrics(config) if metric == "bleu" else {}
    digest = hashlib.sha256()
    for name, text in config.data.valid_texts.items():
        decisive = f"({metric!r},)"
        if metric == "bleu":
            # The options include the tokenizer of the target language.
            _, bleu = metrics[name]
            decoding = former_repr(config.training.validation_decoding)
            decisive = f"({metric!r}, {bleu.options!r}, {decoding})"
        digest.update(f"{name.removeprefix('valid')}{decisive}".encode())
        for row in read_rows(text):
            digest.update(repr(row).encode())
    return digest.hexdigest()


def sample_translations(validation: Validation, config: Config) -> list[tuple[str, str, str]]:
    """Return source, reference and translation of validation lines at even distances.

    They are the same lines each time. Monolingual text has none.
    """
    pairs = list(read_texts(_parallel_texts(config).values()))
    indices = even_lines(len(pairs), config.training.sample_translations)
    return [(*pairs[index], validation.hypotheses[index]) for index in indices]
