"""Train and run Transformer translation models.

    from tformer_cli import Translator
    Translator.load("runs/demo").translate(["The old dog sleeps."])

Importing the package costs nothing: each name below is loaded when it is first used.
"""

import importlib

from tformer_cli.version import __version__

_HOMES = {
    "BeamConfig": "tformer_cli.config.schema.decoding",
    "Consensus": "tformer_cli.decoding.consensus",
    "GreedyConfig": "tformer_cli.config.schema.decoding",
    "SampleConfig": "tformer_cli.config.schema.decoding",
    "Terminology": "tformer_cli.text.terminology",
    "Translator": "tformer_cli.decoding.translator",
    "build_metric": "tformer_cli.evaluation.metrics",
    "evaluate": "tformer_cli.evaluation.evaluate",
    "load_config": "tformer_cli.config.load",
    "load_trained_model": "tformer_cli.checkpoint.trained_model",
    "train": "tformer_cli.training.run",
}

__all__ = [
    "BeamConfig",
    "Consensus",
    "GreedyConfig",
    "SampleConfig",
    "Terminology",
    "Translator",
    "__version__",
    "build_metric",
    "evaluate",
    "load_config",
    "load_trained_model",
    "train",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
