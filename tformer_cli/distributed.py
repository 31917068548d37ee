"""Processes that train or translate together, started by `torchrun`: their collectives.

Each computes the gradients of its own part of a batch. Every weight has an owner, the process that
receives the sum of its gradients, keeps its optimizer state, moves it, and broadcasts it (ZeRO
stage 1; Rajbhandari et al. 2020, section 5.1). Together that is the volume of an all-reduce.
Between the number of tokens and the gradients nothing is exchanged, so a process that redoes its
part after running out of memory keeps the others waiting and does not confuse them.
"""

import contextlib
import functools
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from tformer_cli.errors import DeviceError, Interrupted
from tformer_cli.process import num_processes

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed import ProcessGroup

# By gloo, on the CPU, processes also wait for the one that encodes a large corpus. torchrun
# notices a process that dies.
TIMEOUT = timedelta(days=2)
# By NCCL they wait for gradients, which may take a process some rounds of halving its batch. A
# process that dies on another machine is noticed by this timeout alone.
GPU_TIMEOUT = timedelta(minutes=15)
# Tensors are exchanged in buckets of this size, which bounds the memory for the copy.
BUCKET_BYTES = 32 << 20
LAST_TENSOR_SECONDS = 0.2
# Environment variables of torchrun, beside RANK and WORLD_SIZE.
RENDEZVOUS = ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
# How gloo says that another process has ended.
PEER_CLOSED = ("closed by peer", "reset by peer", "Broken pipe")

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class World:
    """The processes that work together; by default, this one alone.

    Each method is a collective: all processes call it, in the same order.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on this machine
    gpu_group: "ProcessGroup | None" = None  # NCCL, for tensors on GPUs

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0, which writes files and logs."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there is no process group, so that collectives have nothing to do."""
        return self.size == 1 and self.gpu_group is None

    def all_reduce_(self, tensors: "Sequence[Tensor]") -> None:
        """Replace each tensor by its sum over all processes, bit-identical in each of them."""
        for bucket in _buckets(tensors):
            self._run_flat("all_reduce", bucket)

    def owners(self, tensors: "Sequence[Tensor]") -> tuple[int, ...]:
        """Return the rank that owns each tensor, so that all ranks own about as many elements."""
        return _owners(tuple(tensor.numel() for tensor in tensors), self.size)

    def reduce_to_owners_(self, tensors: "Sequence[Tensor]") -> None:
        """Replace each tensor by its sum over all processes in its owner, by anything elsewhere."""
        for owner, bucket in self._owned_buckets(tensors):
            self._run_flat("reduce", bucket, owner)

    def broadcast_from_owners_(self, tensors: "Sequence[Tensor]") -> None:
        """Replace each tensor by that of its owner."""
        for owner, bucket in self._owned_buckets(tensors):
            self._run_flat("broadcast", bucket, owner)

    def all_reduce_sum(self, *numbers: float) -> list[float]:
        """Return the sum of each number over all processes, in float64."""
        if self.is_alone:
            return [float(number) for number in numbers]
        import torch

        totals = torch.tensor(numbers, dtype=torch.float64)
        self.all_reduce_([totals])
        return totals.tolist()

    def all_reduce_max(self, number: int) -> int:
        """Return the maximum of a number over all processes."""
        if self.is_alone:
            return number
        import torch
        from torch.distributed import ReduceOp

        maximum = torch.tensor(number)
        self._run("all_reduce", maximum, ReduceOp.MAX)
        return int(maximum)

    def broadcast(self, tensors: "Iterable[Tensor]", source: int = 0) -> None:
        """Replace each tensor by that of one rank."""
        for tensor in tensors:
            self._run("broadcast", tensor, source, group=self._group(tensor))

    def broadcast_object(self, value: Any = None) -> Any:
        """Return the plain value that rank 0 passes; the others pass none."""
        values = [value]
        self._run("broadcast_object_list", values)
        return values[0]

    def gather(self, lines: Sequence[str]) -> list[list[str]]:
        """Return the lines of every process, by rank."""
        gathered = [list(lines) for _ in range(self.size)]
        self._run("all_gather_object", gathered, list(lines))
        return gathered

    def shard(self, items: Sequence[_Item]) -> Sequence[_Item]:
        """Return the items of this process, every `size`-th one."""
        return items[self.rank :: self.size]

    def gather_shards(self, lines: Sequence[str]) -> list[str]:
        """Return the lines of all processes, one for each item of their shards, in item order."""
        shards = self.gather(lines)
        num_items = sum(map(len, shards))
        return [shards[i % self.size][i // self.size] for i in range(num_items)]

    def barrier(self) -> None:
        """Wait for all processes."""
        # torch's barrier may use a GPU that belongs to another process.
        self.all_reduce_max(0)

    @contextlib.contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Run the body in rank 0, then in one process of each machine, then in all others.

        The later ones find the files of the first, whether the machines share a folder or not, and
        no two processes write to a folder at a time, even without locks.
        """
        turn = 0 if self.is_main_process else 1 if self.local_rank == 0 else 2
        for _ in range(turn):
            self.barrier()
        yield
        for _ in range(turn, 2):
            self.barrier()

    def _owned_buckets(self, tensors: "Sequence[Tensor]") -> "Iterator[tuple[int, list[Tensor]]]":
        """Yield the tensors in buckets, each with the rank that owns them."""
        if self.is_alone:
            return
        owned: list[list[Tensor]] = [[] for _ in range(self.size)]
        for tensor, owner in zip(tensors, self.owners(tensors), strict=True):
            owned[owner].append(tensor)
        for owner, own_tensors in enumerate(owned):
            for bucket in _buckets(own_tensors):
                yield owner, bucket

    def _run_flat(self, collective: str, bucket: "Sequence[Tensor]", *arguments: Any) -> None:
        """Call a collective on tensors as on a single one."""
        if self.is_alone:
            return
        import torch

        # A tensor alone needs no copy.
        flat = bucket[0].flatten()
        if len(bucket) > 1:
            flat = torch.cat([tensor.flatten() for tensor in bucket])
        self._run(collective, flat, *arguments, group=self._group(flat))
        parts = torch.split(flat, [tensor.numel() for tensor in bucket])
        for tensor, part in zip(bucket, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def _run(self, collective: str, *arguments: Any, **options: Any) -> None:
        """Call a collective of torch, if there is a process group."""
        if self.is_alone:
            return
        from torch import distributed

        try:
            getattr(distributed, collective)(*arguments, **options)
        except RuntimeError as error:
            if not any(phrase in str(error) for phrase in PEER_CLOSED):
                raise
            what = "another process has ended"
            raise DeviceError("torchrun", what, remedy="see what it says") from None

    def _group(self, tensor: "Tensor") -> "ProcessGroup | None":
        return self.gpu_group if tensor.is_cuda else None


SINGLE_PROCESS = World()


@contextlib.contextmanager
def process_group(device: str) -> Iterator[World]:
    """Join the process group of torchrun; without torchrun, yield `SINGLE_PROCESS`.

    If `device` is a GPU, such as `cuda:1`, it becomes the current one.
    """
    kind, _, index = device.partition(":")
    if kind == "cuda" and index:
        import torch

        # Compiled kernels and NCCL use the current GPU, whatever a tensor lies on.
        torch.cuda.set_device(device)
    size = num_processes()
    if size == 1:
        yield SINGLE_PROCESS
        return
    unset = [name for name in RENDEZVOUS if name not in os.environ]
    if unset:
        what = "RANK and WORLD_SIZE are set, and not all that goes with them"
        remedy = "start the processes by torchrun, or unset RANK"
        raise DeviceError("torchrun", what, got=f"no {', '.join(unset)}", remedy=remedy)
    from torch import distributed

    distributed.init_process_group("gloo", timeout=TIMEOUT)
    gpu_group = None
    if kind == "cuda":
        gpu_group = distributed.new_group(backend="nccl", timeout=GPU_TIMEOUT)
    try:
        yield World(distributed.get_rank(), size, int(os.environ["LOCAL_RANK"]), gpu_group)
    except Interrupted:
        # A signal ends all processes together.
        _leave_group()
        raise
    # Not after other errors: with NCCL that would deadlock with ranks that wait in a collective.
    _leave_group()


def _leave_group() -> None:
    from torch import distributed

    # Its destructor holds Python's lock and waits for threads of gloo, which need the lock to drop
    # their last tensor (seen with torch 2.6). So it ends after they had time for that.
    group = distributed.group.WORLD
    distributed.destroy_process_group()
    time.sleep(LAST_TENSOR_SECONDS)
    del group


def local_device(device: "torch.device") -> "torch.device":
    """Return the GPU of this process on its machine if `device` is a GPU, else `device`."""
    local_rank = os.environ.get("LOCAL_RANK")
    if device.type != "cuda" or local_rank is None:
        return device
    import torch

    is_any = device == torch.device("cuda")
    num_gpus = torch.cuda.device_count() if is_any else 1
    if int(local_rank) >= num_gpus:
        raise DeviceError(
            "torchrun",
            f'each process of a machine needs a GPU of its own; `device="{device}"` has {num_gpus}',
            got=f"process {int(local_rank) + 1}",
            remedy='lower --nproc-per-node, or use `device="cpu"`',
        )
    return torch.device("cuda", int(local_rank)) if is_any else device


@functools.cache
def _owners(sizes: tuple[int, ...], num_ranks: int) -> tuple[int, ...]:
    """Return the rank of each of some sizes: from the largest on, the one that has least so far."""
    owners = [0] * len(sizes)
    totals = [0] * num_ranks
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        owners[index] = totals.index(min(totals))
        totals[owners[index]] += sizes[index]
    return tuple(owners)


def _buckets(tensors: "Iterable[Tensor]") -> "Iterator[list[Tensor]]":
    """Yield the tensors in order, up to `BUCKET_BYTES` at a time, or a larger one alone."""
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
