#!/usr/bin/env python
"""Fetch the Multi30k captions, English, German and French, and verify every file by its checksum.

The text is that of the repository multi30k/dataset at one commit, raw and as lower-cased tokens.
Every file is written as gzip without name and time, so that it is the same file everywhere.

Example: python scripts/get_multi30k.py
"""

import gzip
import hashlib
import http.client
import re
import signal
import sys
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer
from tqdm import tqdm

from tformer_cli.cli.entry import new_app, run
from tformer_cli.errors import DataError, Interrupted, TformerError
from tformer_cli.storage.atomic import atomic_write, storage_errors

COMMIT = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"
REPOSITORY = f"https://raw.githubusercontent.com/multi30k/dataset/{COMMIT}"
DEFAULT_FOLDER = Path(__file__).resolve().parents[1] / "data" / "multi30k"
CHUNK_BYTES = 1 << 16

# SHA-256 of the uncompressed text; path under data/task1
CHECKSUMS = """
460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6 raw/train.en.gz
2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72 raw/train.de.gz
1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227 raw/val.en.gz
660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660 raw/val.de.gz
5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d raw/train.fr.gz
5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc raw/val.fr.gz
cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6 raw/test_2016_flickr.fr.gz
399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182 raw/test_2016_flickr.en.gz
4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16 raw/test_2016_flickr.de.gz
ce1450ddc5ab0834502579d77a170849952e15a2938b34cc503bdc25ebb4fb98 raw/test_2017_flickr.en.gz
c3078bc3b36808bf9d20eb2347ed6137016179ef59ec0d2b9b8ecc3fb2880081 raw/test_2017_flickr.de.gz
4e585c2dd525911a6ea7730e9d0b516239af3f1b1ffae6a2130223cfb639f25e raw/test_2018_flickr.en.gz
39fcc8b3331d76fb42d648d019c6898b0d5e58baac87bc2a0bb93f44ec8db207 raw/test_2018_flickr.de.gz
08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119 tok/train.lc.norm.tok.en
cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505 tok/train.lc.norm.tok.de
46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec tok/val.lc.norm.tok.en
97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00 tok/val.lc.norm.tok.de
5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2 tok/test_2016_flickr.lc.norm.tok.en
c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4 tok/test_2016_flickr.lc.norm.tok.de
"""


@dataclass(frozen=True, slots=True)
class TextFile:
    """A text of the corpus."""

    sha256: str  # of the uncompressed text
    path: str  # in the repository, gzip or plain

    @property
    def name(self) -> str:
        """File name in the folder, where every file is gzip."""
        return f"{PurePosixPath(self.path).name.removesuffix('.gz')}.gz"


@dataclass(frozen=True, slots=True)
class Patience:
    """Timeout of a server, and waits before retries."""

    timeout_seconds: float = 30.0
    waits_seconds: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)


FILES = tuple(
    TextFile(sha256, f"data/task1/{path}")
    for sha256, path in map(str.split, CHECKSUMS.split("\n")[1:-1])
)


class DownloadError(TformerError):
    """A server does not answer, or not with the file."""


class TransientError(Exception):
    """An attempt at a download failed; another one may succeed."""


