"""Connections: heads have limits, and an upgrade that is offered changes nothing."""

import asyncio
import contextlib
import socket

import pytest
from servers import SECONDS

pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("httptools", reason="httptools is not installed")

BODY = b'{"text": "ab"}'
LENGTH = (b"content-length", b"0")
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % len(BODY)


async def echo(scope, receive, send):
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def connection(app=echo, state=None):
    """A connection to a server of an application; by default it answers with the body."""
    from uvicorn import Config
    from uvicorn.server import ServerState

    from tformer_cli.serve.protocol import LimitedProtocol
    from tformer_cli.serve.server import listening_socket

    options = {"log_config": None, "log_level": "critical", "ws": "none", "lifespan": "off"}
    config = Config(app, timeout_graceful_shutdown=1, **options)
    config.load()
    state = state or ServerState()

    def protocol() -> LimitedProtocol:
        return LimitedProtocol(config, state, {})

    loop = asyncio.get_running_loop()
    listener = listening_socket("127.0.0.1", 0)
    async with (
        asyncio.timeout(SECONDS),
        await loop.create_server(protocol, sock=listener) as server,
    ):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


def answers(*pieces, count):
    """The heads and bodies of the answers to requests that are sent in pieces."""

    async def ask():
        async with connection() as (reader, writer):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.01)
            found = []
            for _ in range(count):
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                found.append((head.partition(b"\r\n")[0], await reader.readexactly(int(length))))
            return found

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "upgrade",
    [
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n",
        b"connection: upgrade\r\nupgrade:websocket\r\n\r\n",
    ],
)
def test_a_body_is_read_whatever_upgrade_is_offered(upgrade):
    done = b"HTTP/1.1 200 OK", BODY
    assert answers(POST + upgrade + BODY, count=1) == [done]
    pieces = POST + b"\r\n" + BODY, POST + upgrade, BODY[:3], BODY[3:] + POST + b"\r\n", BODY
    assert answers(*pieces, count=3) == [done] * 3
    # A head may come in several packets.
    assert answers(POST[:9], POST[9:] + upgrade[:20], upgrade[20:] + BODY, count=1) == [done]
    assert answers(POST + b"\r\n" + BODY, POST, upgrade, BODY, count=2) == [done] * 2


def test_a_body_may_name_an_upgrade():
    body = b"GET / HTTP/1.1\r\nUpgrade: h2c\r\n\r\n"
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert answers(head, body, count=1) == [(b"HTTP/1.1 200 OK", body)]


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET /" + b"a" * 70_000],
        [b"GET / HTTP/1.1\r\nX: ", *[b"a" * 10_000] * 7],
        [b"GET / HTTP/1.1\r\n", *[b"X: a\r\n" * 2000] * 6],
        [b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ", *[b"a" * 10_000] * 7],
    ],
)
def test_a_large_head_is_refused(pieces):
    ((status, text),) = answers(*pieces, count=1)
    assert (status, text) == (b"HTTP/1.1 400 Bad Request", b"The head of the request is too large.")


def test_a_large_body_in_chunks_has_no_head():
    chunks = b"".join(b"%x\r\n%s\r\n" % (1000, b"a" * 1000) for _ in range(200))
    head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    ((_, body),) = answers(head, chunks + b"0\r\n\r\n", count=1)
    assert body == b"a" * 200_000


UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"


@pytest.mark.parametrize("end", [b"\r\n", UPGRADE], ids=["httptools", "h11"])
def test_a_malformed_head_is_answered_and_nothing_fails(end):
    """Also behind httptools, where no request has come before."""

    async def ask():
        failures = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
        async with connection() as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\nHost : x\r\n" + end)
            return await reader.read(), failures

    answer, failures = asyncio.run(ask())
    assert answer.startswith(b"HTTP/1.1 400")
    assert failures == []


@pytest.mark.parametrize("before", [b"", b"GET / HTTP/1.1\r\n", POST + b"\r\n" + BODY + b"GET"])
def test_a_slow_head_is_waited_for_no_longer(monkeypatch, before):
    monkeypatch.setattr("tformer_cli.serve.protocol.HEAD_SECONDS", 0.1)

    async def end():
        async with connection() as (reader, writer):
            writer.write(before)
            return await reader.read()

    assert asyncio.run(end()).endswith(BODY if BODY in before else b"")


