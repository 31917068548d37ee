"""`tformer ...` as a process of its own that need not import torch: it is forked from this one."""

import gc
import os
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

from tformer_cli.cli.app import main

PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
MOST_FILES = 4096
"""More than a test has open."""


def forked_tformer(*words: str | Path, **streams: Any) -> subprocess.Popen[str]:
    """Begin a command in a process with streams of its own.

    Args:
        words: of the command.
        streams: what `Popen` takes.
    """

    def become() -> None:
        """Do the work where `Popen` would become another program, and end."""
        # Garbage of this process may wait for threads that a fork does not have.
        gc.freeze()
        # What that would close; `Popen` waits for one of them.
        os.closerange(3, MOST_FILES)
        code: Any = 1
        try:
            sys.argv = ["tformer", *map(str, words)]
            sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
            sys.stderr = open(2, "w", buffering=1)  # noqa: SIM115
            main()
            code = 0
        except SystemExit as error:
            code = error.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return subprocess.Popen(
            ["tformer"], preexec_fn=become, restore_signals=False, text=True, **streams
        )
