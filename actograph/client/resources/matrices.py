"""Rows of one hook, read from many sessions at once."""

import math
from collections.abc import Iterator
from typing import Any, Unpack

import numpy as np

from actograph.client.answers import path_of
from actograph.client.concurrency import each_of
from actograph.client.errors import ApiError
from actograph.client.hook_names import absent, stored_name
from actograph.client.matrix.chosen_rows import GivenPositions, Segmented, check_summary, checked
from actograph.client.matrix.matrix import SEVERAL_TOKENS, Gathered, Matrix, Piece, Skipped
from actograph.client.queries import PAGE_SIZE, SessionChoice
from actograph.client.resources.sessions import SessionHandle, Sessions
from actograph.client.row_tensor import RowTensor
from actograph.client.transport import Transport
from actograph.contract import hooks, resources
from actograph.contract.errors import InvalidRequest, NotFound, StoreDamaged
from actograph.contract.row_selection import Positions, Reduce, consecutive, needs_segments, stored_rows
from actograph.progress import meter
from actograph.tensor_files import Array

#: size of the pieces in which rows are read for a reduction
PIECE_BYTES = 16 << 20
#: error codes that concern one session only
_ONE_SESSION = frozenset({"not_found", "store_damaged"})
CORRECT = "correct"


def read_matrix(
    transport: Transport,
    sessions: Sessions,
    job: resources.Job | str,
    hook: str,
    *,
    positions: GivenPositions = "last_prompt",
    reduce: Reduce = "none",
    label: str = CORRECT,
    limit: int | None = None,
    parallel: int = 8,
    max_bytes: int = 4 << 30,
    progress: bool = False,
    **filters: Unpack[SessionChoice],
) -> Matrix:
    """Read rows of one hook over a job's sessions; see `Jobs.matrix`."""
    selected, reduction = checked(positions, reduce)
    if parallel < 1 or (limit is not None and limit < 1):
        raise InvalidRequest("parallel and limit must be at least 1")
    reader = _Reader(transport, hook, selected, reduction)
    gathered, done = Gathered(hook, max_bytes), 0
    total = (sessions.stats(job=job, **filters)).sessions if progress else 0
    listed = reader.prepared(sessions.list(order="asc", job=job, **filters), limit)
    total = min(total, limit or total)
    with meter("sessions", show=progress) as update:
        update("reading", 0, total)
        for piece in each_of(reader.piece, listed, parallel):
            gathered.add(piece)
            done += 1
            update("reading", done, total)
    if not gathered.sessions:
        reason = f": {gathered.skipped[0].reason}" if gathered.skipped else ": no session matches the filters"
        raise NotFound(f"no session gave rows of {hook}{reason}")
    return gathered.matrix(_labels(transport, gathered.sessions, label))


