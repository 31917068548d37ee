"""How translations are searched for: `decoding`, and `training.validation_decoding`."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from tformer_cli.config.schema.limits import (
    Bounds,
    Conflict,
    Count,
    CountOrZero,
    Former,
    Seed,
)

# More than anybody asks for, and far from where float32 ends.
Penalty = Annotated[float, Bounds(minimum=0, maximum=1000)]
Factor = Annotated[float, Bounds(minimum=0.001, maximum=1000)]


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """What every search keeps to."""

    max_length: Count = 256
    """Longest translation, in tokens, the end token included."""
    max_length_ratio: Annotated[float, Bounds(above=0, maximum=1000)] | None = None
    """Longest translation for each token of the source, end tokens apart; null sets no limit."""
    min_length: Count = 1
    """Shortest translation, in tokens, the end token apart."""
    min_length_ratio: Annotated[float, Bounds(minimum=0, maximum=1000)] = 0.0
    """Shortest translation for each token of the source, end tokens apart."""
    repetition_penalty: Factor = 1.0
    """Factor of the log probability of a token that is written already (Keskar et al. 2019)."""
    frequency_penalty: Penalty = 0.0
    """Taken off the log probability of a token for each time that it is written already."""
    no_repeat_ngram_size: Annotated[CountOrZero, Former("no_repeat_ngram")] = 0
    """No n-gram of so many tokens comes twice; 0 lets all."""

    def conflicts_of_positions(self, longest: int) -> Iterator[Conflict]:
        """Yield what is wrong where the model has learnt to write so many tokens at most."""
        if self.max_length > longest:
            yield Conflict(
                "max_length",
                f"must be at most what model.positions.max_length leaves ({longest})",
                str(self.max_length),
            )

    def conflicts(self) -> Iterator[Conflict]:
        # A single token is written whatever the limit.
        if self.min_length > 1 and self.min_length >= self.max_length:
            what = f"must be below max_length ({self.max_length}), which counts the end token"
            yield Conflict("min_length", what, str(self.min_length))


@dataclass(frozen=True, kw_only=True, slots=True)
class GreedyConfig(SearchConfig):
    """The most probable token at each step."""

    kind: Literal["greedy"] = "greedy"
    """The most probable token at each step."""


# Between groups of a beam, where the config says no other.
DIVERSITY = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class BeamConfig(SearchConfig):
    """Beam search by CTranslate2's rules."""

    kind: Literal["beam"] = "beam"
    """The best of several translations kept at each step."""
    beam_size: Annotated[int, Bounds(minimum=1, maximum=1000), Former("size")] = 5
    """Translations kept alive at each step."""
    length_penalty: Annotated[float, Bounds(minimum=0, maximum=10)] = 1.0
    """The score is log probability / length ** length_penalty; 0 favours short translations."""
    patience: Annotated[float, Bounds(above=0, maximum=1000)] = 1.0
    """Stop when beam_size * patience translations are finished (Kasai et al. 2022)."""
    coverage_penalty: Penalty = 0.0
    """Weight, in the score, of the sum of log(min(attention to a source token, 1))."""
    num_beam_groups: Annotated[Count, Former("groups")] = 1
    """Parts of the beam that keep apart from each other (Vijayakumar et al. 2018)."""
    diversity_penalty: Annotated[Penalty, Former("diversity")] = DIVERSITY
    """What a group takes off a token for each time that one before it chose it at this step."""

    @property
    def enough(self) -> int:
        """Finished translations that end the search of a sentence."""
        # By `round` 2.5 would be 2, but by C++ it is 3.
        return math.floor(self.beam_size * self.patience + 0.5)

    def conflicts(self) -> Iterator[Conflict]:
        yield from SearchConfig.conflicts(self)
        if self.beam_size % self.num_beam_groups:
            yield Conflict(
                "num_beam_groups",
                f"must divide beam_size ({self.beam_size})",
                str(self.num_beam_groups),
            )
        if self.num_beam_groups == 1 and self.diversity_penalty != DIVERSITY:
            yield Conflict(
                "diversity_penalty",
                "has no effect on one group",
                f"{self.diversity_penalty:g}",
                "set num_beam_groups to 2 or more, or leave it out",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleConfig(SearchConfig):
    """Tokens drawn at random."""

    kind: Literal["sample"] = "sample"
    """Each token drawn by its probability."""
    temperature: Factor = 1.0
    """Log probabilities are divided by it before the draw: below 1 is more careful."""
    top_k: CountOrZero = 0
    """Draw among so many most probable tokens (Fan et al. 2018); 0 draws among all."""
    top_p: Annotated[float, Bounds(minimum=1e-6, maximum=1)] = 1.0
    """Draw among the fewest tokens that reach this probability (Holtzman et al. 2020)."""
    seed: Seed = 1
    """What is drawn for a line is a function of this seed and of the line's number."""


DecodingConfig = BeamConfig | GreedyConfig | SampleConfig
