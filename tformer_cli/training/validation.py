"""How well a model does on the validation text, and the score that chooses between models."""

from collections.abc import Callable

import torch

from tformer_cli.config.schema.config import Config
from tformer_cli.corpus.pipeline import evaluation_store
from tformer_cli.corpus.reader import read_pairs
from tformer_cli.decoding.translator import Translator
from tformer_cli.distributed import ALONE, World
from tformer_cli.evaluation.evaluate import Evaluation, evaluate
from tformer_cli.evaluation.metrics import build_metric
from tformer_cli.model.seq2seq import Seq2Seq
from tformer_cli.text.tokenizer import Tokenizers


def validate(
    model: Seq2Seq,
    tokenizers: Tokenizers,
    config: Config,
    device: torch.device,
    precision: torch.dtype,
    *,
    world: World = ALONE,
    on_done: Callable[[int], object] = lambda count: None,
) -> Evaluation:
    """Translate and score the validation text as `training.validation_decoding` says.

    Args:
        model: what is to be judged.
        tokenizers: of both sides.
        config: of the run.
        device: where the model is.
        precision: number format of matrix products.
        world: the processes that work together.
        on_done: called with the number of lines whenever some are translated.

    Raises:
        DataError: the text cannot be read.
    """
    return evaluate(
        model,
        Translator.of_model(model, tokenizers, config, device, precision),
        config.data.valid,
        [build_metric("bleu", config.evaluation, config.data.target_language)],
        decoding=config.training.validation_decoding,
        device=device,
        precision=precision,
        world=world,
        on_done=on_done,
    )


def check_validation(model: Seq2Seq, tokenizers: Tokenizers, config: Config) -> None:
    """See to it that no validation will fail for its text or its metric.

    Raises:
        TformerError: one would.
    """
    evaluation_store(config.data.valid, tokenizers, max_length=model.max_length)
    build_metric("bleu", config.evaluation, config.data.target_language)


def selection_score(evaluation: Evaluation, config: Config) -> float:
    """Return what a better checkpoint has more of: BLEU, or negative loss."""
    if config.training.select == "loss":
        return -evaluation.likelihood.loss
    return evaluation.scores[0].score


def sample_translations(evaluation: Evaluation, config: Config) -> list[tuple[str, str, str]]:
    """Pick a few validation sentences, spread evenly and always the same.

    Returns:
        Source, reference and translation of each.
    """
    valid = config.data.valid
    pairs = list(read_pairs(valid.source, valid.target))
    count = min(config.training.sample_translations, len(pairs))
    places = [i * len(pairs) // count for i in range(count)]
    return [(*pairs[place], evaluation.hypotheses[place]) for place in places]
