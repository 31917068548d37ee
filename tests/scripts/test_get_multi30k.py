"""Getting a corpus, from folders and from a local server that does all the wrong things."""

import gzip
import hashlib
import io
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import get_multi30k
import pytest
from get_multi30k import FILES, REPOSITORY, Patience, TextFile, app, checked_text, get_corpus

from tformer_cli.cli.entry import run
from tformer_cli.config.load import load_config
from tformer_cli.errors import TformerError

CONFIGS = Path(__file__).parents[2] / "configs"
TEXT = "Zwei junge weiße Männer.\n".encode() * 3
TOKENS = b"two young , white males .\n" * 2
PACKED = gzip.compress(TEXT, compresslevel=1, mtime=1)
SERVED = {"/data/task1/raw/val.de.gz": PACKED, "/data/task1/tok/val.lc.norm.tok.en": TOKENS}
SUMS = [hashlib.sha256(text).hexdigest() for text in (TEXT, TOKENS)]
TINY = tuple(TextFile(sha256, path[1:]) for sha256, path in zip(SUMS, SERVED, strict=True))
RAW, TOK = TINY
HASTE = Patience(waits_seconds=(0.0, 0.0))


class Handler(BaseHTTPRequestHandler):
    """Gives the next answer that the server has up its sleeve, else the honest one."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_GET(self) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))
        assert asked is not None
        start = int(asked[1])
        self.server.requests.append((self.path, start))
        answer = self.server.answers.pop(0) if self.server.answers else honest
        answer(self, SERVED[self.path], start)

    def head(self, status: int, **headers: object) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


Answer = Callable[[Handler, bytes, int], None]


class Server(ThreadingHTTPServer):
    """Remembers what it was asked for, as paths and first bytes."""

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, int]] = []
        self.answers: list[Answer] = []
        self.released = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"


def honest(handler: Handler, content: bytes, start: int) -> None:
    if start >= len(content):
        handler.head(416, Content_Length=0)
        return
    rest = content[start:]
    stretch = f"bytes {start}-{len(content) - 1}/{len(content)}"
    handler.head(206 if start else 200, Content_Length=len(rest), Content_Range=stretch)
    handler.wfile.write(rest)


def without_ranges(handler: Handler, content: bytes, start: int) -> None:
    honest(handler, content, 0)


def cut(num_bytes: int) -> Answer:
    """Break off `num_bytes` into what was asked for."""

    def answer(handler: Handler, content: bytes, start: int) -> None:
        wfile = handler.wfile
        handler.wfile = io.BytesIO()
        honest(handler, content, start)
        whole = handler.wfile.getvalue()
        handler.wfile = wfile
        wfile.write(whole[: whole.index(b"\r\n\r\n") + 4 + num_bytes])

    return answer


def stall(num_bytes: int) -> Answer:
    """Fall silent `num_bytes` into what was asked for."""

    def answer(handler: Handler, content: bytes, start: int) -> None:
        cut(num_bytes)(handler, content, start)
        handler.server.released.wait()

    return answer


def chunked(*chunks: bytes, ends: bool) -> Answer:
    """Send chunks, a stream that does not say how long it will be."""

    def answer(handler: Handler, content: bytes, start: int) -> None:
        handler.head(200, Transfer_Encoding="chunked")
        for chunk in chunks:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        if ends:
            handler.wfile.write(b"0\r\n\r\n")

    return answer


def status(code: int) -> Answer:
    return lambda handler, content, start: handler.head(code, Content_Length=0)


def sending(body: bytes, *, length: int | None = None) -> Answer:
    """Send other bytes than there are, or say another length."""

    def answer(handler: Handler, content: bytes, start: int) -> None:
        handler.head(200, Content_Length=len(body) if length is None else length)
        handler.wfile.write(body)

    return answer


def partial(body: bytes, **headers: str) -> Answer:
    """Send `body` as a part of the file, in `headers` what part it is."""

    def answer(handler: Handler, content: bytes, start: int) -> None:
        handler.head(206, Content_Length=len(body), **headers)
        handler.wfile.write(body)

    return answer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        # shutdown() returns at the next poll.
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between tries, which pass at once."""
    seconds: list[float] = []
    monkeypatch.setattr(get_multi30k.time, "sleep", seconds.append)
    return seconds


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def texts(folder: Path) -> dict[str, bytes]:
    return {path.name: gzip.decompress(path.read_bytes()) for path in folder.iterdir()}


