"""The models of a server, and how an endpoint waits for one of them."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from starlette.requests import ClientDisconnect, Request

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig
from tformer_cli.config.schema.text import Direction
from tformer_cli.errors import Problem, check_positive
from tformer_cli.serve.body import read_fields
from tformer_cli.serve.guard import ApiKeys
from tformer_cli.serve.metrics import Metrics
from tformer_cli.serve.model import ServedModel
from tformer_cli.serve.queue import TranslationJob, TranslationQueue
from tformer_cli.serve.refusal import OutOfTime, SlowBody, Unprocessable
from tformer_cli.translate.translator import TranslatedLine


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a request, and of the requests that wait.

    Attributes:
        max_body: bytes of a body.
        max_characters: characters of a text.
        max_texts: texts of a request.
        max_candidates: translations and candidates of a text, and a beam larger than the run's own.
        max_waiting: requests that wait for one model.
        timeout: seconds from the first byte of a body to the answer.
    """

    max_body: int = 2**20
    max_characters: int = 5000
    max_texts: int = 128
    max_candidates: int = 32
    max_waiting: int = 256
    timeout: int = 60

    def __post_init__(self) -> None:
        for limit in fields(self):
            check_positive(f"`{limit.name}`", getattr(self, limit.name))


@dataclass(frozen=True, kw_only=True)
class Service:
    """The queues of a server, each with its model, and what all endpoints share."""

    queues: Sequence[TranslationQueue]
    limits: Limits = field(default_factory=Limits)
    keys: ApiKeys = field(default_factory=ApiKeys)
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def directions(self) -> Iterator[tuple[TranslationQueue, Direction]]:
        """Each queue with each direction of its model."""
        return ((queue, each) for queue in self.queues for each in queue.model.directions)

    def queue(
        self, model: str | None = None, source: str | None = None, target: str | None = None
    ) -> tuple[TranslationQueue, Direction]:
        """Return the queue of a model, or the first one of a direction; each part may be left out.

        Raises:
            Unprocessable: there is none, or several and nothing that chooses.
        """
        given = {"model": model, "source": source, "target": target}
        named = {name: value for name, value in given.items() if value is not None}
        matching = [each for each in self.directions if named.items() <= _names(*each).items()]
        if not matching:
            got = ", ".join(f"{name}={value}" for name, value in named.items())
            what = "no such model"
            raise Unprocessable([Problem(", ".join(named), what, got=got, remedy=self._choices())])
        first, direction = matching[0]
        if not named and any(queue is not first for queue, _ in matching):
            what = "is required: there are several models"
            raise Unprocessable([Problem("model", what, remedy=self._choices())])
        own = [names for queue, names in matching if queue is first]
        for name, side in (("target", 1), ("source", 0)):
            if len({names[side] for names in own}) > 1:
                what = "is required: the model has several directions"
                raise Unprocessable([Problem(name, what, remedy=self._choices())])
        return first, direction

    def _choices(self) -> str:
        named = (_names(*each) for each in self.directions)
        choices = ["{model} ({source} -> {target})".format(**names) for names in named]
        return f"choose from: {', '.join(choices)}"

    def check_search(
        self, decoding: DecodingConfig, num_hypotheses: int, model: ServedModel
    ) -> None:
        """Refuse a search that takes far longer than those of the run.

        Raises:
            Unprocessable: all limits that it breaks.
        """
        most = self.limits.max_candidates
        asked = {"decoding.max_length": (decoding.max_length, model.max_length)}
        if isinstance(decoding, BeamConfig):
            own = getattr(model.translator.config.decoding, "beam_size", 1)
            asked["decoding.beam_size"] = (decoding.beam_size, max(own, most))
        asked["candidates"] = (num_hypotheses, most)
        problems = [
            Problem(name, f"must be at most {limit}", got=str(value))
            for name, (value, limit) in asked.items()
            if value > limit
        ]
        if problems:
            raise Unprocessable(problems)

    async def read(
        self, request: Request, *, max_form_fields: int | None = None
    ) -> tuple[dict[str, Any], float]:
        """Return the fields of a body, and the deadline of their answer.

        Raises:
            Refusal: the body is too large, too slow, or not what its type says.
        """
        deadline = asyncio.get_running_loop().time() + self.limits.timeout
        try:
            async with asyncio.timeout_at(deadline):
                fields = await read_fields(
                    request, self.limits.max_body, max_form_fields=max_form_fields
                )
        except TimeoutError:
            what = "has not arrived in time"
            raise SlowBody("body", what, got=f"{self.limits.timeout} s") from None
        return fields, deadline

    async def translate(
        self, request: Request, queue: TranslationQueue, job: TranslationJob, deadline: float
    ) -> list[TranslatedLine]:
        """Return the translated lines of a job that waits in a queue from now on.

        Raises:
            TformerError: the queue has no room; all else is as for `wait`.
        """
        queue.submit(job)
        return await self.wait(request, job, deadline)

    async def wait(
        self, request: Request, job: TranslationJob, deadline: float
    ) -> list[TranslatedLine]:
        """Return the translated lines of a job, which is withdrawn where its client is gone.

        Args:
            request: of which the body has been read.
            job: waits in a queue.
            deadline: in the time of the event loop.

        Raises:
            OutOfTime: they are not done before the deadline.
            ClientDisconnect: the client is gone.
            TformerError: a line or an option is wrong.
        """
        translated = asyncio.wrap_future(job.future)
        gone = asyncio.ensure_future(_disconnection(request))
        try:
            seconds = deadline - asyncio.get_running_loop().time()
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait((translated, gone), timeout=seconds, return_when=first)
            if translated.done():
                return translated.result()
            if gone.done():
                raise ClientDisconnect
            got = f"{self.limits.timeout} s"
            remedy = "send fewer texts, or repeat it later"
            raise OutOfTime("text", "has not been translated in time", got=got, remedy=remedy)
        finally:
            translated.cancel()
            gone.cancel()


def _names(queue: TranslationQueue, direction: Direction) -> dict[str, str]:
    source, target = direction
    return {"model": queue.model.name, "source": source, "target": target}


async def _disconnection(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
