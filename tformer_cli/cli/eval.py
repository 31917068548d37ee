"""`tformer eval` and `tformer score`."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tformer_cli.cli.entry import refuse_torchrun
from tformer_cli.cli.options import (
    DROP_ONE,
    BeamOption,
    CandidatesOption,
    CheckpointOption,
    DeviceOption,
    EnsembleOption,
    FromOption,
    JsonOption,
    LengthPenaltyOption,
    MbrOption,
    PrecisionOption,
    QuietOption,
    RunArgument,
    SearchSetOption,
    ToOption,
    WorkersOption,
    chosen_mbr,
    chosen_metrics,
    chosen_run,
)
from tformer_cli.cli.printing import (
    extend_bar,
    relative,
    suggest_translation,
    tell,
    tell_json,
    warn,
)
from tformer_cli.cli.streams import check_outputs, open_output, reject_gzip, reject_pipes
from tformer_cli.config.load import load_config
from tformer_cli.config.schema.text import ParallelText
from tformer_cli.errors import UsageError, quantity
from tformer_cli.storage.atomic import json_number
from tformer_cli.terminal import progress_bar

if TYPE_CHECKING:
    from tformer_cli.evaluation.evaluate import Evaluation
    from tformer_cli.translate.score import ScoredPair


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
    to: ToOption = None,
    source_language: FromOption = None,
    beam: BeamOption = None,
    length_penalty: LengthPenaltyOption = None,
    settings: SearchSetOption = None,
    mbr: MbrOption = None,
    candidates: CandidatesOption = None,
    ensemble: EnsembleOption = None,
    as_json: JsonOption = False,
    checkpoint: CheckpointOption = "best",
    device: DeviceOption = "auto",
    precision: PrecisionOption = None,
    workers: WorkersOption = None,
    quiet: QuietOption = False,
) -> None:
    """Translate a test set and score it against raw references.

    Scores are sacrebleu's, and the sacrebleu command that reproduces each of them is printed.
    Translations and scores are written to eval/ in the run folder.

    Example: tformer eval --bleu

    Example: tformer eval runs/demo --bleu --chrf --split valid --json
    """
    if (source is None) != (reference is None):
        missing = "--source" if source is None else "--reference"
        what = "--source and --reference go together"
        raise UsageError(missing, what, remedy=f"add {missing}")
    if source and split:
        raise UsageError("--split", "contradicts --source", got=split, remedy=DROP_ONE)
    for option, language in (("--to", to), ("--from", source_language)):
        if language and source is None:
            what = "needs --source: a split has its own languages"
            raise UsageError(option, what, got=language, remedy="leave it out")
    reject_pipes({"--source": source, "--reference": reference})
    run_directory = chosen_run(run, checkpoint)

    from tformer_cli import api
    from tformer_cli.corpus.lines import COMPRESSIONS
    from tformer_cli.evaluation.evaluate import hypothesis_file
    from tformer_cli.translate.options import SearchOptions

    refuse_torchrun("eval")
    text = None
    if source is not None and reference is not None:
        text = ParallelText(
            source=source, target=reference, source_language=source_language, target_language=to
        )
        hypotheses = hypothesis_file(run_directory, source.name)
        inputs = {"--source": source, "--reference": reference}
        check_outputs({"the translations": hypotheses}, inputs)
    with progress_bar("line") as bar:
        evaluations = api.evaluate(
            run_directory.path,
            metrics=chosen_metrics(bleu, chrf, ter) or ["bleu"],
            split=split,
            text=text,
            decoding=SearchOptions(beam, length_penalty, settings or ()),
            mbr=chosen_mbr(mbr, candidates),
            ensemble=ensemble or (),
            checkpoint=checkpoint,
            device=device,
            precision=precision,
            workers=workers,
            on_start=partial(extend_bar, bar),
            on_done=bar.update,
            on_warning=warn,
        )
    results = {}
    for name, evaluation in evaluations.items():
        file = hypothesis_file(run_directory, name)
        target = relative(evaluation.text.target_file)
        # sacrebleu reads references from a text file alone, plain or gzip.
        is_readable = isinstance(evaluation.text, ParallelText) and (
            target.suffix == ".gz" or target.suffix not in COMPRESSIONS
        )
        commands = [metric.command(target, file) for metric in evaluation.metrics if is_readable]
        results[name] = evaluation.as_json() | {"hypotheses": str(file), "sacrebleu": commands}
        if not as_json:
            lines = [f"{name}: {_description(evaluation)}", f"translations: {file}"]
            tell("\n".join([*lines, *(f"reproduce with: {command}" for command in commands)]))
    if as_json:
        tell_json(results)
    else:
        suggest_translation(load_config(run_directory.config_file), run_directory.path)


def _description(evaluation: "Evaluation") -> str:
    """Return what was evaluated, the scores, and the likelihood, in lines."""
    count = evaluation.num_models
    likelihood = evaluation.likelihood
    models = f", ensemble of {count}" if count > 1 else ""
    return "\n".join(
        [
            f"{quantity(len(evaluation.hypotheses), 'sentence')}, step {evaluation.step}{models}",
            *map(str, evaluation.scores.values()),
            f"references: loss {likelihood.loss:.4f}, perplexity {likelihood.perplexity:.3f}, "
            f"token accuracy {likelihood.accuracy:.2%}",
        ]
    )


def score(
    run: RunArgument = None,
    *,
    source: Annotated[Path, typer.Option(help="Source text, plain or .gz.")],
    target: Annotated[Path, typer.Option(help="Translation, line by line.")],
    to: ToOption = None,
    source_language: FromOption = None,
    output_file: Annotated[
        Path | None, typer.Option("--output", "-o", help="File for the scores. Default: stdout.")
    ] = None,
    per_token: Annotated[
        bool,
        typer.Option("--per-token", help="Add tokens and their log probabilities, between tabs."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line, with texts and tokens.")
    ] = False,
    ensemble: EnsembleOption = None,
    checkpoint: CheckpointOption = "best",
    device: DeviceOption = "auto",
    precision: PrecisionOption = None,
) -> None:
    """Print the log probability of given translations, line by line.

    It is the natural logarithm, summed over the tokens of the translation, EOS included. It is -inf
    (null in JSON) if no search generates the translation: with an unknown token, an empty one, or
    any translation of an empty line but the empty one, which has 0. It is nan (null in JSON) for a
    pair with a side of more than 4,096 tokens.

    Example: tformer score runs/demo --source test.en --target test.de
    """
    if per_token and as_json:
        remedy = "leave it out: JSON has the tokens"
        raise UsageError("--per-token", "has no effect with --json", remedy=remedy)
    check_outputs({"--output": output_file}, {"--source": source, "--target": target})
    reject_gzip({"--output": output_file})
    run_directory = chosen_run(run, checkpoint)

    from tformer_cli import api

    refuse_torchrun("score")
    with progress_bar("line") as bar:
        pairs = api.score(
            run_directory.path,
            source,
            target,
            to=to,
            source_language=source_language,
            ensemble=ensemble or (),
            checkpoint=checkpoint,
            device=device,
            precision=precision,
            on_start=partial(extend_bar, bar),
            on_done=bar.update,
            on_warning=warn,
        )
        with open_output(output_file) as output:
            for pair in pairs:
                output.write(_json_line(pair) if as_json else _tabbed_line(pair, per_token))


def _tabbed_line(pair: "ScoredPair", per_token: bool) -> str:
    """Return the log probability of a pair, and if asked for those of its tokens."""
    fields = [f"{pair.log_prob:.6f}"]
    if per_token:
        for token, log_prob in zip(pair.tokens, pair.token_log_probs, strict=True):
            # A tab would end the field.
            escaped = token.replace("\\", "\\\\").replace("\t", "\\t")
            fields += [escaped, f"{log_prob:.6f}"]
    return "\t".join(fields) + "\n"


def _json_line(pair: "ScoredPair") -> str:
    content = {
        "source": pair.source,
        "target": pair.target,
        "log_prob": json_number(pair.log_prob),
        "num_tokens": len(pair.tokens),
        "tokens": pair.tokens,
        "token_log_probs": [json_number(log_prob) for log_prob in pair.token_log_probs],
    }
    return json.dumps(content, ensure_ascii=False) + "\n"
