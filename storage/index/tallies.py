"""Tallies: what each commit of samples adds to its job and to the counters.

A commit appends a row and locks no other one, so the commits of a job do not wait for each other. `fold`
moves the rows of a locked job into the job and the counters, about once a second and when the job ends. A
reader adds the rows that are left in the same statement, so that its numbers are exact at every moment. A job
that has ended has no tallies.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import ActographError, InvalidRequest
from actograph.contract.resources import JobStatus, Progress, SampleStatus
from storage.index import counters, row_locks
from storage.index.counters import Counter
from storage.tables.models import CounterRow, JobRow, SampleRow, TallyRow

_TALLIES = cast(sa.Table, TallyRow.__table__)
_JOBS, _SAMPLES = cast(sa.Table, JobRow.__table__), cast(sa.Table, SampleRow.__table__)
# a column of the inserted row, which SQLAlchemy would read from the table anew
_ITS_JOB: sa.ColumnClause[str] = sa.literal_column("tallies.job_id")
_STATUS = _SAMPLES.c.status
_WAITS = sa.exists().where(
    _SAMPLES.c.job_id == _ITS_JOB,
    # a list cannot be used in an insert of several rows
    sa.or_(_STATUS == SampleStatus.PENDING, _STATUS == SampleStatus.SUSPECT),
)
_LOGGED_AT = sa.select(_JOBS.c.logged_at).where(_JOBS.c.id == _ITS_JOB).scalar_subquery()
_INSERT = sa.insert(_TALLIES).returning(_TALLIES.c.job_id, _WAITS, _LOGGED_AT)
_UNCOUNTED = ("id", "job_id", "outcomes", "failure")
_FOLD = (
    sa.delete(_TALLIES).where(_TALLIES.c.job_id == sa.bindparam("of_job")).returning(*_TALLIES.c)
)  # fmt: skip


@dataclass(kw_only=True)
class Tally:
    """See `storage.tables.models.TallyRow`."""

    job_id: str
    completed: int = 0
    failed: int = 0
    outcomes: str = ""
    failure: str | None = None
    cached_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    sessions: int = 0
    session_rows: int = 0
    session_bytes: int = 0
    busy_seconds: float = 0.0

    def count(self, error: ActographError | None) -> None:
        """Count a sample that ended, with this error or completed.

        Samples with an invalid input (`InvalidRequest`: a prompt beyond the context) are no consecutive
        failures, and do not end a row of them either.
        """
        self.completed += error is None
        self.failed += error is not None
        if not isinstance(error, InvalidRequest):
            self.outcomes += "1" if error is None else "0"
            self.failure = self.failure if error is None else error.message


def add(session: Session, tallies: Iterable[Tally]) -> dict[str, float]:
    """Append tallies in the transaction of the counted changes.

    Returns when each job that has samples to claim was last logged, by its id. Read with the insert, since a
    large job would otherwise be asked for it after each commit.
    """
    rows = [asdict(one) for one in tallies]
    found = session.connection().execute(_INSERT, rows).all() if rows else []
    return {job_id: logged_at for job_id, waits, logged_at in found if waits and logged_at is not None}


def fold(session: Session, row: JobRow) -> bool:
    """Move the tallies of a locked job into its row and the counters. Returns False if there were none."""
    if not row_locks.is_locked(session, JobRow, row.id):
        raise RuntimeError(f"lock job {row.id} before its tallies are folded")
    found = session.connection().execute(_FOLD, {"of_job": row.id}).mappings().all()
    for one in sorted(map(dict[str, Any], found), key=lambda one: one["id"]):
        for name in ("completed", "failed", "cached_tokens"):
            setattr(row, name, getattr(row, name) + one[name])
        row.bytes += one["session_bytes"]
        if one["outcomes"]:
            row.failed_in_a_row = _in_a_row(row.failed_in_a_row, one["outcomes"])
        counters.add(session, _counts(row.kind, one))
    return bool(found)


def failures(session: Session, row: JobRow) -> tuple[int, str]:
    """The longest run of consecutive failures with the tallies of a locked job, and the last failure."""
    statement = sa.select(_TALLIES.c.outcomes, _TALLIES.c.failure).where(_TALLIES.c.job_id == row.id)
    outcomes, last = "0" * row.failed_in_a_row, ""
    for of_commit, failure in session.connection().execute(statement.order_by(_TALLIES.c.id)):
        outcomes += of_commit
        last = failure or last
    return max(map(len, outcomes.split("1"))), last


def progress(session: Session, *rows: JobRow) -> dict[str, Progress]:
    """The samples of jobs that have ended so far, by the job's id."""
    found = {
        row.id: Progress(total=row.total or 0, completed=row.completed, failed=row.failed) for row in rows
    }
    active = [row.id for row in rows if not JobStatus(row.status).is_terminal()]
    if active:
        ended = [_with_tallies(name) for name in ("completed", "failed")]
        statement = sa.select(JobRow.id, JobRow.total, *ended).where(JobRow.id.in_(active))
        for one in session.execute(statement):
            found[one[0]] = Progress(total=one[1] or 0, completed=one[2], failed=one[3])
    return found


