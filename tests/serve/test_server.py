"""`tformer serve` as a process: it answers real clients, and stops when it has answered."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from unittest.mock import Mock

import pytest
from servers import SECONDS, Gate

from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.errors import StorageError
from tformer_cli.serve.queue import JobOptions, TranslationJob
from tformer_cli.serve.refusal import Failed
from tformer_cli.serve.service import Limits
from tformer_cli.translate.preprocess import InputLine

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")


@pytest.fixture
def begin(toy_run):
    """Begin a server; return its process and its address."""
    processes = []

    def begin(*options: str) -> tuple[subprocess.Popen, str]:
        words = ["serve", str(toy_run), "--port", "0", "--backend", "native", *options]
        process = subprocess.Popen(
            [sys.executable, "-m", "tformer_cli", *words],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        processes.append(process)
        line = process.stderr.readline()
        is_serving = line.startswith("serving run") and "http://127.0.0.1:" in line
        assert is_serving, line + process.stderr.read()
        return process, line.split()[-1]

    yield begin
    for process in processes:
        process.kill()
        process.wait()
        process.stderr.close()


def post(url: str, **fields: object) -> dict:
    request = urllib.request.Request(
        url, json.dumps(fields).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        return json.load(response)


def ask_slowly(url: str, body: bytes) -> socket.socket:
    """Begin a request whose body is not there yet."""
    host, _, port = url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=SECONDS)
    head = (
        "POST /api/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body[:1])
    return connection


def rest(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def is_listening(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=SECONDS).close()
    except (ConnectionRefusedError, ConnectionResetError):
        # Reset: it stopped to listen while this connection waited to be accepted.
        return False
    return True


def test_no_packet_waits_for_the_one_before():
    from tformer_cli.serve.server import listening_socket

    with listening_socket("127.0.0.1", 0) as listener:
        with socket.create_connection(listener.getsockname()):
            connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


class Broken(Gate):
    """A translator with a bug."""

    def translate_windows(self, windows, *arguments, **options):
        if windows[0][0].text == "bug":
            raise ZeroDivisionError
        return self.translator.translate_windows(windows, *arguments, **options)


def test_a_terminal_that_is_gone_stops_no_translation(toy_run, translator, monkeypatch):
    from tformer_cli.serve import server

    errors = []

    def run_app(app, listener, queues, timeout):
        (queue,) = queues
        for text in ("bug", "ab"):
            job = TranslationJob([InputLine(text)], JobOptions(GreedyConfig(max_length=20)))
            queue.submit(job)
            errors.append(job.future.exception(SECONDS))
        queue.close()

    def log(line):
        raise BrokenPipeError

    monkeypatch.setattr(server, "run_app", run_app)
    where = {"host": "127.0.0.1", "port": 0, "hosts": (), "origins": (), "api_keys": None}
    load = Mock(return_value=Broken(translator))
    server.serve([toy_run], load, "best", **where, limits=Limits(), log=log)
    assert [type(error) for error in errors] == [Failed, type(None)]


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        ("a..b", 0, r".+; use another `host`"),
        ("\u00e9" * 70, 0, r".+; use another `host`"),
        ("::1%nowhere", 0, r".+; use another `host`"),
        ("203.0.113.1", 0, r"\(Cannot assign requested address\); use another `host`"),
    ],
)
def test_what_cannot_be_listened_on_is_named(host, port, said):
    from tformer_cli.serve.server import listening_socket

    with pytest.raises(StorageError, match=f"{host}:{port}: cannot be listened on {said}"):
        listening_socket(host, port)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_server_when_it_has_answered(begin, translator, number):
    process, url = begin()
    body = json.dumps({"text": "ab cd"}).encode()
    # A request of which the server has the first byte.
    with ask_slowly(url, body) as connection:
        assert post(f"{url}/api/translate", text="e")["texts"]
        process.send_signal(number)
        # It listens no more when it waits for what has begun.
        while is_listening(connection.getpeername()):
            pass
        connection.sendall(body[1:])
        head, _, content = rest(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    (best,) = json.loads(content)["texts"][0]["translations"]
    assert best["text"] == translator.translate(["ab cd"])[0]
    assert process.wait(SECONDS) == 0
    assert process.stderr.read() == ""


@pytest.mark.slow
def test_a_second_interrupt_ends_a_server_that_translates(begin):
    process, url = begin()
    body = json.dumps({"text": ["a b c d e f g. " * 300] * 128, "nbest": 8, "beam": 8}).encode()
    with ask_slowly(url, body) as connection:
        assert post(f"{url}/api/translate", text="e")["texts"]
        connection.sendall(body[1:])
        process.send_signal(signal.SIGINT)
        while is_listening(connection.getpeername()):
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 128 + signal.SIGINT
    assert process.stderr.read() == ""


@pytest.mark.slow
def test_a_client_of_libretranslate(begin, translator):
    libretranslatepy = pytest.importorskip(
        "libretranslatepy", reason="libretranslatepy is not installed"
    )
    _, url = begin()
    client = libretranslatepy.LibreTranslateAPI(url)
    texts = ["ab & cd", "e\u2028f", "ab\ncd"]
    for text in texts:
        expected = "\n".join(translator.translate(text.split("\n")))
        assert client.translate(text, "source", "target", timeout=SECONDS) == expected
    assert {each["code"] for each in client.languages()} == {"source", "target"}
    with pytest.raises(urllib.error.HTTPError, match="501"):
        client.detect("ab")


@pytest.mark.slow
def test_real_clients_that_vanish_cost_the_others_nothing(begin, translator):
    _, url = begin()
    body = json.dumps({"text": "ab cd " * 20}).encode()
    for sent in (1, len(body) // 2, len(body)):
        for _ in range(5):
            connection = ask_slowly(url, body)
            connection.sendall(body[1:sent])
            connection.close()
    answers = []

    def ask(text: str) -> None:
        answers.append((text, post(f"{url}/api/translate", text=text)["texts"][0]))

    threads = [threading.Thread(target=ask, args=(text,)) for text in ("a", "b", "cd", "e f")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    for text, answer in answers:
        assert answer["translations"][0]["text"] == translator.translate([text])[0]