@pytest.mark.parametrize("end", [b"\r\n", UPGRADE], ids=["httptools", "h11"])
@pytest.mark.parametrize("late", [BODY, BODY[:3]])
def test_a_connection_whose_request_was_refused_before_its_body_is_not_kept(monkeypatch, end, late):
    monkeypatch.setattr("tformer_cli.serve.protocol.HEAD_SECONDS", 0.1)

    async def refuse(scope, receive, send):
        await send({"type": "http.response.start", "status": 401, "headers": [LENGTH]})
        await send({"type": "http.response.body", "body": b""})

    async def stay():
        async with connection(refuse) as (reader, writer):
            writer.write(POST + end)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401")
            writer.write(late)
            return await reader.read()

    assert asyncio.run(stay()) == b""


@pytest.mark.parametrize(
    ("end", "late"),
    [(b"\r\n", b"\r\n"), (b"\r\n", b"GET"), (UPGRADE, b"GET")],
    ids=["line end", "httptools", "h11"],
)
def test_what_is_no_head_keeps_no_connection(monkeypatch, end, late):
    monkeypatch.setattr("tformer_cli.serve.protocol.HEAD_SECONDS", 0.1)

    async def stay():
        async with connection() as (reader, writer):
            writer.write(POST + end + BODY)
            await reader.readuntil(BODY)
            writer.write(late)
            return await reader.read()

    assert asyncio.run(stay()) == b""


@pytest.mark.parametrize("end", [b"\r\n", UPGRADE], ids=["httptools", "h11"])
def test_an_answer_may_take_longer_than_a_head(monkeypatch, end):
    monkeypatch.setattr("tformer_cli.serve.protocol.HEAD_SECONDS", 0.1)

    async def slow(scope, receive, send):
        await asyncio.sleep(0.3)
        await echo(scope, receive, send)

    async def ask():
        async with connection(slow) as (reader, writer):
            for _ in range(2):
                writer.write(POST + end + BODY)
                assert (await reader.readuntil(BODY)).startswith(b"HTTP/1.1 200")
        return True

    assert asyncio.run(ask())


def test_a_client_that_vanishes_leaves_none_of_its_requests():
    arrived, gone = asyncio.Queue(), asyncio.Queue()

    async def wait(scope, receive, send):
        await receive()
        arrived.put_nowait(scope["path"])
        gone.put_nowait(await receive())

    async def vanish():
        async with connection(wait) as (_, writer):
            writer.write(b"GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n")
            assert await arrived.get() == "/1"
            writer.close()
            return await gone.get()

    assert asyncio.run(vanish()) == {"type": "http.disconnect"}


def test_a_client_that_does_not_read_stops_no_server():
    from uvicorn.server import ServerState

    state = ServerState()

    async def large(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a" * (1 << 25)})

    async def stop():
        async with connection(large, state) as (_, writer):
            writer.write(b"GET / HTTP/1.1\r\n\r\n" * 2)
            while state.total_requests < 1 or not state.tasks:
                await asyncio.sleep(0.01)
            (protocol,) = state.connections
            protocol.shutdown()
            running = set(state.tasks)
            await asyncio.wait(running, timeout=30)
            return [task.done() for task in running], protocol.transport.is_closing()

    assert asyncio.run(stop()) == ([True], True)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux alone has this limit")
@pytest.mark.parametrize("end", [b"\r\n", UPGRADE], ids=["httptools", "h11"])
def test_a_client_that_does_not_read_keeps_no_connection(monkeypatch, end):
    from uvicorn.server import ServerState

    monkeypatch.setattr("tformer_cli.serve.server.WRITE_SECONDS", 0.1)
    state = ServerState()

    async def large(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a" * (1 << 24)})

    async def stay():
        failures = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
        async with connection(large, state) as (_, writer):
            writer.transport.pause_reading()
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + end)
            while state.total_requests < 1 or state.connections:
                await asyncio.sleep(0.01)
        return failures

    assert asyncio.run(stay()) == []
