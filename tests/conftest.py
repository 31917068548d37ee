"""Settings that all tests share."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("tformer", derandomize=True, deadline=None, max_examples=30)
settings.load_profile("tformer")
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


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
