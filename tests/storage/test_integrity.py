import hashlib
import os
import shutil

import pytest
from saving import STATE, model, stepped_optimizer

from tformer_cli.errors import CheckpointError
from tformer_cli.storage.checkpoint import (
    save_checkpoint,
)
from tformer_cli.storage.integrity import damage
from tformer_cli.storage.layout import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    STATE_FILE,
    SUMS_FILE,
    TRAINED_FILE,
)
from tformer_cli.storage.tensors import read_tensors


def test_checksums_are_those_of_sha256sum(saved):
    lines = (saved / SUMS_FILE).read_text().splitlines()
    files = sorted(set(saved.iterdir()) - {saved / SUMS_FILE})
    assert lines == [f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}" for f in files]
    assert damage(saved) is None


@pytest.mark.parametrize("name", [MODEL_FILE, TRAINED_FILE, OPTIMIZER_FILE, STATE_FILE])
@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_a_bit_that_flips_is_found(tmp_path, name, place):
    network = model(1)
    folder = tmp_path / "step-000007"
    save_checkpoint(folder, network, stepped_optimizer(network), STATE, average=model(2))
    assert damage(folder) is None
    content = bytearray((folder / name).read_bytes())
    content[int(place * (len(content) - 1))] ^= 4
    (folder / name).write_bytes(content)
    assert str(damage(folder)) == f"{folder}: is damaged: {name} is not what was saved"
    # A translation needs no optimiser.
    is_needed = name in (MODEL_FILE, STATE_FILE)
    assert (damage(folder, (MODEL_FILE, STATE_FILE)) is not None) == is_needed


def test_a_checkpoint_that_is_not_whole_is_found(saved):
    other = saved.with_name("other")
    assert str(damage(other)) == f"{other}: is not there"
    for name in (MODEL_FILE, OPTIMIZER_FILE, STATE_FILE):
        shutil.copytree(saved, other)
        (other / name).unlink()
        assert str(damage(other)) == f"{other}: is not whole: {name} is missing"
        shutil.rmtree(other)
    for content in (None, b"", b"\xff", b"\0" * 70, (saved / SUMS_FILE).read_bytes()[:-80]):
        shutil.copytree(saved, other)
        (other / SUMS_FILE).unlink() if content is None else (other / SUMS_FILE).write_bytes(
            content
        )
        assert damage(other) is not None
        shutil.rmtree(other)


@pytest.mark.parametrize("name", [MODEL_FILE, STATE_FILE, SUMS_FILE])
def test_a_pipe_in_place_of_a_file_is_not_read(saved, name):
    """Whoever reads it waits for ever."""
    (saved / name).unlink()
    os.mkfifo(saved / name)
    expected = {
        SUMS_FILE: f"is not whole: {SUMS_FILE} is missing or damaged",
    }.get(name, f"is damaged: {name} cannot be read; got no regular file")
    assert str(damage(saved)) == f"{saved}: {expected}"


def test_tensors_are_not_read_from_a_pipe(tmp_path):
    os.mkfifo(tmp_path / MODEL_FILE)
    with pytest.raises(CheckpointError) as caught:
        list(read_tensors(tmp_path / MODEL_FILE))
    assert str(caught.value) == (
        f"{tmp_path}/{MODEL_FILE}: is damaged or cut short; got no regular file; "
        "use another checkpoint"
    )