BOTH = {"val.de.gz": TEXT, "val.lc.norm.tok.en.gz": TOKENS}


def test_a_corpus_is_downloaded_once(server, tmp_path):
    folder = tmp_path / "data" / "tiny"
    assert get_corpus(TINY, f"{server.url}/", folder) == 2
    assert texts(folder) == BOTH
    assert server.requests == [(path, 0) for path in SERVED]
    assert get_corpus(TINY, server.url, folder) == 0
    assert len(server.requests) == 2


def test_the_same_text_is_the_same_file_from_everywhere(server, tmp_path):
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "val.de").write_bytes(TEXT)
    get_corpus([RAW], server.url, tmp_path / "a")
    get_corpus([RAW], str(plain), tmp_path / "b")
    packed = (tmp_path / "a" / "val.de.gz").read_bytes()
    assert packed == (tmp_path / "b" / "val.de.gz").read_bytes()
    # RFC 1952: no flags, so no name, and no time.
    assert packed[:8] == bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("num_bytes", [1, len(PACKED) // 2, len(PACKED) - 1])
def test_a_download_goes_on_where_an_earlier_one_stopped(server, tmp_path, num_bytes):
    (tmp_path / "val.de.gz.part").write_bytes(PACKED[:num_bytes])
    get_corpus([RAW], server.url, tmp_path)
    assert texts(tmp_path) == {"val.de.gz": TEXT}
    assert [start for _, start in server.requests] == [num_bytes]


def test_a_download_that_only_lacked_its_name_is_taken_over(server, tmp_path):
    (tmp_path / "val.de.gz.part").write_bytes(PACKED)
    get_corpus([RAW], server.url, tmp_path)
    assert texts(tmp_path) == {"val.de.gz": TEXT}
    assert [start for _, start in server.requests] == [len(PACKED)]


def test_a_server_without_ranges_sends_it_all_again(server, tmp_path):
    (tmp_path / "val.de.gz.part").write_bytes(PACKED[:10])
    server.answers = [without_ranges]
    get_corpus([RAW], server.url, tmp_path)
    assert texts(tmp_path) == {"val.de.gz": TEXT}
    assert [start for _, start in server.requests] == [10]


@pytest.mark.parametrize(
    "headers",
    [
        {"Content_Range": f"bytes 9-{len(PACKED) - 1}/{len(PACKED)}"},
        {"Content_Range": "bytes 10-"},
        {},
    ],
)
def test_another_part_than_asked_for_is_not_taken(server, tmp_path, capsys, headers):
    (tmp_path / "val.de.gz.part").write_bytes(PACKED[:10])
    server.answers = [partial(PACKED[9:], **headers)]
    get_corpus([RAW], server.url, tmp_path, HASTE)
    assert texts(tmp_path) == {"val.de.gz": TEXT}
    assert [start for _, start in server.requests] == [10, 0]
    assert capsys.readouterr().err == (
        f"{server.url}/data/task1/raw/val.de.gz: "
        "the server sent another part of the file than it was asked for; next try in 0 s\n"
    )


def test_a_part_from_the_start_of_the_file_is_taken(server, tmp_path):
    (tmp_path / "val.de.gz.part").write_bytes(PACKED[:10])
    whole = f"bytes 0-{len(PACKED) - 1}/{len(PACKED)}"
    server.answers = [partial(PACKED, Content_Range=whole)]
    get_corpus([RAW], server.url, tmp_path, HASTE)
    assert texts(tmp_path) == {"val.de.gz": TEXT}
    assert len(server.requests) == 1


def test_a_part_shorter_than_asked_for_is_added_to(server, tmp_path):
    (tmp_path / "val.de.gz.part").write_bytes(PACKED[:10])
    server.answers = [partial(PACKED[10:20], Content_Range=f"bytes 10-19/{len(PACKED)}")]
    get_corpus([RAW], server.url, tmp_path, HASTE)
    assert texts(tmp_path) == {"val.de.gz": TEXT}
    assert [start for _, start in server.requests] == [10, 20]


def test_a_stream_that_breaks_off_goes_on(server, tmp_path, waits, capsys):
    server.answers = [cut(10), cut(0), cut(7)]
    get_corpus([RAW], server.url, tmp_path)
    assert texts(tmp_path) == {"val.de.gz": TEXT}
    assert [start for _, start in server.requests] == [0, 10, 10, 17]
    assert waits == [1, 2, 4]
    url = f"{server.url}/data/task1/raw/val.de.gz"
    ended = "the connection ended after"
    assert capsys.readouterr().err.splitlines() == [
        f"{url}: {ended} 10 of {len(PACKED)} bytes; next try in 1 s",
        f"{url}: {ended} 10 of {len(PACKED)} bytes; next try in 2 s",
        f"{url}: {ended} 17 of {len(PACKED)} bytes; next try in 4 s",
    ]


def test_a_stream_without_a_length_is_read_to_its_end(server, tmp_path):
    server.answers = [chunked(PACKED[:10], PACKED[10:], ends=True)]
    get_corpus([RAW], server.url, tmp_path)
    assert texts(tmp_path) == {"val.de.gz": TEXT}
    assert len(server.requests) == 1


def test_a_stream_without_a_length_that_breaks_off_goes_on(server, tmp_path):
    server.answers = [chunked(PACKED[:10], ends=False)]
    get_corpus([RAW], server.url, tmp_path, HASTE)
    assert texts(tmp_path) == {"val.de.gz": TEXT}
    assert [start for _, start in server.requests] == [0, 10]


def test_a_server_that_falls_silent_is_asked_again(server, tmp_path, capsys):
    server.answers = [stall(10)]
    get_corpus([RAW], server.url, tmp_path, Patience(0.2, (0.0,) * 20))
    assert texts(tmp_path) == {"val.de.gz": TEXT}
    assert server.requests[1][1] == 10
    assert ": timed out; next try in 0 s\n" in capsys.readouterr().err


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_busy_server_is_asked_again_after_growing_waits(server, tmp_path, waits, code):
    server.answers = [status(code)] * 4
    get_corpus([RAW], server.url, tmp_path)
    assert texts(tmp_path) == {"val.de.gz": TEXT}
    assert waits == [1, 2, 4, 8]


def test_a_server_that_stays_broken_is_given_up_and_what_came_is_kept(server, tmp_path, waits):
    server.answers = [cut(10), *[status(503)] * 4]
    with pytest.raises(TformerError) as caught:
        get_corpus(TINY, server.url, tmp_path)
    assert str(caught.value) == (
        f"{server.url}/data/task1/raw/val.de.gz: no success in 5 tries "
        "(503 Service Unavailable); "
        "re-run the command to resume; --from takes another copy"
    )
    assert len(server.requests) == 5
    assert names(tmp_path) == ["val.de.gz.part"]
    get_corpus(TINY, server.url, tmp_path)
    assert texts(tmp_path) == BOTH
    assert server.requests[5] == ("/data/task1/raw/val.de.gz", 10)


def test_no_server_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(TformerError) as caught:
        get_corpus([RAW], url, tmp_path, HASTE)
    assert str(caught.value) == (
        f"{url}/data/task1/raw/val.de.gz: no success in 3 tries (Connection refused); "
        "re-run the command to resume; --from takes another copy"
    )


def test_a_file_that_the_server_has_not_is_asked_for_once(server, tmp_path):
    server.answers = [status(404)]
    with pytest.raises(TformerError) as caught:
        get_corpus([RAW], server.url, tmp_path, HASTE)
    assert str(caught.value) == (
        f"{server.url}/data/task1/raw/val.de.gz: the server refuses (404 Not Found); "
        "name another copy with --from"
    )
    assert len(server.requests) == 1
    assert names(tmp_path) == []


def test_what_is_no_address_is_not_tried_again(tmp_path, waits):
    with pytest.raises(TformerError) as caught:
        get_corpus([RAW], "http://[::1", tmp_path)
    assert str(caught.value) == (
        "http://[::1/data/task1/raw/val.de.gz: no address (Invalid IPv6 URL); "
        "name another copy with --from"
    )
    assert waits == []


LIE = b"<html>Please log in.</html>\n"


@pytest.mark.parametrize(
    ("body", "got"),
    [
        (LIE, hashlib.sha256(LIE).hexdigest()),
        (gzip.compress(LIE, mtime=0), hashlib.sha256(LIE).hexdigest()),
        (PACKED[:-9], "broken gzip"),
        (PACKED[:-8] + bytes(8), "broken gzip"),
        (PACKED[:10] + b"\xff" * 30, "broken gzip"),
    ],
    ids=["plain", "gzip", "cut short", "wrong sum", "noise"],
)
def test_another_text_is_refused_and_leaves_nothing(server, tmp_path, body, got):
    server.answers = [sending(body)]
    with pytest.raises(TformerError) as caught:
        get_corpus([RAW], server.url, tmp_path)
    assert str(caught.value) == (
        f"{server.url}/data/task1/raw/val.de.gz: the text must have the sha256 {RAW.sha256} "
        f"({got}); nothing of it was kept: try again, or name another copy with --from"
    )
    assert names(tmp_path) == []
    get_corpus([RAW], server.url, tmp_path)
    assert texts(tmp_path) == {"val.de.gz": TEXT}
    assert [start for _, start in server.requests] == [0, 0]


def test_what_an_earlier_download_left_wrong_is_found_out(server, tmp_path):
    (tmp_path / "val.lc.norm.tok.en.part").write_bytes(b"two old")
    with pytest.raises(TformerError, match=f"must have the sha256 {TOK.sha256}"):
        get_corpus([TOK], server.url, tmp_path)
    assert names(tmp_path) == []


def test_a_length_that_is_too_short_is_found_out_by_the_sum(server, tmp_path):
    server.answers = [sending(TOKENS, length=len(TOKENS) - 5)]
    with pytest.raises(TformerError) as caught:
        get_corpus([TOK], server.url, tmp_path)
    assert f"({hashlib.sha256(TOKENS[:-5]).hexdigest()});" in str(caught.value)
    assert names(tmp_path) == []


def test_a_length_that_is_too_long_is_another_reason_to_ask_again(server, tmp_path, capsys):
    server.answers = [sending(TOKENS, length=len(TOKENS) + 5)]
    get_corpus([TOK], server.url, tmp_path, HASTE)
    assert texts(tmp_path) == {"val.lc.norm.tok.en.gz": TOKENS}
    assert "the connection ended after 52 of 57 bytes; next" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".gz", ""])
