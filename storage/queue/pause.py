"""Pauses of the queue.

An operator's pause is stored and lasts until somebody ends it. The pause of a nearly full disk is computed
from the free bytes and stored nowhere, so the queue resumes by itself. Both may hold at once.
"""

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import StorageFull
from actograph.contract.operations import QueuePause
from actograph.settings import Settings
from storage.accounts import quotas
from storage.artifacts.store import ArtifactStore
from storage.index import notices
from storage.index.database import changed, now
from storage.index.upsert import Upsert
from storage.tables.models import StateRow

MANUAL = "manual"
_NAME = "pause"
CURE = (
    "delete sessions, jobs or files, which works on a full disk too (`actograph sessions rm`, "
    "`actograph store gc`), or free the disk"
)
_write = Upsert(StateRow, "value")
#: whether an operator paused the queue, for use in a statement
IS_PAUSED = sa.exists().where(StateRow.name == _NAME)


def start(session: Session, *, by: str, reason: str | None) -> None:
    """Pause the queue. A second call replaces the author and the reason, and keeps the time."""
    _write(session, [{"name": _NAME, "value": {"by": by, "reason": reason}, "at": now(session)}])


def end(session: Session) -> bool:
    """End the operator's pause. Returns False if there was none."""
    notices.note(session, notices.ALL)
    return changed(session.execute(sa.delete(StateRow).where(StateRow.name == _NAME))) > 0


def find(session: Session) -> QueuePause | None:
    """The operator's pause, if any."""
    row = session.get(StateRow, _NAME, populate_existing=True)
    return QueuePause(kind="manual", since=int(row.at), **row.value or {}) if row is not None else None


def holds(session: Session) -> bool:
    """Whether an operator paused the queue."""
    return find(session) is not None


def active(session: Session, store: ArtifactStore, settings: Settings) -> list[QueuePause]:
    """The pauses that stop the queue for everyone: by an admin, for lack of disk space, or by the quota."""
    manual, disk = find(session), disk_pause(store, settings.disk_floor_bytes)
    full = quotas.read(session, settings).pause()
    found = [manual] if manual is not None else []
    found += [QueuePause(kind="disk", reason=disk)] if disk is not None else []
    return found + ([QueuePause(kind="quota", reason=full)] if full is not None else [])


def in_words(pauses: list[QueuePause]) -> str | None:
    """Join the reasons; None without a pause."""
    reasons = [
        f"paused by {one.by}" + (f": {one.reason}" if one.reason else "")
        if one.kind == MANUAL
        else one.reason or ""
        for one in pauses
    ]
    return "; ".join(reasons) or None


def disk_pause(store: ArtifactStore, floor_bytes: int) -> str | None:
    """Why the disk pauses the queue, or None. A store of unknown capacity never pauses it."""
    if floor_bytes <= 0:
        return None
    free = _free_bytes(store)
    if free is None or free >= floor_bytes:
        return None
    return (
        f"the artifact store has {free:,} bytes free, less than the floor of {floor_bytes:,} "
        "(ACTOGRAPH_DISK_FLOOR_BYTES); delete sessions or free the disk, then the queue resumes by itself"
    )


def require_room(store: ArtifactStore, floor_bytes: int, size: int = 0) -> None:
    """Raises StorageFull if `size` more bytes would take the disk below the floor."""
    free = _free_bytes(store)
    if floor_bytes <= 0 or free is None or free - size >= floor_bytes:
        return
    needs = f"{size:,} bytes more" if size else "more"
    raise StorageFull(
        f"the artifact store has {free:,} bytes free and {needs} would not fit above the floor of "
        f"{floor_bytes:,} (ACTOGRAPH_DISK_FLOOR_BYTES); {CURE}"
    )


def writable_bytes(store: ArtifactStore, floor_bytes: int) -> int | None:
    """Bytes that jobs may store before the disk pauses the queue; None if the capacity is unknown."""
    free = _free_bytes(store)
    return None if free is None else max(0, free - floor_bytes)


def _free_bytes(store: ArtifactStore) -> int | None:
    """None also for a missing folder: the store's own check reports it, and it is no reason to pause."""
    try:
        return store.free_bytes()
    except OSError:
        return None
