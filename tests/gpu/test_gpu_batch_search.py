"""The search for the largest batch, where memory really runs out."""

from pathlib import Path

import torch
from accelerator import DEVICE, on_cuda, on_gpu
from toy import CONFIG, write_toy

from tformer_cli.config.load import load_config
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.training.dry_run import dry_run
from tformer_cli.training.find_batch_size import LargestBatch, find_batch_size

pytestmark = [*on_gpu, on_cuda]

# Activations of more than a MiB a token.
WIDE = CONFIG.replace("feedforward_dim: 64", "feedforward_dim: 65536")
WIDE = WIDE.replace("  test:", "  filters: {max_length: 11}\n  test:")


def found(file: Path, memory_limit: float, *overrides: str) -> LargestBatch:
    run = RunDirectory(file.parent / "run")
    config = load_config(file, ("training.precision=float32", *overrides))
    return find_batch_size(config, run, device=DEVICE, memory_limit=memory_limit)


def test_the_largest_batch_grows_with_memory_and_with_recomputed_layers(tmp_path):
    file = write_toy(tmp_path / "data", config=WIDE)
    small, large = found(file, 1.0), found(file, 1.5)
    recomputing = found(file, 1.0, "training.gradient_checkpointing=true")
    assert small.peak_memory_bytes <= 2**30
    assert small.batch_tokens < large.batch_tokens
    assert small.batch_tokens < recomputing.batch_tokens
    assert not (tmp_path / "run").exists()


def test_a_dry_run_counts_the_memory_of_the_gpu(tmp_path):
    file = write_toy(tmp_path / "data", config=WIDE)
    taken = dry_run(load_config(file), RunDirectory(tmp_path / "run"), device=DEVICE)
    total = torch.cuda.get_device_properties(DEVICE).total_memory
    assert 4 * taken.num_parameters < taken.peak_memory_bytes < total
