"""The group of processes that share one model.

Loading is the same in all ranks: they run the same passes in the same order. Whatever a rank finds out about
its own machine has to be agreed on first, or one of them would wait for a pass that the others never run.

Without a group all functions answer for this process alone.
"""

import hashlib
import os
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

#: for so long a rank waits for the others: longer than any load; a host notices a stalled run itself
_WAIT = timedelta(hours=1)
_NUMBERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def join(rank: int, size: int, file: str) -> None:
    """Join the group; returns once all ranks have.

    Args:
        file: path that all ranks share and that no group has used. So no port is open.
    """
    # transformers binds each rank to the GPU of this number
    os.environ |= dict(zip(_NUMBERS, map(str, (rank, rank, size)), strict=True))
    for library in ("GLOO", "NCCL"):  # all ranks are on this machine
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(rank)
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, init_method=f"file://{file}", rank=rank, world_size=size, timeout=_WAIT)


def leave() -> None:
    """Leave the group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
    for name in _NUMBERS:
        os.environ.pop(name, None)


def size() -> int:
    """Number of ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


def least(number: int) -> int:
    """The least of all ranks' numbers."""
    if size() == 1:
        return number
    shared = torch.tensor([number], dtype=torch.int64)
    dist.all_reduce(shared, dist.ReduceOp.MIN)
    return int(shared)


def whole(tensors: Sequence[torch.Tensor]) -> list[bool]:
    """Which of these tensors all ranks hold bit for bit, and not each a part of.

    Args:
        tensors: as many in all ranks, in one order.
    """
    if size() == 1:
        return [True] * len(tensors)
    own = torch.tensor([_digest(tensor) for tensor in tensors], dtype=torch.int64)
    every = [torch.empty_like(own) for _ in range(size())]
    dist.all_gather(every, own)
    return [bool(same) for same in (torch.stack(every) == own).all(0)]


def agree(text: str) -> bool:
    """Whether all ranks have the same text."""
    return whole([torch.frombuffer(bytearray(text, "utf-8"), dtype=torch.uint8)])[0]


def _digest(tensor: torch.Tensor) -> int:
    raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    digest = hashlib.blake2b(raw.tobytes(), digest_size=8, person=str(tuple(tensor.shape)).encode()[:16])
    return int.from_bytes(digest.digest(), "little", signed=True)
