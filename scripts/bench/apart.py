"""Call a function in a process of its own: python apart.py MODULE.FUNCTION WORDS.

Modules are those of this folder and of its rooms.
"""

import importlib
import sys

from tformer_cli.errors import TformerError


def command(call: str, *words: str) -> list[str]:
    """Return what starts a process that calls MODULE.FUNCTION with these words."""
    return [sys.executable, __file__, call, *words]


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
