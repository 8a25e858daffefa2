"""Rows of one hook, read from many sessions at once."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError

from actograph.client.errors import ApiError
from actograph.client.matrix import Piece, Skipped
from actograph.client.sessions import SessionHandle, stored_name
from actograph.client.tensors import LazyTensor
from actograph.client.transport import PAGE_SIZE, Transport, path_of
from actograph.contract import hooks, models, resources
from actograph.contract.errors import InvalidRequest, NotFound, StoreDamaged
from actograph.contract.row_selection import (
    NamedPositions,
    Positions,
    Reduce,
    Segment,
    consecutive,
    needs_segments,
    stored_rows,
)
from actograph.tensor_files import Array

#: positions as a caller gives them: as in a capture spec, or the number of one token
GivenPositions = str | int | Sequence[int] | Sequence[str] | Mapping[str, Any] | BaseModel
CORRECT = "correct"
#: size of the pieces in which rows are read for a reduction
PIECE_BYTES = 16 << 20
#: token index of a row that summarizes several tokens
SEVERAL_TOKENS = -1
#: error codes that concern one session only
_ONE_SESSION = frozenset({"not_found", "store_damaged"})
_positions: TypeAdapter[Positions] = TypeAdapter(Positions)


class NamedSpan(BaseModel):
    """A named range of tokens, [start, stop)."""

    name: str
    start: int
    stop: int


class Segmented(BaseModel):
    """The segments in a session's manifest."""

    segments: list[NamedSpan] = []


class RowReader:
    """Reads one hook's rows, session by session.

    Raises:
        InvalidRequest: unknown positions or an unknown reduction.
    """

    def __init__(self, transport: Transport, hook: str, positions: GivenPositions, reduce: Reduce) -> None:
        one = isinstance(positions, int) and not isinstance(positions, bool)
        try:
            self._positions = _positions.validate_python([positions] if one else positions)
        except ValidationError as error:
            names = ", ".join([*get_args(NamedPositions), *get_args(Segment)[1:]])
            raise InvalidRequest(
                f"positions={positions!r} is none of {names}, token numbers, {{'stride': k}} or "
                "{'start': a, 'stop': b}",
                param="positions",
            ) from error
        if reduce not in get_args(Reduce):
            reductions = ", ".join(get_args(Reduce))
            raise InvalidRequest(f"reduce={reduce!r} is none of {reductions}", param="reduce")
        self._transport = transport
        self._hook = hook
        self._reduce = reduce
        #: job id -> stored name of the hook in the job's model
        self._names: dict[str, str] = {}

    def resolved(self, sessions: Iterable[SessionHandle]) -> Iterator[SessionHandle]:
        """Yield the sessions, after resolving the hook in their job and model."""
        for session in sessions:
            if stored_name(self._hook, session.hooks) is None and session.job_id not in self._names:
                self._names[session.job_id] = self._resolve(session)
            yield session

    def piece(self, session: SessionHandle) -> Piece | Skipped:
        """Read one session's rows, or return why there are none."""
        try:
            known = self._hook in session
            return self._read(session, session[self._hook if known else self._names[session.job_id]])
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
                models.ModelStructure, "GET", "/v1/model/structure", params={"model": session.model}
            )
            return hooks.resolve(self._hook, structure)
        except (ApiError, InvalidRequest):
            return self._hook

    def _read(self, session: SessionHandle, tensor: LazyTensor) -> Piece:
        """Raises NotFound if the tensor has none of the rows."""
        summary = session.hooks[tensor.hook].summary
        if summary is not None:
            if self._positions != "all" or self._reduce not in ("none", summary):
                raise InvalidRequest(
                    f"{tensor.hook} was stored as the {summary} over tokens: ask for positions='all' with "
                    f"reduce='none' or {summary!r}",
                    param="positions",
                )
            return Piece(session, _as_floats(tensor.read(0, 1)), [SEVERAL_TOKENS])
        tokens, chosen = self._chosen(session, tensor)
        if not chosen:
            raise NotFound(f"{tensor.hook} has no row at positions {self._positions}")
        if self._reduce in ("mean", "max"):
            return Piece(session, _reduced(tensor, chosen, self._reduce), [SEVERAL_TOKENS])
        if self._reduce == "last":
            chosen = chosen[-1:]
        rows = np.concatenate([tensor.read(low, high) for low, high in consecutive(chosen)])
        return Piece(session, _as_floats(rows), [tokens[row] for row in chosen])

    def _chosen(self, session: SessionHandle, tensor: LazyTensor) -> tuple[Sequence[int], list[int]]:
        """The token of every row of a tensor, and the selected rows."""
        segments = Segmented()
        if needs_segments(self._positions):
            path = path_of("/v1/activations/sessions", session.id, "manifest")
            segments = self._transport.call(Segmented, "GET", path)
        info = session.hooks[tensor.hook]
        tokens: Any = range(info.first_row, info.first_row + info.shape[0])
        if info.position_offset is not None:
            tokens = session.tokens_of(tensor.hook).tolist()
        return tokens, stored_rows(
            self._positions,
            tokens,
            prompt_tokens=session.prompt_tokens,
            ran=session.rows,
            segments=segments.segments,
        )


def labels_of(transport: Transport, sessions: list[resources.Session], label: str) -> list[float]:
    """Return the label of each session: `correct`, or a score of its sample; NaN without one."""
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


def _as_floats(rows: Array) -> Array:
    """Convert float16 to float32, which is exact; leave other types as they are."""
    return rows.astype(np.float32) if rows.dtype == np.float16 else rows


def _reduced(tensor: LazyTensor, rows: list[int], reduce: Reduce) -> Array:
    """Reduce rows to `[1, width]`, read piece by piece.

    Raises:
        InvalidRequest: the rows are integers, such as expert numbers.
    """
    if tensor.dtype.kind != "f":
        raise InvalidRequest(f"{tensor.hook} holds {tensor.stored_dtype} numbers: {reduce} needs floats")
    total, highest = np.zeros(tensor.shape[1]), np.full(tensor.shape[1], -np.inf)
    at_once = max(1, PIECE_BYTES // tensor.row_bytes)
    for start, stop in consecutive(rows):
        for low in range(start, stop, at_once):
            values = tensor.read(low, min(low + at_once, stop)).astype(np.float64)
            total += values.sum(axis=0)
            highest = np.maximum(highest, values.max(axis=0))
    found = total / len(rows) if reduce == "mean" else highest
    result: Array = found[None, :].astype(np.float64 if tensor.stored_dtype == "F64" else np.float32)
    return result
