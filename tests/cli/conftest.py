"""A trained toy run, and the command line in this process."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from toy import CONFIG, write_toy
from typer.testing import CliRunner, Result

from tformer_cli.cli.app import app
from tformer_cli.config.load import load_config
from tformer_cli.errors import TformerError
from tformer_cli.run_directory import RunDirectory
from tformer_cli.training.run import train

Tformer = Callable[..., Result]


@pytest.fixture(scope="session")
def toy_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learnt a little: its translations differ from line to line."""
    folder = tmp_path_factory.mktemp("toy")
    config = CONFIG.replace("max_steps: 24", "max_steps: 150")
    config = config.replace("validate_every: 12", "validate_every: 75")
    file = write_toy(folder / "data", config=config)
    run = RunDirectory(folder / "run")
    train(load_config(file), run, device=torch.device("cpu"))
    return run.path


@pytest.fixture
def tformer() -> Tformer:
    """Run `tformer ...`; a user's mistake becomes its message on stderr and its exit code."""

    def call(*arguments: object, stdin: str | bytes = "") -> Result:
        result = CliRunner().invoke(app, [str(word) for word in arguments], input=stdin)
        if isinstance(result.exception, TformerError):
            result.exit_code = result.exception.exit_code
            result.stderr_bytes = f"{result.exception}\n".encode()
        elif result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call
