"""Rows of many sessions as a torch dataset: shuffled, and read by range as they are needed."""

import random
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from actograph.client.optional import package
from actograph.contract.errors import InvalidRequest, NotFound
from actograph.tensor_files import Array

if TYPE_CHECKING:
    from actograph.client.blocking.row_tensor import RowTensor

#: rows that are read at once; they are consecutive rows of one session
BLOCK_ROWS = 64
#: rows in memory, from which the next row is drawn
BUFFER_ROWS = 16_384


class HasTensors(Protocol):
    """A session of a client, or a session's folder."""

    def __getitem__(self, hook: str) -> "RowTensor": ...

    def __contains__(self, hook: Any) -> bool: ...


class _Block(NamedTuple):
    """Rows [low, high) of a tensor."""

    tensor: "RowTensor"
    low: int
    high: int


def to_torch_dataset(
    sessions: Iterable[HasTensors],
    hook: str,
    *,
    seed: int = 0,
    shuffle: bool = True,
    block_rows: int = BLOCK_ROWS,
    buffer_rows: int = BUFFER_ROWS,
) -> Any:
    """Return a `torch.utils.data.IterableDataset` of all rows of a hook, each a float32 tensor [width].

    Every pass yields each row once. Blocks of `block_rows` consecutive rows are read in random order into a
    buffer of `buffer_rows` rows, from which rows are drawn at random: so memory does not grow with the number
    of sessions or their lengths. The order depends on `seed` and the number of the pass. Workers of a
    `DataLoader` share the blocks; use them with folders of sessions, not with a client's sessions.

    Args:
        sessions: sessions of a client (`client.sessions.list(...)`), or folders (`open_folder(...)`).
        hook: hook point, alias, module path or savepoint; sessions without it are skipped.
        shuffle: False yields the rows of each session in their order.

    Raises:
        NotFound: no session has the hook.
        InvalidRequest: the widths differ, or a size is less than 1.
        PackageMissing: torch is not installed.
    """
    if block_rows < 1 or buffer_rows < 1:
        raise InvalidRequest("block_rows and buffer_rows must be at least 1")
    torch = package("torch", "a torch dataset")
    tensors = [session[hook] for session in sessions if hook in session]
    if not tensors:
        raise NotFound(f"no session has a tensor {hook}")
    widths = sorted({tensor.shape[1] for tensor in tensors})
    if len(widths) > 1:
        raise InvalidRequest(f"the sessions' tensors of {hook} differ in width: {widths}", param="hook")

    class Rows(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        """Rows of one hook. `len()` is their number."""

        def __init__(self) -> None:
            super().__init__()
            self.passes = 0

        def __len__(self) -> int:
            return sum(tensor.shape[0] for tensor in tensors)

        def __iter__(self) -> Iterator[Any]:
            order = random.Random(f"{seed} {self.passes}")
            self.passes += 1
            blocks = list(_blocks(tensors, block_rows))
            if shuffle:
                order.shuffle(blocks)
            worker = torch.utils.data.get_worker_info()
            if worker is not None:
                blocks = blocks[worker.id :: worker.num_workers]
            rows = (row for block in blocks for row in _read(block))
            for row in _drawn(rows, order, buffer_rows) if shuffle else rows:
                yield torch.from_numpy(row)

    return Rows()


def _blocks(tensors: "list[RowTensor]", block_rows: int) -> Iterator[_Block]:
    for tensor in tensors:
        for low in range(0, tensor.shape[0], block_rows):
            yield _Block(tensor, low, min(low + block_rows, tensor.shape[0]))


def _read(block: _Block) -> Iterator[Array]:
    """Yield copies of the rows, so that one kept row does not keep its block."""
    for row in block.tensor.read(block.low, block.high):
        yield np.array(row, np.float32)


def _drawn(rows: Iterator[Array], order: random.Random, size: int) -> Iterator[Array]:
    """Yield the rows in random order, with `size` of them in memory."""
    held: list[Array] = []
    for row in rows:
        if len(held) < size:
            held.append(row)
            continue
        place = order.randrange(size)
        yield held[place]
        held[place] = row
    order.shuffle(held)
    yield from held
