"""The server's own API: /api/translate and /api/models."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tformer_cli.config.load import as_plain
from tformer_cli.serve.parameters import check_fields, job_of, request_schema
from tformer_cli.serve.queue import TranslationQueue
from tformer_cli.serve.service import Service
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

    async def translate(self, request: Request) -> JSONResponse:
        """Translate the texts of a request."""
        self.service.keys.check(request.headers)
        fields, deadline = await self.service.read(request)
        check_fields(fields, self.schema)
        queue = self.service.queue(*map(fields.get, ("model", "source", "target")))
        job = job_of(fields, queue.model.translator, self.service)
        lines = await self.service.translate(request, queue, job, deadline)
        source, target = queue.model.direction
        return JSONResponse(
            {
                "model": queue.model.name,
                "source": source,
                "target": target,
                "texts": [text_content(line) for line in lines],
            }
        )

    async def models(self, request: Request) -> JSONResponse:
        """List the models."""
        return JSONResponse({"models": [model_content(queue) for queue in self.service.queues]})


def text_content(line: TranslatedLine) -> dict[str, Any]:
    """Return what an answer says of a text."""
    content: dict[str, Any] = {"translations": list(map(translation_content, line.translations))}
    if line.translations[0].source_tokens is not None:
        content["source_tokens"] = line.translations[0].source_tokens
    return content


def translation_content(translation: Translation) -> dict[str, Any]:
    """Return what an answer says of a translation; tokens and links only where they are aligned."""
    content: dict[str, Any] = {
        "text": translation.text,
        "score": round(translation.score, SCORE_DECIMALS),
        "log_prob": round(translation.log_prob, SCORE_DECIMALS),
        "finished": translation.finished,
    }
    if translation.alignments is not None:
        content |= {"tokens": translation.tokens, "alignments": translation.alignments}
    return content


def model_content(queue: TranslationQueue) -> dict[str, Any]:
    """Return what the list of models says of one."""
    model = queue.model
    translator = model.translator
    source, target = model.direction
    return {
        "name": model.name,
        "source": source,
        "target": target,
        "checkpoint": None if model.version is None else model.version.folder.name,
        "tags": list(translator.tags),
        "can_align": translator.load_aligner is not None,
        "decoding": as_plain(translator.config.decoding),
    }
