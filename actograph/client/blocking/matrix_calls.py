# Made of ../aio/matrix_calls.py by `python actograph/client/unasync.py`: change that file, not this one.
"""The calls that gather what many sessions or samples hold: matrices for probes, and data frames."""

import math
from collections.abc import Iterator
from typing import Any, Unpack

import numpy as np

from actograph.client import sample_frames
from actograph.client.answers import path_of, read
from actograph.client.blocking.calls import Calls
from actograph.client.blocking.handles import SessionHandle
from actograph.client.blocking.row_tensor import RowTensor
from actograph.client.blocking.runtime import each_of
from actograph.client.chosen_rows import (
    RowChoice,
    Segmented,
    check_summary,
    needs_segments,
    row_ranges,
    spelled_out,
    token_spans,
)
from actograph.client.errors import ApiError
from actograph.client.hook_names import absent, stored_name
from actograph.client.matrix import SEVERAL_TOKENS, Gathered, Matrix, Piece, Skipped
from actograph.client.optional import package
from actograph.client.progress import meter
from actograph.client.queries import SessionChoice
from actograph.contract import hooks, resources
from actograph.contract.errors import InvalidRequest, NotFound, StoreDamaged
from actograph.contract.row_selection import NamedRows, Reduce, Segment
from actograph.tensor_files import Array

#: rows that are summed up are read in pieces of about so many bytes
PIECE_BYTES = 16 << 20
#: answers that say that one session cannot be read, while others can
_ONE_SESSION = frozenset({"not_found", "store_damaged"})
CORRECT = "correct"


