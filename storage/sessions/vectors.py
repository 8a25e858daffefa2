"""Queries about stored vectors. A vector has a few kilobytes, so its numbers are in the index."""

from collections.abc import Sequence
from struct import unpack
from typing import Any, Unpack

import sqlalchemy as sa
from sqlalchemy.orm import Session, defer

from actograph.contract.interventions import NewVector, StoredVector, VectorInfo, float32_bytes, vector_sha256
from storage.index import pages, row_locks
from storage.index.database import now
from storage.index.ids import new_vector_id
from storage.index.pages import PageOptions
from storage.tables.models import VectorRow


def insert(session: Session, new: NewVector, *, owner: str = "") -> VectorRow:
    row = VectorRow(
        id=new_vector_id(),
        name=new.name,
        hook=new.hook,
        model=new.model,
        width=len(new.vector),
        data=float32_bytes(new.vector),
        sha256=vector_sha256(new.vector),
        details=dict(new.metadata),
        created_at=now(session),
        owner=owner,
    )
    session.add(row)
    session.flush()
    return row


def get(session: Session, vector_id: str) -> VectorRow:
    """Raises NotFound."""
    return row_locks.one([session.get(VectorRow, vector_id)], f"vector {vector_id}")


def keep(session: Session, vector_id: str) -> VectorRow:
    """The vector, protected from deletion until the transaction ends. Raises NotFound."""
    return row_locks.one(row_locks.keep(session, VectorRow, [vector_id]), f"vector {vector_id}")


def lock(session: Session, vector_id: str) -> VectorRow:
    """The vector, locked for deletion: no new row can refer to it. Raises NotFound."""
    return row_locks.one(
        row_locks.lock(session, VectorRow, [vector_id], to_delete=True), f"vector {vector_id}"
    )


def find(
    session: Session,
    *,
    name: str | None = None,
    hook: str | None = None,
    model: str | None = None,
    **page: Unpack[PageOptions],
) -> tuple[Sequence[VectorRow], bool]:
    """One page of vectors without their numbers, newest first by default."""
    statement = sa.select(VectorRow).options(defer(VectorRow.data, raiseload=True))
    if name is not None:
        statement = statement.where(VectorRow.name == name)
    if hook is not None:
        statement = statement.where(VectorRow.hook == hook)
    if model is not None:
        statement = statement.where(VectorRow.model == model)
    return pages.fetch(session, statement, VectorRow.created_at, VectorRow.id, **page)


def delete(session: Session, vector_id: str) -> None:
    """Raises NotFound."""
    session.delete(lock(session, vector_id))
    session.flush()


def numbers(row: VectorRow) -> list[float]:
    return list(unpack(f"<{row.width}f", row.data))


def info(row: VectorRow) -> VectorInfo:
    return VectorInfo(**_fields(row))


def resource(row: VectorRow) -> StoredVector:
    return StoredVector(**_fields(row), vector=numbers(row))


def _fields(row: VectorRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "hook": row.hook,
        "width": row.width,
        "model": row.model,
        "sha256": row.sha256,
        "metadata": row.details,
        "created_at": int(row.created_at),
    }
