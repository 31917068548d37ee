"""A server in this process, and clients that ask it over ASGI."""

import asyncio
import threading
from typing import Any

from tformer_cli.serve.queue import TranslationQueue
from tformer_cli.translate.translator import Translator

SECONDS = 60


class Gate:
    """A translator that waits until it is opened, and notes what it is given."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator
        self.is_open = threading.Event()
        self.has_begun = threading.Event()
        self.windows: list[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.translator, name)

    def translate_windows(self, windows: Any, *arguments: Any, **options: Any) -> Any:
        self.windows += [[line.text for line in window] for window in windows]
        self.has_begun.set()
        assert self.is_open.wait(SECONDS)
        return self.translator.translate_windows(windows, *arguments, **options)


class Server:
    """An application, and how tests ask it."""

    def __init__(self, app: Any, queue: TranslationQueue) -> None:
        self.app = app
        self.queue = queue

    def client(self, **options: Any) -> Any:
        """A client; to be used by the tests that are coroutines."""
        import httpx

        transport = httpx.ASGITransport(self.app)
        return httpx.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=SECONDS, **options
        )

    def ask(self, method: str, path: str, **content: Any) -> Any:
        """The response to one request."""

        async def ask() -> Any:
            async with self.client() as client:
                return await client.request(method, path, **content)

        return asyncio.run(ask())

    def post(self, path: str = "/api/translate", **fields: Any) -> Any:
        """The response to fields as JSON."""
        return self.ask("POST", path, json=fields)
