"""Rows of many sessions as a torch dataset: shuffled, and read as they are needed."""

import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from actograph.client.errors import package
from actograph.client.stored_session import StoredSession
from actograph.client.tensors import LazyTensor
from actograph.contract.errors import InvalidRequest, NotFound
from actograph.tensor_files import Array

#: consecutive rows of one session that are read at once
BLOCK_ROWS = 64
#: rows in memory, from which the next row is drawn
BUFFER_ROWS = 16_384


def to_torch_dataset(
    sessions: Iterable[StoredSession],
    hook: str,
    *,
    seed: int = 0,
    shuffle: bool = True,
    block_rows: int = BLOCK_ROWS,
    buffer_rows: int = BUFFER_ROWS,
) -> Any:
    """Return a `torch.utils.data.IterableDataset` of all rows of a hook, each a float32 tensor [width].

    Every pass yields each row once. Blocks of `block_rows` rows are read in random order into a buffer of
    `buffer_rows` rows, from which rows are drawn at random. So at most a buffer is in memory, however many
    rows there are. The order depends on `seed` and the number of the pass. Workers of a `DataLoader` share
    the blocks; use them with folders, not with a client's sessions.

    Args:
        sessions: sessions of a client (`client.sessions.list(...)`) or of folders (`open_folder(...)`).
        hook: hook point, alias or module path; sessions without it are skipped.
        shuffle: False yields the rows of each session in their order.

    Raises:
        NotFound: no session has the hook.
        InvalidRequest: the widths differ, or a size is less than 1.
        PackageMissing: torch is not installed.
    """
    if min(block_rows, buffer_rows) < 1:
        raise InvalidRequest("block_rows and buffer_rows must be at least 1")
    torch = package("torch", "a torch dataset")
    tensors = [session[hook] for session in sessions if hook in session]
    if not tensors:
        raise NotFound(f"no session has a tensor {hook}")
    widths = sorted({tensor.shape[1] for tensor in tensors})
    if len(widths) > 1:
        raise InvalidRequest(f"the sessions' tensors of {hook} differ in width: {widths}")

    class Rows(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        """Rows of one hook; `len` is their number."""

        passes = 0

        def __len__(self) -> int:
            return sum(map(len, tensors))

        def __iter__(self) -> Iterator[Any]:
            order = random.Random(f"{seed} {self.passes}")
            self.passes += 1
            blocks = [(one, low) for one in tensors for low in range(0, len(one), block_rows)]
            if shuffle:
                order.shuffle(blocks)
            worker = torch.utils.data.get_worker_info()
            mine = blocks if worker is None else blocks[worker.id :: worker.num_workers]
            rows = (row for block in mine for row in _rows(*block, block_rows))
            yield from map(torch.from_numpy, _drawn(rows, order, buffer_rows) if shuffle else rows)

    return Rows()


def _rows(tensor: LazyTensor, low: int, count: int) -> Iterator[Array]:
    for row in tensor[low : low + count]:
        yield np.array(row, np.float32)  # a view would keep its block in memory


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
