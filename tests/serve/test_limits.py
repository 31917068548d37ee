"""Limits, hosts, sites and keys: what is refused, and that nothing else is lost."""

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
from servers import SECONDS, Gate

from tformer_cli.errors import DataError, UsageError
from tformer_cli.serve.service import Limits

TEXTS = ["a", "b", "c", "d", "e", "f", "g", "ab", "cd", "ef"]


def test_a_flood_is_answered_or_refused(serve, gate, translator):
    server = serve(gate, limits=Limits(max_waiting=3))

    async def flood():
        async with server.client() as client:
            first = asyncio.ensure_future(client.post("/api/translate", json={"text": TEXTS[0]}))
            while not gate.has_begun.is_set():
                await asyncio.sleep(0.001)
            others = [
                asyncio.ensure_future(client.post("/api/translate", json={"text": text}))
                for text in TEXTS[1:]
            ]
            while sum(other.done() for other in others) < len(others) - 3:
                await asyncio.sleep(0.001)
            gate.is_open.set()
            return await asyncio.gather(first, *others)

    answers = asyncio.run(flood())
    assert Counter(answer.status_code for answer in answers) == {200: 4, 503: 6}
    for text, answer in zip(TEXTS, answers, strict=True):
        if answer.status_code == 200:
            (best,) = answer.json()["texts"][0]["translations"]
            assert best["text"] == translator.translate([text])[0]
        else:
            assert answer.headers["Retry-After"] == "1"
            assert answer.json()["error"] == (
                "run: has too many requests that wait (3); repeat it later"
            )


def test_a_translation_that_takes_too_long_is_given_up(serve, gate):
    server = serve(gate, limits=Limits(timeout=1))
    answer = server.post(text="ab")
    assert answer.status_code == 504
    assert answer.json()["error"] == (
        "text: has not been translated in time (1 s); send fewer texts, or repeat it later"
    )
    assert server.post(text="cd").status_code == 504
    # What has been given up is not translated.
    assert len(server.queue) == 0
    gate.is_open.set()
    assert server.post(text="ef").status_code == 200
    assert gate.windows == [["ab"], ["ef"]]


async def no_pause(message: dict) -> None:
    pass


def raw_request(app, body: list[dict], headers=(), on_sent=no_pause) -> list[dict]:
    """The messages that answer a request whose parts arrive as listed; then it is silent.

    Each message is followed by the next one when `on_sent` has returned.
    """
    sent: list[dict] = []
    parts = iter(body)

    async def receive():
        for part in parts:
            return part
        return await asyncio.Event().wait()

    async def send(message):
        sent.append(message)
        await on_sent(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/api/translate",
        "raw_path": b"/api/translate",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            *headers,
        ],
    }
    asyncio.run(app(scope, receive, send))
    return sent


@pytest.mark.parametrize("when", ["while it sends", "while it waits"])
def test_a_client_that_vanishes_leaves_no_work(serve, gate, when):
    server = serve(gate)

    async def occupy():
        async with server.client() as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.post("/api/translate", json={"text": "x"}), 0.05)

    asyncio.run(occupy())
    is_sent = when == "while it waits"
    body = b'{"text": "ab"}' if is_sent else b'{"text": '
    parts = [
        {"type": "http.request", "body": body, "more_body": not is_sent},
        {"type": "http.disconnect"},
    ]
    sent = raw_request(server.app, parts)
    assert sent[0]["status"] == 499
    assert len(server.queue) == 0
    gate.is_open.set()
    assert server.post(text="cd").status_code == 200
    assert ["ab"] not in gate.windows


class Growing(Gate):
    """A translator whose translations of two texts grow before the gate."""

    def translate_windows(self, windows: Any, *arguments: Any, **options: Any) -> Any:
        on_draft = options.pop("on_draft")
        for length in range(1001):
            for index in range(2):
                on_draft(index, "a" * length)
        return super().translate_windows(windows, *arguments, **options)


def test_a_client_that_reads_slowly_gets_the_latest_drafts(serve, translator):
    grown = Growing(translator)
    sent = []

    async def read(message):
        sent.append(message.get("body", b""))
        assert await asyncio.to_thread(grown.has_begun.wait, SECONDS)
        if sum(b"a" * 1000 in body for body in sent) == 2:
            grown.is_open.set()

    body = {"type": "http.request", "body": b'{"text": ["b", "c"], "stream": true}'}
    raw_request(serve(grown).app, [body], on_sent=read)
    names = [body.partition(b"\n")[0] for body in sent if body]
    assert names[-1] == b"event: answer"
    # The first one that is sent, and the last one of each text.
    assert names[:-1] in ([b"event: draft"] * 2, [b"event: draft"] * 3)


def test_drafts_are_dropped_when_they_are_closed():
    pytest.importorskip("starlette", reason="starlette is not installed")
    from tformer_cli.serve.translate_api import Drafts

    async def read():
        drafts, seen = Drafts(), []
        for index, text in ((0, "a"), (0, "ab"), (1, "b")):
            drafts.put(index, text)
        async for draft in drafts:
            seen.append(draft)
            if len(seen) == 1:
                drafts.put(1, "bc")
                drafts.put(0, "abc")
            if len(seen) == 3:
                drafts.put(1, "bcd")
                drafts.close()
                drafts.put(0, "abcd")
        return seen

    assert asyncio.run(read()) == [(0, "ab"), (1, "bc"), (0, "abc")]


