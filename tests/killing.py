"""Processes that are killed at a moment of one's choice."""

import os
import signal
import warnings
from collections.abc import Callable

# What writing files whole asks of the system.
CALLS = ("fsync", "replace", "unlink")


def killed(deed: Callable[[], object], num_calls: int) -> bool:
    """Do it in another process that is killed at some call of the system, before or after it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process == 0:
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
