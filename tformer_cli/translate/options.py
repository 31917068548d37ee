"""Options of a translator and of a translation, and checks of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TypedDict, get_args

from tformer_cli.choices import LongLines, Utility
from tformer_cli.config.load import changed_decoding
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import (
    BeamConfig,
    DecodingConfig,
    GreedyConfig,
    SampleConfig,
    SearchConfig,
)
from tformer_cli.config.schema.fields import checked
from tformer_cli.errors import (
    ConfigError,
    Problem,
    UsageError,
    check_choice,
    check_positive,
    reject_str,
)
from tformer_cli.text.segments import Terminology

# Default number of samples.
NUM_SAMPLES = 32
# Beam size of a second search where the first one was no beam search.
RETRY_BEAM_SIZE = 5

_SEARCHES = {"greedy": "greedy search", "beam": "beam search", "sample": "sampling"}
LEAVE_ONE_OUT = "leave one of them out"


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Changes to the search of a run.

    Attributes:
        beam_size: size of a beam search; 1 is greedy search.
        length_penalty: exponent A of score = log probability / length ** A.
        settings: overrides of keys, such as `decoding.patience=2`.
    """

    beam_size: int | None = None
    length_penalty: float | None = None
    settings: Sequence[str] = ()

    def apply(self, config: Config) -> DecodingConfig:
        """Return the search of a run with the changes.

        Raises:
            ConfigError: a change breaks a rule.
            UsageError: changes contradict each other, or a length penalty has no effect.
        """
        reject_str(settings=self.settings)
        own = config.decoding if self.beam_size is None else _with_beam(config, self.beam_size)
        search = changed_decoding(replace(config, decoding=own), self.settings)
        beam_size = {"greedy": 1}.get(search.kind, getattr(search, "beam_size", None))
        if self.beam_size not in (None, beam_size):
            key = "beam_size" if isinstance(search, BeamConfig) else "kind"
            what = f"contradicts `settings`, by which {key} is {getattr(search, key)}"
            got = str(self.beam_size)
            raise UsageError("`beam_size`", what, got=got, remedy=LEAVE_ONE_OUT)
        if self.length_penalty is not None:
            got = f"{self.length_penalty:g}"
            if not isinstance(search, BeamConfig):
                what = f"has no effect on {_SEARCHES[search.kind]}"
                raise UsageError("`length_penalty`", what, got=got, remedy="add `beam_size=5`")
            is_set = any(map(_sets_length_penalty, self.settings))
            if is_set and search.length_penalty != self.length_penalty:
                what = f"contradicts `settings`, by which length_penalty is {search.length_penalty}"
                raise UsageError("`length_penalty`", what, got=got, remedy=LEAVE_ONE_OUT)
            search = replace(search, length_penalty=self.length_penalty)
        return checked(search, "decoding")


def _sets_length_penalty(setting: str) -> bool:
    """Return whether a setting names the length penalty, alone or in the whole section."""
    key, _, value = setting.partition("=")
    return key == "decoding.length_penalty" or (key == "decoding" and "length_penalty" in value)


# A translator checks its search for each call, which takes as long as encoding a line.
@lru_cache(maxsize=16)
def _check_search(search: DecodingConfig) -> None:
    checked(search, "decoding")


def _with_beam(config: Config, size: int) -> DecodingConfig:
    """Return the search of a run as beam search of another size; 1 is greedy search."""
    search = config.decoding
    if size > 1 and isinstance(search, BeamConfig):
        return replace(search, beam_size=size)
    common = {part.name: getattr(search, part.name) for part in fields(SearchConfig)}
    return GreedyConfig(**common) if size == 1 else BeamConfig(beam_size=size, **common)


def retry_search(search: DecodingConfig) -> BeamConfig:
    """Return the beam search that translates again what a search did not translate well."""
    if isinstance(search, BeamConfig):
        return replace(search, num_beam_groups=1)
    common = {part.name: getattr(search, part.name) for part in fields(SearchConfig)}
    return BeamConfig(beam_size=RETRY_BEAM_SIZE, **common)