def test_a_body_that_does_not_arrive_in_time_is_refused(serve, translator):
    server = serve(translator, limits=Limits(timeout=1))
    part = {"type": "http.request", "body": b'{"text": ', "more_body": True}
    assert raw_request(server.app, [part])[0]["status"] == 408


def test_a_large_body_is_not_read(serve, translator):
    server = serve(translator, limits=Limits(max_body=100))
    answer = server.post(text="a" * 100)
    assert answer.status_code == 413
    assert answer.json()["error"] == "body: must have at most 100 bytes; send several requests"
    # Without a declared length it is read up to the limit; nothing follows the second part.
    part = {"type": "http.request", "body": b"a" * 60, "more_body": True}
    assert raw_request(server.app, [part, part])[0]["status"] == 413
    declared = raw_request(server.app, [], headers=[(b"content-length", b"101")])
    assert declared[0]["status"] == 413
    # A length of so many digits is none to Python.
    body = {"type": "http.request", "body": b"{"}
    zeros = raw_request(server.app, [body], headers=[(b"content-length", b"0" * 5000)])
    assert zeros[0]["status"] == 400


def test_a_body_has_as_many_bytes_as_the_list_of_models_says(serve, translator):
    server = serve(translator, limits=Limits(max_body=100))
    listed = server.ask("GET", "/api/models").json()["max_body"]
    headers = {"Content-Type": "application/json"}
    for count, status in ((listed, 200), (listed + 1, 413)):
        body = '{"text": "ab"}'.ljust(count)
        answer = server.ask("POST", "/api/translate", content=body, headers=headers)
        assert answer.status_code == status


def test_a_run_is_asked_with_its_own_beam_whatever_the_limit(serve, translator):
    server = serve(translator, limits=Limits(max_candidates=1))
    (expected,) = translator.translate(["ab"])
    listed = server.ask("GET", "/api/models").json()
    assert (listed["models"][0]["decoding"]["beam_size"], listed["max_candidates"]) == (2, 1)
    for fields in ({}, {"nbest": listed["max_candidates"]}, {"set": ["decoding.beam_size=2"]}):
        (text,) = server.post(text="ab", **fields).json()["texts"]
        assert [each["text"] for each in text["translations"]] == [expected]
    answer = server.post(text="ab", set=["decoding.beam_size=3"])
    assert answer.json()["problems"] == ["decoding.beam_size: must be at most 2 (3)"]


def test_candidates_are_limited_by_default_too(serve, translator):
    server = serve(translator, limits=Limits(max_candidates=4))
    fields = {"text": "ab", "set": ["decoding.kind=sample"], "mbr": "chrf"}
    answer = server.post(**fields)
    assert answer.status_code == 422
    assert answer.json()["problems"] == ["candidates: must be at most 4 (32)"]
    assert server.post(**fields, candidates=4).status_code == 200


def test_limits_are_positive():
    with pytest.raises(UsageError, match=r"`max_texts`: must be at least 1 \(0\)"):
        Limits(max_texts=0)


# -------------------------------------------------------------------------------- hosts and sites


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:8000", 200),
        ("mt.example.org", 200),
        ("example.org", 421),
        ("localhost.example.org", 421),
        ("127.0.0.1.example.org:80", 421),
        ("[::1", 421),
        ("[::2]:80", 200),
        ("evil@localhost", 421),
        ("localhost/evil", 421),
        ("", 421),
    ],
)
def test_a_host_is_one_of_this_server(serve, translator, host, status):
    server = serve(translator, hosts=["mt.example.org", "::2"])
    answer = server.ask("GET", "/health", headers={"Host": host})
    assert answer.status_code == status
    if status != 200:
        assert answer.json()["error"].startswith("Host: is not a name of this server")


def test_an_address_is_allowed_with_and_without_brackets():
    pytest.importorskip("starlette", reason="starlette is not installed")
    from tformer_cli.serve.guard import allowed_host

    assert list(map(allowed_host, ["[::2]", "::2", "MT.example.org"])) == [
        *("::2", "::2", "mt.example.org")
    ]


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost", 200),
        ("https://a.example", 200),
        ("https://A.example", 200),
        ("http://a.example", 403),
        ("https://b.example", 403),
        ("http://localhost:81", 403),
        ("null", 403),
        ("http://[", 403),
    ],
)
def test_pages_of_other_sites_are_refused(serve, translator, origin, status):
    server = serve(translator, origins=["https://a.example"])
    answer = server.ask("POST", "/api/translate", json={"text": "a"}, headers={"Origin": origin})
    assert answer.status_code == status
    if status != 200:
        assert answer.json()["error"].startswith("Origin: is another site")
        assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("url", ["https://a.example", "https://A.example/"])
