"""Translate a text and score it: the one road to every number, in training and in `eval`."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from tformer_cli.config.schema.data import ParallelText, Text
from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.corpus.batch import Batch
from tformer_cli.corpus.pipeline import batches_in_order, evaluation_store
from tformer_cli.corpus.reader import read_pairs
from tformer_cli.corpus.store import TokenStore
from tformer_cli.distributed import SINGLE_PROCESS, World
from tformer_cli.errors import DataError, Problem
from tformer_cli.evaluation.likelihood import Likelihood, reference_likelihood
from tformer_cli.evaluation.metrics import Metric, MetricName, Score
from tformer_cli.model.network import Seq2Seq
from tformer_cli.storage.atomic import write_json, write_text
from tformer_cli.text.vocabulary import BOS_ID
from tformer_cli.translate.mbr import MBR
from tformer_cli.translate.translator import Translator

LIKELIHOOD_BATCH_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came of evaluating a model on a text.

    Attributes:
        scores: by the name of the metric: bleu, chrf, ter.
        likelihood: of the references.
        hypotheses: the translations, line by line.
        decoding: the search that found them.
        mbr: how they were chosen; by the score of the search where it is None.
        num_models: of the ensemble; 1 where there is none.
    """

    scores: Mapping[MetricName, Score]
    likelihood: Likelihood
    hypotheses: tuple[str, ...]
    decoding: DecodingConfig
    mbr: MBR | None
    num_models: int


def evaluate(
    model: Seq2Seq,
    translator: Translator,
    text: ParallelText,
    metrics: Sequence[Metric],
    *,
    decoding: DecodingConfig | None = None,
    mbr: MBR | None = None,
    others: Sequence[Seq2Seq] = (),
    device: torch.device,
    precision: torch.dtype = torch.float32,
    world: World = SINGLE_PROCESS,
    on_done: Callable[[int], object] = lambda count: None,
    on_warning: Callable[[Problem], object] = lambda problem: None,
) -> Evaluation:
    """Translate the source of a text, and compare with its target as it stands in the file.

    Args:
        model: gives the likelihood of the references.
        translator: over the same model.
        text: source and references.
        metrics: what to score by.
        decoding: the search; the run's own where it is None.
        mbr: how to choose among what the search finds; by its own score where it is None.
        others: the rest of an ensemble, which the translator has too.
        device: where the model is.
        precision: of the likelihood; the translator has its own.
        world: the processes that work together: each translates its share of the lines, and all
            have the whole result.
        on_done: called with the number of lines whenever some are translated.
        on_warning: called with each source line that is split or truncated, and once if memory
            runs out and less is translated at a time.

    Raises:
        DataError: a file cannot be read, the line counts differ, there are no lines, or all are
            too long.
    """
    store = evaluation_store(text, translator.tokenizers, max_length=model.max_length)
    problem = left_out_of_loss(text, store)
    if problem is not None:
        on_warning(problem)
    likelihood = reference_likelihood(
        model,
        loss_batches(store, start_id=translator.start_id),
        device=device,
        precision=precision,
        others=others,
        world=world,
    )
    sources, references = zip(*read_pairs(text.source, text.target), strict=True)
    search = translator.decoding if decoding is None else decoding
    translations = translator.nbest(
        world.shard(sources),
        1,
        decoding=search,
        mbr=mbr,
        scored=False,
        name=str(text.source),
        start=1 + world.rank,
        step=world.size,
        on_done=on_done,
        on_warning=on_warning,
    )
    hypotheses = tuple(world.gather_shards([best.text for best, *_ in translations]))
    scores = {metric.name: metric.score(hypotheses, references) for metric in metrics}
    return Evaluation(scores, likelihood, hypotheses, search, mbr, 1 + len(others))


def left_out_of_loss(text: Text, store: TokenStore) -> Problem | None:
    """Return a warning that counts the lines that `loss_batches` leaves out, if there are any.

    Args:
        text: source and references, or a text alone.
        store: the same text, encoded.

    Raises:
        DataError: it leaves out all lines.
    """
    files = ", ".join(map(str, text.files.values()))
    longest = np.maximum(store.source_lengths, store.target_lengths)
    num_long = int((longest >= LIKELIHOOD_BATCH_TOKENS).sum())
    if num_long == len(store):
        raise DataError(
            files,
            f"every line has {LIKELIHOOD_BATCH_TOKENS} tokens or more; nothing is left for the "
            "loss",
            remedy="split the lines",
        )
    if num_long == 0:
        return None
    return Problem(
        files,
        f"lines of {LIKELIHOOD_BATCH_TOKENS} tokens or more are left out of the loss",
        f"{num_long} of {len(store)}",
    )


def loss_batches(store: TokenStore, *, start_id: int = BOS_ID) -> Iterator[Batch]:
    """Yield every example once, but for those that fill more than a batch.

    Attention takes time by the square of a length, so one line of 100,000 tokens takes minutes.
    """
    for batch in batches_in_order(store, batch_tokens=LIKELIHOOD_BATCH_TOKENS, start_id=start_id):
        if max(batch.source.shape[1], batch.target_in.shape[1]) <= LIKELIHOOD_BATCH_TOKENS:
            yield batch


def save_evaluation(evaluation: Evaluation, folder: Path, name: str) -> Path:
    """Write NAME.hyp.txt and NAME.json into a folder; return the path of the translations."""
    hypotheses = hypothesis_file(folder, name)
    write_text(hypotheses, "".join(f"{line}\n" for line in evaluation.hypotheses))
    write_json(folder / f"{name}.json", as_json(evaluation))
    return hypotheses


def hypothesis_file(folder: Path, name: str) -> Path:
    """Return where the translations of an evaluation go."""
    return folder / f"{name}.hyp.txt"


def as_json(evaluation: Evaluation) -> dict[str, object]:
    """Return the numbers of an evaluation as plain data."""
    likelihood = evaluation.likelihood
    return {
        "scores": [asdict(score) for score in evaluation.scores.values()],
        "loss": likelihood.loss,
        "perplexity": likelihood.perplexity,
        "accuracy": likelihood.accuracy,
        "num_tokens": likelihood.num_tokens,
        "num_sentences": len(evaluation.hypotheses),
        "decoding": asdict(evaluation.decoding),
        "consensus": None if evaluation.mbr is None else asdict(evaluation.mbr),
        "num_models": evaluation.num_models,
    }


def sacrebleu_command(metric: Metric, reference_file: Path, hypothesis_file: Path) -> str:
    """Return the command line by which sacrebleu itself prints the same score."""
    words = [str(reference_file), "-i", str(hypothesis_file), "-m", metric.name, *metric.options]
    return shlex.join(["sacrebleu", *words])
