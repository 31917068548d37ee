"""Several processes that work on one model: who they are, and what they tell each other.

`torchrun` starts them and lets each know its rank. They compute gradients of their own part of a
batch and add them up; nothing is exchanged before a process has its part, so one that has to begin
again for lack of memory keeps the others waiting but does not confuse them.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from tformer_cli.errors import DeviceError, Interrupted

# One process may encode a large corpus while the others wait, which they do on the CPU. A process
# that dies is noticed by torchrun, not by this.
TIMEOUT = timedelta(days=2)
# On GPUs they meet when each has its gradients, which may take one of them some rounds of halving.
# Whoever waits there for a process that has died, on another machine, is noticed by nobody else.
GPU_TIMEOUT = timedelta(minutes=15)

# Tensors are added up together until they have so many bytes: what that takes of memory, when a
# step has taken all there is.
BUCKET_BYTES = 32 << 20

# What else torchrun tells a process.
RENDEZVOUS = ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

# How gloo says that a process has ended.
PEER_CLOSED = ("closed by peer", "reset by peer", "Broken pipe")

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class World:
    """The processes that work together; by default there is this one alone.

    Every method is called by all of them, in the same order.

    Attributes:
        rank: number of this process, from 0.
        size: how many there are.
        local_rank: number of this process on its machine, from 0.
        gpu_group: what tensors on GPUs are exchanged by; by NCCL, with a timeout of its own.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    gpu_group: "distributed.ProcessGroup | None" = None

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes the files and speaks for all."""
        return self.rank == 0

    def all_reduce_(self, tensors: Sequence[Tensor]) -> None:
        """Let each tensor be its sum over all processes, to the same bits everywhere."""
        if self.size == 1:
            return
        for bucket in _buckets(tensors):
            # A large one is added up where it is.
            flat = bucket[0].flatten()
            if len(bucket) > 1:
                flat = torch.cat([tensor.flatten() for tensor in bucket])
            with _peer_errors():
                distributed.all_reduce(flat, group=self._group(flat))
            parts = torch.split(flat, [tensor.numel() for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Let each tensor be what the first process has."""
        if self.size > 1:
            for tensor in tensors:
                with _peer_errors():
                    distributed.broadcast(tensor, 0, group=self._group(tensor))

    def _group(self, tensor: Tensor) -> "distributed.ProcessGroup | None":
        return self.gpu_group if tensor.is_cuda else None

    def all_reduce_sum(self, *numbers: float) -> list[float]:
        """Return the sum of each number over all processes; whole numbers are summed exactly."""
        totals = torch.tensor(numbers, dtype=torch.float64)
        self.all_reduce_([totals])
        return totals.tolist()

    def all_reduce_max(self, number: int) -> int:
        """Return the largest of the numbers of all processes."""
        found = torch.tensor(number)
        if self.size > 1:
            with _peer_errors():
                distributed.all_reduce(found, distributed.ReduceOp.MAX)
        return int(found)

    def broadcast_object(self, value: Any = None) -> Any:
        """Return what the first process has to say: plain data, such as JSON holds.

        Args:
            value: of the first process; the others have none.
        """
        if self.size == 1:
            return value
        # As JSON in a tensor: torch would pickle objects.
        text = _text_tensor(json.dumps(value))
        length = torch.tensor([len(text)])
        self.broadcast([length])
        if not self.is_main_process:
            text = torch.zeros(int(length), dtype=torch.uint8)
        self.broadcast([text])
        return json.loads(text.numpy().tobytes())

    def gather(self, lines: Sequence[str]) -> list[list[str]]:
        """Return the lines of every process, by rank."""
        if self.size == 1:
            return [list(lines)]
        own = _text_tensor(json.dumps(list(lines)))
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with _peer_errors():
            distributed.all_gather(lengths, torch.tensor([len(own)]))
        longest = int(max(lengths))
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(own)] = own
        texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        with _peer_errors():
            distributed.all_gather(texts, padded)
        return [
            json.loads(text[: int(length)].numpy().tobytes())
            for text, length in zip(texts, lengths, strict=True)
        ]

    def shard(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return this process's share of items that are dealt out like cards."""
        return items[self.rank :: self.size]

    def gather_shards(self, lines: Sequence[str]) -> list[str]:
        """Return what all made of their shares, a line for each item, in the order of the items."""
        shares = self.gather(lines)
        num_items = sum(map(len, shares))
        return [shares[i % self.size][i // self.size] for i in range(num_items)]

    def barrier(self) -> None:
        """Wait until all processes are here."""
        # Not by torch's barrier: it may take a GPU that belongs to another process.
        self.all_reduce_max(0)

    @contextlib.contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let the first process do something, then one of each machine, then all the others.

        Whoever comes later finds it done, in a folder of all machines or of its own, and no two
        write into one folder at a time, also where the file system has no locks.
        """
        turn = 0 if self.is_main_process else 1 if self.local_rank == 0 else 2
        for _ in range(turn):
            self.barrier()
        yield
        for _ in range(turn, 2):
            self.barrier()


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the tensors in their order, some of `BUCKET_BYTES` at a time, or a larger one alone."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and size + tensor.nbytes > BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.nbytes
    if bucket:
        yield bucket


def _text_tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


@contextlib.contextmanager
def _peer_errors() -> Iterator[None]:
    """Be brief where another process has gone: it says itself what was wrong.

    Raises:
        DeviceError: one has.
    """
    try:
        yield
    except RuntimeError as error:
        if not any(phrase in str(error) for phrase in PEER_CLOSED):
            raise
        raise DeviceError(
            "torchrun", "another process has ended", remedy="see what it says"
        ) from None


SINGLE_PROCESS = World()


def num_processes() -> int:
    """Return how many processes torchrun has started; without it, there is this one."""
    # Schedulers set some of them without starting anything.
    is_known = {"RANK", "WORLD_SIZE"} <= os.environ.keys()
    return int(os.environ["WORLD_SIZE"]) if is_known else 1


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[World]:
    """Join the processes that torchrun has started; without it, be alone.

    Args:
        device: of this process; a GPU becomes its current one.

    Raises:
        DeviceError: something else has started them, which does not say how they find each other.
    """
    if device.type == "cuda" and device.index is not None:
        # Kernels that are compiled, and NCCL, take the current GPU whatever a tensor lies on.
        torch.cuda.set_device(device)
    size = num_processes()
    if size == 1:
        yield SINGLE_PROCESS
        return
    unknown = [name for name in RENDEZVOUS if name not in os.environ]
    if unknown:
        raise DeviceError(
            "torchrun",
            "RANK and WORLD_SIZE are set, and not all that goes with them",
            got=f"no {', '.join(unknown)}",
            remedy="start the processes by torchrun, or unset RANK",
        )
    distributed.init_process_group("gloo", timeout=TIMEOUT)
    gpu_group = None
    if device.type == "cuda":
        gpu_group = distributed.new_group(backend="nccl", timeout=GPU_TIMEOUT)
    try:
        yield World(distributed.get_rank(), size, int(os.environ["LOCAL_RANK"]), gpu_group)
    except Interrupted:
        # A signal ends all of them together.
        distributed.destroy_process_group()
        raise
    # Nothing else that goes wrong comes here: on GPUs a process would wait for others to take
    # leave, and they for it to go on.
    distributed.destroy_process_group()


def local_device(device: torch.device) -> torch.device:
    """Return the GPU of this process among those of its machine, where GPUs are asked for.

    Raises:
        DeviceError: there are fewer of them than processes.
    """
    local_rank = os.environ.get("LOCAL_RANK")
    if device.type != "cuda" or local_rank is None:
        return device
    is_any = device == torch.device("cuda")
    there = torch.cuda.device_count() if is_any else 1
    if int(local_rank) >= there:
        raise DeviceError(
            "torchrun",
            f'each process of a machine needs a GPU of its own; `device="{device}"` has {there}',
            got=f"process {int(local_rank) + 1}",
            remedy='lower --nproc-per-node, or use `device="cpu"`',
        )
    return torch.device("cuda", int(local_rank)) if is_any else device
