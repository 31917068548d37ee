"""Options that several commands share, how they change a config, and their Python names."""

import re
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tformer_cli.config.load import changed_decoding
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import (
    BeamConfig,
    DecodingConfig,
    GreedyConfig,
    SearchConfig,
)
from tformer_cli.config.schema.fields import checked
from tformer_cli.errors import Problem, UsageError
from tformer_cli.storage.run_directory import RUNS, RunDirectory, newest_run, step_of

if TYPE_CHECKING:
    from tformer_cli.translate.mbr import MBR

RunArgument = Annotated[
    Path | None,
    typer.Argument(
        help="Run folder, such as runs/demo. Default: the newest below runs/.",
        show_default=False,
    ),
]
# Click has no optional argument before a required one, but takes any number of them.
LeadingRunArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RUN",
        help="Run folder, such as runs/demo. Default: the newest below runs/.",
        show_default=False,
    ),
]
ConfigArgument = Annotated[Path, typer.Argument(help="A YAML file, such as configs/demo.yaml.")]
RunOption = Annotated[
    Path | None,
    typer.Option(
        help="The run folder. Default: runs/NAME for NAME.yaml, or the run of its own config.yaml.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
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
    str,
    typer.Option(
        help="Number format of matrix products: auto, float32, bfloat16, float16, or on a CPU int8."
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
BeamOption = Annotated[
    int | None, typer.Option(min=1, help="Beam size; 1 is greedy search. Default: the run's.")
]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option(help="Exponent A of score = log probability / length ** A. Default: the run's."),
]
EnsembleOption = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="RUN",
        help="Another run to ensemble with; repeatable.",
    ),
]
MbrOption = Annotated[
    Literal["chrf", "bleu"] | None,
    typer.Option(help="Minimum Bayes risk (MBR) decoding with this utility."),
]
CandidatesOption = Annotated[
    int | None,
    typer.Option(min=1, help="Candidates of --mbr. Default: the beam size, or 32 samples."),
]

QuantizationName = Literal["int8", "int8_float32", "float16", "bfloat16", "float32"]

# Options by the Python arguments that messages of the library name.
OF_ARGUMENTS = {
    "backend": "--backend",
    "banned": "--ban",
    "check_file": "--check-file",
    "checkpoint": "--checkpoint",
    "mbr": "--mbr",
    "count": "--nbest",
    "device": "--device",
    "engine": "--backend",
    "ensemble": "--ensemble",
    "format": "--format",
    "fresh": "--fresh",
    "head": "--head",
    "init_from": "--init-from",
    "layer": "--layer",
    "long_lines": "--long-lines",
    "max_source_length": "--max-source-length",
    "max_source_sentences": "--max-source-sentences",
    "memory_limit": "--memory-limit",
    "num_candidates": "--candidates",
    "output": "--output",
    "overwrite": "--force",
    "part": "--part",
    "precision": "--precision",
    "prefixes": "--prefixes",
    "quantization": "--quantization",
    "required": "--constraints",
    "run": "--run",
    "sentence": "SENTENCE",
    "settings": "--set",
    "beam_size": "--beam",
    "split": "--split",
    "target": "--target",
    "terminology": "--terminology",
    "text": "--source and --reference",
    "utility": "--mbr",
    "valid": "--valid-source and --valid-target",
    "workers": "--workers",
}
# `workers`, `workers=1`, `decoding.beam_size`, `BeamConfig(beam_size=5)`.
_ARGUMENT = re.compile(r'`(?:\w+[.(])?(\w+)(?:="?([^`]*?)"?)?\)?`')

NAMES = {"greedy": "greedy search", "beam": "beam search", "sample": "sampling"}


def message(problem: Problem) -> str:
    """Return the message of a problem with options for Python arguments; its value is unchanged."""
    where, what = in_options(problem.where), in_options(problem.what)
    remedy = None if problem.remedy is None else in_options(problem.remedy)
    return str(Problem(where, what, problem.got, remedy))


def in_options(text: str) -> str:
    """Return a text with options for Python arguments in backticks.

    `workers=1` becomes --workers 1, and `fresh=True` becomes --fresh.
    """

    def option(argument: re.Match[str]) -> str:
        name, value = argument.groups("")
        if name not in OF_ARGUMENTS:
            return argument[0]
        return f"{OF_ARGUMENTS[name]} {value.removeprefix('True')}".rstrip()

    return _ARGUMENT.sub(option, text)


