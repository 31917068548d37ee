import hashlib
import os
import shutil

import pytest
from saving import STATE, model, stepped_optimizer

from tformer_cli.errors import CheckpointError
from tformer_cli.storage.checkpoint import (
    save_checkpoint,
)
from tformer_cli.storage.integrity import verify_checksums
from tformer_cli.storage.run_directory import (
    CHECKSUMS_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    RAW_MODEL_FILE,
    STATE_FILE,
)
from tformer_cli.storage.tensors import read_tensors


def test_checksums_are_those_of_sha256sum(saved):
    lines = (saved / CHECKSUMS_FILE).read_text().splitlines()
    files = sorted(set(saved.iterdir()) - {saved / CHECKSUMS_FILE})
    assert lines == [f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}" for f in files]
    assert verify_checksums(saved) is None


@pytest.mark.parametrize("name", [MODEL_FILE, RAW_MODEL_FILE, OPTIMIZER_FILE, STATE_FILE])
@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_a_bit_that_flips_is_found(tmp_path, name, place):
    network = model(1)
    folder = tmp_path / "step-000007"
    save_checkpoint(folder, network, stepped_optimizer(network), STATE, average=model(2))
    assert verify_checksums(folder) is None
    content = bytearray((folder / name).read_bytes())
    content[int(place * (len(content) - 1))] ^= 4
    (folder / name).write_bytes(content)
    assert str(verify_checksums(folder)) == f"{folder}: is damaged: {name} is not what was saved"
    # A translation needs no optimiser.
    is_needed = name in (MODEL_FILE, STATE_FILE)
    assert (verify_checksums(folder, (MODEL_FILE, STATE_FILE)) is not None) == is_needed


def test_a_checkpoint_that_is_not_whole_is_found(saved):
    other = saved.with_name("other")
    assert str(verify_checksums(other)) == f"{other}: is not there"
    for name in (MODEL_FILE, OPTIMIZER_FILE, STATE_FILE):
        shutil.copytree(saved, other)
        (other / name).unlink()
        assert str(verify_checksums(other)) == f"{other}: is not whole: {name} is missing"
        shutil.rmtree(other)
    for content in (None, b"", b"\xff", b"\0" * 70, (saved / CHECKSUMS_FILE).read_bytes()[:-80]):
        shutil.copytree(saved, other)
        (other / CHECKSUMS_FILE).unlink() if content is None else (
            other / CHECKSUMS_FILE
        ).write_bytes(content)
        assert verify_checksums(other) is not None
        shutil.rmtree(other)


@pytest.mark.parametrize("name", [MODEL_FILE, STATE_FILE, CHECKSUMS_FILE])
def test_a_pipe_in_place_of_a_file_is_not_read(saved, name):
    """Whoever reads it waits for ever."""
    (saved / name).unlink()
    os.mkfifo(saved / name)
    expected = {
        CHECKSUMS_FILE: f"is not whole: {CHECKSUMS_FILE} is missing or damaged",
    }.get(name, f"is damaged: {name} cannot be read; got no regular file")
    assert str(verify_checksums(saved)) == f"{saved}: {expected}"


def test_tensors_are_not_read_from_a_pipe(tmp_path):
    os.mkfifo(tmp_path / MODEL_FILE)
    with pytest.raises(CheckpointError) as caught:
        list(read_tensors(tmp_path / MODEL_FILE))
    assert str(caught.value) == (
        f"{tmp_path}/{MODEL_FILE}: is damaged or cut short; got no regular file; "
        "use another checkpoint"
    )
