"""Processes that are killed at a moment of one's choice."""

import gc
import os
import signal
import warnings
from collections.abc import Callable

import pytest

# What writing files whole asks of the system.
CALLS = ("fsync", "replace", "unlink")
MORE_CALLS = (*CALLS, "mkdir", "rename", "rmdir")


def killed(deed: Callable[[], object], num_calls: int) -> bool:
    """Do it in another process that is killed at some call of the system, before or after it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process == 0:
        # Garbage of this process may wait for threads that a fork does not have.
        gc.freeze()
        left = num_calls

        def dying(call: Callable[..., object]) -> Callable[..., object]:
            def counted(*arguments: object, **options: object) -> object:
                nonlocal left
                for after in (False, True):
                    left -= 1
                    if left < 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    if not after:
                        result = call(*arguments, **options)
                return result

            return counted

        try:
            for name in CALLS:
                setattr(os, name, dying(getattr(os, name)))
            deed()
        finally:
            os._exit(0)
    _, status = os.waitpid(process, 0)
    return os.WIFSIGNALED(status)


class Killed(BaseException):
    """As by kill -9: nobody tidies up."""


def cut_short(deed: Callable[[], object], num_calls: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Do it in this process, for which the system does nothing from some call on."""
    left = num_calls

    def dying(call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return call(*arguments, **options)

        return counted

    with monkeypatch.context() as patched:
        for name in MORE_CALLS:
            patched.setattr(os, name, dying(getattr(os, name)))
        try:
            deed()
        except Killed:
            return True
    return False
