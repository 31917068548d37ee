"""What an engine translates, token ids alone, and what it returns; without torch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig
from tformer_cli.errors import Problem

Phrase = tuple[int, ...]
# Source ids with EOS, and target ids without it.
Pair = tuple[Sequence[int], Sequence[int]]
OnDone = Callable[[int], object]
OnWarning = Callable[[Problem], object]
# Called with the index of a request and its best tokens so far, which a later step may replace.
OnDraft = Callable[[int, Phrase], object]


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Token ids with a meaning to a search."""

    bos: int  # begins every sequence
    eos: int  # ends every finished sequence
    suppressed: Sequence[int]  # no hypothesis contains them


@dataclass(frozen=True, slots=True)
class Request:
    """A sentence to translate."""

    source: Sequence[int]  # with EOS; an empty source has the empty hypothesis
    start: Phrase = ()  # first tokens of the hypothesis, of probability 1: the target language
    prefix: Phrase = ()  # forced tokens after these
    banned: tuple[Phrase, ...] = ()  # not in the hypothesis after its prefix
    required: tuple[Phrase, ...] = ()  # in the hypothesis, each as often as it is listed
    number: int = 0  # of the line; with the seed it determines sampling noise
    first_word: int = 0  # index of the word of the line that the source begins with
    num_tags: int = 0  # tags before the first token of text in the source

    @property
    def forced(self) -> Phrase:
        """All forced first tokens of the hypothesis."""
        return (*self.start, *self.prefix)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A translation in token ids."""

    token_ids: Phrase  # without BOS and EOS
    log_prob: float  # natural logarithm of the probability, with EOS if finished
    score: float  # what the search ranks by, higher is better
    finished: bool  # ended with EOS, not at the length limit

    @property
    def length(self) -> int:
        """Number of tokens, with EOS if finished."""
        return len(self.token_ids) + self.finished


EMPTY = Hypothesis(token_ids=(), log_prob=0.0, score=0.0, finished=True)


class Scorer(Protocol):
    """Scores given targets."""

    @property
    def max_length(self) -> int | None:
        """Longest source or target, EOS included; None for no limit."""

    def score(
        self, pairs: Sequence[Pair], *, on_done: Callable[[int], object] = lambda count: None
    ) -> list[tuple[float, ...]]:
        """Return for each pair the log probabilities of its target tokens and of EOS.

        They are natural logarithms given the tokens before; that of an impossible token is -inf. An
        empty source has one possible target, the empty one. `on_done` is called with the number of
        pairs whenever some are done. Memory that does not suffice for a single pair is an error.
        """


class Job(NamedTuple):
    """Requests and how to translate them; to decode, they have a source, longest first."""

    requests: Sequence[Request]
    config: DecodingConfig
    nbest: int
    scored: bool
    on_draft: OnDraft | None = None


class Engine(ABC):
    """Translates token ids.

    Attributes:
        scorer: scores by the same model.
        num_callers: threads whose calls it translates at the same time.
        lock: what a thread holds while it computes, if threads take turns.
    """

    scorer: Scorer
    lock: AbstractContextManager[object] = nullcontext()
    num_callers: ClassVar[int] = 1

    def translate(
        self,
        requests: Sequence[Request],
        config: DecodingConfig,
        *,
        nbest: int = 1,
        scored: bool = True,
        on_done: OnDone = lambda count: None,
        on_warning: OnWarning = lambda problem: None,
        on_draft: OnDraft | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each request, best first.

        Args:
            requests: what to translate; an empty source has the empty hypothesis.
            config: of the search.
            nbest: hypotheses of each request, at most the beam size; there are fewer where groups
                of a beam agree.
            scored: False leaves log probabilities and scores undefined (NaN), which is faster.
            on_done: called with the number of requests whenever some are done.
            on_warning: called once, when memory has run out and the batch becomes smaller.
            on_draft: called with translations as they grow, if the engine can tell.
        """
        self.check(requests, config, nbest)
        order = longest_first(requests)
        on_done(len(requests) - len(order))
        is_diverse = isinstance(config, BeamConfig) and config.num_beam_groups > 1
        results = [[EMPTY] * (1 if is_diverse else nbest) for _ in requests]
        job = Job([requests[index] for index in order], config, nbest, scored)
        if on_draft is not None:
            job = job._replace(on_draft=lambda index, ids: on_draft(order[index], ids))
        ranked = self.rerank(job, self.decode(job, on_done, on_warning))
        for index, hypotheses in zip(order, ranked, strict=True):
            results[index] = hypotheses
        return results

    def check(self, requests: Sequence[Request], config: DecodingConfig, nbest: int) -> None:  # noqa: B027
        """Refuse what the engine cannot do."""

    @abstractmethod
    def decode(self, job: Job, on_done: OnDone, on_warning: OnWarning) -> list[list[Hypothesis]]:
        """Return the hypotheses of each request of a job."""

    def rerank(self, job: Job, hypotheses: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each request, by what no search knows."""
        return hypotheses

    def with_cache(self) -> "Engine":
        """Return an engine that searches once for many length penalties, if this one can."""
        return self


def longest_first(requests: Sequence[Request]) -> list[int]:
    """Return the indices of requests with a source, longest sources first.

    So neighbors have similar lengths, and a shortage of memory shows at once.
    """
    indices = [index for index, request in enumerate(requests) if request.source]
    return sorted(indices, key=lambda index: -len(requests[index].source))


def by_score(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """Return hypotheses, best first; of equal scores the earlier one stays first."""
    return sorted(hypotheses, key=lambda hypothesis: hypothesis.score, reverse=True)
