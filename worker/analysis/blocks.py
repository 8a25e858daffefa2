"""Rows of several hooks over many sessions, in blocks of bounded size."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from actograph import tensor_files
from actograph.concurrency import each_of
from actograph.contract.errors import NotFound, StoreDamaged
from actograph.contract.row_selection import Positions, consecutive
from actograph.dtypes import read_as
from actograph.tensor_files import Array
from storage.artifacts.store import ArtifactStore
from storage.sessions import selected_rows
from storage.sessions.reader import SessionReader

#: bytes of the stored rows of one block
BLOCK_BYTES = 16 << 20
#: blocks that are read at once
READERS = 4


@dataclass(frozen=True, kw_only=True)
class AlignedRows:
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
) -> Iterator[AlignedRows]:
    """Read the selected rows of sessions in order, from the number `first` on, a few blocks ahead."""

    def opened(number: int) -> _OpenedSession | AlignedRows:
        try:
            reader = SessionReader(store, ids[number])
            token_ids = reader.token_ids() if with_token_ids else ()
            return _selected(reader, number, hooks, positions, token_ids=token_ids, block_bytes=block_bytes)
        except (NotFound, StoreDamaged) as error:
            return AlignedRows(session=number, skipped=error.message)

    parts: Iterator[AlignedRows | _BlockTokens] = (
        part
        for one in each_of(opened, range(first, len(ids)), READERS)
        for part in ((one,) if isinstance(one, AlignedRows) else one.parts())
    )
    skipped = -1
    for block in each_of(_block, parts, READERS):
        if block.session == skipped:
            continue  # the rest of a damaged session
        if block.skipped is not None:
            skipped = block.session
        yield block


@dataclass(frozen=True, kw_only=True)
class _OpenedSession:
    """A session whose rows are selected but not read."""

    reader: SessionReader
    number: int
    token_ids: Sequence[int]
    tokens: Sequence[int]
    #: hook -> rows of its tensor
    chosen: Mapping[str, Sequence[int]]
    #: tokens of a block
    size: int

    def parts(self) -> Iterator["_BlockTokens"]:
        for low in range(0, len(self.tokens), self.size):
            yield _BlockTokens(self, low)


@dataclass(frozen=True)
class _BlockTokens:
    """The tokens of one block, from `low` on."""

    opened: _OpenedSession
    low: int


def _block(part: AlignedRows | _BlockTokens) -> AlignedRows:
    """Read a block; one that cannot be read says so."""
    if isinstance(part, AlignedRows):
        return part
    opened, high = part.opened, part.low + part.opened.size
    try:
        rows = {hook: _read(opened.reader, hook, at[part.low : high]) for hook, at in opened.chosen.items()}
    except (NotFound, StoreDamaged) as error:
        return AlignedRows(session=opened.number, skipped=error.message)
    return AlignedRows(
        session=opened.number,
        token_ids=opened.token_ids,
        tokens=opened.tokens[part.low : high],
        rows=rows,
        is_last=high >= len(opened.tokens),
    )


def _selected(
    reader: SessionReader,
    number: int,
    hooks: Sequence[str],
    positions: Positions,
    *,
    token_ids: Sequence[int],
    block_bytes: int,
) -> _OpenedSession | AlignedRows:
    chosen: dict[str, list[int]] = {}
    tokens_of: dict[str, list[int]] = {}
    row_bytes = 0
    for hook in hooks:
        tokens, chosen[hook] = selected_rows.select(reader, hook, positions)
        tokens_of[hook] = [tokens[row] for row in chosen[hook]]
        info = reader.tensor_info(hook)
        row_bytes += info.shape[1] * tensor_files.itemsize(read_as(info.dtype))
    selected = tokens_of[hooks[0]]
    if any(tokens != selected for tokens in tokens_of.values()):
        return AlignedRows(session=number, skipped="the hooks were stored at different tokens")
    if not selected:
        return AlignedRows(session=number, token_ids=token_ids, skipped=f"no row at positions {positions}")
    size = max(1, block_bytes // max(1, row_bytes))
    return _OpenedSession(
        reader=reader, number=number, token_ids=token_ids, tokens=selected, chosen=chosen, size=size
    )


def _read(reader: SessionReader, hook: str, rows: Sequence[int]) -> Array:
    pieces = [selected_rows.read(reader, hook, low, high) for low, high in consecutive(rows)]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
