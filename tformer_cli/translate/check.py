"""Checks of arguments, before anything is loaded or searched."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch

from tformer_cli.config.schema.decoding import (
    BeamConfig,
    DecodingConfig,
    GreedyConfig,
    SampleConfig,
)
from tformer_cli.config.schema.fields import checked
from tformer_cli.distributed import num_processes
from tformer_cli.errors import ConfigError, Problem, Rule, UsageError, check_usage

Backend = Literal["native", "ctranslate2"]


def reject_str(**arguments: object) -> None:
    """Reject a string where a list of strings belongs: iteration would give its characters.

    Raises:
        UsageError: an argument is a string.
    """
    for name, texts in arguments.items():
        if isinstance(texts, str):
            raise UsageError(
                f"`{name}`",
                "must be a list of texts",
                got="a text",
                remedy="put brackets around it",
            )


def check_search(decoding: DecodingConfig, max_positions: int | None) -> None:
    """Check the values of a search, and that it stays within the learnt positions of the model.

    Raises:
        UsageError: it is no search.
        ConfigError: all limits and rules that it breaks.
    """
    if not isinstance(decoding, BeamConfig | GreedyConfig | SampleConfig):
        raise UsageError(
            "`decoding`",
            "must be a search",
            got=repr(decoding),
            remedy="pass BeamConfig(beam_size=5), GreedyConfig() or SampleConfig()",
        )
    checked(decoding, "decoding")
    conflicts = () if max_positions is None else decoding.conflicts_of_positions(max_positions)
    problems = [
        Problem(f"decoding.{conflict.key}", conflict.what, conflict.got) for conflict in conflicts
    ]
    if problems:
        raise ConfigError(problems)


def check_can_require(search: DecodingConfig, argument: str) -> None:
    """Check that a search can require phrases.

    Raises:
        UsageError: it cannot.
    """
    if not isinstance(search, BeamConfig):
        raise UsageError(
            argument, "needs beam search", got=search.kind, remedy="use `BeamConfig(beam_size=5)`"
        )
    if search.num_beam_groups > 1:
        raise UsageError(
            argument,
            "needs a beam of one group",
            got=str(search.num_beam_groups),
            remedy="use decoding.num_beam_groups=1",
        )


def check_positive(argument: str, number: int) -> None:
    """Raise a UsageError if a number is below 1."""
    if number < 1:
        raise UsageError(argument, "must be at least 1", got=str(number))


def check_choice(argument: str, value: str, choices: Sequence[str]) -> None:
    """Raise a UsageError if a value is none of its choices."""
    if value not in choices:
        raise UsageError(argument, f"must be one of {', '.join(choices)}", got=value)


def check_backend(
    backend: Backend,
    quantization: str | None,
    ensemble: Sequence[object],
    device: torch.device,
    precision: str,
    workers: int | None,
) -> None:
    """Check the arguments of `Translator.load` that depend on the backend.

    Raises:
        UsageError: an argument has no effect on the backend, or the backend cannot run here.
    """
    check_choice("`backend`", backend, get_args(Backend))
    if backend == "native":
        what = 'has no effect without `backend="ctranslate2"`'
        check_usage(Rule("`quantization`", what, quantization is not None, quantization))
        return
    ctranslate2 = '`backend="ctranslate2"`'
    no_effect = f"has no effect on {ctranslate2}"
    check_usage(
        Rule(
            ctranslate2,
            "is for one process, which has threads",
            num_processes() > 1,
            remedy="drop torchrun",
        ),
        Rule("`ensemble`", no_effect, ensemble, remedy="leave one of them out"),
        Rule("`precision`", no_effect, precision != "float32", precision, "use `quantization`"),
        Rule(
            "`workers`",
            f"has no effect on {ctranslate2}, which has threads",
            workers not in (None, 1),
            str(workers),
            "leave it out",
        ),
        Rule(
            "`device`",
            f"must be cpu with {ctranslate2}",
            device.type != "cpu",
            str(device),
            'add `device="cpu"`',
        ),
    )