class MatrixCalls(Calls):
    """Many sessions as one matrix, many samples as one frame."""

    def matrix(
        self,
        job: resources.Job | str,
        hook: str,
        *,
        rows: RowChoice = "last_prompt",
        reduce: Reduce = "none",
        label: str = CORRECT,
        limit: int | None = None,
        parallel: int = 8,
        max_bytes: int = 4 << 30,
        progress: bool = False,
        mixed_identities: bool = False,
        **wanted: Unpack[SessionChoice],
    ) -> Matrix:
        """Rows of one hook over a job's sessions: features, labels, and where each row comes from.

        Only the rows that are asked for are read. A session that has none of them, or was deleted meanwhile,
        is passed over and told in `skipped`.

        Args:
            hook: a hook point, an alias, or a module path of the job's model.
            rows: `last_prompt`, `last`, `all`, `prompt`, `generated`, a segment (`think`, `answer`,
                `tool_call`, `tool_result`), the number of a token, or `mean` (all rows averaged).
            reduce: `mean`, `max` or `last` makes one row of each session's rows.
            label: `correct` (1 or 0), or a metric key of the samples' scores (`exact_match,strict-match`).
            limit: most sessions to read, the oldest first.
            parallel: sessions that are read at once.
            max_bytes: most bytes of features; more is an error.
            mixed_identities: take sessions that were recorded with different models too.
            progress: show a bar with rate and ETA on stderr, or lines where that is no terminal.
            wanted: filters of `SessionChoice`, as `condition` or `correct`.

        Raises:
            NotFound: no session gave a row; the message has the first reason.
            InvalidRequest: rows that cannot be told apart (a tensor stored as a mean), or over `max_bytes`.
            MixedIdentities: sessions were recorded with different models, unless `mixed_identities`.
        """
        chosen, made = spelled_out(rows, reduce)
        if parallel < 1 or (limit is not None and limit < 1):
            raise InvalidRequest("parallel and limit must be at least 1")
        location_of: dict[str, str] = {}

        def rows_of(session: SessionHandle) -> Piece | Skipped:
            try:
                name = stored_name(hook, session.hooks) or stored_name(
                    location_of.get(session.job_id, hook), session.hooks
                )
                if name is None:
                    raise absent(hook, session.hooks)
                return self._piece(session, session[name], chosen, made)
            except (NotFound, StoreDamaged) as error:
                return Skipped(session.id, error.message)
            except ApiError as error:
                if error.code not in _ONE_SESSION:
                    raise
                return Skipped(session.id, error.message)

        gathered, done = Gathered(hook, max_bytes, mixed_identities), 0
        total = (self._own().session_stats(job=job, **wanted)).sessions if progress else 0
        found = self._own().sessions(order="asc", job=job, **wanted)
        with meter("reading", "sessions", min(total, limit or total), show=progress) as reached:
            for piece in each_of(rows_of, self._prepared(found, hook, location_of, limit), parallel):
                gathered.add(piece)
                done += 1
                reached(done)
        if not gathered.sessions:
            reason = f": {gathered.skipped[0].reason}" if gathered.skipped else ": none fits the filters"
            raise NotFound(f"no session gave rows of {hook}{reason}")
        return gathered.matrix(self._labels(gathered.sessions, label))

    def frame(self, job: resources.Job | str) -> Any:
        """A job's samples as a `pandas.DataFrame`, one line each; see `sample_frames.frame`.

        Raises:
            PackageMissing: pandas is not installed.
        """
        package("pandas", "a data frame")  # said before the samples are fetched
        samples = []
        for sample in self._own().samples(job if isinstance(job, str) else job.id):
            samples.append(sample)
        return sample_frames.frame(samples)

    def _prepared(
        self,
        sessions: Iterator[SessionHandle],
        hook: str,
        location_of: dict[str, str],
        limit: int | None,
    ) -> Iterator[SessionHandle]:
        """The first `limit` sessions; names that they leave open are looked up in their job and its model."""
        left = math.inf if limit is None else limit
        for session in sessions:
            if not left:
                return
            left -= 1
            if stored_name(hook, session.hooks) is None and session.job_id not in location_of:
                location_of[session.job_id] = self._meant(hook, session)
            yield session

    def _meant(self, hook: str, session: resources.Session) -> str:
        """The hook of that name: a savepoint of its job, a name in its model, else the name itself."""
        try:
            pinned = (self._own().job(session.job_id)).pinned
            if pinned is not None and hook in pinned.savepoints:
                return pinned.savepoints[hook]
            return hooks.resolve(hook, self._own().structure(session.model))
        except (ApiError, InvalidRequest):
            return hook

    def _piece(
        self, session: SessionHandle, tensor: RowTensor, rows: NamedRows | Segment | int, reduce: Reduce
    ) -> Piece:
        """Raises NotFound where the tensor has none of the rows."""
        info = tensor.info
        check_summary(info, tensor.hook, rows, reduce)
        if info.summary is not None:
            return Piece(session, as_floats(tensor.read(0, 1)), [SEVERAL_TOKENS])
        segments = Segmented()
        if needs_segments(rows):
            path = path_of("/v1/activations/sessions", session.id, "manifest")
            segments = read(Segmented, self._transport.request("GET", path))
        tokens: Any = range(info.first_row, info.first_row + info.shape[0])
        if info.position_offset is not None:
            tokens = (session.tokens_of(tensor.hook)).tolist()
        ranges = list(row_ranges(tokens, token_spans(session, rows, segments.segments)))
        if not ranges:
            raise NotFound(
                f"{tensor.hook} has no row of {f'token {rows}' if isinstance(rows, int) else rows}"
            )
        if reduce in ("mean", "max"):
            return Piece(session, _reduced(tensor, ranges, reduce), [SEVERAL_TOKENS])
        if reduce == "last":
            ranges = [(ranges[-1][1] - 1, ranges[-1][1])]
        pieces = [tensor.read(low, high) for low, high in ranges]
        named = [tokens[row] for low, high in ranges for row in range(low, high)]
        return Piece(session, as_floats(np.concatenate(pieces) if len(pieces) > 1 else pieces[0]), named)

    def _labels(self, sessions: list[resources.Session], label: str) -> list[float]:
        if label == CORRECT:
            return [math.nan if session.correct is None else float(session.correct) for session in sessions]
        values: dict[str, float] = {}
        keys = dict[str, None]()
        for job_id in dict.fromkeys(session.job_id for session in sessions):
            for sample in self._own().samples(job_id):
                keys.update(dict.fromkeys(sample.scores))
                if label in sample.scores:
                    values[sample.id] = sample.scores[label].value
        if not values:
            raise InvalidRequest(
                f"no sample has a score {label!r}; there are {', '.join([CORRECT, *keys])}", param="label"
            )
        return [values.get(session.sample_id, math.nan) for session in sessions]


def as_floats(rows: Array) -> Array:
    """float16 as float32, which is exact; everything else as it is."""
    return rows.astype(np.float32) if rows.dtype == np.float16 else rows


def _reduced(tensor: RowTensor, ranges: list[tuple[int, int]], reduce: Reduce) -> Array:
    """`[1, width]` of all the rows, read piece by piece.

    Raises:
        InvalidRequest: numbers that are names, as those of experts.
    """
    if tensor.dtype.kind != "f":
        raise InvalidRequest(
            f"{tensor.hook} holds {tensor.stored_dtype} numbers, of which no {reduce} is taken"
        )
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
