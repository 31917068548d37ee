"""What a search is: it asks a stepper, and decides how rows go on and which sentences are done."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from tformer_cli.search.request import Hypothesis, Request
from tformer_cli.search.stepper import Stepper


@dataclass(frozen=True, slots=True)
class SearchStep:
    """What a step of a search has decided.

    Attributes:
        beam_indices: (B, K) the row of its place that each row goes on from; None where each
            goes on from itself.
        ended: the places whose sentences are done, with their hypotheses, best first.
    """

    beam_indices: Tensor | None = None
    ended: dict[int, list[Hypothesis]] = field(default_factory=dict)


class Search(Protocol):
    """Keeps K rows in each of B places; each place works on a sentence of its own."""

    num_beams: int

    def start(self, requests: Sequence[Request]) -> None:
        """Begin with a place for each request."""
        ...

    def insert(self, places: Tensor, requests: Sequence[Request]) -> None:
        """Begin these requests in places (B',) whose sentences are done."""
        ...

    def select(self, places: Tensor) -> None:
        """Keep these places (B',), in this order; one that comes twice is there twice."""
        ...

    def advance(self, stepper: Stepper) -> SearchStep:
        """Let the stepper read the newest token of each row, and add another one."""
        ...
