"""Metrics in Prometheus' text format."""

import bisect
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tformer_cli.serve.queue import TranslationQueue

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Upper ends of the buckets of the latency, in seconds.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counts of requests and their latency."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.latencies = [0] * (len(BUCKETS) + 1)  # requests by bucket; the last has no end
        self.seconds = 0.0

    def add(self, status: int, seconds: float) -> None:
        """Count a request."""
        self.statuses[status] += 1
        self.latencies[bisect.bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds

    def text(self, queues: Sequence[TranslationQueue]) -> str:
        """Return all metrics, those of the queues included."""
        return "".join(f"{line}\n" for line in (*self._lines(), *queue_lines(queues)))

    def _lines(self) -> Iterator[str]:
        name = "tformer_requests_total"
        yield from head(name, "counter", "Requests by status.")
        for status, count in sorted(self.statuses.items()):
            yield f'{name}{{status="{status}"}} {count}'
        name = "tformer_request_seconds"
        yield from head(name, "histogram", "Seconds from a request to the end of its answer.")
        total = 0
        for end, count in zip((*BUCKETS, "+Inf"), self.latencies, strict=True):
            total += count
            yield f'{name}_bucket{{le="{end}"}} {total}'
        yield f"{name}_sum {self.seconds:.6f}"
        yield f"{name}_count {total}"


def queue_lines(queues: Sequence[TranslationQueue]) -> Iterator[str]:
    """Yield the lines of the metrics of each queue."""
    for name, kind, text, values in (
        ("queue_length", "gauge", "Requests that wait.", [len(one) for one in queues]),
        ("texts_total", "counter", "Texts translated.", [one.num_lines for one in queues]),
        ("tokens_total", "counter", "Tokens translated.", [one.num_tokens for one in queues]),
    ):
        yield from head(f"tformer_{name}", kind, text)
        for queue, value in zip(queues, values, strict=True):
            yield f'tformer_{name}{{model="{label_value(queue.model.name)}"}} {value}'


def head(name: str, kind: str, text: str) -> Iterator[str]:
    """Yield the two lines before the samples of a metric."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def label_value(text: str) -> str:
    """Return the value of a label with the escapes of the format."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class MetricsMiddleware:
    """ASGI middleware that adds each request to metrics; outside of all other middleware."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 500
        started = time.perf_counter()

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noting)
        finally:
            self.metrics.add(status, time.perf_counter() - started)