def get_corpus(
    files: Sequence[TextFile], source: str, folder: Path, patience: Patience = Patience()
) -> int:
    """Fetch the files that `folder` lacks; return their number.

    Args:
        files: the corpus.
        source: URL of the repository or of a copy, or a folder.
        folder: created if it is missing.
        patience: with the server.

    Raises:
        DataError: a text has another checksum, or the source lacks files.
        DownloadError: the server failed for good.
        OSError: a file cannot be read.
        StorageError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [file for file in files if not is_present(file, folder)]
    if source.startswith(("http://", "https://")):
        for file in missing:
            download(file, source, folder, patience)
    else:
        copy(missing, Path(source), folder)
    return len(missing)


def is_present(file: TextFile, folder: Path) -> bool:
    """Whether `folder` has the file.

    Raises:
        DataError: it has a file of that name with another text, which may be the user's own.
    """
    path = folder / file.name
    if not path.exists():
        return False
    checked_text(path.read_bytes(), file, str(path), "remove it, or name another folder")
    return True


def copy(files: Sequence[TextFile], source: Path, folder: Path) -> None:
    """Copy files from a clone of the repository, or from a folder with the files.

    Raises:
        DataError: a text has another checksum, or files are missing; the others are copied.
    """
    if not source.is_dir():
        raise DataError(str(source), "no such folder", remedy="name a folder or an http address")
    missing = []
    for file in files:
        path = next((path for path in local_paths(file, source) if path.is_file()), None)
        if path is None:
            missing.append(file.name)
            continue
        text = checked_text(path.read_bytes(), file, str(path), "take another copy")
        write_gzip(folder / file.name, text)
    if missing:
        raise DataError(
            str(source),
            f"has no {', '.join(missing)}",
            remedy="the same command without --from downloads what is missing",
        )


def local_paths(file: TextFile, source: Path) -> Iterator[Path]:
    """Yield the paths that a local copy may have a file at."""
    for parent in ((source / file.path).parent, source):
        yield parent / file.name
        yield parent / file.name.removesuffix(".gz")


def download(file: TextFile, base: str, folder: Path, patience: Patience) -> None:
    """Download one file, resuming a partial download.

    Raises:
        DataError: the text has another checksum; the partial file is removed.
        DownloadError: the server failed for good; the partial file is kept.
    """
    url = f"{base.rstrip('/')}/{file.path}"
    part = folder / f"{PurePosixPath(file.path).name}.part"
    receive(url, part, patience)
    content = part.read_bytes()
    part.unlink()
    remedy = "nothing of it was kept: try again, or name another copy with --from"
    write_gzip(folder / file.name, checked_text(content, file, url, remedy))


def receive(url: str, part: Path, patience: Patience) -> None:
    """Complete the partial file `part` from `url`, with retries.

    Raises:
        DownloadError: the server refused, or the last attempt failed.
    """
    for wait in (*patience.waits_seconds, None):
        try:
            receive_rest(url, part, patience.timeout_seconds)
            return
        except TransientError as failure:
            if wait is None:
                raise DownloadError(
                    url,
                    f"no success in {len(patience.waits_seconds) + 1} tries",
                    got=str(failure),
                    remedy="re-run the command to resume; --from takes another copy",
                ) from failure
            tqdm.write(f"{url}: {failure}; next try in {wait:g} s", file=sys.stderr)
            time.sleep(wait)


def receive_rest(url: str, part: Path, timeout_seconds: float) -> None:
    """Request once what `part` lacks of the file at `url`, and append it.

    Raises:
        TransientError: another attempt may succeed.
        DownloadError: no other attempt would succeed.
    """
    with storage_errors(part):
        offset = part.stat().st_size if part.exists() else 0
    response = answer(url, offset, timeout_seconds)
    if response is None:
        return
    with response, storage_errors(part):
        start, size = span(response)
        if start != offset:
            part.unlink(missing_ok=True)
        if start not in (0, offset):
            raise TransientError("the server sent another part of the file than it was asked for")
        with (
            part.open("ab") as sink,
            tqdm(
                desc=part.stem,
                total=size,
                initial=sink.tell(),
                unit="B",
                unit_scale=True,
                leave=False,
                disable=not sys.stderr.isatty(),
            ) as bar,
        ):
            while size is None or sink.tell() < size:
                chunk = read(response)
                if not chunk:
                    break
                sink.write(chunk)
                # Received bytes survive a kill.
                sink.flush()
                bar.update(len(chunk))
            received = sink.tell()
    if size is not None and received < size:
        raise TransientError(f"the connection ended after {received:,} of {size:,} bytes")


def answer(url: str, offset: int, timeout_seconds: float) -> http.client.HTTPResponse | None:
    """Return the response to a request for the bytes from `offset` on; None if there are none.

    Raises:
        TransientError: no connection, or the server is busy or broken.
        DownloadError: no such file, no permission, or no valid URL.
    """
    remedy = "name another copy with --from"
    headers = {"User-Agent": "tformer"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=timeout_seconds
        )
    except urllib.error.HTTPError as error:
        error.close()
        if offset and error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return None
        status = f"{error.code} {error.reason}"
        if error.code >= 500 or error.code == HTTPStatus.TOO_MANY_REQUESTS:
            raise TransientError(status) from error
        raise DownloadError(url, "the server refuses", got=status, remedy=remedy) from error
    except (ValueError, http.client.InvalidURL) as error:
        raise DownloadError(url, "no address", got=str(error), remedy=remedy) from error
    except (OSError, http.client.HTTPException) as error:
        raise TransientError(reason(error)) from error
    return response


def span(response: http.client.HTTPResponse) -> tuple[int | None, int | None]:
    """Return the offset of a response in the file, and the size of the file; None if unknown.

    A server without ranges sends the file from its start (RFC 9110, sections 14.2 and 14.4).
    """
    if response.status != HTTPStatus.PARTIAL_CONTENT:
        return 0, response.length
    content_range = re.fullmatch(
        r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", "")
    )
    if content_range is None:
        return None, None
    return int(content_range[1]), int(content_range[2])


def read(response: http.client.HTTPResponse) -> bytes:
    """Return the next bytes that have arrived; none at the end.

    Raises:
        TransientError: the connection failed or timed out.
    """
    try:
        return response.read1(CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise TransientError(reason(error)) from error


def reason(error: OSError | http.client.HTTPException) -> str:
    """Return why a connection failed, in the words of the system if it has some."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return getattr(cause, "strerror", None) or str(cause)


