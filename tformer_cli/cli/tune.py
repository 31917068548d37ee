"""`tformer tune` and `tformer calibrate`: what is fitted to the validation text of a run."""

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tformer_cli.choices import TuningMetric
from tformer_cli.cli.entry import refuse_torchrun
from tformer_cli.cli.options import (
    BackendOption,
    CheckpointOption,
    DeviceOption,
    JsonOption,
    PrecisionOption,
    RunArgument,
    WorkersOption,
    chosen_run,
)
from tformer_cli.cli.printing import (
    extend_bar,
    relative,
    suggest_translation,
    suggest_use,
    table,
    tell,
    tell_json,
    tell_stderr,
    warn,
)
from tformer_cli.config.load import load_config, save_decoding
from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.errors import quantity
from tformer_cli.storage.run_directory import EXPORT_FILE
from tformer_cli.terminal import progress_bar

if TYPE_CHECKING:
    from tformer_cli.evaluation.tuning import Tuning


def tune(
    run: RunArgument = None,
    beam_sizes: Annotated[
        list[int] | None,
        typer.Option("--beam", min=1, help="Beam size to try; repeatable. Default: the run's."),
    ] = None,
    metric: Annotated[TuningMetric, typer.Option(help="What the best search maximizes.")] = "bleu",
    write: Annotated[
        bool,
        typer.Option("--write", help="Write the best search into the config.yaml of the run."),
    ] = False,
    as_json: JsonOption = False,
    checkpoint: CheckpointOption = "best",
    device: DeviceOption = "auto",
    precision: PrecisionOption = None,
    workers: WorkersOption = None,
    backend: BackendOption = "auto",
) -> None:
    """Choose the search of a run by the validation text.

    Length penalties from 0 to 2 are tried, and more around the best one. With that one, a ban on
    repeated 3-grams and one on 4-grams are tried. The table says how well each search does, and
    whether the best differs from the run's own by more than noise. Of a tie the run's own is kept.
    Of several validation texts, each in its direction, the mean counts. Test sets are not read.

    Example: tformer tune runs/demo

    Example: tformer tune runs/demo --beam 4 --beam 8 --metric chrf --write
    """
    run_directory = chosen_run(run, checkpoint)

    from tformer_cli import api

    refuse_torchrun("tune")
    with progress_bar("line") as bar:
        tuning = api.tune(
            run_directory.path,
            metric=metric,
            beam_sizes=beam_sizes or (),
            checkpoint=checkpoint,
            device=device,
            precision=precision,
            backend=backend,
            workers=workers,
            log=tell_stderr,
            on_done=bar.update,
            on_warning=warn,
        )
    is_changed = tuning.best is not tuning.own
    is_written = write and is_changed
    if is_written:
        save_decoding(run_directory.config_file, tuning.best.decoding)
    if as_json:
        content = {**tuning.as_json(), "is_written": is_written}
        tell_json(content)
        return
    tell(_trials(tuning))
    tell(_verdict(tuning))
    if is_changed:
        typer.echo(tuning.yaml, nl=False)
    if is_written:
        tell(f"{run_directory.config_file}: written")
    changes = _options(tuning) if is_changed and not is_written else ()
    # An export has no likelihood, so it is not evaluated.
    is_export = (run_directory.path / EXPORT_FILE).is_file()
    suggest_next = suggest_translation if is_export else suggest_use
    suggest_next(load_config(run_directory.config_file), run_directory.path, *changes)


def _trials(tuning: "Tuning") -> str:
    """Return the searches and their scores as a table, sorted by what is tuned."""
    rows = []
    for trial in tuning.trials:
        search = trial.decoding
        size = search.no_repeat_ngram_size
        limit = f"{size}-grams" if size else ""
        key, cells = (0, size, 0.0), (str(search.kind), "", limit)
        if isinstance(search, BeamConfig):
            key = search.beam_size, size, search.length_penalty
            cells = f"{search.beam_size}", f"{search.length_penalty:g}", limit
        names = {"best": tuning.best, "the run's own": tuning.own}
        marks = ", ".join(name for name, marked in names.items() if marked is trial)
        rows.append((key, (*cells, f"{trial.score.score:.2f}", marks)))
    head = ("beam", "length penalty", "no repeated", tuning.own.score.name, "")
    return table([head, *(row for _, row in sorted(rows))], align=">>>><")


def _verdict(tuning: "Tuning") -> str:
    """Return by how much the best search is better than the run's own, and whether it is noise."""
    own, best = tuning.own.score, tuning.best.score
    files = ", ".join(dict.fromkeys(str(relative(text.source_file)) for text in tuning.texts))
    text = f"{quantity(best.num_sentences, 'sentence')} of {files}  ({best.signature})"
    if tuning.p_value is None:
        return f"{text}\nthe run's own search is the best"
    noise = "more than noise" if tuning.is_significant else "within noise"
    gain = f"{best.score - own.score:+.2f} {best.name}"
    return f"{text}\nbest: {gain}, {noise} (p = {tuning.p_value:.3f}, paired bootstrap)"


def _options(tuning: "Tuning") -> tuple[object, ...]:
    """Return the options that let `tformer eval` search as in the best trial."""
    search, own = tuning.best.decoding, tuning.own.decoding
    size = search.no_repeat_ngram_size
    is_new = size != own.no_repeat_ngram_size
    limit = ("--set", f"decoding.no_repeat_ngram_size={size}") if is_new else ()
    if not isinstance(search, BeamConfig):
        return ("--beam", 1, *limit) if search.kind == "greedy" else limit
    return "--beam", search.beam_size, "--length-penalty", search.length_penalty, *limit


def calibrate(
    run: RunArgument = None,
    as_json: JsonOption = False,
    checkpoint: CheckpointOption = "best",
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
) -> None:
    """Fit a confidence for each translation to the validation text of a run.

    From then on `tformer translate --json` and `tformer serve` give each translation a confidence:
    the quality that is expected of it, as sentence chrF from 0 to 1. The table has the expected
    calibration error (ECE) of the validation text, by cross-fitting, and of the test sets, which
    nothing is fitted to; beside it that of the probability per token. Several validation texts are
    fitted to together, each in its direction.

    Example: tformer calibrate runs/demo
    """
    run_directory = chosen_run(run, checkpoint)

    from tformer_cli.evaluation import calibration
    from tformer_cli.evaluation.tables import RELIABILITY_HEAD, reliability_row

    refuse_torchrun("calibrate")
    with progress_bar("line") as bar:
        model = calibration.calibrate(
            run_directory.path,
            checkpoint=checkpoint,
            device=device,
            workers=workers,
            log=tell_stderr,
            on_start=partial(extend_bar, bar),
            on_done=bar.update,
            on_warning=warn,
        )
    if as_json:
        content = {name: asdict(each) for name, each in model.reliability.items()}
        tell_json(content)
        return
    rows = [reliability_row(*each) for each in model.reliability.items()]
    tell(table([RELIABILITY_HEAD, *rows], align="<>>>>>"))
    tell(f"{run_directory.confidence_file}: written")
    suggest_translation(load_config(run_directory.config_file), run_directory.path, "--json")
