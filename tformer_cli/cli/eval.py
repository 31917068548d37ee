"""`tformer eval`."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from tformer_cli.cli.entry import refuse_torchrun
from tformer_cli.cli.input import reject_pipes
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
from tformer_cli.cli.output import reject_overwriting
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import ParallelText
from tformer_cli.errors import UsageError
from tformer_cli.storage.run_directory import RunDirectory


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
        Path | None, typer.Option(help="Another text to translate, with --reference.")
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="Its references.")] = None,
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
    """Translate a test set and score it against its raw references, by sacrebleu.

    The translations stay in the run folder under eval/, and the command line by which sacrebleu
    itself gives the same numbers is printed with them.

    Example: tformer eval --bleu

    Example: tformer eval runs/demo --bleu --chrf --split valid --json
    """
    run_directory = chosen_run(run, checkpoint)
    runs = [run_directory, *map(RunDirectory, ensemble or [])]

    from tqdm import tqdm

    from tformer_cli.device import default_num_workers
    from tformer_cli.evaluation import evaluate as evaluation_room
    from tformer_cli.evaluation.evaluator import Evaluator, warn_of_overlap
    from tformer_cli.evaluation.metrics import MetricName, build_metric

    refuse_torchrun("eval")
    evaluator = Evaluator.load(runs, checkpoint=checkpoint, device=device, precision=precision)
    config = evaluator.config
    texts = _chosen_texts(config, split, source, reference)
    for name, text in texts.items():
        reject_overwriting(
            {"the translations": evaluation_room.hypothesis_file(run_directory.eval, name)},
            {"--source": text.source, "--reference": text.target},
        )
    names: list[MetricName] = []
    for name, wanted in (("bleu", bleu or not (chrf or ter)), ("chrf", chrf), ("ter", ter)):
        if wanted:
            names.append(name)  # type: ignore[arg-type]
    metrics = [build_metric(name, config.evaluation, config.data.target_language) for name in names]
    decoding = chosen_decoding(config, beam, length_penalty, settings)
    choice = chosen_mbr(mbr, candidates)
    warn_of_overlap(config.data, texts, warn)
    evaluator.translator.start_workers(workers or default_num_workers(evaluator.device))
    results = {}
    for name, text in texts.items():
        with tqdm(unit="line", disable=not sys.stderr.isatty(), leave=False) as bar:
            evaluation = evaluator.evaluate(
                name,
                text,
                names,
                decoding=decoding,
                mbr=choice,
                on_done=bar.update,
                on_warning=warn,
            )
        hypothesis_file = evaluation_room.hypothesis_file(run_directory.eval, name)
        commands = [
            evaluation_room.sacrebleu_command(metric, _from_here(text.target), hypothesis_file)
            for metric in metrics
        ]
        results[name] = {
            **evaluation_room.as_json(evaluation),
            "hypotheses": str(hypothesis_file),
            "sacrebleu": commands,
        }
        if not as_json:
            models = f", ensemble of {len(runs)}" if len(runs) > 1 else ""
            tell(f"{name}: {len(evaluation.hypotheses)} sentences, step {evaluator.step}{models}")
            for score in evaluation.scores.values():
                typer.echo(str(score))
            likelihood = evaluation.likelihood
            typer.echo(
                f"references: loss {likelihood.loss:.4f}, perplexity {likelihood.perplexity:.3f}, "
                f"token accuracy {likelihood.accuracy:.2%}"
            )
            tell(f"translations: {hypothesis_file}")
            for command in commands:
                tell(f"reproduce with: {command}")
    if as_json:
        typer.echo(json.dumps(results, indent=2, ensure_ascii=False))
    else:
        suggest("translate", run_directory.path)


def _from_here(file: Path) -> Path:
    """Return the shorter name that a file has in the working directory, if it is in there."""
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file


def _chosen_texts(
    config: Config, split: str | None, source: Path | None, reference: Path | None
) -> dict[str, ParallelText]:
    """Return the texts to evaluate, by name.

    Raises:
        UsageError: the options contradict each other, or there is no such split, or one of the
            texts is a pipe.
        DataError: the config's texts are no longer where they were.
    """
    if (source is None) != (reference is None):
        missing = "--reference" if reference is None else "--source"
        raise UsageError(missing, "--source and --reference go together", remedy=f"add {missing}")
    if source is not None and reference is not None:
        if split is not None:
            raise UsageError(
                "--split", "contradicts --source", got=split, remedy="leave one of them out"
            )
        reject_pipes({"--source": source, "--reference": reference})
        return {source.name: ParallelText(source=source, target=reference)}
    from tformer_cli.evaluation.evaluator import texts_of_split

    return texts_of_split(config, split)