def checked_text(content: bytes, file: TextFile, where: str, remedy: str) -> bytes:
    """Return the text in `content`, gzip or plain, if it has the checksum of `file`.

    Raises:
        DataError: it has not.
    """
    text = uncompressed(content)
    got = "broken gzip" if text is None else hashlib.sha256(text).hexdigest()
    if text is None or got != file.sha256:
        raise DataError(
            where, f"the text must have the sha256 {file.sha256}", got=got, remedy=remedy
        )
    return text


def uncompressed(content: bytes) -> bytes | None:
    """Return the text of a gzip or plain file, or None if it is broken gzip."""
    # No UTF-8 text begins with the first bytes of gzip.
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error):
        return None


def write_gzip(path: Path, text: bytes) -> None:
    """Write a gzip file without name and time, atomically.

    Raises:
        StorageError: the file cannot be written.
    """
    with (
        atomic_write(path) as temporary,
        temporary.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
    ):
        packed.write(text)


app = new_app(add_completion=False)


@app.command()
def get_multi30k(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Output folder.", show_default="data/multi30k")
    ] = DEFAULT_FOLDER,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="DIR|URL",
            help="Another source. DIR: a clone of the repository, or a folder with the files, "
            "gzip or plain. URL: the address before data/task1/raw/train.en.gz and so on.",
            show_default="the repository on GitHub",
        ),
    ] = REPOSITORY,
) -> None:
    """Fetch the Multi30k captions, English, German and French: 29,000 to train on, and test sets.

    Files that exist are verified and kept; an interrupted download resumes.

    Example: python scripts/get_multi30k.py
    """
    try:
        num_new = get_corpus(FILES, source, folder)
    except KeyboardInterrupt:
        raise Interrupted(
            str(folder),
            "interrupted",
            signal=signal.SIGINT,
            remedy="re-run the command to resume",
        ) from None
    typer.echo(f"{folder}: {len(FILES)} files, {num_new} of them new")


if __name__ == "__main__":
    run(app)
