from pathlib import Path

import pytest
from saving import STATE, model, stepped_optimizer

from tformer_cli.storage.checkpoint import save_checkpoint


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    network = model(1)
    save_checkpoint(tmp_path / "step-000007", network, stepped_optimizer(network), STATE)
    return tmp_path / "step-000007"
