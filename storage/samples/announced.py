"""Announced sessions: a claim inserts the row of each session before its worker stores a file.

The commit of the sample publishes the row, see `storage.index.visible`. A worker that returns, fails or loses
the sample deletes it, and the reaper removes it with its files.
"""

from collections.abc import Iterable, Sequence
from typing import cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.analyses import ANALYSIS_KINDS
from storage.index import visible
from storage.index.bulk_rows import BulkInsert
from storage.index.database import now
from storage.index.ids import among, new_session_id
from storage.tables.models import JobRow, SessionRow

#: kinds whose samples store results in sessions, without a capture
_WITH_RESULTS = (*ANALYSIS_KINDS, "patch")
_SESSIONS = cast(sa.Table, SessionRow.__table__)
_insert = BulkInsert(
    SessionRow, "id", "job_id", "sample_id", "sample_index", "condition", "epoch", "model", "owner",
    "created_at", "visibility", "removal_due_at", "prompt_tokens", "generated_tokens", "rows", "bytes",
    "dtype", "hooks", "files", "pinned",
)  # fmt: skip


def announce(session: Session, job: JobRow, samples: Iterable[sa.RowMapping]) -> dict[str, str]:
    """Announce a session for each claimed sample that stores something: sample id -> session id."""
    moment = now(session)
    rows = [
        {
            "id": new_session_id(),
            "job_id": job.id,
            "sample_id": sample["id"],
            "sample_index": sample["sample_index"],
            "condition": "",
            "epoch": 0,
            "model": job.model,
            "owner": job.owner,
            "created_at": moment,
            **visible.unpublished(moment),
            # not known yet
            "prompt_tokens": 0,
            "generated_tokens": 0,
            "rows": 0,
            "bytes": 0,
            "dtype": "",
            "hooks": {},
            "files": {},
            "pinned": False,
        }
        for sample in samples
        if job.kind in _WITH_RESULTS or job.spec.get("capture") or sample["input"].get("capture")
    ]
    _insert(session, rows)
    return {row["sample_id"]: row["id"] for row in rows}


def abandon(session: Session, session_ids: Sequence[str | None]) -> None:
    """Delete announced sessions. Published ones stay as they are."""
    chosen = sorted({one for one in session_ids if one is not None})
    if chosen:
        moment = now(session)
        announced = visible.may_be_published(_SESSIONS.c, moment)
        statement = sa.update(_SESSIONS).where(among(session, _SESSIONS.c.id, chosen), announced)
        session.connection().execute(statement.values(visible.deleted(moment)))