@pytest.mark.parametrize("is_clone", [True, False])
def test_a_local_copy_may_be_a_clone_or_a_folder_and_gzip_or_plain(tmp_path, suffix, is_clone):
    source = tmp_path / "source"
    for file, text in zip(TINY, BOTH.values(), strict=True):
        folder = (source / file.path).parent if is_clone else source
        folder.mkdir(parents=True, exist_ok=True)
        content = gzip.compress(text) if suffix else text
        (folder / f"{file.name.removesuffix('.gz')}{suffix}").write_bytes(content)
    assert get_corpus(TINY, str(source), tmp_path / "folder") == 2
    assert texts(tmp_path / "folder") == BOTH


def test_a_local_copy_may_have_a_part_of_the_corpus(tmp_path):
    source, folder = tmp_path / "source", tmp_path / "folder"
    source.mkdir()
    (source / "val.lc.norm.tok.en").write_bytes(TOKENS)
    with pytest.raises(TformerError) as caught:
        get_corpus(TINY, str(source), folder)
    assert str(caught.value) == (
        f"{source}: has no val.de.gz; the same command without --from downloads what is missing"
    )
    assert texts(folder) == {"val.lc.norm.tok.en.gz": TOKENS}


def test_a_local_copy_with_another_text_is_refused(tmp_path):
    source, folder = tmp_path / "source", tmp_path / "folder"
    source.mkdir()
    (source / "val.de.gz").write_bytes(gzip.compress(LIE))
    with pytest.raises(TformerError) as caught:
        get_corpus([RAW], str(source), folder)
    assert str(caught.value) == (
        f"{source / 'val.de.gz'}: the text must have the sha256 {RAW.sha256} "
        f"({hashlib.sha256(LIE).hexdigest()}); take another copy"
    )
    assert names(folder) == []


