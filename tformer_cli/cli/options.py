"""Options that several commands share, how they change a config, and their Python names."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tformer_cli.choices import Backend, MetricName, Quantization, Utility
from tformer_cli.errors import Problem, UsageError, rename_arguments
from tformer_cli.storage.run_directory import (
    RUNS,
    RunDirectory,
    is_converted,
    newest_run,
    step_of,
)

if TYPE_CHECKING:
    from tformer_cli.translate.options import MBR

_RUN = "Run folder, such as runs/demo. Default: the newest below runs/."
RunArgument = Annotated[Path | None, typer.Argument(help=_RUN, show_default=False)]
# Click has no optional argument before a required one, but takes any number of them.
LeadingRunArgument = Annotated[
    list[Path] | None, typer.Argument(metavar="RUN", help=_RUN, show_default=False)
]
FileArgument = Annotated[Path, typer.Argument(help="A YAML file, such as configs/demo.yaml.")]
RunOption = Annotated[
    Path | None,
    typer.Option(
        help="The run folder. Default: runs/NAME for NAME.yaml, or the run of its own config.yaml.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
QuietOption = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print results and errors only: no progress, no warnings."),
]
# The options that help shows apart, by the headings of their panels, if a command has more than
# `MAX_UNGROUPED`.
HELP_PANELS = {
    "Search": (
        *("--beam", "--length-penalty", "--set", "--mbr", "--candidates", "--ensemble", "--nbest"),
        *("--prefixes", "--tag", "--ban", "--constraints", "--terminology"),
    ),
    "Long lines": ("--long-lines", "--max-source-length", "--max-source-sentences"),
    "Limits": (
        *("--max-body", "--max-characters", "--max-texts", "--max-candidates"),
        *("--max-waiting", "--timeout"),
    ),
    "Model and machine": (
        *("--checkpoint", "--device", "--precision", "--workers", "--backend", "--quantization"),
    ),
}
MAX_UNGROUPED = 16
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the config; repeatable."),
]
SearchSetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="decoding.KEY=VALUE",
        help="Override a key of the run's search; repeatable: decoding.no_repeat_ngram_size=3, or "
        "'decoding={kind: sample, top_k: 10}'.",
    ),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        help="Number format of matrix products: auto, float32, bfloat16, float16, or on a CPU "
        "int8. Default: float32 on a CPU, auto on a GPU."
    ),
]
CheckpointOption = Annotated[
    str, typer.Option(help="best, last, a step, or a name such as step-000400.")
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Worker processes on a CPU, with one thread each. Default: one per core."
    ),
]
BackendOption = Annotated[
    Backend,
    typer.Option(
        help="native: tformer's own search. ctranslate2: on a CPU, by an export in the run folder. "
        "auto: CTranslate2 where it is installed and translates alike, else native."
    ),
]
QuantizationOption = Annotated[
    Quantization | None,
    typer.Option(help="Number format of CTranslate2's matrices. Default: float32."),
]
BeamOption = Annotated[
    int | None, typer.Option(min=1, help="Beam size; 1 is greedy search. Default: the run's.")
]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option(help="Exponent A of score = log probability / length ** A. Default: the run's."),
]
EnsembleOption = Annotated[
    list[Path] | None, typer.Option(metavar="RUN", help="Another run to ensemble with; repeatable.")
]
MbrOption = Annotated[
    Utility | None,
    typer.Option(help="Minimum Bayes risk (MBR) decoding with this utility."),
]
ToOption = Annotated[
    str | None,
    typer.Option("--to", metavar="LANGUAGE", help="Target language, of a model that has several."),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="LANGUAGE", help="Source language, of a model that has several."
    ),
]
TagOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tag",
        metavar="NAME",
        help="Tag of the training text (data.train) that each source begins with; repeatable.",
    ),
]
CandidatesOption = Annotated[
    int | None,
    typer.Option(min=1, help="Candidates of --mbr. Default: the beam size, or 32 samples."),
]

DROP_ONE = "leave one of them out"

# Arguments of the library whose options have their names.
_SAME_NAMES = (
    *("backend", "check_file", "checkpoint", "device", "ensemble", "field", "format", "fresh"),
    *("head", "host", "init_from", "layer", "length_penalty", "long_lines", "max_source_length"),
    *("max_source_sentences", "mbr", "memory_limit", "metric", "output", "part", "port"),
    *("lowercase", "precision", "prefixes", "quantization", "resamples", "run", "seed"),
    *("keep", "like", "repair", "source_language", "split", "target_language"),
    *("terminology", "test", "to"),
    *("tokenize", "workers"),
)
# Options by the Python arguments that messages of the library name.
OF_ARGUMENTS = {name: f"--{name.replace('_', '-')}" for name in _SAME_NAMES} | {
    "aligned": "--alignments",
    "banned": "--ban",
    "beam_size": "--beam",
    "count": "--nbest",
    "hosts": "--allow-host",
    "languages": "--source-language and --target-language",
    "num_candidates": "--candidates",
    "origins": "--allow-origin",
    "overwrite": "--force",
    "references": "--reference",
    "required": "--constraints",
    "sentence": "SENTENCE",
    "settings": "--set",
    "systems": "SYSTEM",
    "tags": "--tag",
    "teachers": "TEACHER",
    "text": "--source and --reference",
    "utility": "--mbr",
    "valid": "--valid-source and --valid-target",
}
# Arguments of some commands, options of others, and keys of a config.
TEXTS = ("source", "target")
# The keys of a config that --fields stands for.
OF_FIELDS = {"source_field": "--fields SOURCE", "target_field": "TARGET"}


def message(problem: Problem) -> str:
    """Return the message of a problem with options for Python arguments; its value is unchanged."""
    return str(with_options(problem, OF_ARGUMENTS))


def with_options(problem: Problem, options: Mapping[str, str]) -> Problem:
    """Return a problem with options for Python arguments; its value is unchanged."""
    return problem.renamed(partial(_option, options))


def in_options(text: str) -> str:
    """Return a text with options for Python arguments in backticks.

    `workers=1` becomes --workers 1, and `fresh=True` becomes --fresh.
    """
    return rename_arguments(text, partial(_option, OF_ARGUMENTS))


def _option(options: Mapping[str, str], name: str, value: str) -> str | None:
    if name not in options:
        return None
    return f"{options[name]} {value.removeprefix('True')}".rstrip()


def chosen_run(run: Path | None, checkpoint: str = "best") -> RunDirectory:
    """Return the given run folder, or the newest one, which stderr names with its checkpoint.

    Raises:
        CheckpointError: no run is given and none exists.
        UsageError: the given path is no run folder.
    """
    if run is not None:
        _check_run_folder(run)
        return RunDirectory(run)
    newest = newest_run()
    which = checkpoint
    pointed = newest.pointed(checkpoint) or newest.pointed("last")
    if checkpoint in ("best", "last") and pointed is not None:
        is_step = pointed in newest.step_checkpoints()
        which = f"{f'step {step_of(pointed)}' if is_step else pointed.name}, {checkpoint}"
    typer.echo(f"using {newest.path} ({which})", err=True)
    return newest


def _check_run_folder(path: Path) -> None:
    """Check that an existing path is a run folder."""
    what = None
    remedy = "name a run folder"
    if path.is_file():
        what = "is a file, not a run folder"
        if path.suffix in (".yaml", ".yml"):
            what = "is a config, not a run folder"
            remedy = f"name the run that was trained from it, such as {RUNS / path.stem}"
    elif path.is_dir() and not RunDirectory(path).config_file.exists() and not is_converted(path):
        what = "is not a run folder: it has no config.yaml"
        if runs := sorted(path.glob("*/config.yaml")):
            what = "is a folder of runs"
            remedy = f"name one of them, such as {runs[0].parent}"
    if what is not None:
        raise UsageError(str(path), what, remedy=remedy)


def chosen_metrics(bleu: bool, chrf: bool, ter: bool) -> list[MetricName]:
    """Return the metrics of --bleu, --chrf and --ter that are asked for."""
    is_asked: dict[MetricName, bool] = {"bleu": bleu, "chrf": chrf, "ter": ter}
    return [name for name, asked in is_asked.items() if asked]


def chosen_mbr(utility: Utility | None, num_candidates: int | None) -> "MBR | None":
    """Return the MBR decoding of --mbr and --candidates, if any."""
    from tformer_cli.translate.options import MBR

    if utility is not None:
        return MBR(utility, num_candidates)
    if num_candidates is not None:
        what = "has no effect without --mbr"
        raise UsageError("--candidates", what, got=str(num_candidates), remedy="add --mbr chrf")
    return None
