"""A terminal of some width, and what a program writes on it."""

import contextlib
import fcntl
import os
import struct
import termios
import threading
from collections.abc import Iterator
from typing import TextIO

# No program writes it.
END = b"\0"


class Terminal:
    """A pseudo-terminal: `stream` is written to, `text()` is what has come out."""

    def __init__(self, columns: int) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.stream: TextIO = os.fdopen(slave, "w", encoding="utf-8")
        self._written = b""
        # Otherwise a full buffer would block the program.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # Linux raises an error where the other side is closed.
        with contextlib.suppress(OSError):
            while not self._written.endswith(END) and (part := os.read(self._master, 4096)):
                self._written += part

    def text(self) -> str:
        """Close the terminal, and return all that was written."""
        # A write just before the close may be lost to a reader that waits at that moment.
        self.stream.write(END.decode())
        self.stream.flush()
        self._reader.join()
        self.stream.close()
        return self._written.removesuffix(END).decode("utf-8")


@contextlib.contextmanager
def open_terminal(columns: int = 80) -> Iterator[Terminal]:
    terminal = Terminal(columns)
    try:
        yield terminal
    finally:
        terminal.stream.close()
        terminal._reader.join()
        os.close(terminal._master)
