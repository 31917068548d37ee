"""One part of what is to be found out, in a process of its own."""

import importlib
import json
import traceback
from pathlib import Path


def serve(call: str, arguments: str, output: str) -> None:
    """Call a function; the error that it raises is an outcome like others.

    Args:
        call: MODULE.FUNCTION.
        arguments: a JSON object of keyword arguments.
        output: becomes the JSON of what the function returns, or {"error": ...} of what it raises.
    """
    module, _, function = call.rpartition(".")
    try:
        figures = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    except Exception as error:
        traceback.print_exc()
        figures = {"error": f"{type(error).__name__}: {error}"}
    Path(output).write_text(json.dumps(figures), encoding="utf-8")
