"""Search: `decoding`, and `training.validation_decoding`."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from tformer_cli.config.schema.fields import Bounds, Count, CountOrZero, Former, Seed
from tformer_cli.errors import Problem

# Far above any useful value, and far below the end of float32.
Penalty = Annotated[float, Bounds(ge=0, le=1000)]
Factor = Annotated[float, Bounds(ge=0.001, le=1000)]

DEFAULT_DIVERSITY = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """What all searches share."""

    max_length: Count = 256
    """Maximum translation length in tokens, including EOS."""
    max_length_ratio: Annotated[float, Bounds(gt=0, le=1000)] | None = None
    """Maximum target/source length ratio (EOS excluded); null for no limit."""
    min_length: Count = 1
    """Minimum translation length in tokens, excluding EOS."""
    min_length_ratio: Annotated[float, Bounds(ge=0, le=1000)] = 0.0
    """Minimum target/source length ratio (EOS excluded)."""
    repetition_penalty: Factor = 1.0
    """Factor of the log probability of tokens already generated (Keskar et al. 2019)."""
    frequency_penalty: Penalty = 0.0
    """Subtracted from a token's log probability for each time it was already generated."""
    no_repeat_ngram_size: Annotated[CountOrZero, Former("no_repeat_ngram")] = 0
    """N-grams of this size occur at most once; 0 for no limit."""

    def conflicts_of_positions(self, longest: int, path: str) -> Iterator[Problem]:
        """Yield what conflicts with learned positions for at most `longest` target tokens."""
        if self.max_length > longest:
            yield Problem(
                f"{path}max_length",
                f"must be at most the {longest} that model.positions.max_length leaves",
                str(self.max_length),
            )

    def conflicts(self) -> Iterator[Problem]:
        # One token is generated whatever the limit.
        if self.min_length > 1 and self.min_length >= self.max_length:
            what = f"must be below max_length {self.max_length}, which counts the end token"
            yield Problem("min_length", what)
        if self.max_length_ratio is not None and self.min_length_ratio > self.max_length_ratio:
            what = f"must be at most max_length_ratio {self.max_length_ratio}"
            yield Problem("min_length_ratio", what)


@dataclass(frozen=True, kw_only=True, slots=True)
class GreedyConfig(SearchConfig):
    """Greedy search."""

    kind: Literal["greedy"] = "greedy"
    """The most probable token at each step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BeamConfig(SearchConfig):
    """Beam search by CTranslate2's rules."""

    kind: Literal["beam"] = "beam"
    """Beam search."""
    beam_size: Annotated[int, Bounds(ge=1, le=1000), Former("size")] = 5
    """Hypotheses kept at each step."""
    length_penalty: Annotated[float, Bounds(ge=0, le=10)] = 1.0
    """Score = log probability / length ** length_penalty; 0 favors short translations."""
    patience: Annotated[float, Bounds(gt=0, le=1000)] = 1.0
    """Stop when beam_size * patience hypotheses are finished (Kasai et al. 2022)."""
    coverage_penalty: Penalty = 0.0
    """Weight of the coverage penalty, sum of log(min(attention to a source token, 1))."""
    num_beam_groups: Annotated[Count, Former("groups")] = 1
    """Groups of diverse beam search (Vijayakumar et al. 2018)."""
    diversity_penalty: Annotated[Penalty, Former("diversity")] = DEFAULT_DIVERSITY
    """Diversity penalty: subtracted from a token's score for each earlier group that selected it at
    this step."""

    @property
    def enough(self) -> int:
        """Number of finished hypotheses that end the search of a sentence."""
        # C++ rounds 2.5 to 3, `round` to 2.
        return math.floor(self.beam_size * self.patience + 0.5)

    def conflicts(self) -> Iterator[Problem]:
        yield from SearchConfig.conflicts(self)
        if self.beam_size % self.num_beam_groups:
            yield Problem("num_beam_groups", f"must divide beam_size {self.beam_size}")
        if self.num_beam_groups == 1 and self.diversity_penalty != DEFAULT_DIVERSITY:
            yield Problem(
                "diversity_penalty",
                "has no effect on one group",
                remedy="set num_beam_groups to 2 or more, or leave it out",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleConfig(SearchConfig):
    """Sampling."""

    kind: Literal["sample"] = "sample"
    """Each token is sampled from the model's distribution."""
    temperature: Factor = 1.0
    """Softmax temperature; below 1 the distribution is sharper."""
    top_k: CountOrZero = 0
    """Sample among the k most probable tokens (Fan et al. 2018); 0 for all."""
    top_p: Annotated[float, Bounds(ge=1e-6, le=1)] = 1.0
    """Nucleus sampling: the smallest set of tokens with this probability (Holtzman et al. 2020)."""
    seed: Seed = 1
    """Random seed; a line's samples depend on it, on their number and on the line number only."""


DecodingConfig = BeamConfig | GreedyConfig | SampleConfig


def search_in_words(decoding: Mapping[str, Any]) -> str:
    """Return a search, as plain data, in words, with what `tformer tune` changes."""
    kind, size = decoding["kind"], decoding["no_repeat_ngram_size"]
    limit = f", no repeated {size}-grams" if size else ""
    if kind != "beam":
        return f"{kind}{limit}"
    penalty = decoding["length_penalty"]
    length = f", length penalty {penalty:g}" if penalty != 1 else ""
    return f"beam {decoding['beam_size']}{length}{limit}"
