"""LibreTranslate's API: /translate, /languages, /detect and /health."""

import math
import re
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import DecodingConfig, SampleConfig
from tformer_cli.errors import Problem, TformerError
from tformer_cli.serve.parameters import text_or_texts
from tformer_cli.serve.queue import JobOptions, TranslationJob
from tformer_cli.serve.refusal import NotOffered, Unprocessable, refusal_answer, status_of
from tformer_cli.serve.schema import problems
from tformer_cli.serve.service import Limits, Service
from tformer_cli.translate.options import SearchOptions
from tformer_cli.translate.postprocess import Translation
from tformer_cli.translate.preprocess import InputLine

# Fields of a form beside its texts: clients may send further ones.
MAX_OTHER_FIELDS = 100

_LINE_END = re.compile(r"(\r\n?|\n)")  # browsers send forms with CRLF


def libretranslate_schema(limits: Limits) -> dict[str, Any]:
    """Return the schema of a body of /translate; clients may send further fields."""
    most = limits.max_candidates - 1
    return {
        "type": "object",
        "required": ["q", "source", "target"],
        "properties": {
            "q": text_or_texts(limits),
            "source": {"type": "string"},
            "target": {"type": "string"},
            "format": {"type": "string", "enum": ["text"]},
            "alternatives": {"type": "integer", "minimum": 0, "maximum": most},
            "api_key": {"type": "string"},
        },
    }


class LibreTranslateApi:
    """Endpoints that clients of LibreTranslate ask."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.schema = libretranslate_schema(service.limits)
        self.routes = [
            Route("/translate", self.translate, methods=["POST"]),
            Route("/languages", self.languages, methods=["GET"]),
            Route("/detect", self.detect, methods=["POST"]),
            Route("/health", self.health, methods=["GET"]),
        ]

    async def translate(self, request: Request) -> JSONResponse:
        """Translate a text, or a list of texts; line breaks stay where they are."""
        try:
            return JSONResponse(await self._translated(request))
        except TformerError as error:
            # LibreTranslate has one status for all that is wrong with fields.
            return refusal_answer(error, {422: 400}.get(status_of(error)))

    async def _translated(self, request: Request) -> dict[str, Any]:
        limits = self.service.limits
        max_fields = limits.max_texts + MAX_OTHER_FIELDS
        fields, deadline = await self.service.read(request, max_form_fields=max_fields)
        self.service.keys.check(request.headers, fields.get("api_key"))
        self._check(fields)
        queue, direction = self.service.queue(None, fields["source"], fields["target"])
        count = 1 + int(fields.get("alternatives", 0))
        decoding = with_candidates(queue.model.translator.config, count, limits.max_candidates)
        count = min(count, getattr(decoding, "beam_size", count))
        is_list = isinstance(fields["q"], list)
        # Lines, with the end of each but the last between them.
        texts = [_LINE_END.split(text) for text in (fields["q"] if is_list else [fields["q"]])]
        # A line of whitespace has an empty translation, and a text may have many.
        lines = [InputLine(line) for text in texts for line in text[::2] if line.strip()]
        options = JobOptions(decoding, direction, count, others={"scored": count > 1})
        job = TranslationJob(lines, options)
        translated = iter(await self.service.translate(request, queue, job, deadline))
        answers = [
            distinct_texts(
                [next(translated).translations if line.strip() else () for line in text[::2]],
                text[1::2],
            )
            for text in texts
        ]
        content: dict[str, Any] = {"translatedText": [best for best, *_ in answers]}
        if count > 1:
            content["alternatives"] = [others for _, *others in answers]
        return content if is_list else {name: values[0] for name, values in content.items()}

    def _check(self, fields: dict[str, Any]) -> None:
        """Refuse wrong fields; a number may come as text, as in forms."""
        number = fields.get("alternatives")
        if isinstance(number, str) and number.isdecimal() and len(number) < 10:
            fields["alternatives"] = int(number)
        broken = problems(fields, self.schema)
        if not broken and fields["source"] == "auto":
            what, remedy = "must be a language: none is detected", "name the language"
            broken = [Problem("source", what, got="auto", remedy=remedy)]
        if broken:
            raise Unprocessable(broken)

    async def languages(self, request: Request) -> JSONResponse:
        """List the languages, and those that each is translated into."""
        targets: dict[str, list[str]] = {}
        for _, (source, target) in self.service.directions:
            targets.setdefault(target, [])
            others = targets.setdefault(source, [])
            if target not in others:
                others.append(target)
        languages = [
            {"code": code, "name": code, "targets": others} for code, others in targets.items()
        ]
        return JSONResponse(languages)

    async def detect(self, request: Request) -> JSONResponse:
        """Refuse to detect a language."""
        raise NotOffered("/detect", "is not offered", remedy="name the language of a text")

    async def health(self, request: Request) -> JSONResponse:
        """Say that the server answers."""
        return JSONResponse({"status": "ok"})


def with_candidates(config: Config, count: int, most: int) -> DecodingConfig:
    """Return the search of a run, with a beam large enough for so many translations.

    A beam that has to grow has at most `most` translations. Those of a diverse beam, whose groups
    are of equal size, may then be fewer than asked for.
    """
    own = config.decoding
    if isinstance(own, SampleConfig) or getattr(own, "beam_size", 1) >= count:
        return own
    num_groups = getattr(own, "num_beam_groups", 1)
    group_size = min(math.ceil(count / num_groups), most // num_groups)
    return SearchOptions(beam_size=group_size * num_groups).apply(config)


def distinct_texts(lines: Sequence[Sequence[Translation]], ends: Sequence[str]) -> list[str]:
    """Return the translations of a text of several lines, best first, each once.

    Translation i of the text has the translations i of its lines, or the last ones they have, with
    the line ends between them. A line without translations is empty.
    """
    count = max(map(len, lines)) or 1
    texts = (
        "".join(
            (line[min(rank, len(line) - 1)].text if line else "") + end
            for line, end in zip(lines, (*ends, ""), strict=True)
        )
        for rank in range(count)
    )
    return list(dict.fromkeys(texts))
