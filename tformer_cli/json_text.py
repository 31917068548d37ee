"""JSON of files that anybody may have written."""

import json
from pathlib import Path
from typing import Any


def read_json(file: Path) -> Any:
    """Return the value in a JSON file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not JSON, or a pipe or a device, which may never end.
    """
    if file.exists() and not file.is_file():
        raise ValueError("no regular file")
    return parse_json(file.read_text(encoding="utf-8"))


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: the text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