def test_a_local_copy_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(TformerError) as caught:
        get_corpus(TINY, "ftp://127.0.0.1", tmp_path)
    assert str(caught.value) == ("ftp:/127.0.0.1: no such folder; name a folder or an http address")


def test_another_text_of_that_name_stays_as_it_is(server, tmp_path):
    mine = tmp_path / "val.lc.norm.tok.en.gz"
    mine.write_bytes(LIE)
    with pytest.raises(TformerError) as caught:
        get_corpus(TINY, server.url, tmp_path)
    assert str(caught.value) == (
        f"{mine}: the text must have the sha256 {TOK.sha256} "
        f"({hashlib.sha256(LIE).hexdigest()}); remove it, or name another folder"
    )
    assert mine.read_bytes() == LIE
    assert server.requests == []


def test_progress_is_shown_on_a_terminal(server, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    get_corpus([TOK], server.url, tmp_path)
    assert "val.lc.norm.tok.en: " in capsys.readouterr().err


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the script for the tiny corpus: exit code, stdout, stderr."""
    monkeypatch.setattr(get_multi30k, "FILES", TINY)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["get_multi30k.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            run(app)
        out, err = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, out, err

    return call


def test_the_script_says_what_is_there(server, tmp_path, command):
    (tmp_path / "val.de.gz").write_bytes(PACKED)
    said = command("--from", server.url, tmp_path)
    assert said == (0, f"{tmp_path}: 2 files, 1 of them new\n", "")
    assert texts(tmp_path) == BOTH


def test_the_script_says_a_mistake_in_one_line(tmp_path, command):
    assert command("--from", tmp_path / "nowhere", tmp_path) == (
        2,
        "",
        f"{tmp_path / 'nowhere'}: no such folder; name a folder or an http address\n",
    )


def test_the_script_says_in_one_line_what_the_system_refuses(server, tmp_path, command):
    file = tmp_path / "file"
    file.write_text("")
    assert command("--from", server.url, file) == (
        2,
        "",
        f"{file}: cannot be read or written (File exists); "
        "there is a file where a folder must be: name another path\n",
    )


def test_a_disk_that_takes_no_more_is_not_taken_for_a_bad_connection(server, tmp_path, command):
    (tmp_path / "val.de.gz.part").symlink_to("/dev/full")
    code, out, err = command("--from", server.url, tmp_path)
    assert (code, out) == (2, "")
    assert err == (
        f"{tmp_path / 'val.de.gz.part'}: cannot be written (No space left on device); "
        "free space and run the same command again; what was saved before is intact\n"
    )
    assert len(server.requests) == 1


def test_ctrl_c_leaves_what_came_for_the_next_start(server, tmp_path, command, monkeypatch):
    read = get_multi30k.read
    server.answers = [cut(10)]
    pieces = iter([read])

    def interrupted_read(response: object) -> bytes:
        for first in pieces:
            return first(response)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(get_multi30k, "read", interrupted_read)
        assert command("--from", server.url, tmp_path) == (
            130,
            "",
            f"{tmp_path}: interrupted; re-run the command to resume\n",
        )
    assert (tmp_path / "val.de.gz.part").read_bytes() == PACKED[:10]
    assert names(tmp_path) == ["val.de.gz.part"]
    assert command("--from", server.url, tmp_path)[0] == 0
    assert texts(tmp_path) == BOTH
    assert server.requests[1] == ("/data/task1/raw/val.de.gz", 10)


def test_the_table_has_both_languages_of_every_text_once():
    assert len({file.name for file in FILES}) == len({file.sha256 for file in FILES}) == 19
    english, german, french = (
        {file.name.replace(f".{language}.", ".") for file in FILES if f".{language}." in file.name}
        for language in ("en", "de", "fr")
    )
    assert english == german
    assert french == {"train.gz", "val.gz", "test_2016_flickr.gz"}
    assert all(re.fullmatch("[0-9a-f]{64}", file.sha256) for file in FILES)
    assert re.fullmatch(r"https://raw\.githubusercontent\.com/\w+/\w+/[0-9a-f]{40}", REPOSITORY)


@pytest.mark.parametrize("name", ["multi30k", "multi30k-six"])
def test_the_table_has_what_the_config_reads(name):
    data = load_config(CONFIGS / f"{name}.yaml").data
    pairs = data.texts().values()
    read = {Path(side) for pair in pairs for side in (pair.source, pair.target)}
    assert {path.name for path in read} <= {file.name for file in FILES}
    assert {path.parent.resolve() for path in read} == {get_multi30k.DEFAULT_FOLDER}


def test_the_table_has_the_sums_of_the_real_text(corpora):
    there = [file for file in FILES if (corpora / "multi30k" / file.name).is_file()]
    assert len(there) >= 12
    for file in there:
        path = corpora / "multi30k" / file.name
        text = checked_text(path.read_bytes(), file, str(path), "")
        assert text.count(b"\n") in (29_000, 1_014, 1_000)