@dataclass(frozen=True, slots=True)
class MBR:
    """Minimum-Bayes-risk decoding (Kumar and Byrne 2004; Eikema and Aziz 2022).

    Attributes:
        utility: similarity of two sentences: sentence chrF2, or sentence BLEU with exponential
            smoothing and effective order, as in sacrebleu.
        num_candidates: hypotheses of a line to choose from; None for the beam size, or 32 samples.
    """

    utility: Utility = "chrf"
    num_candidates: int | None = None

    def __post_init__(self) -> None:
        check_choice("`utility`", self.utility, get_args(Utility))
        if self.num_candidates is not None:
            check_positive("`num_candidates`", self.num_candidates)

    def num_hypotheses(self, decoding: DecodingConfig) -> int:
        """Return how many hypotheses of a sentence the search must return, and refuse fewer."""
        remedy = "use `BeamConfig(beam_size={})`, or decoding.kind=sample"
        if isinstance(decoding, GreedyConfig):
            raise UsageError("`mbr`", "has no effect on greedy search", remedy=remedy.format(8))
        if not isinstance(decoding, BeamConfig):
            return self.num_candidates or NUM_SAMPLES
        count = self.num_candidates or decoding.beam_size
        if count > decoding.beam_size:
            what = f"must be at most the beam size {decoding.beam_size}"
            remedy = remedy.format(count)
            raise UsageError("`num_candidates`", what, got=str(count), remedy=remedy)
        return count


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
        decoding: the search, or changes to that of the run; None for the run's own.
        mbr: minimum-Bayes-risk decoding: choose by mean utility, which becomes the `score`. Equal
            texts count as one translation, so fewer may come. None ranks by the search.
        tags: of the training texts, such as `back-translated`, that each source begins with.
        banned: words and phrases that no translation contains, as the target tokenizer spells them.
        terminology: terms whose translations are required where a line, or a piece of a long line,
            contains them; needs beam search.
        scored: whether to compute scores of single translations; without it they may be NaN.
        aligned: whether to compute word alignments.
        inspected: whether to find the `defects` of translations, and the `confidence` where the
            run is calibrated.
        repair: whether a translation with defects is replaced by another one with fewer.
        keep: spans that each translation has as often as its line: addresses, placeholders,
            numbers, or regular expressions. Those that no search brings are put into the text.
        name: file of the lines, for messages.
        first_line: number of the first line, for messages and for sampling noise.
        line_stride: difference between the numbers of two consecutive lines.
        on_done: called with the number of lines whenever some are translated; a long line counts in
            proportion to its pieces.
        on_warning: called for each long line, once for lines of many sentences, and once when
            memory runs out and batches become smaller.
    """

    decoding: DecodingConfig | SearchOptions | None
    mbr: MBR | None
    tags: Sequence[str]
    banned: Sequence[str]
    terminology: Terminology | None
    scored: bool
    aligned: bool
    inspected: bool
    repair: bool
    keep: Sequence[str]
    name: str | None
    first_line: int
    line_stride: int
    on_done: Callable[[int], object]
    on_warning: Callable[[Problem], object]


def resolve_search(
    decoding: DecodingConfig | SearchOptions | None,
    config: Config,
    requiring: str | None = None,
) -> DecodingConfig:
    """Return the given search, that of a run with changes, or by default the run's own; checked.

    Args:
        decoding: the search, or changes.
        config: of the run.
        requiring: argument that requires phrases, if there is one.

    Raises:
        UsageError: it is no search, cannot require phrases, or the changes contradict each other.
        ConfigError: all limits and rules that it breaks.
    """
    search = config.decoding if decoding is None else decoding
    if isinstance(search, SearchOptions):
        search = search.apply(config)
    if not isinstance(search, BeamConfig | GreedyConfig | SampleConfig):
        remedy = "pass BeamConfig(beam_size=5), GreedyConfig() or SampleConfig()"
        raise UsageError("`decoding`", "must be a search", got=repr(search), remedy=remedy)
    _check_search(search)
    if config.model.max_length is not None:
        problems = list(search.conflicts_of_positions(config.model.max_length, "decoding."))
        if problems:
            raise ConfigError(problems)
    if requiring is not None:
        if not isinstance(search, BeamConfig):
            remedy = "use `BeamConfig(beam_size=5)`"
            raise UsageError(requiring, "needs beam search", got=search.kind, remedy=remedy)
        if search.num_beam_groups > 1:
            got = str(search.num_beam_groups)
            remedy = "use decoding.num_beam_groups=1"
            raise UsageError(requiring, "needs a beam of one group", got=got, remedy=remedy)
    return search


def resolve_num_hypotheses(search: DecodingConfig, count: int, mbr: MBR | None) -> int:
    """Return how many hypotheses of a sentence the search must return for `count` translations."""
    check_positive("`count`", count)
    num_hypotheses = count if mbr is None else mbr.num_hypotheses(search)
    if count > num_hypotheses:
        what = f"must be at most the {num_hypotheses} candidates of `mbr`"
        remedy = f"use `MBR(num_candidates={count})`"
        raise UsageError("`count`", what, got=str(count), remedy=remedy)
    beam_size = search.beam_size if isinstance(search, BeamConfig) else 1
    if count > beam_size and not isinstance(search, SampleConfig):
        what = f"must be at most the beam size {beam_size}"
        remedy = f"use `BeamConfig(beam_size={count})`"
        raise UsageError("`count`", what, got=str(count), remedy=remedy)
    return num_hypotheses
