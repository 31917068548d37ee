"""Servers of the toy run."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers import Gate, Server

from tformer_cli.serve.model import ServedModel
from tformer_cli.serve.queue import TranslationQueue
from tformer_cli.serve.service import Limits
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.translate.translator import Translator

# Builds a server of a translator; the arguments are those of `Service` and of `build_app`.
Serve = Callable[..., Server]


@pytest.fixture(scope="session")
def translator(toy_run) -> Translator:
    return Translator.load(toy_run, backend="native")


@pytest.fixture
def gate(translator) -> Gate:
    return Gate(translator)


@pytest.fixture
def serve(toy_run) -> Iterator[Serve]:
    pytest.importorskip("starlette", reason="starlette is not installed")
    pytest.importorskip("httpx", reason="httpx is not installed")
    from tformer_cli.serve.app import build_app
    from tformer_cli.serve.service import Service

    queues: list[TranslationQueue] = []

    def start(translator: Any, *, hosts=(), origins=(), limits=None, **service: Any) -> Server:
        limits = limits or Limits()
        model = ServedModel(RunDirectory(toy_run), "best", lambda: translator)
        queues.append(TranslationQueue(model, limits.max_waiting))
        built = Service(queues=queues[-1:], limits=limits, **service)
        return Server(build_app(built, hosts=hosts, origins=origins), queues[-1])

    yield start
    for queue in queues:
        if isinstance(queue.model.translator, Gate):
            queue.model.translator.is_open.set()
        queue.close()


@pytest.fixture
def server(serve, translator) -> Server:
    return serve(translator)
