"""`tformer eval`."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tformer_cli.cli.entry import refuse_torchrun
from tformer_cli.cli.messages import suggest, tell, warn
from tformer_cli.cli.options import (
    BeamOption,
    CandidatesOption,
    CheckpointOption,
    DeviceOption,
    EnsembleOption,
    LengthPenaltyOption,
    MbrOption,
    PrecisionOption,
    RunArgument,
    SearchSetOption,
    WorkersOption,
    chosen_decoding,
    chosen_mbr,
    chosen_run,
)
from tformer_cli.cli.streams import check_outputs, reject_pipes
from tformer_cli.config.schema.data import ParallelText
from tformer_cli.errors import Rule, check_usage

if TYPE_CHECKING:
    from tformer_cli.config.schema.config import Config
    from tformer_cli.evaluation.metrics import MetricName


def evaluate(
    run: RunArgument = None,
    bleu: Annotated[bool, typer.Option("--bleu", help="BLEU; the default.")] = False,
    chrf: Annotated[bool, typer.Option("--chrf", help="chrF.")] = False,
    ter: Annotated[bool, typer.Option("--ter", help="Translation edit rate.")] = False,
    split: Annotated[
        str | None,
        typer.Option(help="valid, test (all test sets), or the name of one. Default: test."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Source text instead of a split, with --reference.")
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="References of --source.")] = None,
    beam: BeamOption = None,
    length_penalty: LengthPenaltyOption = None,
    settings: SearchSetOption = None,
    mbr: MbrOption = None,
    candidates: CandidatesOption = None,
    ensemble: EnsembleOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    checkpoint: CheckpointOption = "best",
    device: DeviceOption = "auto",
    precision: PrecisionOption = "float32",
    workers: WorkersOption = None,
) -> None:
    """Translate a test set and score it against raw references, by sacrebleu.

    Translations and scores are written to eval/ in the run folder. The sacrebleu command that
    reproduces each score is printed.

    Example: tformer eval --bleu

    Example: tformer eval runs/demo --bleu --chrf --split valid --json
    """
    run_directory = chosen_run(run, checkpoint)

    from tqdm import tqdm

    from tformer_cli.evaluation.evaluate import (
        Evaluator,
        hypothesis_file,
        save_evaluation,
        warn_of_overlap,
    )

    refuse_torchrun("eval")
    evaluator = Evaluator.load(
        run_directory.path,
        ensemble=ensemble or (),
        checkpoint=checkpoint,
        device=device,
        precision=precision,
        workers=workers,
    )
    texts = _chosen_texts(evaluator.config, split, source, reference)
    for name, text in texts.items():
        check_outputs(
            {"the translations": hypothesis_file(run_directory, name)},
            {"--source": text.source, "--reference": text.target},
        )
    names: dict[MetricName, bool] = {"bleu": bleu or not (chrf or ter), "chrf": chrf, "ter": ter}
    metrics = evaluator.metrics([name for name, is_asked in names.items() if is_asked])
    decoding = chosen_decoding(evaluator.config, beam, length_penalty, settings)
    warn_of_overlap(evaluator.config.data, texts, warn)
    results = {}
    for name, text in texts.items():
        with tqdm(unit="line", disable=not sys.stderr.isatty(), leave=False) as bar:
            evaluation = evaluator.evaluate(
                text,
                metrics,
                decoding=decoding,
                mbr=chosen_mbr(mbr, candidates),
                on_done=bar.update,
                on_warning=warn,
            )
        save_evaluation(evaluation, run_directory, name)
        file = hypothesis_file(run_directory, name)
        commands = [metric.command(_relative(text.target), file) for metric in metrics]
        results[name] = {
            **evaluation.as_json(),
            "hypotheses": str(file),
            "sacrebleu": commands,
        }
        if not as_json:
            models = f", ensemble of {evaluation.num_models}" if ensemble else ""
            count = len(evaluation.hypotheses)
            tell(f"{name}: {count} sentences, step {evaluator.step}{models}")
            for score in evaluation.scores.values():
                typer.echo(str(score))
            likelihood = evaluation.likelihood
            typer.echo(
                f"references: loss {likelihood.loss:.4f}, perplexity {likelihood.perplexity:.3f}, "
                f"token accuracy {likelihood.accuracy:.2%}"
            )
            tell(f"translations: {file}")
            for command in commands:
                tell(f"reproduce with: {command}")
    if as_json:
        typer.echo(json.dumps(results, indent=2, ensure_ascii=False))
    else:
        suggest("translate", run_directory.path)


def _relative(file: Path) -> Path:
    """Return a file relative to the working directory, if it is in there."""
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file


def _chosen_texts(
    config: "Config", split: str | None, source: Path | None, reference: Path | None
) -> dict[str, ParallelText]:
    """Return the texts to evaluate, by name."""
    from tformer_cli.evaluation.evaluate import texts_of_split

    missing = "--source" if source is None else "--reference"
    check_usage(
        Rule(
            missing,
            "--source and --reference go together",
            (source is None) != (reference is None),
            remedy=f"add {missing}",
        ),
        Rule(
            "--split",
            "contradicts --source",
            source is not None and split is not None,
            split,
            "leave one of them out",
        ),
    )
    if source is None or reference is None:
        return texts_of_split(config, split)
    reject_pipes({"--source": source, "--reference": reference})
    return {source.name: ParallelText(source=source, target=reference)}
