"""The ASGI application: endpoints, and the middleware around them."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from tformer_cli.errors import TformerError
from tformer_cli.serve.guard import Guard
from tformer_cli.serve.libretranslate import LibreTranslateApi
from tformer_cli.serve.metrics import MEDIA_TYPE, MetricsMiddleware
from tformer_cli.serve.openapi import openapi_document
from tformer_cli.serve.refusal import on_disconnect, on_error, on_status
from tformer_cli.serve.service import Service
from tformer_cli.serve.translate_api import TranslateApi

STATIC = Path(__file__).parent / "static"
# The page runs its own script alone, and no other site may frame it.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageFiles(StaticFiles):
    """The page and its files, with headers that keep out what is not its own."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return the response of a request; a path without a file is 404 by any method."""
        if scope["method"] not in ("GET", "HEAD"):
            await super().get_response(path, {**scope, "method": "GET"})
        return await super().get_response(path, scope)

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        """Return the response of a file."""
        response = super().file_response(*arguments, **options)
        response.headers.update(PAGE_HEADERS)
        return response


def build_app(
    service: Service, *, hosts: Collection[str] = (), origins: Collection[str] = ()
) -> Starlette:
    """Return the application of a service.

    Args:
        service: the models, limits and keys.
        hosts: host names beside those of this machine that requests may name, as of `allowed_host`.
        origins: sites whose pages may ask, as of `allowed_origin`.
    """
    document = openapi_document(service.limits)

    async def openapi(request: Request) -> Response:
        return JSONResponse(document)

    async def metrics(request: Request) -> Response:
        text = service.metrics.text(service.queues)
        return PlainTextResponse(text, headers={"Content-Type": MEDIA_TYPE})

    app = Starlette(
        routes=[
            *TranslateApi(service).routes,
            *LibreTranslateApi(service).routes,
            Route("/openapi.json", openapi),
            Route("/metrics", metrics),
        ],
        middleware=[
            Middleware(MetricsMiddleware, service.metrics),
            Middleware(Guard, hosts, origins),
            Middleware(CORSMiddleware, list(origins), ["GET", "POST"], ["*"]),
        ],
        exception_handlers={
            TformerError: on_error,
            HTTPException: on_status,
            ClientDisconnect: on_disconnect,
        },
    )
    app.router.default = PageFiles(directory=STATIC, html=True)
    return app
