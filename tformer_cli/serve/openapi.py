"""The API document (OpenAPI 3.1), of the schemas that check requests."""

from typing import Any

from tformer_cli import __version__
from tformer_cli.serve.body import FORM, JSON
from tformer_cli.serve.libretranslate import libretranslate_schema
from tformer_cli.serve.parameters import request_schema, texts_of
from tformer_cli.serve.schema import Schema
from tformer_cli.serve.service import Limits

TEXT = {"type": "string"}
NUMBER = {"type": "number"}
GUARDED = {
    "403": "The page is one of another site.",
    "421": "The host name is not one of this server.",
}
ERRORS = {
    "400": "The body is not valid.",
    "401": "An API key is required.",
    "408": "The body has not arrived in time.",
    "413": "The body is too large.",
    "415": "The body is of another media type.",
    "422": "Fields break rules.",
    "500": "The translation has failed.",
    "503": "The queue is full; Retry-After says when to repeat the request.",
    "504": "The translation is not done in time.",
    **GUARDED,
}


def openapi_document(limits: Limits) -> dict[str, Any]:
    """Return the document of a server with some limits."""
    own = operation("Translate texts.", TRANSLATED, [JSON], request_schema(limits))
    own["responses"]["200"]["content"]["text/event-stream"] = {"schema": TEXT}
    other = operation(
        "Translate texts, as LibreTranslate.",
        LIBRETRANSLATED,
        [JSON, FORM],
        libretranslate_schema(limits),
    )
    # LibreTranslate has one status for all that is wrong with a body.
    other["responses"]["400"] = other["responses"].pop("422") | {
        "description": "The body is not valid, or fields break rules."
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "tformer", "version": __version__},
        "paths": {
            "/api/translate": {"post": own},
            "/api/models": {"get": operation("List the models.", MODELS)},
            "/translate": {"post": other},
            "/languages": {"get": operation("List the languages.", LANGUAGES)},
            "/health": {"get": operation("Say that the server answers.", described(status=TEXT))},
            "/metrics": {"get": operation("Metrics of Prometheus.", TEXT, answer="text/plain")},
        },
        "components": {
            "schemas": {"Error": described(error=TEXT, problems=texts_of(TEXT))},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def operation(
    summary: str,
    result: Schema,
    media_types: list[str] | None = None,
    body: Schema | None = None,
    answer: str = JSON,
) -> dict[str, Any]:
    """Return the description of an operation; one with a body may need a key, and may fail."""
    responses: dict[str, Any] = {
        "200": {"description": "Done.", "content": {answer: {"schema": result}}}
    }
    error = {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    responses |= {
        status: {"description": words, "content": error}
        for status, words in (GUARDED if body is None else ERRORS).items()
    }
    if body is None or media_types is None:
        return {"summary": summary, "responses": responses}
    content = {media_type: {"schema": body} for media_type in media_types}
    return {
        "summary": summary,
        "security": [{}, {"key": []}],
        "requestBody": {"required": True, "content": content},
        "responses": responses,
    }


def described(**properties: Schema) -> dict[str, Any]:
    """Return the schema of an object."""
    return {"type": "object", "properties": properties}


PAIRS = texts_of(texts_of({"type": "integer"}, minItems=2, maxItems=2))
SPANS = PAIRS | {"description": "First character of each word, and the one after its last."}
TRANSLATED = described(
    model=TEXT,
    source=TEXT,
    target=TEXT,
    texts=texts_of(
        described(
            source_tokens=texts_of(TEXT),
            source_words=SPANS,
            translations=texts_of(
                described(
                    text=TEXT,
                    score=NUMBER,
                    log_prob=NUMBER,
                    finished={"type": "boolean"},
                    confidence=NUMBER | {"description": "Expected sentence chrF, 0 to 1."},
                    defects=texts_of(described(kind=TEXT, words=texts_of(TEXT))),
                    repair={"type": ["string", "null"]},
                    tokens=texts_of(TEXT),
                    words=SPANS,
                    alignments=PAIRS,
                )
            ),
        )
    ),
)
LIBRETRANSLATED = described(
    translatedText={"type": ["string", "array"], "items": TEXT},
    alternatives=texts_of({"type": ["string", "array"], "items": TEXT}),
)
MODELS = described(
    models=texts_of(
        described(
            name=TEXT,
            source=TEXT,
            target=TEXT,
            checkpoint={"type": ["string", "null"]},
            tags=texts_of(TEXT),
            can_align={"type": "boolean"},
            decoding={"type": "object"},
        )
    ),
    max_body={"type": "integer"},
    max_candidates={"type": "integer"},
    max_characters={"type": "integer"},
    max_texts={"type": "integer"},
)
LANGUAGES = texts_of(described(code=TEXT, name=TEXT, targets=texts_of(TEXT)))
