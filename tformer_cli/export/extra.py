"""What an export needs and nothing else does, packages or newer ones: extras in pyproject.toml."""

import re
from importlib import import_module
from typing import Any

from tformer_cli.errors import UsageError

# The oldest version of each that will do, by extra.
EXTRAS = {
    "ctranslate2": {"ctranslate2": (4, 8)},
    "onnx": {"torch": (2, 7), "onnx": (1, 17), "onnxruntime": (1, 20), "onnxscript": (0, 3)},
}


def package(name: str, extra: str) -> Any:
    """Return the module of a package that comes with an extra.

    Raises:
        UsageError: it is not installed, or too old.
    """
    try:
        module = import_module(name)
    except ImportError:
        raise UsageError(
            name, "is not installed", remedy=f"pip install 'tformer[{extra}]'"
        ) from None
    oldest = EXTRAS[extra][name]
    found = tuple(int(part) for part in re.findall(r"\d+", module.__version__)[:2])
    if found < oldest:
        raise UsageError(
            name,
            f"must be of version {'.'.join(map(str, oldest))} or newer",
            got=module.__version__,
            remedy=f"pip install --upgrade 'tformer[{extra}]'",
        )
    return module
