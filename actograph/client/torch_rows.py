"""Rows of many sessions as a torch dataset: shuffled, and read as they are needed."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from actograph.client.stored_session import StoredSession
from actograph.contract.errors import InvalidRequest, NotFound, package

#: consecutive rows of one session that are read at once
BLOCK_ROWS = 64
#: blocks in memory, whose rows are mixed
BLOCKS = 256


def to_torch_dataset(
    sessions: Iterable[StoredSession], hook: str, *, seed: int = 0, shuffle: bool = True
) -> Any:
    """Return a `torch.utils.data.IterableDataset` of all rows of a hook, each a float32 tensor [width].

    Every pass yields each row once. Blocks of 64 rows are read in random order, and the rows of 256 blocks
    are mixed: so 16,384 rows are in memory, however many there are. The order depends on `seed` and the
    number of the pass. Workers of a `DataLoader` share the blocks; use them with folders alone.

    Args:
        sessions: sessions of a client (`client.sessions.list(...)`) or of folders (`open_folder(...)`).
        hook: hook point, alias or module path; sessions without it are skipped.
        shuffle: False yields the rows of each session in their order.

    Raises:
        NotFound: no session has the hook.
        InvalidRequest: the widths differ.
        PackageMissing: torch is not installed.
    """
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
            order = np.random.default_rng([seed, self.passes])
            self.passes += 1
            blocks = [(one, low) for one in tensors for low in range(0, len(one), BLOCK_ROWS)]
            if shuffle:
                blocks = [blocks[place] for place in order.permutation(len(blocks))]
            worker = torch.utils.data.get_worker_info()
            mine = blocks if worker is None else blocks[worker.id :: worker.num_workers]
            for at in range(0, len(mine), BLOCKS):
                read = [tensor[low : low + BLOCK_ROWS] for tensor, low in mine[at : at + BLOCKS]]
                rows = np.concatenate(read).astype(np.float32, copy=False)
                yield from torch.from_numpy(order.permutation(rows) if shuffle else rows)

    return Rows()
