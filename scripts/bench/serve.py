#!/usr/bin/env python
"""Measure requests per second and latency of `tformer serve` for several numbers of clients.

Each client is a connection that sends a sentence of the run's test text whenever it has the answer
to the one before. Server and clients share the machine. At the end other clients vanish, send
garbage and flood the server, and each answer is compared with the one before.
"""

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from cli import AsJson, Rounds, hardware, numbers_in, show
from decode import pairs_to_translate
from harness import aligned, median_and_range, play_rounds

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.load import load_config
from tformer_cli.errors import TrainingError
from tformer_cli.process import num_threads
from tformer_cli.storage.run_directory import RunDirectory

PATH = "/api/translate"
CLIENTS = "1,8,32"
# Clients whose answers count while others disturb, their sentences, and connections that flood.
NUM_HONEST, NUM_SENTENCES, NUM_FLOODING = 4, 32, 64
GARBAGE = (b"\x00\xff" * 512 + b"\r\n\r\n", b"POST /api/translate HTTP/1.1\r\nHost: x\r\n\r\n{")


@contextmanager
def server(folder: Path, backend: str) -> Iterator[tuple[str, int]]:
    """Yield the address of a server of a run, for a while."""
    words = [sys.executable, "-m", "tformer_cli", "serve", str(folder)]
    words += ["--port", "0", "--backend", backend]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if line.startswith("serving "):
                    host, _, port = line.split()[-1].removeprefix("http://").partition(":")
                    yield host, int(port)
                    return
            raise TrainingError(" ".join(words[1:5]), "has failed", got="".join(lines).strip())
        finally:
            process.terminate()
            process.stderr.close()


def measure(
    folder: Path, counts: Sequence[int], beam: int, backend: str, seconds: float, rounds: int
) -> dict[str, Any]:
    """Let each number of clients ask for some seconds, in turns.

    Returns the requests per second of each round, and the latency of all requests in milliseconds,
    for each number of clients; then what became of requests beside clients that disturb.
    """
    config = load_config(RunDirectory(folder).config_file)
    bodies = [
        json.dumps({"text": source, "beam": beam}).encode()
        for source, _ in pairs_to_translate(config)
    ]
    latencies: dict[str, list[float]] = {str(count): [] for count in counts}
    with server(folder, backend) as address:
        asyncio.run(ask(address, bodies, 1, min(seconds, 1.0)))

        def speed(clients: str) -> float:
            done, took = asyncio.run(ask(address, bodies, int(clients), seconds))
            latencies[clients] += done
            return len(done) / took

        speeds = play_rounds(latencies, rounds, speed, "requests/s")
        beside = asyncio.run(ask_disturbed(address, bodies[:NUM_SENTENCES], seconds))
    clients = {
        count: {
            "requests_per_second": speeds[count],
            "p50_ms": 1000 * median(seconds_each),
            "p99_ms": 1000 * sorted(seconds_each)[int(0.99 * len(seconds_each))],
        }
        for count, seconds_each in latencies.items()
    }
    return {"clients": clients, "beside_disturbance": beside}


async def ask_disturbed(
    address: tuple[str, int], bodies: Sequence[bytes], seconds: float
) -> dict[str, int]:
    """Return how many requests are answered as before, otherwise, or not, beside bad clients."""
    expected = [await asyncio.to_thread(translation, address, body) for body in bodies]
    counts = {"equal": 0, "other": 0, "lost": 0}
    end = time.perf_counter() + seconds

    async def honest() -> None:
        for body, text in itertools.cycle(zip(bodies, expected, strict=True)):
            if time.perf_counter() > end:
                break
            try:
                is_equal = await asyncio.to_thread(translation, address, body) == text
            except (TrainingError, OSError, HTTPException):
                counts["lost"] += 1
            else:
                counts["equal" if is_equal else "other"] += 1

    async def bad(content: bytes, seconds_open: float) -> None:
        while time.perf_counter() < end:
            _, writer = await asyncio.open_connection(*address)
            writer.write(content)
            await asyncio.sleep(seconds_open)
            writer.close()

    whole = head_of(bodies[0]) + bodies[0]
    vanishing = [bad(whole[: len(whole) - cut], 0.01) for cut in (0, 1, len(bodies[0]))]
    flooding = [bad(whole, 1.0) for _ in range(NUM_FLOODING)]
    garbage = [bad(content, 0.01) for content in GARBAGE]
    await asyncio.gather(*(honest() for _ in range(NUM_HONEST)), *vanishing, *flooding, *garbage)
    return counts