def reject_usage(
    option: str, what: str, *, when: bool, got: object = None, remedy: str | None = None
) -> None:
    """Refuse a combination of options: a command lists the ones that it does not allow.

    Args:
        option: the option to blame.
        what: the rule that is broken.
        when: whether it is.
        got: value of the option, if it has one.
        remedy: what to do instead.

    Raises:
        UsageError: the rule is broken.
    """
    if when:
        shown = f"{got:g}" if isinstance(got, float) else str(got)
        raise UsageError(option, what, got=None if got is None else shown, remedy=remedy)


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
    if path.is_file():
        if path.suffix in (".yaml", ".yml"):
            remedy = f"name the run that was trained from it, such as {RUNS / path.stem}"
            raise UsageError(str(path), "is a config, not a run folder", remedy=remedy)
        raise UsageError(str(path), "is a file, not a run folder", remedy="name a run folder")
    if path.is_dir() and not RunDirectory(path).config_file.exists():
        if runs := sorted(path.glob("*/config.yaml")):
            remedy = f"name one of them, such as {runs[0].parent}"
            raise UsageError(str(path), "is a folder of runs", remedy=remedy)
        raise UsageError(
            str(path), "is not a run folder (it has no config.yaml)", remedy="name a run folder"
        )


def chosen_decoding(
    config: Config,
    beam: int | None,
    length_penalty: float | None,
    settings: Sequence[str] | None = None,
) -> DecodingConfig:
    """Return the search of a run with --beam, --length-penalty and --set applied.

    Raises:
        ConfigError: a setting or an option breaks a rule.
        UsageError: options contradict each other, or a length penalty has no effect.
    """
    if beam is not None and beam > 1 and isinstance(config.decoding, BeamConfig):
        # A setting may be valid for this size only.
        config = replace(config, decoding=replace(config.decoding, beam_size=beam))
    decoding = changed_decoding(config, settings or [])
    if beam is not None:
        decoding = _with_beam(beam, decoding, before=config.decoding)
    if length_penalty is None:
        return checked(decoding, "decoding")
    reject_usage(
        "--length-penalty",
        f"has no effect on {NAMES[decoding.kind]}",
        when=not isinstance(decoding, BeamConfig),
        got=length_penalty,
        remedy="add --beam 5",
    )
    assert isinstance(decoding, BeamConfig)
    is_set = any(text.startswith("decoding.length_penalty=") for text in settings or [])
    reject_usage(
        "--length-penalty",
        f"contradicts --set, by which length_penalty is {decoding.length_penalty}",
        when=is_set and decoding.length_penalty != length_penalty,
        got=length_penalty,
        remedy="leave one of them out",
    )
    return checked(replace(decoding, length_penalty=length_penalty), "decoding")


def _with_beam(size: int, asked: DecodingConfig, *, before: DecodingConfig) -> DecodingConfig:
    """Return the search `asked` by settings with a beam size; 1 is greedy search.

    A setting that is lost contradicts the beam size; `before` is the search without settings.
    """
    rules = {part.name: getattr(asked, part.name) for part in fields(SearchConfig)}
    changed: DecodingConfig
    if size == 1:
        changed = GreedyConfig(**rules)
    elif isinstance(asked, BeamConfig):
        changed = replace(asked, beam_size=size)
    else:
        changed = BeamConfig(beam_size=size, **rules)
    own, others = asdict(changed), asdict(before)
    for key, value in asdict(asked).items():
        reject_usage(
            "--beam",
            f"contradicts --set, by which {key} is {value}",
            when=value not in (own.get(key), others.get(key)),
            got=size,
            remedy="leave one of them out",
        )
    return changed


def chosen_mbr(utility: Literal["chrf", "bleu"] | None, num_candidates: int | None) -> "MBR | None":
    """Return the MBR decoding of --mbr and --candidates, if any."""
    from tformer_cli.translate.mbr import MBR

    reject_usage(
        "--candidates",
        "has no effect without --mbr",
        when=utility is None and num_candidates is not None,
        got=num_candidates,
        remedy="add --mbr chrf",
    )
    return None if utility is None else MBR(utility, num_candidates)
