"""Commits: results and failures of samples under their leases, with the counts and the log of their jobs."""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from actograph.contract import resources
from actograph.contract.errors import ActographError, CaptureFailed
from actograph.contract.resources import SampleStatus, ToolMessage, ToolUse
from storage.index import counters
from storage.index.counters import Counter
from storage.index.database import changed, is_away, now
from storage.jobs import control, jobs
from storage.queue import leases
from storage.queue.leases import LeasedSample
from storage.samples import announced
from storage.sessions import sessions
from storage.sessions.sessions import NewSession
from storage.tables.models import SampleRow

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SampleResult:
    """Result of a completed sample: the columns of its row."""

    prompt: str
    completion: str
    finish_reason: str
    prompt_tokens: int
    generated_tokens: int
    scores: Mapping[str, resources.Score]
    session_id: str | None
    tool_use: ToolUse | None = None
    messages: Sequence[ToolMessage] = ()
    logprobs: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A sample that ended with a result or an error."""

    lease: LeasedSample
    result: SampleResult | None = None
    #: its session, whose files are stored
    session: NewSession | None = None
    #: tokens of prompts that were computed for several samples at once
    cached_tokens: int = 0
    error: ActographError | None = None
    #: the prompt of a failed sample
    prompt: str | None = None


@dataclass(frozen=True, kw_only=True)
class Committed:
    #: what was stored; an outcome that the database refused has become a failure
    kept: Sequence[Ended]
    #: keys of leases without a stored result; the files of their sessions must be removed
    lost: Collection[str]


def commit(session: Session, given: Sequence[Ended], *, seconds: float = 0.0) -> Committed:
    """Store what ended. Safe to repeat if the answer to the first commit was lost.

    An outcome that the database refuses, such as NaN in JSON on Postgres, becomes a failure of its sample and
    costs no other one. So all are stored in one savepoint and, if that fails, again in a savepoint each.

    Args:
        seconds: that a worker was busy since its last commit.
    """
    alive = {lease.id for lease in leases.lock_jobs(session, [one.lease for one in given])}
    known = _with_sessions(session, [one for one in given if one.lease.id in alive])
    tried = known
    try:
        with _savepoint(session):
            stored = _store(session, known)
    except _RefusedError as refused:
        stored, tried = _store_each(session, known, refused)
    done = {one.lease.key for one in tried if stored[one.lease.key]}
    kept = [one for one in tried if one.lease.key in done]
    published = {one.session.id for one in kept if one.session is not None}
    announced.abandon(
        session, [one.lease.session_id for one in given if one.lease.session_id not in published]
    )
    errors: dict[str, list[ActographError | None]] = defaultdict(list)
    cached: dict[str, int] = defaultdict(int)
    for one in kept:
        errors[one.lease.job_id].append(one.error)
        cached[one.lease.job_id] += one.cached_tokens
    for job_id in sorted(errors):
        control.count_ended(session, job_id, errors[job_id], cached_tokens=cached[job_id])
    if kept:
        kinds = {row.id: row.kind for row in jobs.lock_all(session, errors)}
        counters.add(session, _tally(kinds, kept, seconds))
    # unless their first commit was stored, and its answer was lost
    without = [one.lease for one in given if one.lease.key not in done] + [
        one.lease for one in kept if one.error is not None
    ]
    lost = {lease.key for lease in without} - (_completed(session, without) if without else set())
    return Committed(kept=kept, lost=lost)


def _with_sessions(session: Session, given: Sequence[Ended]) -> list[Ended]:
    """The same outcomes; one whose session is being removed becomes a failure."""
    stored = {one.session.id for one in given if one.session is not None}
    removed = stored - sessions.announced(session, stored)
    reason = CaptureFailed(
        "the sample ran for more than a day, so its session was removed; shorten the sample"
    )
    return [
        replace(one, result=None, session=None, error=reason)
        if one.session is not None and one.session.id in removed
        else one
        for one in given
    ]


class _RefusedError(Exception):
    """The database, or a bug, refuses an outcome."""


@contextmanager
def _savepoint(session: Session) -> Iterator[None]:
    try:
        with session.begin_nested():
            yield
    except Exception as error:
        if isinstance(error, DBAPIError) and is_away(error):
            raise  # the whole list is tried again
        raise _RefusedError from error


def _store(session: Session, given: Sequence[Ended]) -> dict[str, bool]:
    stored = {one.lease.key: _end(session, one) for one in given}
    sessions.publish(session, *(one.session for one in given if one.session and stored[one.lease.key]))
    return stored


def _store_each(
    session: Session, given: Sequence[Ended], refused: Exception
) -> tuple[dict[str, bool], list[Ended]]:
    stored: dict[str, bool] = {}
    tried: list[Ended] = []
    for one in given:
        try:
            if len(given) == 1:
                raise refused
            with _savepoint(session):
                stored |= _store(session, [one])
        except _RefusedError as error:
            if one.error is not None:
                raise  # the sample has no result that could be at fault
            reason = _reason(one, error.__cause__ or error)
            tried.append(replace(one, result=None, session=None, error=reason))
            stored |= _store(session, tried[-1:])
        else:
            tried.append(one)
    return stored, tried


def _reason(one: Ended, error: BaseException) -> ActographError:
    doing = f"while the result of sample {one.lease.id} was stored"
    logger.error("%s: %s", doing, type(error).__name__, exc_info=error)
    return ActographError(f"{type(error).__name__} {doing}: {error}; the worker's log has the trace")


def _end(session: Session, one: Ended) -> bool:
    """Store a result or an error under the lease. False if the lease is lost."""
    values: dict[str, Any] = {"status": SampleStatus.FAILED, "prompt": one.prompt}
    if one.result is not None:
        values = vars(one.result) | {
            "status": SampleStatus.COMPLETED,
            "scores": {key: score.model_dump() for key, score in one.result.scores.items()},
            "tool_use": one.result.tool_use.model_dump() if one.result.tool_use else None,
            "messages": [message.model_dump() for message in one.result.messages] or None,
        }
    values["error"] = None if one.error is None else one.error.as_record()
    moved = session.execute(
        sa.update(SampleRow)
        .where(*leases.ours(one.lease))
        .values(**values, finished_at=now(session))
        .execution_options(synchronize_session=False)
    )
    if not changed(moved):
        logger.warning("sample %s: lease token %d is no longer valid", one.lease.id, one.lease.token)
    return changed(moved) > 0


def _completed(session: Session, held: Sequence[LeasedSample]) -> set[str]:
    """Keys of the leases under which samples were completed."""
    completed = SampleRow.status == SampleStatus.COMPLETED
    ids = {lease.id for lease in held}
    statement = sa.select(SampleRow.id, SampleRow.lease_token).where(SampleRow.id.in_(ids), completed)
    tokens = {row.id: row.lease_token for row in session.execute(statement)}
    return {lease.key for lease in held if tokens.get(lease.id) == lease.token}


def _tally(kinds: Mapping[str, str], kept: Sequence[Ended], seconds: float) -> dict[Counter, float]:
    """Counter increments; `kinds` are those of the jobs."""
    counts: dict[Counter, float] = defaultdict(float)
    counts[Counter("busy_seconds")] = seconds
    for one in kept:
        kind = kinds[one.lease.job_id]
        status = SampleStatus.FAILED if one.result is None else SampleStatus.COMPLETED
        counts[Counter("samples", kind, status)] += 1
        if one.result is not None:
            counts[Counter("prompt_tokens", kind)] += one.result.prompt_tokens
            counts[Counter("generated_tokens", kind)] += one.result.generated_tokens
        if one.session is not None:
            counts[Counter("sessions_written", kind)] += 1
            counts[Counter("session_rows_written", kind)] += one.session.rows
            counts[Counter("session_bytes_written", kind)] += sum(f.bytes for f in one.session.files)
    return counts
