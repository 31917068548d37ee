"""Options that several commands share, what they mean for a config, and their Python names."""

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
        help="A run folder, such as runs/demo; without it the newest under runs/.",
        show_default=False,
    ),
]
# Click has no optional argument before a required one, but takes any number of them.
LeadingRunArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RUN",
        help="A run folder, such as runs/demo; without it the newest under runs/.",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the config; may be repeated."),
]
SearchSetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="decoding.KEY=VALUE",
        help="Change the run's search; may be repeated: decoding.no_repeat_ngram_size=3, or "
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
        min=1, help="Processes that share the work on a CPU, a thread each. Default: one a core."
    ),
]
BeamOption = Annotated[
    int | None, typer.Option(min=1, help="Beam size; 1 is greedy search. Default: the run's.")
]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option(help="Score is log probability / length ** A. Default: the run's."),
]
EnsembleOption = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="RUN",
        help="Another run whose model has an equal say; may be repeated.",
    ),
]
MbrOption = Annotated[
    Literal["chrf", "bleu"] | None,
    typer.Option(help="Choose the translation that is most like all others that the search finds."),
]
CandidatesOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="How many --mbr chooses from. Default: the beam size; of sampling 32."
    ),
]

QuantizationName = Literal["int8", "int8_float32", "float16", "bfloat16", "float32"]

# What messages of the library call by the arguments of its functions.
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
    """Return the message of a problem in the words of a command line; its value stays as it is."""
    where, what = in_options(problem.where), in_options(problem.what)
    remedy = None if problem.remedy is None else in_options(problem.remedy)
    return str(Problem(where, what, problem.got, remedy))


def in_options(text: str) -> str:
    """Return a text whose Python arguments in backticks are written as options.

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
    """Return the run folder named on the command line, or the newest one, which stderr names.

    Args:
        run: the folder.
        checkpoint: that will be read, for stderr.

    Raises:
        CheckpointError: none is named and there is none.
        UsageError: what is named is no run folder.
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
    """Check that a path that is there is a run folder.

    Raises:
        UsageError: it is something else.
    """
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
    """Return the search of a run with what the command line changes.

    Args:
        config: of the run.
        beam: beam size; 1 is greedy search.
        length_penalty: of beam search.
        settings: `decoding.KEY=VALUE`.

    Raises:
        ConfigError: a setting or an option is out of its limits, or they break a rule.
        UsageError: the beam size or the length penalty contradicts the settings, or a length
            penalty was asked of a search that has no use for it.
    """
    if beam is not None and beam > 1 and isinstance(config.decoding, BeamConfig):
        # A setting may make sense for this size alone.
        config = replace(config, decoding=replace(config.decoding, beam_size=beam))
    decoding = changed_decoding(config, settings or [])
    if beam is not None:
        decoding = _of_beam(beam, decoding, before=config.decoding)
    if length_penalty is None:
        return checked(decoding, "decoding")
    if not isinstance(decoding, BeamConfig):
        raise UsageError(
            "--length-penalty",
            f"has no effect on {NAMES[decoding.kind]}",
            got=f"{length_penalty:g}",
            remedy="add --beam 5",
        )
    is_set = any(one.startswith("decoding.length_penalty=") for one in settings or [])
    if is_set and decoding.length_penalty != length_penalty:
        raise UsageError(
            "--length-penalty",
            f"contradicts --set, by which length_penalty is {decoding.length_penalty}",
            got=f"{length_penalty:g}",
            remedy="leave one of them out",
        )
    return checked(replace(decoding, length_penalty=length_penalty), "decoding")


def _of_beam(size: int, asked: DecodingConfig, *, before: DecodingConfig) -> DecodingConfig:
    """Return a search with a beam of a size; 1 is greedy search.

    Args:
        size: of the beam.
        asked: the search that settings ask for.
        before: what it would be without them.

    Raises:
        UsageError: something that they ask for would be lost.
    """
    rules = {part.name: getattr(asked, part.name) for part in fields(SearchConfig)}
    found: DecodingConfig
    if size == 1:
        found = GreedyConfig(**rules)
    elif isinstance(asked, BeamConfig):
        found = replace(asked, beam_size=size)
    else:
        found = BeamConfig(beam_size=size, **rules)
    own, others = asdict(found), asdict(before)
    for key, value in asdict(asked).items():
        if value not in (own.get(key), others.get(key)):
            raise UsageError(
                "--beam",
                f"contradicts --set, by which {key} is {value}",
                got=str(size),
                remedy="leave one of them out",
            )
    return found


def chosen_mbr(utility: Literal["chrf", "bleu"] | None, num_candidates: int | None) -> "MBR | None":
    """Return how --mbr and --candidates choose among translations.

    Raises:
        UsageError: a number of candidates was asked of no choice.
    """
    from tformer_cli.translate.mbr import MBR

    if utility is not None:
        return MBR(utility, num_candidates)
    if num_candidates is not None:
        raise UsageError(
            "--candidates",
            "has no effect without --mbr",
            got=str(num_candidates),
            remedy="add --mbr chrf",
        )
    return None
