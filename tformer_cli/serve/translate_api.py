"""The server's own API: /api/translate and /api/models."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tformer_cli.config.load import as_plain
from tformer_cli.config.schema.text import Direction
from tformer_cli.errors import TformerError
from tformer_cli.serve.parameters import check_fields, job_of, request_schema
from tformer_cli.serve.queue import TranslationJob, TranslationQueue
from tformer_cli.serve.refusal import error_content
from tformer_cli.serve.service import Service
from tformer_cli.text.segments import text_spans
from tformer_cli.translate.postprocess import SCORE_DECIMALS, Translation
from tformer_cli.translate.translator import TranslatedLine


class TranslateApi:
    """Endpoints below /api/."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.schema = request_schema(service.limits)
        self.routes = [
            Route("/api/translate", self.translate, methods=["POST"]),
            Route("/api/models", self.models, methods=["GET"]),
        ]

    async def translate(self, request: Request) -> Response:
        """Translate the texts of a request."""
        self.service.keys.check(request.headers)
        fields, deadline = await self.service.read(request)
        check_fields(fields, self.schema)
        queue, direction = self.service.queue(*map(fields.get, ("model", "source", "target")))
        job = job_of(fields, queue.model, direction, self.service)
        if job.options.drafted:
            return self._stream(request, queue, job, deadline)
        lines = await self.service.translate(request, queue, job, deadline)
        return JSONResponse(answer_content(queue, job, lines))

    def _stream(
        self, request: Request, queue: TranslationQueue, job: TranslationJob, deadline: float
    ) -> Response:
        drafts = Drafts()
        job = replace(job, on_draft=drafts.put)
        queue.submit(job)

        async def events() -> AsyncIterator[bytes]:
            answer = asyncio.ensure_future(self.service.wait(request, job, deadline))
            answer.add_done_callback(lambda _: drafts.close())
            try:
                async for index, text in drafts:
                    yield event("draft", {"index": index, "text": text})
                yield event("answer", answer_content(queue, job, await answer))
            except TformerError as error:
                yield event("error", error_content(error))
            except ClientDisconnect:
                pass
            finally:
                answer.cancel()

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)

    async def models(self, request: Request) -> JSONResponse:
        """List the models, once for each of their directions, and limits of a request."""
        models = [model_content(*each) for each in self.service.directions]
        limits = self.service.limits
        names = ("max_body", "max_candidates", "max_characters", "max_texts")
        return JSONResponse({"models": models, **{name: getattr(limits, name) for name in names}})


class Drafts:
    """The latest draft of each text that is still to be sent: a slow client gets fewer of them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._texts: dict[int, str] = {}  # by the index of the text
        self._is_open = True

    def put(self, index: int, text: str) -> None:
        """Keep a draft; called in any thread."""
        if self._is_open:
            self._texts[index] = text
            # A server that has been stopped has no loop any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._changed.set)

    def close(self) -> None:
        """Drop all drafts, and those to come."""
        self._is_open = False
        self._texts.clear()
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[tuple[int, str]]:
        while self._is_open:
            await self._changed.wait()
            self._changed.clear()
            for index in list(self._texts):
                text = self._texts.pop(index, None)
                if text is not None:
                    yield index, text


def event(name: str, content: dict[str, Any]) -> bytes:
    """Return an event as the HTML standard writes it (section 9.2, server-sent events)."""
    return f"event: {name}\ndata: {json.dumps(content)}\n\n".encode()


def answer_content(
    queue: TranslationQueue, job: TranslationJob, lines: list[TranslatedLine]
) -> dict[str, Any]:
    """Return what an answer says; defects only where they were asked for."""
    assert job.options.direction is not None, "that of the request"
    source, target = job.options.direction
    texts = [text_content(line) for line in lines]
    if job.options.inspected:
        for content, line in zip(texts, lines, strict=True):
            for translation, each in zip(content["translations"], line.translations, strict=True):
                translation["defects"] = [asdict(defect) for defect in each.defects]
                translation["repair"] = each.repair
    return {
        "model": queue.model.name,
        "source": source,
        "target": target,
        "texts": texts,
    }


def text_content(line: TranslatedLine) -> dict[str, Any]:
    """Return what an answer says of a text."""
    content: dict[str, Any] = {"translations": list(map(translation_content, line.translations))}
    best = line.translations[0]
    if best.source_tokens is not None:
        content["source_tokens"] = best.source_tokens
        content["source_words"] = text_spans(line.source, best.source_words or ())
    return content


def translation_content(translation: Translation) -> dict[str, Any]:
    """Return what an answer says of a translation.

    Tokens and links only where they are aligned, and a confidence only where there is one.
    """
    content: dict[str, Any] = {
        "text": translation.text,
        "score": round(translation.score, SCORE_DECIMALS),
        "log_prob": round(translation.log_prob, SCORE_DECIMALS),
        "finished": translation.finished,
    }
    if translation.confidence is not None:
        content["confidence"] = translation.confidence
    if translation.alignments is not None:
        content |= {"tokens": translation.tokens, "alignments": translation.alignments}
        content["words"] = text_spans(translation.text, translation.words or ())
    return content


def model_content(queue: TranslationQueue, direction: Direction) -> dict[str, Any]:
    """Return what the list of models says of one in a direction."""
    model = queue.model
    translator = model.translator
    source, target = direction
    return {
        "name": model.name,
        "source": source,
        "target": target,
        "checkpoint": None if model.version is None else model.version.folder.name,
        "tags": list(translator.tags),
        "can_align": translator.load_aligner is not None,
        "decoding": as_plain(translator.config.decoding),
    }
