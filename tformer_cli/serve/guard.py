"""Guard: which host names, which sites' pages and which API keys a server answers to."""

import hmac
import itertools
from collections.abc import Collection, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tformer_cli.corpus.lines import read_lines
from tformer_cli.errors import DataError, UsageError
from tformer_cli.serve.refusal import Forbidden, Misdirected, Refusal, Unauthorized, refusal_answer

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


class Guard:
    """ASGI middleware that refuses other host names, and pages of other sites.

    A page that names this server by a host name of its own (DNS rebinding) would be of the same
    origin.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], origins: Collection[str]) -> None:
        self.app = app
        self.hosts = {*LOCAL_HOSTS, *map(str.lower, hosts)}
        self.origins = set(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self.check(Headers(scope=scope))
            except Refusal as refusal:
                await refusal_answer(refusal)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def check(self, headers: Headers) -> None:
        """Refuse a request by its headers.

        Raises:
            Misdirected: its Host is none of this server's.
            Forbidden: its Origin is neither this server nor one that is allowed.
        """
        host = headers.get("host", "")
        if host_name(host) not in self.hosts:
            remedy = "allow it by `tformer serve --allow-host NAME`"
            raise Misdirected("Host", "is not a name of this server", got=host, remedy=remedy)
        origin = headers.get("origin")
        if origin is None or origin.lower() in self.origins:
            return
        if host_and_port(origin) != host.lower():
            remedy = "allow it by `tformer serve --allow-origin URL`"
            raise Forbidden("Origin", "is another site", got=origin, remedy=remedy)


def host_name(host: str) -> str | None:
    """Return the name in a Host header, without its port; None if it is no such header."""
    try:
        parts = urlsplit(f"//{host}")
    except ValueError:
        return None
    is_host = parts.netloc == host and parts.username is None
    return parts.hostname if is_host else None


def allowed_host(name: str) -> str:
    """Return a host name as a Host header has it, without the brackets of an address.

    Raises:
        UsageError: no Host header has it, as with a port.
    """
    host = name.lower()
    named = {host_name(host), f"[{host_name(host)}]", host_name(f"[{host}]")}
    if host == "*" or host not in named:
        remedy = "write a name alone, such as mt.example.org"
        raise UsageError("`hosts`", "is no host name", got=name, remedy=remedy)
    return host.strip("[]")


def allowed_origin(url: str) -> str:
    """Return a site as an Origin header has it.

    Raises:
        UsageError: no Origin header has it, as without a scheme.
    """
    origin = url.lower().rstrip("/")
    scheme, separator, host = origin.partition("://")
    if not (scheme and separator and host_name(host)):
        remedy = "write scheme and host, such as https://example.org"
        raise UsageError("`origins`", "is no site", got=url, remedy=remedy)
    return origin


def host_and_port(origin: str) -> str | None:
    """Return host and port of an Origin header."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


class ApiKeys:
    """The keys of which a request must have one; without keys every request is answered."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._keys = [key.encode() for key in keys]

    @classmethod
    def read(cls, file: Path) -> "ApiKeys":
        """Read a key from each line of a file that is not empty.

        Raises:
            DataError: there is no such file, or no key in it.
        """
        keys = [line.strip() for line in read_lines(file) if line.strip()]
        if not keys:
            raise DataError(str(file), "has no API key", remedy="write one a line")
        return cls(keys)

    def check(self, headers: Headers, key: object = None) -> None:
        """Refuse a request without a key, in `Authorization: Bearer KEY` or in its body.

        All keys are compared, each in constant time, so that time tells nothing about them.

        Raises:
            Unauthorized: it has none, or a wrong one.
        """
        if not self._keys:
            return
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        is_bearer = scheme.lower() == "bearer"
        given = credentials.strip(" \t") if is_bearer else key
        if not isinstance(given, str) or not given:
            remedy = "send `Authorization: Bearer KEY`"
            raise Unauthorized("API key", "is required", remedy=remedy)
        sent = [given.encode(errors="surrogatepass")]
        if is_bearer:
            # Headers are read as Latin-1; curl and the page write them in UTF-8, others in Latin-1.
            sent.append(given.encode("latin-1"))
        num_equal = sum(hmac.compare_digest(*pair) for pair in itertools.product(sent, self._keys))
        if not num_equal:
            raise Unauthorized("API key", "is not valid")
