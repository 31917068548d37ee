"""Options of a translator and of a translation, and checks of them."""

from collections.abc import Callable, Sequence
from typing import Literal, TypedDict, get_args

import torch

from tformer_cli.config.schema.decoding import (
    BeamConfig,
    DecodingConfig,
    GreedyConfig,
    SampleConfig,
)
from tformer_cli.config.schema.fields import checked
from tformer_cli.distributed import num_processes
from tformer_cli.errors import (
    ConfigError,
    Problem,
    Rule,
    UsageError,
    check_choice,
    check_usage,
)
from tformer_cli.text.segments import Terminology
from tformer_cli.translate.mbr import MBR

Backend = Literal["native", "ctranslate2"]
LongLines = Literal["split", "truncate", "error"]


class LineLimits(TypedDict, total=False):
    """What a translator does with long lines.

    Attributes:
        long_lines: what to do with a line above `max_source_length`: split, truncate or error.
        max_source_length: maximum number of tokens of a line, EOS excluded; None for the run's
            `data.filters.max_length`.
        max_source_sentences: maximum number of sentences of a line that is not split.
    """

    long_lines: LongLines
    max_source_length: int | None
    max_source_sentences: int | None


class TranslateOptions(TypedDict, total=False):
    """Options of a translation.

    Attributes:
        decoding: the search; None for the run's own.
        mbr: minimum-Bayes-risk decoding: choose by mean utility, which becomes the `score`. Equal
            texts count as one translation, so fewer may come. None ranks by the search.
        banned: words and phrases that no translation contains, as the target tokenizer spells them.
        terminology: terms whose translations are required where a line, or a piece of a long line,
            contains them; needs beam search.
        scored: whether to compute scores; without it they may be NaN.
        aligned: whether to compute word alignments.
        name: file of the lines, for messages.
        start: number of the first line, for messages and for sampling noise.
        step: difference between the numbers of two consecutive lines.
        on_done: called with the number of lines whenever some are translated; a long line counts in
            proportion to its pieces.
        on_warning: called for each long line, once for lines of many sentences, and once when
            memory runs out and batches become smaller.
    """

    decoding: DecodingConfig | None
    mbr: MBR | None
    banned: Sequence[str]
    terminology: Terminology | None
    scored: bool
    aligned: bool
    name: str | None
    start: int
    step: int
    on_done: Callable[[int], object]
    on_warning: Callable[[Problem], object]


def check_search(
    decoding: DecodingConfig, max_positions: int | None, requiring: str | None = None
) -> None:
    """Check a search.

    Args:
        decoding: the search.
        max_positions: number of learned positions; None for no limit.
        requiring: argument that requires phrases, if there is one.

    Raises:
        UsageError: it is no search, or cannot require phrases.
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
    if requiring is None:
        return
    if not isinstance(decoding, BeamConfig):
        remedy = "use `BeamConfig(beam_size=5)`"
        raise UsageError(requiring, "needs beam search", got=decoding.kind, remedy=remedy)
    if decoding.num_beam_groups > 1:
        got, remedy = str(decoding.num_beam_groups), "use decoding.num_beam_groups=1"
        raise UsageError(requiring, "needs a beam of one group", got=got, remedy=remedy)


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
            "is for one process with threads",
            num_processes() > 1,
            remedy="drop torchrun",
        ),
        Rule("`ensemble`", no_effect, ensemble, remedy="leave one of them out"),
        Rule("`precision`", no_effect, precision != "float32", precision, "use `quantization`"),
        Rule(
            "`workers`",
            f"has no effect on {ctranslate2}, which uses threads",
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