def ended_samples() -> sa.ColumnElement[int]:
    """Number of ended samples of a `JobRow`, for use in a statement."""
    return _with_tallies("completed") + _with_tallies("failed")


def bytes_by_owner(session: Session) -> dict[str, int]:
    """Bytes of the sessions of all jobs, the hidden ones included."""
    jobs = cast(sa.Table, JobRow.__table__)
    folded = sa.select(jobs.c.owner, sa.func.sum(jobs.c.bytes)).where(jobs.c.bytes > sa.literal_column("0"))
    left = sa.select(jobs.c.owner, sa.func.sum(_TALLIES.c.session_bytes)).join_from(
        _TALLIES, jobs, jobs.c.id == _TALLIES.c.job_id
    )
    found: dict[str, int] = {}
    both = sa.union_all(*(one.group_by(jobs.c.owner) for one in (folded, left)))
    for owner, size in session.connection().execute(both):
        found[owner] = found.get(owner, 0) + int(size)
    return found


def totals(session: Session) -> dict[Counter, float]:
    """All counters, with what was not folded yet."""
    jobs, folded = cast(sa.Table, JobRow.__table__), cast(sa.Table, CounterRow.__table__)
    names = [column.name for column in _TALLIES.c if column.name not in _UNCOUNTED]
    left = (
        sa.select(jobs.c.kind, *(sa.func.sum(_TALLIES.c[name]).label(name) for name in names))
        .join_from(_TALLIES, jobs, jobs.c.id == _TALLIES.c.job_id)
        .group_by(jobs.c.kind)
        .cte("unfolded")
    )
    no_status = sa.literal(None, sa.String)
    sums = [sa.select(sa.literal(name), left.c.kind, no_status, left.c[name]) for name in names]
    both = sa.union_all(sa.select(*folded.c["name", "kind", "status", "value"]), *sums)
    found: dict[Counter, float] = {}
    unfolded: dict[str, dict[str, float]] = {}
    for name, kind, status, value in session.connection().execute(both):
        if status is None:
            unfolded.setdefault(kind, {})[name] = value
        else:
            found[Counter(name, kind, status)] = float(value)
    for kind, values in unfolded.items():
        for counter, value in _counts(kind, values).items():
            if value:
                found[counter] = found.get(counter, 0.0) + float(value)
    return found


def jobs_with_any(session: Session, among: Sequence[str] | None = None) -> Sequence[str]:
    """Jobs, of all or of these, with tallies that were not folded yet."""
    statement = sa.select(_TALLIES.c.job_id).distinct()
    if among is not None:
        statement = statement.where(_TALLIES.c.job_id.in_(among))
    return session.connection().scalars(statement).all()


def _with_tallies(name: str) -> sa.ColumnElement[int]:
    left = sa.select(sa.func.coalesce(sa.func.sum(getattr(TallyRow, name)), 0))
    folded: sa.ColumnElement[int] = getattr(JobRow, name)
    return folded + left.where(TallyRow.job_id == JobRow.id).correlate(JobRow).scalar_subquery()


def _in_a_row(before: int, outcomes: str) -> int:
    after = len(outcomes) - len(outcomes.rstrip("0"))
    return before + after if after == len(outcomes) else after


def _counts(kind: str, sums: Mapping[str, Any]) -> dict[Counter, float]:
    """Increments of counters by the sums of tallies of jobs of one kind."""
    return {
        Counter("busy_seconds"): sums["busy_seconds"],
        Counter("samples", kind, SampleStatus.COMPLETED): sums["completed"],
        Counter("samples", kind, SampleStatus.FAILED): sums["failed"],
        Counter("prompt_tokens", kind): sums["prompt_tokens"],
        Counter("generated_tokens", kind): sums["generated_tokens"],
        Counter("sessions_written", kind): sums["sessions"],
        Counter("session_rows_written", kind): sums["session_rows"],
        Counter("session_bytes_written", kind): sums["session_bytes"],
    }
