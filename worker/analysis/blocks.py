"""Rows of several hooks over many sessions, in blocks of bounded size."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from actograph import tensor_files
from actograph.contract.errors import NotFound, StoreDamaged
from actograph.contract.row_selection import Positions, consecutive
from actograph.tensor_files import Array
from storage.artifacts.store import ArtifactStore
from storage.sessions import selected_rows
from storage.sessions.reader import SessionReader

#: bytes of the stored rows of one block
BLOCK_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class Block:
    """Rows of the same tokens at every hook; empty for a session that is skipped.

    Attributes:
        session: number of the session.
        token_ids: of prompt and generation; empty if they were not asked for.
        tokens: token of each row, [k].
        rows: hook -> [k, width].
        is_last: whether it is the last block of its session.
        skipped: why the rest of the session is left out.
    """

    session: int
    token_ids: Sequence[int] = ()
    tokens: Sequence[int] = ()
    rows: Mapping[str, Array] = field(default_factory=dict)
    is_last: bool = True
    skipped: str | None = None


def blocks(
    store: ArtifactStore,
    ids: Sequence[str],
    hooks: Sequence[str],
    positions: Positions,
    *,
    first: int = 0,
    block_bytes: int = BLOCK_BYTES,
    with_token_ids: bool = False,
) -> Iterator[Block]:
    """Read the selected rows of sessions in order, from the number `first` on."""
    for number in range(first, len(ids)):
        try:
            reader = SessionReader(store, ids[number])
            token_ids = reader.token_ids() if with_token_ids else ()
            for block in _of_session(reader, number, hooks, positions, block_bytes):
                yield replace(block, token_ids=token_ids)
        except (NotFound, StoreDamaged) as error:
            yield Block(session=number, skipped=error.message)


def _of_session(
    reader: SessionReader, number: int, hooks: Sequence[str], positions: Positions, block_bytes: int
) -> Iterator[Block]:
    chosen: dict[str, list[int]] = {}
    tokens_of: dict[str, list[int]] = {}
    row_bytes = 0
    for hook in hooks:
        tokens, chosen[hook] = selected_rows.select(reader, hook, positions)
        tokens_of[hook] = [tokens[row] for row in chosen[hook]]
        info = reader.tensor_info(hook)
        row_bytes += info.shape[1] * tensor_files.itemsize(info.dtype)
    selected = tokens_of[hooks[0]]
    if any(tokens != selected for tokens in tokens_of.values()):
        yield Block(session=number, skipped="the hooks were stored at different tokens")
        return
    if not selected:
        yield Block(session=number, skipped=f"no row at positions {positions}")
    size = max(1, block_bytes // max(1, row_bytes))
    for low in range(0, len(selected), size):
        rows = {hook: _read(reader, hook, chosen[hook][low : low + size]) for hook in hooks}
        is_last = low + size >= len(selected)
        yield Block(session=number, tokens=selected[low : low + size], rows=rows, is_last=is_last)


def _read(reader: SessionReader, hook: str, rows: Sequence[int]) -> Array:
    pieces = [selected_rows.read(reader, hook, low, high) for low, high in consecutive(rows)]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
