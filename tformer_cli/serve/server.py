"""The server: a socket, the models and their queues, and uvicorn, until a signal stops it."""

import contextlib
import errno
import gc
import os
import signal
import socket
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

import uvicorn
from starlette.applications import Starlette

from tformer_cli.errors import StorageError, UsageError
from tformer_cli.serve.app import build_app
from tformer_cli.serve.guard import ApiKeys, allowed_host, allowed_origin
from tformer_cli.serve.model import ServedModel, freeze, model_name
from tformer_cli.serve.protocol import CLOSING_SECONDS, LimitedProtocol
from tformer_cli.serve.queue import TranslationQueue
from tformer_cli.serve.service import Limits, Service
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.translate.translator import Translator

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Seconds that a connection is kept whose client takes nothing of its answer.
WRITE_SECONDS = 60.0


def serve(
    runs: Sequence[Path],
    load: Callable[[Path], Translator],
    checkpoint: str,
    *,
    host: str,
    port: int,
    hosts: Collection[str],
    origins: Collection[str],
    api_keys: Path | None,
    limits: Limits,
    log: Callable[[str], object],
) -> None:
    """Serve runs over HTTP until SIGINT or SIGTERM; requests that wait are answered first.

    Args:
        runs: run folders with different names.
        load: returns the translator of a run as it is now; without a target language, it is one for
            all directions of the run's texts.
        checkpoint: that of `load`: best or last, of which a newer one is loaded when it is there;
            or a name.
        host: address to listen on.
        port: port to listen on; 0 for one that is free.
        hosts: host names beside `host` and those of this machine that requests may name.
        origins: sites whose pages may ask, such as `https://example.org`.
        api_keys: file of keys, one a line, of which a request must have one; None for no keys.
        limits: limits of requests.
        log: called with a line when the server listens, and for what concerns its models.

    Raises:
        TformerError: a run or a file is unusable, or the address cannot be listened on.
    """
    check_names(runs)
    log = partial(_log, log)
    hosts, origins = list(map(allowed_host, hosts)), list(map(allowed_origin, origins))
    keys = ApiKeys() if api_keys is None else ApiKeys.read(api_keys)
    # Before the models, which take a while.
    with listening_socket(host, port) as listener:
        queues = []
        for run in runs:
            model = ServedModel(RunDirectory(run), checkpoint, partial(load, run), log)
            translator = model.into(model.directions[0])
            translator.tag_ids()  # refuses a run that needs `to`
            # An export has no engine for what CTranslate2 lacks.
            translator.engine.check((), translator.config.decoding, 1)
            queues.append(TranslationQueue(model, limits.max_waiting, log))
        service = Service(queues=queues, limits=limits, keys=keys)
        app = build_app(service, hosts=[host, *hosts], origins=origins)
        log(f"serving {', '.join(queue.model.name for queue in queues)} at {url_of(listener)}")
        run_app(app, listener, queues, limits.timeout)


def _log(log: Callable[[str], object], line: str) -> None:
    """Log a line where that is possible: a terminal that is gone stops no translation."""
    with contextlib.suppress(OSError, ValueError):
        log(line)


def check_names(runs: Sequence[Path]) -> None:
    """Refuse two runs of one name, by which requests choose.

    Raises:
        UsageError: there are two.
    """
    names: set[str] = set()
    for run in runs:
        if model_name(run) in names:
            what, remedy = "has the name of another run", "rename one of the folders"
            raise UsageError(str(run), what, remedy=remedy)
        names.add(model_name(run))


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        StorageError: the system refuses.
    """
    where = f"{host}:{port}"
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family)
        # Connections inherit it: an answer is several small packets, and none must wait until the
        # client has acknowledged the one before, which takes 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux has it
            milliseconds = round(WRITE_SECONDS * 1000)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        return listener
    except (OSError, OverflowError, UnicodeError) as error:
        what = "cannot be listened on"
        number = getattr(error, "errno", None) or 0
        got = os.strerror(number) if number > 0 else str(error)
        is_elsewhere = number == errno.EADDRNOTAVAIL  # an address of another machine
        is_host = is_elsewhere or isinstance(error, socket.gaierror | UnicodeError)
        remedy = "use another `host`" if is_host else "use another `port`"
        raise StorageError(where, what, got=got, remedy=remedy) from None


def url_of(listener: socket.socket) -> str:
    """Return the address of a socket."""
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class StoppableServer(uvicorn.Server):
    """uvicorn, which a second Ctrl-C ends at once."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop by a signal."""
        if self.should_exit and sig == signal.SIGINT:
            _end(sig, frame)
        super().handle_exit(sig, frame)


def run_app(
    app: Starlette, listener: socket.socket, queues: Sequence[TranslationQueue], timeout: int
) -> None:
    """Run an application until SIGINT or SIGTERM, let it answer what waits, and close the queues.

    A second SIGINT ends the process.
    """
    config = uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        log_config=None,
        # Warnings are about what a client sends, which its answer says.
        log_level="error",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=timeout + CLOSING_SECONDS + 1,
    )
    former = {number: signal.signal(number, _ignore) for number in STOP_SIGNALS}
    try:
        freeze()
        StoppableServer(config).run(sockets=[listener])
    finally:
        signal.signal(signal.SIGINT, _end)
        gc.unfreeze()
        for queue in queues:
            queue.close()
        for number, handler in former.items():
            signal.signal(number, handler)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Take the signal that uvicorn raises again when it has stopped."""


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """End the process at once: no thread stops a translation that has begun.

    Its exit handlers are skipped: torch aborts in them while its threads compute.
    """
    os._exit(128 + number)
