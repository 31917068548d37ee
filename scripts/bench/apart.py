"""Call a function in a process of its own: python apart.py MODULE.FUNCTION WORDS.

Modules are those of this folder and of its rooms.
"""

import importlib
import os
import subprocess
import sys
from collections.abc import Mapping

from tformer_cli.errors import TformerError, TrainingError


def command(call: str, *words: str) -> list[str]:
    """Return what starts a process that calls MODULE.FUNCTION with these words."""
    return [sys.executable, __file__, call, *words]


def printed(call: str, *words: str, environment: Mapping[str, str]) -> str:
    """Call a function in a process of its own; return what it printed.

    Args:
        call: MODULE.FUNCTION.
        words: for it.
        environment: what the process has besides ours.

    Raises:
        TrainingError: the process has failed, and said why.
    """
    done = subprocess.run(
        command(call, *words), env={**environment, **os.environ}, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise TrainingError(
            call, "has failed", got=f"exit code {done.returncode}", remedy="see what it says above"
        )
    return done.stdout


def main(call: str, *words: str) -> None:
    """Call a function."""
    module, _, function = call.rpartition(".")
    getattr(importlib.import_module(module), function)(*words)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except TformerError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