def translation(address: tuple[str, int], body: bytes) -> str:
    """Return the translation of a request over a connection of its own."""
    with closing(HTTPConnection(*address)) as connection:
        connection.request("POST", PATH, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
    if response.status != HTTPStatus.OK:
        raise TrainingError(PATH, "has failed", got=f"{response.status}: {content.decode()}")
    return str(json.loads(content)["texts"][0]["translations"][0]["text"])


async def ask(
    address: tuple[str, int], bodies: Sequence[bytes], num_clients: int, seconds: float
) -> tuple[list[float], float]:
    """Return the latency of each request of some clients, and the seconds that all took."""
    started = time.perf_counter()
    requests = itertools.cycle([head_of(body) + body for body in bodies])
    connect = asyncio.get_running_loop().create_connection
    make_client = partial(Client, requests, started + seconds)
    pairs = await asyncio.gather(*(connect(make_client, *address) for _ in range(num_clients)))
    clients = [client for _, client in pairs]
    await asyncio.gather(*(client.done for client in clients))
    took = time.perf_counter() - started
    return [latency for client in clients for latency in client.latencies], took


class Client(asyncio.Protocol):
    """Sends a request whenever it has the answer to the one before, until a time.

    It looks at an answer's status and length alone, and leaves the processor to the server.
    """

    def __init__(self, requests: Iterator[bytes], end: float) -> None:
        self.requests, self.end = requests, end
        self.latencies: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.send()

    def send(self) -> None:
        self.sent = time.perf_counter()
        self.transport.write(next(self.requests))

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, separator, content = self.received.partition(b"\r\n\r\n")
        if not separator or len(content) < content_length(head):
            return
        self.latencies.append(time.perf_counter() - self.sent)
        if not head.startswith(b"HTTP/1.1 200 "):
            self.fail(self.received.decode())
        elif time.perf_counter() < self.end:
            self.received = b""
            self.send()
        else:
            self.done.set_result(None)
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.fail(str(error or "connection closed"))

    def fail(self, why: str) -> None:
        self.done.set_exception(TrainingError(PATH, "has failed", got=why))
        self.transport.close()


def content_length(head: bytes) -> int:
    """Return the length that the headers of an answer state."""
    return int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])


def head_of(body: bytes) -> bytes:
    """Return the request line and the headers before a body."""
    return (
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()


def table(results: dict[str, Any]) -> str:
    """Return a table with a row for each number of clients, and a line on disturbed ones."""
    rows = [["clients", "requests/s", "p50 ms", "p99 ms"]]
    for count, result in results["clients"].items():
        milliseconds = [f"{result[key]:,.1f}" for key in ("p50_ms", "p99_ms")]
        rows.append([count, median_and_range(result["requests_per_second"]), *milliseconds])
    beside = ", ".join(f"{count:,} {kind}" for kind, count in results["beside_disturbance"].items())
    return (
        f"{aligned(rows)}\n\nanswers beside clients that vanish, send garbage and flood: {beside}"
    )


app = new_app(add_completion=False)


@app.command()
def serve(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    clients: Annotated[str, typer.Option(help="Numbers of clients.")] = CLIENTS,
    beam: Annotated[int, typer.Option(min=1, help="Beam size; 1 is greedy search.")] = 1,
    backend: Annotated[str, typer.Option(help="As of `tformer serve`.")] = "auto",
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds of a round.")] = 10.0,
    rounds: Rounds = 3,
    as_json: AsJson = False,
) -> None:
    """Measure requests per second and latency of `tformer serve`.

    Example: python scripts/bench/serve.py runs/demo --clients 1,32
    """
    results = measure(folder, numbers_in("--clients", clients), beam, backend, seconds, rounds)
    note = f"{rounds} rounds of {seconds:g} s, a sentence a request; clients on the same machine"
    show(results, as_json, lambda: table(results), note, hardware(num_threads()))


if __name__ == "__main__":
    run(app)
