"""Queries about activation sessions. Their files are in the artifact store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack, cast

import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.orm import Session

from actograph.contract import resources
from actograph.contract.errors import Conflict, NotFound
from actograph.contract.specs import ExpiresAfter
from storage.index import counters, deletions, pages
from storage.index.database import now
from storage.index.pages import PageOptions
from storage.jobs import session_removal
from storage.sessions.filter import SessionFilter
from storage.tables.models import ArtifactRow, JobRow, JobTagRow, SessionRow, SessionTagRow

__all__ = [
    "NewSession", "SessionFilter", "by_ids", "delete", "file_of", "find", "get", "ids", "insert",
    "resources_of", "totals",
]  # fmt: skip


_INSERT, _INSERT_TAGS, _INSERT_FILES = (
    sa.insert(cast(sa.Table, row.__table__)) for row in (SessionRow, SessionTagRow, ArtifactRow)
)
_hooks = TypeAdapter(dict[str, resources.TensorInfo])


@dataclass(frozen=True, kw_only=True)
class NewSession:
    """A session whose files are stored."""

    id: str
    job_id: str
    sample_id: str
    sample_index: int
    condition: str
    epoch: int
    model: str
    prompt_tokens: int
    generated_tokens: int
    rows: int
    dtype: str
    hooks: Mapping[str, resources.TensorInfo]
    files: Sequence[resources.SessionFile]
    correct: bool | None
    identity_sha256: str | None = None
    #: in addition to its job's tags
    tags: Sequence[str] = ()
    #: as in a job's spec; None for that of its job
    expires_after: Any = None


def insert(session: Session, *new: NewSession) -> None:
    """Insert sessions, with one statement for each table. They take owner, tags and expiry from their job."""
    if not new:
        return
    moment = now(session)
    session.flush()
    tags: dict[str, list[str]] = {}
    of_jobs = sa.select(JobTagRow.job_id, JobTagRow.tag).where(JobTagRow.job_id.in_({n.job_id for n in new}))
    for job_id, tag in session.execute(of_jobs):
        tags.setdefault(job_id, []).append(tag)
    connection = session.connection()
    connection.execute(_INSERT, [_values(session.get_one(JobRow, n.job_id), n, moment) for n in new])
    tag_rows = [
        {"session_id": n.id, "tag": tag, "created_at": moment}
        for n in new
        for tag in dict.fromkeys([*tags.get(n.job_id, ()), *n.tags])
    ]
    if tag_rows:
        connection.execute(_INSERT_TAGS, tag_rows)
    file_rows = [
        {"session_id": n.id, "name": f.name, "bytes": f.bytes, "sha256": f.sha256}
        for n in new
        for f in n.files
    ]
    if file_rows:
        connection.execute(_INSERT_FILES, file_rows)


def _values(job: JobRow, new: NewSession, moment: float) -> dict[str, Any]:
    own = {name: value for name, value in vars(new).items() if name not in ("files", "tags", "expires_after")}
    return own | {
        "created_at": moment,
        "bytes": sum(f.bytes for f in new.files),
        "hooks": _hooks.dump_python(dict(new.hooks), mode="json"),
        "owner": job.owner,
        "expires_at": _expiry(new.expires_after or job.spec.get("expires_after"), moment),
        "pinned": False,
    }


def get(session: Session, session_id: str) -> SessionRow:
    """Raises NotFound."""
    found = by_ids(session, [session_id])
    if not found:
        raise NotFound(f"no session {session_id}")
    return found[0]


def by_ids(session: Session, session_ids: Sequence[str]) -> Sequence[SessionRow]:
    """Rows of these sessions; deleted ones are left out."""
    statement = sa.select(SessionRow).where(SessionRow.id.in_(session_ids), *deletions.VISIBLE)
    return session.scalars(statement.execution_options(populate_existing=True)).all()


def file_of(session: Session, session_id: str, name: str) -> resources.SessionFile | None:
    """One file of a session, from the index."""
    row = session.get(ArtifactRow, (session_id, name))
    return resources.SessionFile(name=row.name, bytes=row.bytes, sha256=row.sha256) if row else None


def find(
    session: Session,
    wanted: SessionFilter,
    **page: Unpack[PageOptions],
) -> tuple[Sequence[SessionRow], bool]:
    """One page of sessions, newest first by default."""
    of_tag = (SessionTagRow.created_at, SessionTagRow.session_id)
    return pages.fetch(
        session,
        wanted.narrow(sa.select(SessionRow)).where(*deletions.visible(session)),
        SessionRow.created_at,
        SessionRow.id,
        sorted_by=of_tag if wanted.leads_with_tag else None,
        **page,
    )


def ids(session: Session, wanted: SessionFilter, *, limit: int | None = None) -> Sequence[str]:
    """Ids of matching sessions, oldest first."""
    statement = wanted.narrow(sa.select(SessionRow.id)).where(*deletions.visible(session))
    return session.scalars(statement.order_by(SessionRow.created_at, SessionRow.id).limit(limit)).all()


def totals(session: Session, wanted: SessionFilter) -> resources.SessionStats:
    row = session.execute(
        wanted.narrow(
            sa.select(
                sa.func.count(),
                sa.func.coalesce(sa.func.sum(SessionRow.bytes), 0),
                sa.func.coalesce(sa.func.sum(SessionRow.rows), 0),
            ).select_from(SessionRow)
        ).where(*deletions.visible(session))
    ).one()
    return resources.SessionStats(sessions=row[0], bytes=int(row[1]), rows=int(row[2]))


def delete(session: Session, session_id: str) -> None:
    """Delete the row now and the files in the background.

    Raises:
        NotFound: no such session.
        Conflict: it is pinned.
    """
    session_removal.hold_jobs(session, [session_id])
    if get(session, session_id).pinned:
        raise Conflict(f"session {session_id} is pinned; unpin it first")
    removed = session_removal.remove(session, [session_id])
    counters.add_removed(session, "deleted", sessions=1, size=removed[0].bytes)


def resources_of(session: Session, rows: Sequence[SessionRow]) -> list[resources.Session]:
    """The resources of sessions, with their files and tags."""
    wanted = [row.id for row in rows]
    files: dict[str, list[resources.SessionFile]] = {i: [] for i in wanted}
    statement = sa.select(ArtifactRow).where(ArtifactRow.session_id.in_(wanted)).order_by(ArtifactRow.name)
    for file in session.scalars(statement):
        files[file.session_id].append(
            resources.SessionFile(name=file.name, bytes=file.bytes, sha256=file.sha256)
        )
    tags: dict[str, list[str]] = {}
    for tag in session.scalars(
        sa.select(SessionTagRow).where(SessionTagRow.session_id.in_(wanted)).order_by(SessionTagRow.tag)
    ):
        tags.setdefault(tag.session_id, []).append(tag.tag)
    return [_resource(row, files[row.id], tags.get(row.id, [])) for row in rows]


def _expiry(after: Any, created_at: float) -> float | None:
    """Expiry of a session by the `expires_after` of its spec; None keeps it."""
    return created_at + ExpiresAfter.model_validate(after).seconds if isinstance(after, dict) else None


def _resource(row: SessionRow, files: list[resources.SessionFile], tags: list[str]) -> resources.Session:
    return resources.Session(
        id=row.id,
        job_id=row.job_id,
        sample_id=row.sample_id,
        sample_index=row.sample_index,
        condition=row.condition or None,
        epoch=row.epoch,
        model=row.model,
        created_at=int(row.created_at),
        prompt_tokens=row.prompt_tokens,
        generated_tokens=row.generated_tokens,
        rows=row.rows,
        bytes=row.bytes,
        dtype=row.dtype,
        hooks=_hooks.validate_python(row.hooks),
        files=files,
        tags=tags,
        correct=row.correct,
        owner=row.owner,
        expires_at=int(row.expires_at) if row.expires_at is not None else None,
        pinned=row.pinned,
        identity_sha256=row.identity_sha256,
    )
