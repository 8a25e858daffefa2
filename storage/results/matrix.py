"""Rows of one hook over many sessions, as one matrix with the label and origin of every row."""

import io
import json
import math
import threading
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from actograph import tensor_files
from actograph.concurrency import each_of
from actograph.contract import hooks
from actograph.contract.errors import InvalidRequest, MixedIdentities, NotFound, StoreDamaged
from actograph.contract.models import ModelStructure, short
from actograph.contract.resources import TensorInfo
from actograph.contract.row_selection import (
    Positions,
    Reduce,
    consecutive,
    needs_segments,
    stored_rows,
)
from actograph.contract.saes import is_latents
from actograph.dtypes import DTYPES, read_as
from actograph.latents import is_part, latents_info
from actograph.tensor_files import Array
from storage.artifacts.store import ArtifactStore
from storage.sessions import selected_rows
from storage.sessions.filter import SessionFilter
from storage.sessions.reader import SessionReader, TensorLayout
from storage.tables.models import JobRow, SampleRow, SessionRow

#: token of a row that summarizes several tokens
SEVERAL_TOKENS = -1
#: sessions read at once
READERS = 8
#: sessions whose hooks are in memory at once
_FETCHED = 500
#: bytes of rows that an answer holds until the client has taken them, and of one read among them
HELD_BYTES, BLOCK_BYTES = 8 << 20, 2 << 20
#: reads of small rows that are sent together
_MOST_BLOCKS = 1024


#: the same for each session of a job
_not_stored = lru_cache(maxsize=32)(hooks.not_stored)


@dataclass(frozen=True, kw_only=True)
class RowChoice:
    """Rows to read of every session."""

    positions: Positions
    reduce: Reduce
    #: largest size of all rows
    max_bytes: int


@dataclass(frozen=True, kw_only=True)
class SessionSource:
    """A session in the index, with the name and form of its tensor, if it has one."""

    id: str
    sample_id: str
    sample_index: int
    epoch: int
    condition: str
    correct: bool | None
    prompt_tokens: int
    rows: int
    identity_sha256: str | None
    hook: str | None
    info: TensorInfo | None
    stored: tuple[str, ...]
    #: scores of its sample by name
    scores: Mapping[str, Any] = field(default_factory=dict)


def stored_names(job: JobRow, hook: str, structure: ModelStructure | None = None) -> list[str]:
    """Names under which a job may store a hook: a savepoint, a hook point, an alias or a module path."""
    savepoint = ((job.pinned or {}).get("savepoints") or {}).get(hook)
    return ([savepoint] if savepoint else []) + hook_names(hook, structure)


def hook_names(hook: str, *structures: ModelStructure | None) -> list[str]:
    """Names under which sessions of these models may store it: a hook point, an alias or a module path."""
    names = [hook, hooks.canonical(hook) or hook]
    for structure in structures:
        if structure is not None:
            with suppress(InvalidRequest):  # the sessions that lack it are reported as skipped
                names.append(hooks.resolve(hook, structure))
    return list(dict.fromkeys(names))


def models(session: Session, wanted: SessionFilter) -> Sequence[str]:
    """Models of the matching sessions."""
    return session.scalars(wanted.narrow(sa.select(SessionRow.model)).distinct()).all()


def in_order() -> tuple[sa.ColumnElement[Any], ...]:
    """Order of the rows of sessions: by problem, then as their jobs run them, conditions before epochs.

    Of requests that name their samples, all first in their jobs, the names decide.
    """
    columns = (SessionRow.sample_index, SampleRow.position, SessionRow.condition, SessionRow.epoch)
    return tuple(column.expression for column in (*columns, SessionRow.created_at, SessionRow.id))


