"""What processes tell each other, and a training that they share, against one process alone."""

import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from together import Ended, together
from toy import write_toy

from tformer_cli.config.load import load_config
from tformer_cli.corpus.bucketing import DataPosition, training_micro_batches
from tformer_cli.distributed import (
    GPU_TIMEOUT,
    SINGLE_PROCESS,
    TIMEOUT,
    World,
    local_device,
    process_group,
)
from tformer_cli.errors import DeviceError
from tformer_cli.storage.run_directory import RAW_MODEL_FILE, RunDirectory
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.training import setup
from tformer_cli.training import trainer as run_module
from tformer_cli.training.step import TrainState, train_steps
from tformer_cli.training.trainer import train
from tformer_cli.training.validation import validate

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def torchrun(size: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Let several processes work on the CPU, one thread each."""
    return subprocess.run(
        [*TORCHRUN, f"--nproc-per-node={size}", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_processes_tell_each_other_what_they_should(tmp_path, monkeypatch):
    # Of the last two tensors one fills a bucket, and the other has more than one.
    monkeypatch.setattr("tformer_cli.distributed.BUCKET_BYTES", 28)

    def talk(rank: int) -> None:
        # The third process is the first of another machine.
        os.environ["LOCAL_RANK"] = str(rank % 2)
        with process_group("cpu") as world:
            summed = [torch.full((2, 3), float(rank + 1)), torch.tensor(0.5), torch.ones(7)]
            summed += [torch.full((4, 2), float(rank)).t(), torch.ones(1, dtype=torch.float64)]
            world.all_reduce_(summed)
            owned = [torch.full_like(tensor, rank + 1) for tensor in summed]
            world.reduce_to_owners_(owned)
            world.broadcast_from_owners_(owned)
            shared = [torch.tensor(float(rank + 5)), torch.full((2, 2), rank, dtype=torch.uint8)]
            world.broadcast(shared)
            heard = {
                "add": [tensor.tolist() for tensor in summed],
                "owned": [tensor.tolist() for tensor in owned],
                "share": [tensor.tolist() for tensor in shared],
                "sums": world.all_reduce_sum(2**40 + rank, 0.25),
                "largest": world.all_reduce_max(7 * rank),
                "gather": world.gather(["ä\n", "b"] * rank),
                "told": world.broadcast_object({"ä": [1, None, -math.inf]} if rank == 0 else None),
            }
            with world.main_process_first(), (tmp_path / "heard").open("a") as file:
                file.write(json.dumps({"rank": world.rank, **heard}) + "\n")

    ended = together(4, talk, tmp_path)
    assert [process.code for process in ended] == [0] * 4, ended
    heard = [json.loads(line) for line in (tmp_path / "heard").read_text().splitlines()]
    ranks = [line.pop("rank") for line in heard]
    # First of all, first of its machine, and the rest as they please.
    assert ranks[:2] == [0, 2]
    assert sorted(ranks[2:]) == [1, 3]
    for line in heard:
        assert line == {
            "add": [[[10.0] * 3] * 2, 2.0, [4.0] * 7, [[6.0] * 4] * 2, [4.0]],
            "owned": [[[10.0] * 3] * 2, 10.0, [10.0] * 7, [[10.0] * 4] * 2, [10.0]],
            "share": [5.0, [[0, 0], [0, 0]]],
            "sums": [4.0 * 2**40 + 6, 1.0],
            "largest": 21,
            "gather": [["ä\n", "b"] * rank for rank in range(4)],
            "told": {"ä": [1, None, -math.inf]},
        }


def test_a_process_alone_hears_itself():
    tensor = torch.tensor([1.0, 2.0])
    SINGLE_PROCESS.all_reduce_([tensor])
    SINGLE_PROCESS.reduce_to_owners_([tensor])
    SINGLE_PROCESS.broadcast_from_owners_([tensor])
    assert tensor.tolist() == [1.0, 2.0]
    assert SINGLE_PROCESS.owners([tensor, tensor]) == (0, 0)
    assert SINGLE_PROCESS.all_reduce_sum(3, 0.5) == [3.0, 0.5]
    assert SINGLE_PROCESS.all_reduce_max(4) == 4
    assert SINGLE_PROCESS.gather(["a", "b"]) == [["a", "b"]]
    assert SINGLE_PROCESS.broadcast_object({"a": [1]}) == {"a": [1]}
    SINGLE_PROCESS.broadcast([tensor])
    assert tensor.tolist() == [1.0, 2.0]
    with SINGLE_PROCESS.main_process_first():
        SINGLE_PROCESS.barrier()
    assert SINGLE_PROCESS.is_main_process


@given(st.lists(st.integers(1, 100), max_size=40), st.integers(1, 9))
def test_processes_own_about_as_much(sizes, num_processes):
    tensors = [torch.empty(size) for size in sizes]
    owners = World(0, num_processes).owners(tensors)
    assert owners == World(num_processes - 1, num_processes).owners(tensors)
    owned = [
        [size for size, owner in zip(sizes, owners, strict=True) if owner == rank]
        for rank in range(num_processes)
    ]
    assert sorted(itertools.chain(*owned)) == sorted(sizes)
    totals = list(map(sum, owned))
    assert max(totals) - min(totals) <= max(sizes, default=0)
    if len(set(sizes)) == 1:
        assert max(map(len, owned)) - min(map(len, owned)) <= 1


@pytest.mark.parametrize("num_items", [0, 1, 2, 3, 7])
def test_what_is_dealt_out_and_collected_is_in_order(monkeypatch, num_items):
    items = [f"{index}" for index in range(num_items)]
    worlds = [World(rank, 3) for rank in range(3)]
    shares = [list(world.shard(items)) for world in worlds]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    monkeypatch.setattr(World, "gather", lambda world, lines: shares)
    for world, share in zip(worlds, shares, strict=True):
        assert world.gather_shards(share) == items


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
    monkeypatch.setattr(torch.distributed, "all_gather_object", fail)
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", fail)
    world = World(0, 2)
    for talk in (
        lambda: world.all_reduce_max(3),
        lambda: world.all_reduce_sum(3),
        lambda: world.gather(["a"]),
        lambda: world.broadcast_object("a"),
    ):
        with pytest.raises((RuntimeError, DeviceError)) as caught:
            talk()
        assert str(caught.value).startswith(expected)
        assert isinstance(caught.value, DeviceError) == expected.startswith("torchrun")


def test_each_process_of_a_machine_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert local_device(torch.device("cuda")) == torch.device("cuda:3")
    assert local_device(torch.device("cpu")) == torch.device("cpu")
    for name, there in (("cuda", 3), ("cuda:1", 1)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
        with pytest.raises(DeviceError) as caught:
            local_device(torch.device(name))
        assert str(caught.value) == (
            f'torchrun: each process of a machine needs a GPU of its own; `device="{name}"` has '
            f'{there} (process 4); lower --nproc-per-node, or use `device="cpu"`'
        )
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert local_device(torch.device("cuda:1")) == torch.device("cuda:1")
    monkeypatch.delenv("LOCAL_RANK")
    assert local_device(torch.device("cuda")) == torch.device("cuda")


def test_processes_that_cannot_find_each_other_are_refused(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    with process_group("cpu") as world:
        assert world == SINGLE_PROCESS
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_PORT", "29500")
    with pytest.raises(DeviceError) as caught, process_group("cpu"):
        pass
    assert str(caught.value) == (
        "torchrun: RANK and WORLD_SIZE are set, and not all that goes with them "
        "(no LOCAL_RANK, MASTER_ADDR); start the processes by torchrun, or unset RANK"
    )


@pytest.mark.parametrize("size", [1, 2])
def test_on_gpus_a_process_has_its_own_and_waits_by_nccl_for_minutes(monkeypatch, size):
    """Without a GPU: what torch is asked for."""
    asked: list[tuple[object, ...]] = []
    environment = {"RANK": "1", "WORLD_SIZE": f"{size}", "LOCAL_RANK": "1"}
    for name, value in {**environment, "MASTER_ADDR": "x", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: asked.append(("device", device)))

    def group(name: str, result: object = None):
        def make(backend: str, timeout: timedelta) -> object:
            asked.append((name, backend, timeout))
            return result

        return make

    nccl, device = object(), "cuda:1"
    monkeypatch.setattr(torch.distributed, "init_process_group", group("all"))
    monkeypatch.setattr(torch.distributed, "new_group", group("gpus", nccl))
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: None)
    with process_group(device) as world:
        expected = World(1, 2, 1, nccl) if size == 2 else SINGLE_PROCESS
        assert world == expected
    groups = [("all", "gloo", TIMEOUT), ("gpus", "nccl", GPU_TIMEOUT)]
    assert asked == [("device", device), *(groups if size == 2 else [])]
    assert GPU_TIMEOUT < timedelta(hours=1) < TIMEOUT


def test_tensors_on_gpus_are_exchanged_by_nccl_and_others_by_gloo(monkeypatch):
    asked: list[tuple[str, object]] = []

    class OnGpu:
        is_cuda = True

    def ask(tensor: object, *_: object, group: object) -> None:
        asked.append(("gpu" if tensor.is_cuda else "cpu", group))

    monkeypatch.setattr(torch.distributed, "broadcast", ask)
    monkeypatch.setattr(torch.distributed, "all_reduce", ask)
    nccl = object()
    world = World(0, 2, 0, nccl)
    world.broadcast([OnGpu(), torch.ones(2)])
    world.all_reduce_([torch.ones(2)])
    assert asked == [("gpu", nccl), ("cpu", None), ("cpu", None)]


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
    config = load_config(toy, (*EXACT, "training.gradient_accumulation_steps=2"))
    run = RunDirectory(tmp_path / "run")
    ended = together(2, lambda rank: train(config, run, device=torch.device("cpu")), tmp_path)
    assert [process.code for process in ended] == [0, 0], ended
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
    assert "resuming after step 12" in run.log_file.read_text()
    assert_equal_but_for_rounding(run, alone)


SHORT_OF_MEMORY = """
import os, sys
from pathlib import Path
import torch
from tformer_cli.config.load import load_config
from tformer_cli.model.network import Seq2Seq
from tformer_cli.storage.run_directory import RAW_MODEL_FILE, RunDirectory
from tformer_cli.training.trainer import train

hidden_states = Seq2Seq.hidden_states

def limited(model, source, *rest):
    if model.training and len(source) > 20:
        raise torch.OutOfMemoryError("CUDA out of memory.")
    return hidden_states(model, source, *rest)

if os.environ["RANK"] == "1":
    Seq2Seq.hidden_states = limited
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
from tformer_cli.storage.run_directory import RAW_MODEL_FILE, RunDirectory
from tformer_cli.training import trainer as run_module
from tformer_cli.training.step import train_steps
from tformer_cli.training.trainer import train

save = run_module.take_checkpoint

def slow_save(run, state, average):
    if state.world.is_main_process:
        time.sleep(1)
    save(run, state, average)

def signalled(*arguments, **options):
    for taken in train_steps(*arguments, **options):
        if taken.step == 3:
            signal.raise_signal(signal.SIGTERM)
        yield taken

run_module.take_checkpoint = slow_save
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


# ------------------------------------------------ machines with folders of their own

# Of both the moments of matrices are others than those of the rest; and an EMA.
DEEP = ("training.optimizer={kind: muon}", "training.ema_decay=0.9")


def on_two_machines(
    config: Path, folder: Path, *settings: str, own: dict[int, tuple[str, ...]] | None = None
) -> list[Ended]:
    """Train in two processes, each with a run folder of its own beside which it keeps its store.

    Args:
        config: of both.
        folder: of both machines.
        settings: of both.
        own: settings of one of them.
    """

    def run(rank: int) -> None:
        chosen = (*settings, *((own or {}).get(rank, ())))
        run = RunDirectory(folder / f"machine-{rank}" / "run")
        train(load_config(config, chosen), run, device=torch.device("cpu"))

    return together(2, run, folder)


def assert_equal_to_the_bit(one: Path, other: Path) -> None:
    names = [file.name for file in sorted(one.glob("*.safetensors"))]
    assert names == [file.name for file in sorted(other.glob("*.safetensors"))]
    for name in names:
        tensors, others = load_file(one / name), load_file(other / name)
        assert tensors.keys() == others.keys()
        for key in tensors:
            assert torch.equal(tensors[key], others[key]), f"{name}: {key}"


@pytest.fixture(scope="module")
def two_machines(toy: Path, alone: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Behind `alone`, which imports what torch imports when it is first trained with.
    folder = tmp_path_factory.mktemp("two")
    ended = on_two_machines(toy, folder, *DEEP)
    assert [process.code for process in ended] == [0, 0], ended
    return folder


@pytest.mark.parametrize("step_of_second", [None, 6])
def test_the_run_folder_is_that_of_the_first_process_alone(
    toy, two_machines, tmp_path, step_of_second
):
    """It decides what is gone on from, whatever lies in the folder of the same name elsewhere."""
    shutil.copytree(two_machines, tmp_path, dirs_exist_ok=True)
    unbroken = RunDirectory(two_machines / "machine-0" / "run")
    first, second = (RunDirectory(tmp_path / f"machine-{i}" / "run") for i in (0, 1))
    assert not second.path.exists()
    if step_of_second is not None:
        shutil.copytree(first.path, second.path)
        second.point("last", second.checkpoint(step_of_second))
    first.point("last", first.checkpoint(12))
    resumed = on_two_machines(toy, tmp_path, *DEEP)
    assert [process.code for process in resumed] == [0, 0], resumed
    assert "resuming after step 12" in resumed[0].said
    assert resumed[1].said == ""
    assert first.pointed("last") == first.checkpoint(24)
    assert_equal_to_the_bit(first.checkpoint(24), unbroken.checkpoint(24))


def test_two_machines_go_on_from_what_one_process_saved(alone, toy, tmp_path):
    first = RunDirectory(tmp_path / "machine-0" / "run")
    shutil.copytree(alone.path, first.path)
    first.point("last", first.checkpoint(12))
    ended = on_two_machines(toy, tmp_path, *EXACT)
    assert [process.code for process in ended] == [0, 0], ended
    assert_equal_but_for_rounding(first, alone)


def test_two_machines_average_the_checkpoints_of_the_first(alone, toy, tmp_path):
    settings = (*EXACT, "training.average_checkpoints=3")
    run = RunDirectory(tmp_path / "machine-0" / "run")
    ended = on_two_machines(toy, tmp_path, *settings)
    assert [process.code for process in ended] == [0, 0], ended
    average = load_file(run.checkpoint(24) / "model.safetensors")
    members = [load_file(run.checkpoint(step) / RAW_MODEL_FILE) for step in (24, 18, 12)]
    single = [load_file(alone.checkpoint(step) / "model.safetensors") for step in (24, 18, 12)]
    for key, weight in average.items():
        for trained in (members, single):
            mean = torch.stack([member[key].double() for member in trained]).mean(dim=0)
            torch.testing.assert_close(weight.double(), mean, rtol=1e-4, atol=1e-6)
    shutil.copytree(run.path, tmp_path / "unbroken")
    run.point("last", run.checkpoint(18))
    ended = on_two_machines(toy, tmp_path, *settings)
    assert [process.code for process in ended] == [0, 0], ended
    unbroken = RunDirectory(tmp_path / "unbroken")
    assert_equal_to_the_bit(run.checkpoint(24), unbroken.checkpoint(24))
    assert reported(run, "valid") == reported(unbroken, "valid")


def test_two_machines_go_back_to_the_checkpoint_of_the_first(toy, tmp_path, monkeypatch):
    """Batches that cannot be learned from end in a roll back, alone as in company."""

    def poisoned(*arguments: Any, data_position: DataPosition, **options: Any):
        position = data_position
        for batches, following in training_micro_batches(
            *arguments, data_position=data_position, **options
        ):
            if position.epoch == 1 and position.batch in (1, 2, 3):
                batches = [replace(batch, num_target_tokens=0) for batch in batches]
            yield batches, following
            position = following

    monkeypatch.setattr(setup, "training_micro_batches", poisoned)
    run = RunDirectory(tmp_path / "alone" / "run")
    train(load_config(toy, EXACT), run, device=torch.device("cpu"))
    ended = on_two_machines(toy, tmp_path, *EXACT)
    assert [process.code for process in ended] == [0, 0], ended
    first = RunDirectory(tmp_path / "machine-0" / "run")
    assert_equal_but_for_rounding(first, run)
    (rollback,) = reported(first, "rollback")
    assert [rollback] == reported(run, "rollback")


def test_weights_that_have_come_apart_are_refused_by_name(toy, tmp_path, monkeypatch):
    def coming_apart(train_state: TrainState, *arguments: Any, **options: Any):
        for taken in train_steps(train_state, *arguments, **options):
            # A save comes next; a step would broadcast the weight of its owner.
            if taken.step == 6 and train_state.world.rank == 1:
                weight = train_state.model.output.weight.data[-1, -1]
                weight.copy_(weight.nextafter(torch.tensor(9.0)))
            yield taken

    monkeypatch.setattr(run_module, "train_steps", coming_apart)
    ended = on_two_machines(toy, tmp_path)
    for process in ended:
        assert process.code == 2
        (line,) = [line for line in process.said.splitlines() if "differs" in line]
        found = re.fullmatch(
            r"rank 1: the checksum of the weights differs from rank 0, which has ([0-9a-f]{8}) "
            r"\(([0-9a-f]{8})\); give all machines the same program and kind of processor, and "
            r"re-run the command to resume from the last checkpoint",
            line,
        )
        assert found is not None, line
        assert found[1] != found[2]
    # What is wrong is not saved.
    assert RunDirectory(tmp_path / "machine-0" / "run").step_checkpoints() == []


@pytest.mark.parametrize(
    ("split", "what"), [("train", "the training text"), ("valid", "the validation text")]
)
def test_machines_with_other_text_are_refused_by_name(toy, tmp_path, split, what):
    other = tmp_path / "other"
    shutil.copytree(toy.parent, other)
    file = other / f"{split}.tgt"
    file.write_text("G" + file.read_text()[1:])
    ended = on_two_machines(toy, tmp_path, own={1: (f"data.root={other}",)})
    for process in ended:
        assert process.code == 2
        assert f"rank 1: {what} differs from rank 0, which has " in process.said
        assert "; give all machines the same config and text\n" in process.said


def test_machines_with_other_settings_are_refused_by_name(toy, tmp_path):
    ended = on_two_machines(toy, tmp_path, own={1: ("training.validate_every=4",)})
    for process in ended:
        assert process.code == 2
        assert process.said.endswith(
            "rank 1: training.validate_every differs from rank 0, which has 12 (4); "
            "give all machines the same config and text\n"
        )
