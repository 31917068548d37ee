"""Settings that all tests share."""

import os
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


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