def test_a_site_that_is_allowed_may_ask_first(serve, translator, url):
    from tformer_cli.serve.guard import allowed_origin

    server = serve(translator, origins=[allowed_origin(url)])
    headers = {
        "Origin": "https://a.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type, authorization",
    }
    answer = server.ask("OPTIONS", "/api/translate", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["Access-Control-Allow-Origin"] == "https://a.example"
    answer = server.ask("GET", "/health", headers={"Origin": "https://a.example"})
    assert answer.headers["Access-Control-Allow-Origin"] == "https://a.example"


# ------------------------------------------------------------------------------------------- keys


@pytest.fixture
def locked(serve, translator, tmp_path):
    """A server with four keys."""
    pytest.importorskip("starlette", reason="starlette is not installed")
    from tformer_cli.serve.guard import ApiKeys

    file = tmp_path / "keys"
    file.write_text("first\n\n  second \n\u0142\u00e0\n\u00e9t\u00e9\n", encoding="utf-8")
    return serve(translator, keys=ApiKeys.read(file))


@pytest.mark.parametrize(
    ("authorization", "message"),
    [
        ("Bearer first", None),
        ("bearer second", None),
        (None, "API key: is required; send `Authorization: Bearer KEY`"),
        ("Bearer ", "API key: is required; send `Authorization: Bearer KEY`"),
        ("Basic first", "API key: is required; send `Authorization: Bearer KEY`"),
        ("Bearer firs", "API key: is not valid"),
        ("Bearer first second", "API key: is not valid"),
        ("Bearer f\xefrst", "API key: is not valid"),
        # In UTF-8; the second character ends in a byte that is a space of Latin-1.
        (b"Bearer \xc5\x82\xc3\xa0", None),
        (b"Bearer \xc3\xa9t\xc3\xa9", None),
        # In Latin-1.
        (b"Bearer \xe9t\xe9", None),
        (b"Bearer ?t?", "API key: is not valid"),
    ],
)
def test_a_key_is_required(locked, authorization, message):
    if isinstance(authorization, str):
        authorization = authorization.encode("latin-1")
    headers = [] if authorization is None else [(b"authorization", authorization)]
    answer = locked.ask("POST", "/api/translate", json={"text": "a"}, headers=headers)
    if message is None:
        assert answer.status_code == 200
        return
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json()["error"] == message


def test_clients_of_libretranslate_send_a_key_in_the_body(locked):
    fields = {"q": "a", "source": "source", "target": "target"}
    assert locked.post("/translate", **fields).status_code == 401
    assert locked.post("/translate", **fields, api_key="third").status_code == 401
    assert locked.post("/translate", **fields, api_key=["first"]).status_code == 401
    assert locked.post("/translate", **fields, api_key="first").status_code == 200
    answer = locked.ask("POST", "/translate", data={**fields, "api_key": "second"})
    assert answer.status_code == 200


def test_a_file_of_keys_has_a_key(tmp_path):
    pytest.importorskip("starlette", reason="starlette is not installed")
    from tformer_cli.serve.guard import ApiKeys

    (tmp_path / "keys").write_text("\n")
    with pytest.raises(DataError, match="has no API key; write one a line"):
        ApiKeys.read(tmp_path / "keys")


# ---------------------------------------------------------------------------------------- metrics


def samples(server) -> dict[str, float]:
    """The value of each sample, by its name and labels."""
    answer = server.ask("GET", "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in answer.text.splitlines() if not line.startswith("# ")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_metrics_count_requests_texts_and_tokens(server, translator):
    started = time.perf_counter()
    texts = ["ab cd", "e"]
    server.post(text=texts)
    server.post()
    server.ask("GET", "/health", headers={"Host": "b.example"})
    counted = samples(server)
    seconds = time.perf_counter() - started
    statuses = {
        status: counted[f'tformer_requests_total{{status="{status}"}}']
        for status in (200, 421, 422)
    }
    assert statuses == {200: 1, 421: 1, 422: 1}
    assert counted['tformer_texts_total{model="run"}'] == 2
    tokens = [len(best.tokens) for (best,) in translator.nbest(texts, 1)]
    assert counted['tformer_tokens_total{model="run"}'] == sum(tokens)
    assert counted['tformer_queue_length{model="run"}'] == 0
    assert counted["tformer_request_seconds_count"] == 3
    assert 0 < counted["tformer_request_seconds_sum"] < seconds
    buckets = [value for name, value in counted.items() if "_bucket" in name]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 3


def test_requests_that_wait_are_counted(serve, gate):
    server = serve(gate)

    async def ask():
        async with server.client() as client:
            post = [asyncio.ensure_future(client.post("/api/translate", json={"text": "a"}))]
            while not gate.has_begun.is_set():
                await asyncio.sleep(0.001)
            post += [
                asyncio.ensure_future(client.post("/api/translate", json={"text": "b"}))
                for _ in range(2)
            ]
            while len(server.queue) < 2:
                await asyncio.sleep(0.001)
            page = (await client.get("/metrics")).text
            gate.is_open.set()
            await asyncio.gather(*post)
            return page

    assert 'tformer_queue_length{model="run"} 2\n' in asyncio.run(ask())
