"""Commits: results and failures of samples under their leases, with what they add to their jobs."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from actograph.contract import resources
from actograph.contract.errors import ActographError, CaptureFailed
from actograph.contract.readouts import ReadoutValues
from actograph.contract.resources import SampleStatus, ToolMessage, ToolUse
from storage.index import tallies
from storage.index.bulk_rows import BulkUpdate
from storage.index.database import Database, is_away, now
from storage.index.tallies import Tally
from storage.jobs import control, jobs
from storage.queue import leases
from storage.queue.leases import LeasedSample
from storage.samples import announced
from storage.sessions import sessions
from storage.sessions.sessions import NewSession
from storage.tables.models import SampleRow

logger = logging.getLogger(__name__)

_COLUMNS = (
    "status", "prompt", "completion", "finish_reason", "prompt_tokens", "generated_tokens", "scores",
    "tool_use", "messages", "logprobs", "error", "session_id", "finished_at", "readouts",
)  # fmt: skip
_update = BulkUpdate(SampleRow, *_COLUMNS)


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
    readouts: Mapping[str, ReadoutValues] = field(default_factory=dict)


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
    #: jobs that need not be settled now: others of their samples wait, and their progress was just logged
    going_on: Collection[str] = ()


def store(
    database: Database,
    given: Sequence[Ended],
    *,
    seconds: float = 0.0,
    give_up: Callable[[], bool] = lambda: False,
) -> Committed:
    """Commit what ended, and bring its jobs up to date; retry while the database is unavailable.

    An outcome that the database refuses, such as NaN in JSON on Postgres, becomes a failure of its sample.

    A job is settled in a transaction of its own, since that locks it. If the worker dies in between, upkeep
    settles the job.

    Raises:
        DBAPIError: the database is unavailable and `give_up` returned True.
    """

    def attempt(*, one_by_one: bool) -> Committed:
        return database.insist(
            lambda session: commit(session, given, seconds=seconds, one_by_one=one_by_one), give_up=give_up
        )

    try:
        done = attempt(one_by_one=False)
    except Exception as error:
        if isinstance(error, DBAPIError) and is_away(error):
            raise
        # which costs no other one
        done = attempt(one_by_one=True)
    # Jobs of a single sample were settled by the commit. If the answer to a first commit was lost, nothing
    # is kept now, and the jobs are settled all the same.
    several = {one.lease.job_id for one in given if not one.lease.is_only}
    failing = {one.lease.job_id for one in (*given, *done.kept) if one.error is not None}
    if unsettled := several - (set(done.going_on) - failing):
        settle(database, unsettled, failing, give_up=give_up)
    return done


def settle(
    database: Database,
    job_ids: Collection[str],
    failing: Collection[str] = (),
    *,
    give_up: Callable[[], bool] = lambda: False,
) -> None:
    """Bring jobs up to date after a commit of their samples, if it is their time; see `control.unsettled`."""

    def look() -> tuple[Sequence[str], Sequence[str]]:
        with database.read() as session:
            return control.unsettled(session, job_ids, failing)

    ending, to_log = database.retry(look, give_up=give_up)
    if ending or to_log:
        database.insist(lambda session: control.settle(session, ending, if_free=to_log), give_up=give_up)


def commit(
    session: Session, given: Sequence[Ended], *, seconds: float = 0.0, one_by_one: bool = False
) -> Committed:
    """Store what ended. Safe to repeat if the answer to the first commit was lost.

    Only the jobs of a single sample are locked, and end here. `settle` brings the others up to date.

    Args:
        seconds: that a worker was busy since its last commit.
        one_by_one: make an outcome that the database refuses a failure of its sample.

    Raises:
        Exception: the database refuses an outcome, such as NaN in JSON on Postgres.
    """
    of_single = {one.lease.job_id for one in given if one.lease.is_only}
    jobs.lock_all(session, of_single)
    valid = leases.lock_valid(session, [one.lease for one in given])
    for one in given:
        if one.lease.key not in valid:
            logger.warning("sample %s: lease token %d is no longer valid", one.lease.id, one.lease.token)
    kept = [one for one in given if one.lease.key in valid]
    if one_by_one:
        kept = [stored for one in kept for stored in _store_or_fail(session, one)]
    else:
        kept = _store(session, kept)
    published = {one.session.id for one in kept if one.session is not None}
    announced.abandon(
        session, [one.lease.session_id for one in given if one.lease.session_id not in published]
    )
    logged = tallies.add(session, _tallies(kept, seconds))
    recently = now(session) - control.EVENT_SECONDS
    control.settle(session, of_single & {one.lease.job_id for one in kept})
    # unless their first commit was stored, and its answer was lost
    without = [one.lease for one in given if one.lease.key not in valid] + [
        one.lease for one in kept if one.error is not None
    ]
    lost = {lease.key for lease in without} - (_completed(session, without) if without else set())
    going_on = {job_id for job_id, moment in logged.items() if moment > recently}
    return Committed(kept=kept, lost=lost, going_on=going_on)


def _store(session: Session, given: Sequence[Ended]) -> list[Ended]:
    """Store outcomes whose samples are locked. One whose session was removed becomes a failure."""
    published = sessions.publish(session, *(_full(one) for one in given if one.session is not None))
    reason = CaptureFailed(
        "the sample ran for more than a day, so its session was removed; shorten the sample"
    )
    stored = [
        one
        if one.session is None or one.session.id in published
        else replace(one, result=None, session=None, error=reason)
        for one in given
    ]
    moment = now(session)
    _update(session, [_values(one, moment) for one in stored])
    return stored


def _full(one: Ended) -> NewSession:
    """The session of an outcome with what it takes from its job."""
    assert one.session is not None
    own, lease = one.session, one.lease
    return replace(own, tags=[*lease.tags, *own.tags], expires_after=own.expires_after or lease.expires_after)


def _store_or_fail(session: Session, one: Ended) -> list[Ended]:
    try:
        with session.begin_nested():
            return _store(session, [one])
    except Exception as error:
        if one.error is not None or (isinstance(error, DBAPIError) and is_away(error)):
            raise  # the sample has no result that could be at fault, or all are tried again
        reason = _reason(one, error)
        return _store(session, [replace(one, result=None, session=None, error=reason)])


def _reason(one: Ended, error: BaseException) -> ActographError:
    doing = f"while the result of sample {one.lease.id} was stored"
    logger.error("%s: %s", doing, type(error).__name__, exc_info=error)
    return ActographError(f"{type(error).__name__} {doing}: {error}; the worker's log has the trace")


def _values(one: Ended, moment: float) -> dict[str, Any]:
    """Columns of an ended sample."""
    values = dict.fromkeys(_COLUMNS) | {"id": one.lease.id, "finished_at": moment}
    if one.result is not None:
        values |= vars(one.result) | {
            "scores": {key: score.model_dump() for key, score in one.result.scores.items()},
            "readouts": {name: found.model_dump() for name, found in one.result.readouts.items()} or None,
            "tool_use": one.result.tool_use.model_dump() if one.result.tool_use else None,
            "messages": [message.model_dump() for message in one.result.messages] or None,
        }
    else:
        values["prompt"] = one.prompt
    values["status"] = SampleStatus.FAILED if one.result is None else SampleStatus.COMPLETED
    values["error"] = None if one.error is None else one.error.as_record()
    return values


def _completed(session: Session, held: Sequence[LeasedSample]) -> set[str]:
    """Keys of the leases under which samples were completed."""
    completed = SampleRow.status == SampleStatus.COMPLETED
    ids = {lease.id for lease in held}
    statement = sa.select(SampleRow.id, SampleRow.lease_token).where(SampleRow.id.in_(ids), completed)
    tokens = {row.id: row.lease_token for row in session.execute(statement)}
    return {lease.key for lease in held if tokens.get(lease.id) == lease.token}


def _tallies(kept: Sequence[Ended], seconds: float) -> list[Tally]:
    """Tallies of outcomes, for their jobs and the counters."""
    found: dict[str, Tally] = {}
    for one in kept:
        job_id = one.lease.job_id
        tally = found.setdefault(job_id, Tally(job_id=job_id, busy_seconds=0.0 if found else seconds))
        tally.count(one.error)
        tally.cached_tokens += one.cached_tokens
        if one.result is not None:
            # a replay reads the tokens that its source generated
            is_read = one.session is not None and one.session.source_session is not None
            generated = one.result.generated_tokens
            tally.prompt_tokens += one.result.prompt_tokens + (generated if is_read else 0)
            tally.generated_tokens += 0 if is_read else generated
        if one.session is not None:
            tally.sessions += 1
            tally.session_rows += one.session.rows
            tally.session_bytes += sum(file.bytes for file in one.session.files)
    return list(found.values())
