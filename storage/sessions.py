"""Every query about activation sessions. Files are the artifact store's business."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract import resources
from actograph.contract.errors import NotFound
from storage import pages
from storage.database import now
from storage.models import ArtifactRow, JobTagRow, SampleRow, SessionRow


@dataclass(frozen=True, kw_only=True)
class NewSession:
    """A session whose files are in the store already."""

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


@dataclass(frozen=True, kw_only=True)
class SessionFilter:
    """Conditions that a session must meet; None asks nothing."""

    job_id: str | None = None
    model: str | None = None
    condition: str | None = None
    sample_index: int | None = None
    correct: bool | None = None
    tag: str | None = None
    created_after: float | None = None
    created_before: float | None = None


def insert(session: Session, new: NewSession) -> None:
    session.add(
        SessionRow(
            id=new.id,
            job_id=new.job_id,
            sample_id=new.sample_id,
            sample_index=new.sample_index,
            condition=new.condition,
            epoch=new.epoch,
            model=new.model,
            created_at=now(session),
            prompt_tokens=new.prompt_tokens,
            generated_tokens=new.generated_tokens,
            rows=new.rows,
            bytes=sum(f.bytes for f in new.files),
            dtype=new.dtype,
            hooks={name: info.model_dump() for name, info in new.hooks.items()},
            correct=new.correct,
        )
    )
    session.flush()
    session.add_all(
        ArtifactRow(session_id=new.id, name=f.name, bytes=f.bytes, sha256=f.sha256) for f in new.files
    )


def get(session: Session, session_id: str) -> SessionRow:
    """Raises NotFound."""
    row = session.get(SessionRow, session_id)
    if row is None:
        raise NotFound(f"no session {session_id}")
    return row


def find(
    session: Session,
    wanted: SessionFilter,
    *,
    after: str | None = None,
    limit: int = 20,
    order: pages.Order = "desc",
) -> tuple[Sequence[SessionRow], bool]:
    """One page of sessions, newest first by default."""
    return pages.fetch(
        session,
        sa.select(SessionRow).where(*_where(wanted)),
        key=SessionRow.created_at,
        id_column=SessionRow.id,
        after=after,
        limit=limit,
        order=order,
    )


def ids(session: Session, wanted: SessionFilter) -> Sequence[str]:
    """The ids of every session that fits, oldest first."""
    statement = sa.select(SessionRow.id).where(*_where(wanted))
    return session.scalars(statement.order_by(SessionRow.created_at, SessionRow.id)).all()


def totals(session: Session, wanted: SessionFilter) -> resources.SessionStats:
    row = session.execute(
        sa.select(
            sa.func.count(),
            sa.func.coalesce(sa.func.sum(SessionRow.bytes), 0),
            sa.func.coalesce(sa.func.sum(SessionRow.rows), 0),
        ).where(*_where(wanted))
    ).one()
    return resources.SessionStats(sessions=row[0], bytes=int(row[1]), rows=int(row[2]))


def delete(session: Session, session_id: str) -> None:
    """Remove the row; the caller removes the files once that is committed.

    Raises:
        NotFound: no such session.
    """
    row = get(session, session_id)
    session.execute(sa.update(SampleRow).where(SampleRow.session_id == session_id).values(session_id=None))
    session.delete(row)
    session.flush()


def resources_of(session: Session, rows: Sequence[SessionRow]) -> list[resources.Session]:
    """Sessions as the API shows them, with their files and tags."""
    wanted = [row.id for row in rows]
    files: dict[str, list[resources.SessionFile]] = {i: [] for i in wanted}
    statement = sa.select(ArtifactRow).where(ArtifactRow.session_id.in_(wanted)).order_by(ArtifactRow.name)
    for file in session.scalars(statement):
        files[file.session_id].append(
            resources.SessionFile(name=file.name, bytes=file.bytes, sha256=file.sha256)
        )
    tags: dict[str, list[str]] = {}
    job_ids = {row.job_id for row in rows}
    for tag in session.scalars(
        sa.select(JobTagRow).where(JobTagRow.job_id.in_(job_ids)).order_by(JobTagRow.tag)
    ):
        tags.setdefault(tag.job_id, []).append(tag.tag)
    return [_resource(row, files[row.id], tags.get(row.job_id, [])) for row in rows]


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
        hooks={k: resources.TensorInfo.model_validate(v) for k, v in row.hooks.items()},
        files=files,
        tags=tags,
        correct=row.correct,
    )


def _where(wanted: SessionFilter) -> list[sa.ColumnElement[bool]]:
    where: list[sa.ColumnElement[bool]] = []
    if wanted.job_id is not None:
        where.append(SessionRow.job_id == wanted.job_id)
    if wanted.model is not None:
        where.append(SessionRow.model == wanted.model)
    if wanted.condition is not None:
        where.append(SessionRow.condition == wanted.condition)
    if wanted.sample_index is not None:
        where.append(SessionRow.sample_index == wanted.sample_index)
    if wanted.correct is not None:
        where.append(SessionRow.correct.is_(wanted.correct))
    if wanted.tag is not None:
        tagged = sa.select(JobTagRow.job_id).where(JobTagRow.tag == wanted.tag)
        where.append(SessionRow.job_id.in_(tagged))
    if wanted.created_after is not None:
        where.append(SessionRow.created_at > wanted.created_after)
    if wanted.created_before is not None:
        where.append(SessionRow.created_at < wanted.created_before)
    return where
