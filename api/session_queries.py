"""Queries of sessions in submitted bodies: their ids are completed, and the jobs and sessions must exist."""

from sqlalchemy.orm import Session

from actograph.contract.analyses import SessionQuery
from actograph.contract.errors import InvalidRequest, NotFound
from storage.index.pages import full_id
from storage.jobs import jobs
from storage.sessions import sessions


def with_full_ids(session: Session, query: SessionQuery) -> SessionQuery:
    """The query with full ids of jobs and sessions. Raises InvalidRequest: several ids begin like one."""
    ids = {
        name: [full_id(session, one, prefix) for one in getattr(query, name)]
        for name, prefix in (("jobs", "job"), ("ids", "ses"))
    }
    return query.model_copy(update=ids)


def require_named(session: Session, query: SessionQuery, field: str) -> None:
    """Raises InvalidRequest if the caller sees no such job or session; it names a part of `field`."""
    for place, job_id in enumerate(query.jobs):
        try:
            jobs.get(session, job_id)
        except NotFound:
            raise InvalidRequest(f"there is no job {job_id}", param=f"{field}.jobs.{place}") from None
    known = {row.id for row in sessions.by_ids(session, query.ids)}
    for place, session_id in enumerate(query.ids):
        if session_id not in known:
            raise InvalidRequest(f"there is no session {session_id}", param=f"{field}.ids.{place}")
