"""What every export format provides: write a folder, and run it to prove that it is right."""

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.errors import ConfigError, Problem, UsageError
from tformer_cli.search.engine import Engine
from tformer_cli.storage.atomic import new_directory
from tformer_cli.storage.trained_model import TrainedModel

BEAM_SIZE = 5
# The oldest version of each package that will do, by extra of pyproject.toml.
EXTRAS = {
    "ctranslate2": {"ctranslate2": (4, 8)},
    "onnx": {"torch": (2, 7), "onnx": (1, 17), "onnxruntime": (1, 20), "onnxscript": (0, 3)},
}


class Format(ABC):
    """A format that another program runs."""

    program: ClassVar[str]
    quantization: str = "float32"

    @property
    def is_exact(self) -> bool:
        """Whether no weight is rounded; translations of rounded weights may differ."""
        return self.quantization == "float32"

    def unsupported(self, trained: TrainedModel) -> Iterator[Problem]:
        """Yield the config keys that the format cannot represent exactly."""
        yield from ()

    @abstractmethod
    def write(self, trained: TrainedModel, folder: Path) -> None:
        """Write all files into an empty folder."""

    @abstractmethod
    def engine(self, trained: TrainedModel, folder: Path) -> Engine:
        """Return an engine that runs the written folder."""

    def searches(self, max_length: int) -> list[DecodingConfig]:
        """Return the searches to compare engines by; the last one is that of the code example."""
        beam = BeamConfig(beam_size=BEAM_SIZE, max_length=max_length)
        return [GreedyConfig(max_length=max_length), beam]

    @abstractmethod
    def example(self, trained: TrainedModel, line: str) -> str:
        """Return Python code that translates a line inside the folder, and prints it."""

    @abstractmethod
    def packages(self, trained: TrainedModel) -> list[str]:
        """Return the packages that the example needs, as arguments of pip."""

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages that wrote the folder, besides torch."""
        return {}

    @contextlib.contextmanager
    def written(self, trained: TrainedModel, folder: Path) -> Iterator[Path]:
        """Write a new folder atomically, and yield it before it takes its name.

        Raises:
            ConfigError: all config keys that the format cannot represent.
        """
        if problems := list(self.unsupported(trained)):
            raise ConfigError(problems)
        with new_directory(folder) as temporary:
            self.write(trained, temporary)
            yield temporary

    def save(self, trained: TrainedModel, folder: Path) -> None:
        """Write a new folder atomically; errors are those of `written`."""
        with self.written(trained, folder):
            pass


def package(name: str, extra: str) -> Any:
    """Return the module of an optional package.

    Raises:
        UsageError: it is not installed, or too old.
    """
    try:
        module = import_module(name)
    except ImportError:
        remedy = f"pip install 'tformer[{extra}]'"
        raise UsageError(name, "is not installed", remedy=remedy) from None
    oldest = EXTRAS[extra][name]
    version = tuple(int(part) for part in re.findall(r"\d+", module.__version__)[:2])
    if version < oldest:
        raise UsageError(
            name,
            f"must be of version {'.'.join(map(str, oldest))} or newer",
            got=module.__version__,
            remedy=f"pip install --upgrade 'tformer[{extra}]'",
        )
    return module