def sources(
    session: Session, wanted: SessionFilter, names: Sequence[str], *, epoch: int | None, limit: int | None
) -> list[SessionSource]:
    """Find the matching sessions, in the order of `in_order`."""
    fields = (
        "id", "sample_id", "sample_index", "epoch", "condition", "correct", "prompt_tokens", "rows",
        "identity_sha256", "hooks",
    )  # fmt: skip
    columns = [*(getattr(SessionRow, name) for name in fields), SampleRow.scores]
    of_sample = SampleRow.id == SessionRow.sample_id
    statement = wanted.narrow(sa.select(*columns).select_from(SessionRow).join(SampleRow, of_sample))
    if epoch is not None:
        statement = statement.where(SessionRow.epoch == epoch)
    statement = statement.order_by(*in_order()).limit(limit)
    found, lists = [], dict[tuple[str, ...], tuple[str, ...]]()
    for row in session.execute(statement, execution_options={"yield_per": _FETCHED}):
        about: dict[str, Any] = row._asdict()
        stored = about.pop("hooks")
        name = next((name for name in names if name in stored), None)
        info = None if name is None else TensorInfo.model_validate(stored[name])
        if name is None and is_latents(names[0]):
            info = latents_info(names[0], {one: TensorInfo.model_validate(stored[one]) for one in stored})
            name = None if info is None else names[0]
        about["scores"] = about["scores"] or {}
        # sessions of one job have the same hooks
        known = lists.setdefault(tuple(stored), tuple(stored))
        found.append(SessionSource(**about, hook=name, info=info, stored=known))
    return found


@dataclass(frozen=True)
class SessionRows:
    """Rows [k, width] of one session, and the token of each."""

    source: SessionSource
    rows: Array
    tokens: Sequence[int]


