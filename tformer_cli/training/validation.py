"""How well a model does on the validation text, and the score that chooses between models."""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import ParallelText
from tformer_cli.config.schema.model import MaskedEncoderConfig
from tformer_cli.corpus.batch import Batch, Masking
from tformer_cli.corpus.pipeline import evaluation_store
from tformer_cli.corpus.reader import read_pairs, read_rows
from tformer_cli.corpus.store import TokenStore
from tformer_cli.distributed import SINGLE_PROCESS, World
from tformer_cli.errors import DataError
from tformer_cli.evaluation.evaluate import (
    Likelihood,
    evaluate_text,
    long_lines_warning,
    loss_batches,
    reference_likelihood,
)
from tformer_cli.evaluation.metrics import Score, build_metric
from tformer_cli.model.network import Network, Seq2Seq
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.translate.translator import Translator


@dataclass(frozen=True, slots=True)
class Validation:
    """What a model makes of the validation text.

    Attributes:
        likelihood: of the references, or of masked tokens.
        scores: of the translations; a masked encoder has none.
        hypotheses: the translations, line by line; likewise.
    """

    likelihood: Likelihood
    scores: tuple[Score, ...] = ()
    hypotheses: tuple[str, ...] = ()


def validate(
    model: Network,
    tokenizers: Tokenizers,
    config: Config,
    device: torch.device,
    precision: torch.dtype,
    *,
    max_source_sentences: int | None = None,
    world: World = SINGLE_PROCESS,
    on_done: Callable[[int], object] = lambda count: None,
) -> Validation:
    """Translate and score the validation text as `training.validation_decoding` says.

    Of a masked encoder it is the tokens behind masks, always the same, that are scored.

    Args:
        model: what is to be judged.
        tokenizers: of both sides.
        config: of the run.
        device: where the model is.
        precision: number format of matrix products.
        max_source_sentences: of a source line of the training text; lines with more are translated
            in pieces.
        world: the processes that work together.
        on_done: called with the number of lines whenever some are done.

    Raises:
        DataError: the text cannot be read.
    """
    text = config.data.valid
    if not isinstance(text, ParallelText):
        store = evaluation_store(text, tokenizers, max_length=model.max_length)
        batches = _masked_batches(store, tokenizers, config, on_done)
        return Validation(
            reference_likelihood(model, batches, device=device, precision=precision, world=world)
        )
    assert isinstance(model, Seq2Seq), "a text and its translation are for those that translate"
    evaluation = evaluate_text(
        model,
        Translator.from_model(
            model,
            tokenizers,
            config,
            device,
            precision,
            max_source_sentences=max_source_sentences,
        ),
        text,
        [build_metric("bleu", config.evaluation, config.data.target_language)],
        decoding=config.training.validation_decoding,
        device=device,
        precision=precision,
        world=world,
        on_done=on_done,
    )
    return Validation(
        evaluation.likelihood, tuple(evaluation.scores.values()), evaluation.hypotheses
    )


def check_metric(config: Config) -> None:
    """Make sure that what the validation metric needs is installed.

    Raises:
        ConfigError: its tokenizer is not.
    """
    if isinstance(config.data.valid, ParallelText):
        build_metric("bleu", config.evaluation, config.data.target_language)


def check_validation(
    model: Network,
    tokenizers: Tokenizers,
    config: Config,
    log: Callable[[str], object] = lambda line: None,
) -> None:
    """See to it that no validation will fail for its text.

    Args:
        model: of the run.
        tokenizers: of both sides.
        config: of the run.
        log: hears how many lines are too long for the loss.

    Raises:
        TformerError: a validation would fail.
    """
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
    """Yield the validation text with the masks that it always has."""
    assert isinstance(config.model, MaskedEncoderConfig), "a text alone is for masks"
    masking = Masking.from_config(config.model, tokenizers.source.size, config.seed)
    for batch in loss_batches(store):
        yield masking.apply(batch, epoch=0)
        on_done(len(batch.source))


def selection_score(validation: Validation, config: Config) -> float:
    """Return what a better checkpoint has more of: BLEU, or negative loss."""
    if config.training.selection_metric == "loss":
        loss = validation.likelihood.loss
        # One that is no number is worse than any, and compares with none.
        return -math.inf if math.isnan(loss) else -loss
    return validation.scores[0].score


def validation_fingerprint(config: Config) -> str:
    """Return a hash of what `selection_score` depends on besides the model.

    Raises:
        DataError: the validation text cannot be read.
        ConfigError: the metric's tokenizer is not installed.
    """
    wanted: tuple[object, ...] = (config.training.selection_metric,)
    if config.training.selection_metric == "bleu":
        # Its options say what tokens the target language has, too.
        bleu = build_metric("bleu", config.evaluation, config.data.target_language)
        wanted += (bleu.options, config.training.validation_decoding)
    digest = hashlib.sha256(repr(wanted).encode())
    for row in read_rows(config.data.valid):
        digest.update(repr(row).encode())
    return digest.hexdigest()


def sample_translations(validation: Validation, config: Config) -> list[tuple[str, str, str]]:
    """Pick a few validation sentences, spread evenly and always the same.

    Returns:
        Source, reference and translation of each; none of a text alone.
    """
    valid = config.data.valid
    if not isinstance(valid, ParallelText):
        return []
    pairs = list(read_pairs(valid.source, valid.target))
    count = min(config.training.sample_translations, len(pairs))
    places = [i * len(pairs) // count for i in range(count)]
    return [(*pairs[place], validation.hypotheses[place]) for place in places]