class _Reader:
    """Reads one hook's rows, session by session."""

    def __init__(self, transport: Transport, hook: str, positions: Positions, reduce: Reduce) -> None:
        self._transport = transport
        self._hook = hook
        self._positions = positions
        self._reduce = reduce
        #: job id -> stored name of the hook in the job's model
        self._names: dict[str, str] = {}

    def prepared(self, sessions: Iterator[SessionHandle], limit: int | None) -> Iterator[SessionHandle]:
        """Yield the first `limit` sessions, after resolving names in their job and model."""
        left = math.inf if limit is None else limit
        for session in sessions:
            if not left:
                return
            left -= 1
            if stored_name(self._hook, session.hooks) is None and session.job_id not in self._names:
                self._names[session.job_id] = self._resolve(session)
            yield session

    def piece(self, session: SessionHandle) -> Piece | Skipped:
        """Read one session's rows, or return why there are none."""
        try:
            name = stored_name(self._hook, session.hooks) or stored_name(
                self._names.get(session.job_id, self._hook), session.hooks
            )
            if name is None:
                raise absent(self._hook, session.hooks)
            return self._read(session, session[name])
        except (NotFound, StoreDamaged) as error:
            return Skipped(session.id, error.message)
        except ApiError as error:
            if error.code not in _ONE_SESSION:
                raise
            return Skipped(session.id, error.message)

    def _resolve(self, session: resources.Session) -> str:
        """Resolve the hook as a savepoint of the job, a name in its model, or else itself."""
        try:
            job = self._transport.call(resources.Job, "GET", path_of("/v1/jobs", session.job_id))
            if self._hook in job.savepoints:
                return job.savepoints[self._hook]
            structure = self._transport.call(
                resources.ModelStructure, "GET", "/v1/model/structure", params={"model": session.model}
            )
            return hooks.resolve(self._hook, structure)
        except (ApiError, InvalidRequest):
            return self._hook

    def _read(self, session: SessionHandle, tensor: RowTensor) -> Piece:
        """Raises NotFound if the tensor has none of the rows."""
        info = tensor.info
        check_summary(info, tensor.hook, self._positions, self._reduce)
        if info.summary is not None:
            return Piece(session, as_floats(tensor.read(0, 1)), [SEVERAL_TOKENS])
        segments = Segmented()
        if needs_segments(self._positions):
            path = path_of("/v1/activations/sessions", session.id, "manifest")
            segments = self._transport.call(Segmented, "GET", path)
        tokens: Any = range(info.first_row, info.first_row + info.shape[0])
        if info.position_offset is not None:
            tokens = (session.tokens_of(tensor.hook)).tolist()
        chosen = stored_rows(
            self._positions,
            tokens,
            prompt_tokens=session.prompt_tokens,
            ran=session.rows,
            segments=segments.segments,
        )
        if not chosen:
            raise NotFound(f"{tensor.hook} has no row at positions {self._positions}")
        if self._reduce in ("mean", "max"):
            ranges = list(consecutive(chosen))
            return Piece(session, _reduced(tensor, ranges, self._reduce), [SEVERAL_TOKENS])
        if self._reduce == "last":
            chosen = chosen[-1:]
        pieces = [tensor.read(low, high) for low, high in consecutive(chosen)]
        named = [tokens[row] for row in chosen]
        return Piece(session, as_floats(np.concatenate(pieces) if len(pieces) > 1 else pieces[0]), named)


def _labels(transport: Transport, sessions: list[resources.Session], label: str) -> list[float]:
    if label == CORRECT:
        return [math.nan if session.correct is None else float(session.correct) for session in sessions]
    values: dict[str, float] = {}
    keys = dict[str, None]()
    for job_id in dict.fromkeys(session.job_id for session in sessions):
        path = path_of("/v1/jobs", job_id, "samples")
        for sample in transport.items(resources.Sample, path, {"order": "asc", "limit": PAGE_SIZE}):
            keys.update(dict.fromkeys(sample.scores))
            if label in sample.scores:
                values[sample.id] = sample.scores[label].value
    if not values:
        raise InvalidRequest(
            f"no sample has a score {label!r}; there are {', '.join([CORRECT, *keys])}", param="label"
        )
    return [values.get(session.sample_id, math.nan) for session in sessions]


def as_floats(rows: Array) -> Array:
    """Convert float16 to float32, which is exact; leave other types as they are."""
    return rows.astype(np.float32) if rows.dtype == np.float16 else rows


def _reduced(tensor: RowTensor, ranges: list[tuple[int, int]], reduce: Reduce) -> Array:
    """Reduce all rows to `[1, width]`, read piece by piece.

    Raises:
        InvalidRequest: the rows are integers, such as expert numbers.
    """
    if tensor.dtype.kind != "f":
        raise InvalidRequest(f"{tensor.hook} holds {tensor.stored_dtype} numbers: {reduce} needs floats")
    total, highest, count = np.zeros(tensor.shape[1]), np.full(tensor.shape[1], -np.inf), 0
    for low, high in _pieces(ranges, max(1, PIECE_BYTES // tensor.row_bytes)):
        rows = (tensor.read(low, high)).astype(np.float64)
        total += rows.sum(axis=0)
        highest = np.maximum(highest, rows.max(axis=0))
        count += high - low
    found = total / count if reduce == "mean" else highest
    result: Array = found[None, :].astype(np.float64 if tensor.stored_dtype == "F64" else np.float32)
    return result


def _pieces(ranges: list[tuple[int, int]], at_once: int) -> Iterator[tuple[int, int]]:
    for start, stop in ranges:
        for low in range(start, stop, at_once):
            yield low, min(low + at_once, stop)
