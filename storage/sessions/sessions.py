"""Queries about activation sessions. Their files are in the artifact store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Unpack, cast

import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.orm import Session

from actograph.contract import resources
from actograph.contract.errors import NotFound
from actograph.contract.specs import ExpiresAfter
from storage.index import pages, visible
from storage.index.bulk_rows import BulkInsert, BulkUpdate
from storage.index.database import now
from storage.index.pages import PageOptions
from storage.sessions.filter import SessionFilter
from storage.tables.models import SampleRow, SessionRow, SessionTagRow

__all__ = [
    "NewSession", "SessionFilter", "by_ids", "files_of", "find", "get", "ids", "publish",
    "resources_of", "totals",
]  # fmt: skip


_SESSIONS = cast(sa.Table, SessionRow.__table__)
_PUBLISHED = (
    "sample_index", "condition", "epoch", "model", "created_at", "prompt_tokens", "generated_tokens", "rows",
    "bytes", "dtype", "hooks", "files", "correct", "expires_at", "identity_sha256", "source_session",
    "visibility", "removal_due_at",
)  # fmt: skip
_publish = BulkUpdate(
    SessionRow,
    *_PUBLISHED,
    where=visible.may_be_published(_SESSIONS.c, sa.bindparam("moment", type_=sa.Double)),
)
_insert_tags = BulkInsert(SessionTagRow, "session_id", "tag", "created_at")
_name = attrgetter("name")
_hooks = TypeAdapter(dict[str, resources.TensorInfo])
_scores = TypeAdapter(dict[str, resources.Score])


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
    #: the session that it replays
    source_session: str | None = None
    #: its job's tags and its own
    tags: Sequence[str] = ()
    #: as in a job's spec
    expires_after: Any = None


def publish(session: Session, *new: NewSession) -> set[str]:
    """Publish announced sessions, see `storage.samples.announced`. Returns the ids of existing ones."""
    if not new:
        return set()
    moment = now(session)
    published = _publish(session, [_values(one, moment) for one in new], moment=moment)
    _insert_tags(
        session,
        [
            {"session_id": one.id, "tag": tag, "created_at": moment}
            for one in new
            for tag in dict.fromkeys(one.tags)
            if one.id in published
        ],
    )
    return published


def _values(new: NewSession, moment: float) -> dict[str, Any]:
    own = {name: value for name, value in vars(new).items() if name in _PUBLISHED}
    return (
        own
        | {
            "id": new.id,
            "created_at": moment,
            "bytes": sum(f.bytes for f in new.files),
            "files": {f.name: {"bytes": f.bytes, "sha256": f.sha256} for f in sorted(new.files, key=_name)},
            "hooks": _hooks.dump_python(dict(new.hooks), mode="json"),
            "expires_at": _expiry(new.expires_after, moment),
        }
        | visible.PUBLISHED
    )


def get(session: Session, session_id: str) -> SessionRow:
    """Raises NotFound."""
    found = by_ids(session, [session_id])
    if not found:
        raise NotFound(f"no session {session_id}")
    return found[0]


def by_ids(session: Session, session_ids: Sequence[str]) -> Sequence[SessionRow]:
    """Rows of these sessions; deleted ones are left out."""
    statement = sa.select(SessionRow).where(SessionRow.id.in_(session_ids))
    return session.scalars(statement.execution_options(populate_existing=True)).all()


def files_of(row: SessionRow) -> dict[str, resources.SessionFile]:
    """The stored files of a session, in the order of their names."""
    return {name: resources.SessionFile(name=name, **file) for name, file in row.files.items()}


def find(
    session: Session,
    wanted: SessionFilter,
    **page: Unpack[PageOptions],
) -> tuple[Sequence[SessionRow], bool]:
    """One page of sessions, newest first by default."""
    of_tag = (SessionTagRow.created_at, SessionTagRow.session_id)
    return pages.fetch(
        session,
        wanted.narrow(sa.select(SessionRow)),
        SessionRow.created_at,
        SessionRow.id,
        sorted_by=of_tag if wanted.leads_with_tag else None,
        **page,
    )


def ids(session: Session, wanted: SessionFilter, *, limit: int | None = None) -> Sequence[str]:
    """Ids of matching sessions, oldest first."""
    statement = wanted.narrow(sa.select(SessionRow.id))
    return session.scalars(statement.order_by(SessionRow.created_at, SessionRow.id).limit(limit)).all()


def totals(session: Session, wanted: SessionFilter) -> resources.SessionStats:
    row = session.execute(
        wanted.narrow(
            sa.select(
                sa.func.count(),
                sa.func.coalesce(sa.func.sum(SessionRow.bytes), 0),
                sa.func.coalesce(sa.func.sum(SessionRow.rows), 0),
            ).select_from(SessionRow)
        )
    ).one()
    return resources.SessionStats(sessions=row[0], bytes=int(row[1]), rows=int(row[2]))


def resources_of(session: Session, rows: Sequence[SessionRow]) -> list[resources.Session]:
    """The resources of sessions, with their tags and the scores of their samples."""
    wanted = [row.id for row in rows]
    tags: dict[str, list[str]] = {}
    for tag in session.scalars(
        sa.select(SessionTagRow).where(SessionTagRow.session_id.in_(wanted)).order_by(SessionTagRow.tag)
    ):
        tags.setdefault(tag.session_id, []).append(tag.tag)
    samples = SampleRow.id.in_([row.sample_id for row in rows])
    scores = {
        one.id: one.scores
        for one in session.execute(sa.select(SampleRow.id, SampleRow.scores).where(samples))
    }
    return [_resource(row, tags.get(row.id, []), scores.get(row.sample_id) or {}) for row in rows]


def _expiry(after: Any, created_at: float) -> float | None:
    """Expiry of a session by the `expires_after` of its spec; None keeps it."""
    return created_at + ExpiresAfter.model_validate(after).seconds if isinstance(after, dict) else None


def _resource(row: SessionRow, tags: list[str], scores: dict[str, Any]) -> resources.Session:
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
        files=list(files_of(row).values()),
        tags=tags,
        scores=_scores.validate_python(scores),
        correct=row.correct,
        owner=row.owner or None,
        expires_at=int(row.expires_at) if row.expires_at is not None else None,
        pinned=row.pinned,
        identity_sha256=row.identity_sha256,
        source_session=row.source_session,
    )
