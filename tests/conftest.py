"""Settings that all tests share, a trained toy run, and the command line in this process."""

import contextlib
import functools
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from hypothesis import settings
from toy import CONFIG, MASKED, write_toy
from typer.testing import CliRunner, Result

from tformer_cli.cli.app import app
from tformer_cli.cli.entry import refusal
from tformer_cli.cli.options import message
from tformer_cli.config.load import load_config
from tformer_cli.errors import TformerError
from tformer_cli.export.run import export_run
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import find_model
from tformer_cli.training.trainer import train
from tformer_cli.translate.backend import checked_export

Tformer = Callable[..., Result]

settings.register_profile("tformer", derandomize=True, deadline=None, max_examples=30)
# Other examples each time, and more of them; scripts/test-all asks for it.
settings.register_profile(
    "fresh", derandomize=False, deadline=None, max_examples=100, print_blob=True
)
settings.load_profile("tformer")
# typer would build the whole command line anew for each call.
typer.testing._get_command = functools.cache(typer.main.get_command)  # type: ignore[attr-defined]
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Begin each test with one thread: commands set others, and tests run side by side."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def corpora() -> Path:
    """The folder of real corpora, where there is one."""
    folder = os.environ.get("TFORMER_CORPORA")
    if folder is None:
        pytest.skip("TFORMER_CORPORA names no folder of real corpora")
    return Path(folder)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Renew tests/golden.")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Hold a text to a file in tests/golden, or renew the file where that is asked."""

    def hold(name: str, text: str) -> None:
        file = Path(__file__).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        expected = file.read_text(encoding="utf-8")
        assert text == expected, f"{name} has changed; if that is meant: pytest --update-golden"

    return hold


@pytest.fixture
def small_files() -> Callable[[int], contextlib.AbstractContextManager[None]]:
    """Let no file grow beyond some bytes for a while, as on a disk that is nearly full."""

    @contextlib.contextmanager
    def limit(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit


@pytest.fixture(autouse=True)
def seeded() -> None:
    # torch.manual_seed writes the stack down for each kind of GPU.
    torch.default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def toy_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned a little: its translations differ from line to line."""
    folder = tmp_path_factory.mktemp("toy")
    config = CONFIG.replace("max_steps: 24", "max_steps: 150")
    config = config.replace("validate_every: 12", "validate_every: 75")
    file = write_toy(folder / "data", config=config)
    run = RunDirectory(folder / "run")
    train(load_config(file), run, device=torch.device("cpu"))
    if find_spec("ctranslate2") is not None:
        # What the first `tformer translate` writes.
        folder = checked_export(find_model(run), "float32")
        export_run(run, folder, "ctranslate2", check_lines=10)
    return run.path


@pytest.fixture(scope="session")
def masked_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an encoder that has learned a little from text alone."""
    folder = tmp_path_factory.mktemp("masked")
    config = MASKED.replace("max_steps: 24", "max_steps: 8").replace(
        "save_every: 6", "save_every: 2"
    )
    file = write_toy(
        folder / "data", config=config.replace("validate_every: 12", "validate_every: 4")
    )
    run = RunDirectory(folder / "run")
    train(load_config(file), run, device=torch.device("cpu"))
    return run.path


@pytest.fixture
def browser() -> Iterator[Any]:
    """Chromium, where it and playwright are installed."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        try:
            # That of the system, else playwright's own.
            chromium = running.chromium.launch(executable_path=shutil.which("chromium"))
        except playwright.Error:
            pytest.skip("Chromium is not installed")
        yield chromium
        chromium.close()


@pytest.fixture
def tformer() -> Tformer:
    """Run `tformer ...`; a user's mistake becomes its message on stderr and its exit code."""

    def call(*arguments: object, stdin: str | bytes = "") -> Result:
        result = CliRunner().invoke(app, [str(word) for word in arguments], input=stdin)
        if isinstance(result.exception, TformerError | OSError):
            error = result.exception
            mistake = error if isinstance(error, TformerError) else refusal(error)
            result.exit_code = mistake.exit_code
            result.stderr_bytes = "".join(f"{message(one)}\n" for one in mistake.problems).encode()
        elif result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call
