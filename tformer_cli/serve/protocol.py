"""HTTP/1.1 of a connection: uvicorn's protocols, with limits for the head of a request."""

import asyncio
import re

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

# Bytes of a head, and of what else is no body; seconds until a head is there.
MAX_HEAD = 1 << 16
HEAD_SECONDS = 60.0
# Seconds that a server which stops has left when it closes the connections that are still open.
CLOSING_SECONDS = 1
_UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:", re.IGNORECASE)


class HeadTimer:
    """Closes a connection that waits too long for the next head."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._handle: asyncio.TimerHandle | None = None

    def restart(self) -> None:
        """Wait from now on."""
        self.stop()
        loop = asyncio.get_running_loop()
        self._handle = loop.call_later(HEAD_SECONDS, self._transport.close)

    def start(self) -> None:
        """Wait, from now on or as before."""
        if self._handle is None:
            self.restart()

    def stop(self) -> None:
        """Wait no longer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class LimitedH11Protocol(H11Protocol):
    """HTTP by h11, which closes a connection with a slow head, and itself refuses a large one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take over a connection."""
        super().connection_made(transport)
        self._timer = HeadTimer(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._timer.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the next bytes."""
        super().data_received(data)
        # None before the first head, whatever uvicorn declares.
        cycle: object | None = self.cycle
        if cycle is None or self.cycle.response_complete:
            self._timer.start()
        else:
            self._timer.stop()


class LimitedProtocol(HttpToolsProtocol):
    """HTTP by httptools, which refuses a large head, and closes a connection with a slow one.

    httptools loses the body of a request that offers another protocol by `Upgrade`, as those of
    Java's HttpClient do: h11, which is slower, reads the connection from such a request on.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._is_in_message = False
        self._head = b""  # as far as it has arrived
        self._num_bytes = 0  # since a head or a part of a body was complete
        self._cycles = list[RequestResponseCycle]()  # of requests without a whole answer
        self._timer = HeadTimer(transport)
        self._timer.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer, and answer nothing more."""
        self._timer.stop()
        self._disconnect()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the next bytes."""
        # None before the first request, which uvicorn does not declare.
        is_idle = self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]
        if is_idle and (self._head or not self._is_in_message):
            self._head += data
            head, end, _ = self._head.partition(b"\r\n\r\n")
            if end and _UPGRADE.search(head):
                self._continue_by_h11(self._head)
                return
        if is_idle:
            # uvicorn no longer closes an idle connection once it has brought a byte: a line end
            # before a head, or the body of a request that was refused before.
            self._timer.start()
        self._num_bytes += len(data)
        super().data_received(data)
        if self._num_bytes > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def _continue_by_h11(self, data: bytes) -> None:
        self._timer.stop()
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        protocol = LimitedH11Protocol(self.config, self.server_state, self.app_state)
        protocol.connection_made(self.transport)
        self.transport.set_protocol(protocol)
        protocol.data_received(data)

    def on_message_begin(self) -> None:
        """Wait for the head of a request."""
        super().on_message_begin()
        self._is_in_message = True
        self._timer.restart()

    def on_headers_complete(self) -> None:
        """Wait no longer, and begin to answer."""
        self._timer.stop()
        self._head = b""
        self._num_bytes = 0
        super().on_headers_complete()
        self._cycles = [each for each in self._cycles if not each.response_complete]
        self._cycles.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        """Take a part of a body, which the application limits."""
        self._num_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._is_in_message = False
        super().on_message_complete()

    def shutdown(self) -> None:
        """Close the connection when it has answered, or when it has had time enough.

        uvicorn cancels answers then, but waits on for a client that does not read.
        """
        super().shutdown()
        seconds = (self.config.timeout_graceful_shutdown or 0) - CLOSING_SECONDS
        self.loop.call_later(seconds, self._abort)

    def _abort(self) -> None:
        self._disconnect()
        self.transport.abort()

    def _disconnect(self) -> None:
        """Tell all requests that their client is gone: uvicorn tells the last one alone."""
        for cycle in self._cycles:
            cycle.disconnected = True
            cycle.message_event.set()
