"""Pauses of the queue: by an admin, for lack of disk space, or by a quota."""

from sqlalchemy.orm import Session

from actograph.contract.resources import QueuePause
from api.dependencies import Services
from storage.accounts import quotas
from storage.queue import pause
from storage.queue.pause import disk_pause


def find(services: Services, session: Session) -> list[QueuePause]:
    """Find the pauses that stop the queue for everyone."""
    manual = pause.find(session)
    disk = disk_pause(services.store, services.settings.disk_floor_bytes)
    full = quotas.read(session, services.settings).pause()
    found = [manual] if manual is not None else []
    found += [QueuePause(kind="disk", reason=disk)] if disk is not None else []
    return found + ([QueuePause(kind="quota", reason=full)] if full is not None else [])


def in_words(pauses: list[QueuePause]) -> str | None:
    """Join the reasons; None without a pause."""
    return "; ".join(_words(pause) for pause in pauses) or None


def of_owner(services: Services, session: Session, owner: str) -> str | None:
    """Reason why jobs of an owner do not start now: a pause, or the owner's quota."""
    held = in_words(find(services, session))
    return held or quotas.read(session, services.settings).owner_pause(owner)


def _words(pause: QueuePause) -> str:
    if pause.kind != "manual":
        return pause.reason or ""
    return f"paused by {pause.by}" + (f": {pause.reason}" if pause.reason else "")
