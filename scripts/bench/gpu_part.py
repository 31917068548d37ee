"""Run one part of gpu.py in a process of its own: python gpu_part.py CALL ARGUMENTS OUTPUT.

CALL is MODULE.FUNCTION, ARGUMENTS a JSON object of keyword arguments; OUTPUT becomes the JSON of
what the function returns, or {"error": ...} of what it raises.
"""

import importlib
import json
import sys
import traceback
from pathlib import Path


def main(call: str, arguments: str, output: str) -> None:
    """Call a function; the error that it raises is an outcome like others."""
    module, _, function = call.rpartition(".")
    try:
        figures = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    except Exception as error:
        traceback.print_exc()
        figures = {"error": f"{type(error).__name__}: {error}"}
    Path(output).write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