@dataclass
class StoredMatrix:
    """Rows of the sessions that have some, in memory, and the sessions without rows with the reason."""

    hook: str
    pieces: list[SessionRows] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class ChosenRows:
    """The chosen rows of one session, before they are read."""

    source: SessionSource
    layout: TensorLayout
    #: of the tensor, ascending
    chosen: NDArray[np.int64]
    #: of each row of the matrix
    tokens: NDArray[np.int64]
    #: to one row
    reduce: Literal["mean", "max"] | None

    @property
    def read_bytes(self) -> int:
        """Bytes in memory while it is read."""
        return self.layout.row_bytes * (1 if self.reduce else len(self.chosen))

    def blocks(self) -> Iterator["ChosenRows"]:
        """The same rows in parts of at most `BLOCK_BYTES`, or of one row."""
        if self.reduce is not None or self.read_bytes <= BLOCK_BYTES:
            yield self
            return
        at_once = max(1, BLOCK_BYTES // self.layout.row_bytes)
        for start in range(0, len(self.chosen), at_once):
            some = slice(start, start + at_once)
            yield replace(self, chosen=self.chosen[some], tokens=self.tokens[some])

    def read(self) -> Array:
        """Read the rows [k, width]; 16-bit floats become float32. Raises StoreDamaged."""
        chosen = self.chosen.tolist()
        if self.reduce is not None:
            at_once = max(1, BLOCK_BYTES // self.layout.row_bytes)
            width = self.layout.width
            one = selected_rows.reduced_blocks(self._values, width, chosen, self.reduce, at_once=at_once)
            return one[None, :].astype(_kind(self.layout.dtype))
        rows = [self._values(low, high) for low, high in consecutive(chosen)]
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    def _values(self, start: int, stop: int) -> Array:
        piece = self.layout.rows(start, stop)
        return _floats(tensor_files.value_array(piece.dtype, piece.shape, piece.data))


@dataclass
class Plan:
    """The chosen rows of all sessions, before they are read, and the sessions without rows."""

    hook: str
    parts: list[ChosenRows] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def npz(self, label_of: Mapping[str, float | str], group_of: Mapping[str, int | str]) -> Iterator[bytes]:
        """Yield an .npz file in pieces. Only `HELD_BYTES` of rows are in memory until the caller goes on.

        Args:
            label_of: label of each session that has one, see `labels.labels`.
            group_of: group of each session.

        Raises:
            StoreDamaged: a file was deleted or damaged meanwhile.
        """
        counts = [len(part.tokens) for part in self.parts]

        def spread(values: Sequence[object], dtype: object = None) -> Array:
            return np.repeat(np.array(values, dtype), counts)  # type: ignore[call-overload]

        origins = [part.source for part in self.parts]
        arrays = {
            "hook": np.array(self.hook),
            "labels": np.repeat(labelled(origins, label_of), counts),
            "groups": spread([group_of[one.id] for one in origins]),
            "tokens": np.concatenate([part.tokens for part in self.parts]),
            "sample_index": spread([one.sample_index for one in origins], np.int64),
            "epoch": spread([one.epoch for one in origins], np.int64),
            "condition": spread([one.condition for one in origins]),
            "session_id": spread([one.id for one in origins]),
            "skipped": np.array(
                json.dumps([{"session_id": one, "reason": reason} for one, reason in self.skipped])
            ),
        }
        sink = _Collected()
        with zipfile.ZipFile(sink, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
            with archive.open("features.npy", "w", force_zip64=True) as file:
                kind = np.result_type(*{_kind(part.layout.dtype) for part in self.parts})
                shape = (sum(counts), self.parts[0].layout.width)
                np.lib.format.write_array_header_2_0(
                    file,
                    {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape},
                )
                for some in _batches(block for part in self.parts for block in part.blocks()):
                    for rows in each_of(ChosenRows.read, some, READERS):
                        file.write(np.ascontiguousarray(rows, kind).data)
                    yield sink.taken()
        yield sink.taken()


def _batches(blocks: Iterable[ChosenRows]) -> Iterator[list[ChosenRows]]:
    """Group blocks that are read at once, of `HELD_BYTES` at most."""
    some: list[ChosenRows] = []
    size = 0
    for block in blocks:
        if some and (size + block.read_bytes > HELD_BYTES or len(some) == _MOST_BLOCKS):
            yield some
            some, size = [], 0
        some.append(block)
        size += block.read_bytes
    yield some


def labelled(found: Sequence[SessionSource], label_of: Mapping[str, float | str]) -> Array:
    """Labels of sessions in their order: numbers with NaN, or texts with "", for those without one."""
    if any(isinstance(value, str) for value in label_of.values()):
        return np.array([label_of.get(one.id, "") for one in found], dtype=np.str_)
    return np.array([label_of.get(one.id, math.nan) for one in found], dtype=np.float64)


def read(store: ArtifactStore, found: Sequence[SessionSource], hook: str, choice: RowChoice) -> StoredMatrix:
    """Read the chosen rows of all sessions into memory; see `plan`."""
    planned = plan(store, found, hook, choice)
    matrix = StoredMatrix(hook, skipped=planned.skipped)

    def piece(part: ChosenRows) -> SessionRows | tuple[str, str]:
        try:
            return SessionRows(part.source, part.read(), part.tokens.tolist())
        except StoreDamaged as error:
            return part.source.id, error.message

    for one in each_of(piece, planned.parts, READERS):
        if isinstance(one, SessionRows):
            matrix.pieces.append(one)
        else:
            matrix.skipped.append(one)
    _require_some(matrix.pieces, hook, matrix.skipped)
    return matrix


def plan(store: ArtifactStore, found: Sequence[SessionSource], hook: str, choice: RowChoice) -> Plan:
    """Choose the rows of all sessions, and check that their files are there.

    A session without such rows, or whose files are gone or cut, is skipped with the reason.

    Raises:
        NotFound: no session has such rows; the message contains the first reason.
        InvalidRequest: the rows cannot be read (a tensor stored as a mean), or exceed `max_bytes`.
        MixedIdentities: sessions were recorded with different models.
    """
    _check(found, hook, choice)
    room = _Room(choice.max_bytes)
    made = Plan(hook)

    def part(source: SessionSource) -> ChosenRows | tuple[str, str]:
        try:
            return _part(SessionReader(store, source.id), source, hook, choice, room)
        except (NotFound, StoreDamaged) as error:
            return source.id, error.message

    for one in each_of(part, found, READERS):
        if isinstance(one, ChosenRows):
            made.parts.append(one)
        else:
            made.skipped.append(one)
    _require_some(made.parts, hook, made.skipped)
    return made


def _require_some(found: Sequence[object], hook: str, skipped: Sequence[tuple[str, str]]) -> None:
    if not found:
        reason = skipped[0][1] if skipped else "no session matches the filters"
        raise NotFound(f"no session gave rows of {hook}: {reason}")


def _check(found: Sequence[SessionSource], hook: str, choice: RowChoice) -> None:
    """Check all that the index knows, before anything is read."""
    first: SessionSource | None = None
    room = _Room(choice.max_bytes)
    for one in found:
        if one.info is None:
            continue
        first = first or one
        assert first.info is not None
        if first.identity_sha256 != one.identity_sha256:
            raise MixedIdentities(
                f"sessions {first.id} and {one.id} were recorded with different models (identities "
                f"{short(first.identity_sha256)} and {short(one.identity_sha256)}); "
                "choose sessions of one model by the filters"
            )
        if first.info.shape[1] != one.info.shape[1]:
            raise InvalidRequest(
                f"{hook} is {one.info.shape[1]} wide in session {one.id}, {first.info.shape[1]} in others: "
                "choose sessions of one width by the filters"
            )
        if is_part(hook):
            whole = hook.rpartition(".")[0]
            raise InvalidRequest(
                f"{hook} has the largest latents of each row, so its columns are not features; name {whole}",
                param="hook",
            )
        summary = one.info.summary
        if summary is not None and (choice.positions != "all" or choice.reduce not in ("none", summary)):
            raise InvalidRequest(
                f"{hook} was stored as the {summary} over tokens: ask for positions=all with reduce=none "
                f"or {summary}",
                param="positions",
            )
        if summary is None and choice.reduce in ("mean", "max") and _kind(one.info.dtype).kind != "f":
            raise InvalidRequest(
                f"{hook} holds {one.info.dtype} numbers: {choice.reduce} needs floats", param="reduce"
            )
        room.take(one.info, _known_rows(one, one.info, choice))


def _known_rows(source: SessionSource, info: TensorInfo, choice: RowChoice) -> int:
    """Rows of a session by the index alone; 0 if only its files can tell."""
    if info.summary is not None or needs_segments(choice.positions) or info.position_offset is not None:
        return int(info.summary is not None)
    tokens = range(info.first_row, info.first_row + info.shape[0])
    rows = stored_rows(
        choice.positions, tokens, prompt_tokens=source.prompt_tokens, ran=source.rows, segments=()
    )
    return len(rows) if choice.reduce == "none" else min(1, len(rows))


def _part(
    reader: SessionReader, source: SessionSource, hook: str, choice: RowChoice, room: "_Room"
) -> ChosenRows:
    """Choose one session's rows. Raises NotFound if it has none."""
    name, info = source.hook, source.info
    if name is None or info is None:
        raise NotFound(_not_stored(hook, source.stored))
    several = np.array([SEVERAL_TOKENS])
    if info.summary is not None:
        room.take(info, 1)
        return ChosenRows(source, reader.layout(name), np.zeros(1, np.int64), several, None)
    tokens, chosen = selected_rows.select(reader, name, choice.positions)
    if not chosen:
        raise NotFound(f"{hook} has no row at positions {choice.positions}")
    if choice.reduce in ("mean", "max"):
        room.take(info, 1)
        return ChosenRows(source, reader.layout(name), np.array(chosen), several, choice.reduce)
    if choice.reduce == "last":
        chosen = chosen[-1:]
    room.take(info, len(chosen))
    places = np.array([tokens[row] for row in chosen])
    return ChosenRows(source, reader.layout(name), np.array(chosen), places, None)


def _kind(dtype: str) -> np.dtype[Any]:
    """The dtype of rows in the matrix: float32 for smaller floats, as they are read."""
    stored = DTYPES[read_as(dtype)].bits
    return np.dtype("<f4") if dtype in ("BF16", "F16") else stored


def _floats(rows: Array) -> Array:
    return rows.astype(np.float32) if rows.dtype == np.float16 else rows


class _Room:
    """Bytes that are left for rows. Threads share it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = self._left = max_bytes
        self._lock = threading.Lock()

    def take(self, info: TensorInfo, rows: int) -> None:
        """Raises InvalidRequest if the rows do not fit."""
        with self._lock:
            self._left -= rows * info.shape[1] * _kind(info.dtype).itemsize
            if self._left < 0:
                raise InvalidRequest(
                    f"the rows take more than max_bytes={self._max_bytes}; choose fewer (positions, "
                    "condition, limit), reduce=mean, or raise max_bytes",
                    param="max_bytes",
                )


class _Collected(io.RawIOBase):
    """Collects written bytes until they are taken."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self.size += len(piece)
        return len(piece)

    def taken(self) -> bytes:
        """Return the bytes written since the last call."""
        joined = b"".join(self._pieces)
        self._pieces.clear()
        self.size = 0
        return joined
