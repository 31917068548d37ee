"""What processes tell each other, and a training that they share, against one process alone."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy import write_toy

from tformer_cli.checkpoint.trained_model import load_trained_model
from tformer_cli.config.load import load_config
from tformer_cli.distributed import ALONE, World, joined, own_device
from tformer_cli.errors import DeviceError
from tformer_cli.run_directory import RunDirectory
from tformer_cli.training.run import train
from tformer_cli.training.validation import validate

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]

TALK = """
import json, os, sys
import torch
from tformer_cli.checkpoint.trained_model import load_trained_model
from tformer_cli.config.load import load_config
from tformer_cli.distributed import joined

with joined() as world:
    one, two = torch.full((2, 3), float(world.rank + 1)), torch.tensor(0.5)
    world.add([one, two])
    told = {
        "add": [one.tolist(), two.item()],
        "sums": world.sums(2**40 + world.rank, 0.25),
        "largest": world.largest(7 * world.rank),
        "gather": world.gather(["ä\\n", "b"] * world.rank),
    }
    with world.first_alone():
        with open(sys.argv[1], "a") as file:
            file.write(json.dumps({"rank": world.rank, **told}) + "\\n")
"""


def torchrun(size: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Let several processes work on the CPU, one thread each."""
    return subprocess.run(
        [*TORCHRUN, f"--nproc-per-node={size}", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_processes_tell_each_other_what_they_should(tmp_path):
    script, file = tmp_path / "talk.py", tmp_path / "told"
    script.write_text(TALK)
    done = torchrun(3, str(script), str(file))
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert told[0]["rank"] == 0
    assert sorted(line.pop("rank") for line in told) == [0, 1, 2]
    for line in told:
        assert line == {
            "add": [[[6.0] * 3] * 2, 1.5],
            "sums": [3.0 * 2**40 + 3, 0.75],
            "largest": 14,
            "gather": [[], ["ä\n", "b"], ["ä\n", "b", "ä\n", "b"]],
        }


def test_a_process_alone_hears_itself():
    tensor = torch.tensor([1.0, 2.0])
    ALONE.add([tensor])
    assert tensor.tolist() == [1.0, 2.0]
    assert ALONE.sums(3, 0.5) == [3.0, 0.5]
    assert ALONE.largest(4) == 4
    assert ALONE.gather(["a", "b"]) == [["a", "b"]]
    with ALONE.first_alone():
        ALONE.wait()
    assert ALONE.is_first


@pytest.mark.parametrize("num_items", [0, 1, 2, 3, 7])
def test_what_is_dealt_out_and_collected_is_in_order(monkeypatch, num_items):
    items = [f"{place}" for place in range(num_items)]
    worlds = [World(rank, 3) for rank in range(3)]
    shares = [list(world.dealt(items)) for world in worlds]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    monkeypatch.setattr(World, "gather", lambda world, lines: shares)
    for world, share in zip(worlds, shares, strict=True):
        assert world.collected(share) == items


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [
        ("Read error [127.0.0.1]:19118: Connection reset by peer.", "torchrun: another process"),
        ("Connection closed by peer [127.0.0.1]:4711", "torchrun: another process has ended; see"),
        ("tensors have other shapes", "tensors have other shapes"),
    ],
)
def test_a_process_that_has_gone_is_said_in_a_line(monkeypatch, phrase, expected):
    def fail(*_, **__) -> None:
        raise RuntimeError(phrase)

    monkeypatch.setattr(torch.distributed, "all_reduce", fail)
    monkeypatch.setattr(torch.distributed, "all_gather", fail)
    world = World(0, 2)
    for talk in (lambda: world.largest(3), lambda: world.sums(3), lambda: world.gather(["a"])):
        with pytest.raises((RuntimeError, DeviceError)) as caught:
            talk()
        assert str(caught.value).startswith(expected)
        assert isinstance(caught.value, DeviceError) == expected.startswith("torchrun")


def test_each_process_of_a_machine_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert own_device(torch.device("cuda")) == torch.device("cuda:3")
    assert own_device(torch.device("cpu")) == torch.device("cpu")
    for name, there in (("cuda", 3), ("cuda:1", 1)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
        with pytest.raises(DeviceError) as caught:
            own_device(torch.device(name))
        assert str(caught.value) == (
            f"torchrun: each process of a machine needs a GPU of its own; --device {name} has "
            f"{there}; got process 4; lower --nproc-per-node, or use --device cpu"
        )
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert own_device(torch.device("cuda:1")) == torch.device("cuda:1")
    monkeypatch.delenv("LOCAL_RANK")
    assert own_device(torch.device("cuda")) == torch.device("cuda")


def test_processes_that_cannot_find_each_other_are_refused(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    with joined() as world:
        assert world == ALONE
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_PORT", "29500")
    with pytest.raises(DeviceError) as caught, joined():
        pass
    assert str(caught.value) == (
        "torchrun: RANK and WORLD_SIZE are set, and not all that goes with them; "
        "got no LOCAL_RANK, MASTER_ADDR; start the processes by torchrun, or unset RANK"
    )


# ------------------------------------------------------------- a training

# A large epsilon, or Adam makes whole steps of what rounding leaves of a gradient that is zero.
EXACT = ("model.dropout=0", "training.optimizer={kind: adam, epsilon: 1e-4}")


def torchrun_train(size: int, config: Path, run: Path, *settings: str) -> RunDirectory:
    arguments = [str(config), "--run", str(run), "--device", "cpu"]
    for setting in settings:
        arguments += ["--set", setting]
    # Behind `--` torchrun does not take our options for its own.
    done = torchrun(size, "-m", "--", "tformer_cli", "train", *arguments)
    assert done.returncode == 0, done.stderr
    return RunDirectory(run)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def alone(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = RunDirectory(tmp_path_factory.mktemp("alone") / "run")
    train(load_config(toy, EXACT), run, device=torch.device("cpu"))
    return run


def weights(run: RunDirectory) -> dict[str, torch.Tensor]:
    return load_file(run.pointed("last") / "model.safetensors")


def reported(run: RunDirectory, kind: str) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def assert_equal_but_for_rounding(run: RunDirectory, other: RunDirectory) -> None:
    one, two = weights(run), weights(other)
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-4)
    for kind in ("train", "valid"):
        for line, wanted in zip(reported(run, kind), reported(other, kind), strict=True):
            assert line["step"] == wanted["step"]
            assert line["loss"] == pytest.approx(wanted["loss"], rel=1e-3)
            assert line["accuracy"] == pytest.approx(wanted["accuracy"], abs=0.02)


def test_two_processes_train_what_one_trains(alone, toy, tmp_path):
    run = torchrun_train(2, toy, tmp_path / "run", *EXACT, "training.accumulate=2")
    assert_equal_but_for_rounding(run, alone)
    # Each of the two has translated and scored its share of the validation text.
    config, last = load_config(run.config_file), load_trained_model(run, "last")
    device, precision = torch.device("cpu"), torch.float32
    whole = validate(last.model, last.tokenizers, config, device, precision)
    (*_, told) = reported(run, "valid")
    assert told["bleu"] == whole.scores[0].score
    assert told["accuracy"] == whole.likelihood.accuracy
    assert told["loss"] == pytest.approx(whole.likelihood.loss, rel=1e-6)
    # One log, not two.
    log = run.log_file.read_text()
    assert log.count("finished") == 1
    assert "2 processes" in log
    assert (
        json.loads((run.pointed("last") / "state.json").read_text())["num_tokens"]
        == (json.loads((alone.pointed("last") / "state.json").read_text())["num_tokens"])
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3])
def test_a_checkpoint_of_two_processes_serves_any_number(alone, toy, tmp_path, size):
    folder = tmp_path / "run"
    half = torchrun_train(2, toy, folder, *EXACT)
    for checkpoint in half.step_checkpoints():
        if checkpoint.name > "step-000012":
            for file in checkpoint.iterdir():
                file.unlink()
            checkpoint.rmdir()
    half.point("last", half.checkpoint(12))
    run = torchrun_train(size, toy, folder, *EXACT)
    assert "going on after step 12" in run.log_file.read_text()
    assert_equal_but_for_rounding(run, alone)


SHORT_OF_MEMORY = """
import os, sys
from pathlib import Path
import torch
from tformer_cli.config.load import load_config
from tformer_cli.model.network import Seq2Seq
from tformer_cli.run_directory import RunDirectory
from tformer_cli.training.run import train

wanted_states = Seq2Seq.wanted_states

def limited(model, source, *rest):
    if model.training and len(source) > 20:
        raise torch.OutOfMemoryError("CUDA out of memory.")
    return wanted_states(model, source, *rest)

if os.environ["RANK"] == "1":
    Seq2Seq.wanted_states = limited
config = load_config(Path(sys.argv[1]), sys.argv[3:])
train(config, RunDirectory(Path(sys.argv[2])), device=torch.device("cpu"))
"""


@pytest.mark.slow
def test_where_one_process_is_short_of_memory_the_others_wait_for_it(alone, toy, tmp_path):
    script, run = tmp_path / "short.py", RunDirectory(tmp_path / "run")
    script.write_text(SHORT_OF_MEMORY)
    done = torchrun(2, str(script), str(toy), str(run.path), *EXACT)
    assert done.returncode == 0, done.stderr
    assert_equal_but_for_rounding(run, alone)
    assert any(line["num_pieces"] > 1 for line in reported(run, "memory"))


@pytest.mark.slow
def test_a_signal_to_one_process_stops_them_all_after_the_same_step(toy, tmp_path):
    run = RunDirectory(tmp_path / "run")
    command = [*TORCHRUN, "--nproc-per-node=2", "-m", "--", "tformer_cli", "train", str(toy)]
    settings = ["--run", str(run.path), "--device", "cpu", "--set", "training.max_steps=100000"]
    with subprocess.Popen(
        [*command, *settings], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step 10/"):
                break
        process.send_signal(signal.SIGTERM)
        output = process.stderr.read()
    saved = [line for line in output.splitlines() if "interrupted; saved at step" in line]
    assert len(set(saved)) == 1
    step = int(saved[0].split("saved at step ")[1].split(";")[0])
    assert run.pointed("last") == run.checkpoint(step)


SLOW_TO_SAVE = """
import os, signal, sys, time
from pathlib import Path
import torch
from tformer_cli.config.load import load_config
from tformer_cli.errors import Interrupted
from tformer_cli.run_directory import RunDirectory
from tformer_cli.training import run as run_module
from tformer_cli.training.checkpoints import Checkpoints
from tformer_cli.training.loop import train_steps
from tformer_cli.training.run import train

save = Checkpoints.save

def slow_save(checkpoints, state):
    if checkpoints.world.is_first:
        time.sleep(1)
    save(checkpoints, state)

def signalled(*arguments, **options):
    for taken in train_steps(*arguments, **options):
        if taken.step == 3:
            signal.raise_signal(signal.SIGTERM)
        yield taken

Checkpoints.save = slow_save
run_module.train_steps = signalled
run = RunDirectory(Path(sys.argv[2]))
try:
    train(load_config(Path(sys.argv[1])), run, device=torch.device("cpu"))
except Interrupted:
    found = run.pointed("last")
    (run.path / f"found-by-{os.environ['RANK']}").write_text(found.name if found else "nothing")
"""


@pytest.mark.slow
def test_no_process_leaves_before_the_first_has_saved(toy, tmp_path):
    script, run = tmp_path / "slow.py", tmp_path / "run"
    script.write_text(SLOW_TO_SAVE)
    done = torchrun(2, str(script), str(toy), str(run))
    assert done.returncode == 0, done.stderr
    assert [(run / f"found-by-{rank}").read_text() for rank in (0, 1)] == ["step-000003"] * 2
