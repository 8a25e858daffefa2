"""Queries about stored SAEs. Their weights are a file of the store, which lives as long as the row."""

from collections.abc import Sequence
from typing import Unpack

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import Conflict, NotFound
from actograph.contract.saes import NewSae, Sae, SaeConfig
from actograph.contract.suggestions import did_you_mean
from storage.files import files
from storage.index import pages, row_locks
from storage.index.database import now
from storage.index.ids import is_beginning, is_id, new_sae_id
from storage.index.pages import PageOptions
from storage.tables.models import FileRow, SaeRow


def insert(
    session: Session, new: NewSae, config: SaeConfig, file: FileRow, *, hook: str, owner: str = ""
) -> SaeRow:
    """Insert an SAE with its stored weights. Raises Conflict if its name is taken."""
    require_free(session, new.name)
    row = SaeRow(
        id=new_sae_id(),
        name=new.name,
        hook=hook,
        model=new.model,
        config=config.model_dump(mode="json"),
        source=new.source,
        file_id=file.id,
        bytes=file.bytes,
        sha256=file.sha256,
        details=dict(new.metadata),
        created_at=now(session),
        owner=owner,
    )
    session.add(row)
    session.flush()
    return row


def require_free(session: Session, name: str) -> None:
    """Raises Conflict if an SAE of the caller has this name: latents are stored under it."""
    known = session.scalars(sa.select(SaeRow.id).where(SaeRow.name == name).limit(1)).first()
    if known is not None:
        raise Conflict(f"{known} is named {name} already; choose another name, or delete it first")


def get(session: Session, sae_id: str) -> SaeRow:
    """Raises NotFound."""
    return row_locks.one([session.get(SaeRow, sae_id)], f"SAE {sae_id}")


def keep(session: Session, sae_id: str) -> SaeRow:
    """The SAE, protected from deletion until the transaction ends. Raises NotFound."""
    return row_locks.one(row_locks.keep(session, SaeRow, [sae_id]), f"SAE {sae_id}")


def lock(session: Session, sae_id: str) -> SaeRow:
    """The SAE, locked for deletion: no new row can refer to it. Raises NotFound."""
    return row_locks.one(row_locks.lock(session, SaeRow, [sae_id], to_delete=True), f"SAE {sae_id}")


def full_id(session: Session, reference: str) -> str:
    """The id of the SAE that a reference names: an id, the beginning of one, or a name.

    Raises:
        NotFound: there is no such SAE.
        Conflict: several have this name, of several owners.
        InvalidRequest: several ids begin like this.
    """
    if is_id(reference, "sae"):
        return reference
    if is_beginning(reference, "sae"):
        known = pages.only_id(session, reference)
        if known is None:
            raise NotFound(f"no SAE has the id {reference}")
        return known
    found = session.scalars(sa.select(SaeRow.id).where(SaeRow.name == reference).limit(2)).all()
    if not found:
        names = session.scalars(sa.select(SaeRow.name).distinct())
        raise NotFound(f"there is no SAE {reference}{did_you_mean(reference, names) or '; none is stored'}")
    if len(found) > 1:
        raise Conflict(f"several SAEs are named {reference}: {', '.join(found)}; name one by its id")
    return found[0]


def find(
    session: Session,
    *,
    name: str | None = None,
    hook: str | None = None,
    model: str | None = None,
    **page: Unpack[PageOptions],
) -> tuple[Sequence[SaeRow], bool]:
    """One page of SAEs, newest first by default."""
    statement = sa.select(SaeRow)
    for column, value in ((SaeRow.name, name), (SaeRow.hook, hook), (SaeRow.model, model)):
        if value is not None:
            statement = statement.where(column == value)
    return pages.fetch(session, statement, SaeRow.created_at, SaeRow.id, **page)


def delete(session: Session, sae_id: str) -> None:
    """Delete an SAE and its weights; their bytes are removed in the background. Raises NotFound."""
    file_id = get(session, sae_id).file_id
    files.lock(session, file_id)
    session.delete(lock(session, sae_id))
    session.flush()
    files.delete(session, file_id)


def resource(row: SaeRow) -> Sae:
    return Sae(
        id=row.id,
        name=row.name,
        hook=row.hook,
        model=row.model,
        config=SaeConfig.model_validate(row.config),
        source=row.source,
        bytes=row.bytes,
        sha256=row.sha256,
        metadata=row.details,
        created_at=int(row.created_at),
    )
