"""Usage of the store by owner, and quotas.

An owner submits jobs and uploads files. `api.security.auth.caller` returns the name: `local`, the name of an
API key, or `key:` and the first digits of a key's digest. Objects without an owner count in the total alone.
Deleted sessions and files count until their bytes are removed from the store. Usage is the sum over jobs and
files, and a pause ends by itself when sessions are deleted or expire.
"""

import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from urllib.parse import unquote, urlsplit

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import QuotaExceeded
from actograph.contract.operations import OwnerUsage, StoreUsage
from actograph.settings import Settings
from storage.accounts import api_keys
from storage.index import tallies, visible
from storage.index.clock import now
from storage.index.visible import of_everyone, owner_of
from storage.tables.models import FileRow, JobRow, SessionRow

#: owner of everything in a service without keys, see `api.security.auth.caller`
WITHOUT_KEYS = "local"
#: default quota of an owner with a key, as a share of the disk
_DEFAULT_SHARE = 0.75

_NUMBERS = ("sessions", "session_bytes", "files", "file_bytes", "deleting", "deleting_bytes")
ADVICE = "delete sessions or files, or let sessions expire; then it resumes by itself"


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """Usage at one moment, and the limits. 0 means no limit."""

    total_limit: int = 0
    owner_limit: int = 0
    #: True if no setting chose `owner_limit`; the default does not apply without keys
    is_default: bool = False
    #: limits from `quota_bytes` of keys, in place of `owner_limit`
    own_limits: Mapping[str, int] = field(default_factory=dict)
    #: bytes in the store by owner
    used: Mapping[str, int] = field(default_factory=dict)
    #: False if no limit can be reached now; then `used` is empty
    are_in_force: bool = False

    @property
    def total(self) -> int:
        return sum(self.used.values())

    def pause(self) -> str | None:
        """Why no job may start, or None."""
        if not self.total_limit or self.total < self.total_limit:
            return None
        return (
            f"{self.total:,} bytes are stored, the quota is {self.total_limit:,} "
            f"(ACTOGRAPH_STORE_QUOTA_BYTES); {ADVICE}"
        )

    def owner_pause(self, owner: str) -> str | None:
        """Why no job of this owner may start, or None."""
        limit = self.limit_of(owner)
        if not limit or self._of(owner) < limit:
            return None
        source = "ACTOGRAPH_OWNER_QUOTA_BYTES"
        if owner in self.own_limits:
            source = "quota_bytes of its API key"
        elif self.is_default:
            source = f"three quarters of the disk; raise it with {source}, or with quota_bytes of a key"
        return f"{owner} has stored {self._of(owner):,} bytes, the quota is {limit:,} ({source}); {ADVICE}"

    def paused_owners(self) -> list[str]:
        """Owners that have used up their quota."""
        return [owner for owner in self.used if self.owner_pause(owner)]

    def left(self, owner: str) -> int | None:
        """Bytes that this owner may still store; None means no limit."""
        found = [self.total_limit - self.total] if self.total_limit else []
        limit = self.limit_of(owner)
        found += [limit - self._of(owner)] if limit else []
        return max(0, min(found)) if found else None

    def require(self, owner: str, needed: int, what: str, *, param: str | None = None) -> None:
        """Raises QuotaExceeded if `needed` more bytes do not fit."""
        left = self.left(owner)
        if left is not None and needed > left:
            raise QuotaExceeded(
                f"{what}: needed {needed:,} bytes, available {left:,} within the quota; delete sessions or "
                "files, or store less (GET /v1/activations/stats shows the bytes of each owner)",
                param=param,
                details={"needed_bytes": needed, "available_bytes": left},
            )

    def limit_of(self, owner: str) -> int:
        """Bytes that an owner may store in all; 0 means no limit."""
        if not owner or (owner == WITHOUT_KEYS and self.is_default):
            return 0
        return self.own_limits.get(owner, self.owner_limit)

    def _of(self, owner: str) -> int:
        return self.used.get(owner, 0)


def read(session: Session, settings: Settings) -> Quotas:
    """The quotas now. Without limits, usage is not read."""
    limits = _limits(session, settings)
    is_limited = bool(limits.total_limit or limits.own_limits or limits.owner_limit)
    if limits.is_default and not (limits.total_limit or limits.own_limits):
        # nobody has reached the limit before the disk holds so much
        _, on_disk = _disk_usage(settings)
        is_limited = on_disk >= limits.owner_limit
    return replace(limits, used=used(session), are_in_force=True) if is_limited else limits


def owner_limit(settings: Settings) -> int:
    """Default limit in bytes of each owner with a key; 0 means no limit."""
    if settings.owner_quota_bytes is not None:
        return settings.owner_quota_bytes
    total, _ = _disk_usage(settings)
    return int(total * _DEFAULT_SHARE)


def _disk_usage(settings: Settings) -> tuple[int, int]:
    """Total and used bytes of a local store's disk; zeros for a remote store."""
    url = urlsplit(settings.effective_artifact_url)
    if url.scheme == "file":
        with suppress(OSError):
            total, used, _ = shutil.disk_usage(unquote(url.path))
            return total, used
    return 0, 0


def _limits(session: Session, settings: Settings) -> Quotas:
    return Quotas(
        total_limit=settings.store_quota_bytes,
        owner_limit=owner_limit(settings),
        is_default=settings.owner_quota_bytes is None,
        own_limits=api_keys.quotas(session),
    )


@of_everyone
def used(session: Session) -> dict[str, int]:
    """Bytes in the store by owner, deleted ones included."""
    found = Counter[str]()
    with visible.hidden_too(session):
        for row in (JobRow, FileRow):
            found.update(_sizes(session, row))
    return found


def _sizes(session: Session, row: type[JobRow | FileRow]) -> dict[str, int]:
    if row is JobRow:
        return tallies.bytes_by_owner(session)
    sums = sa.select(row.owner, sa.func.sum(row.bytes)).where(row.bytes > sa.literal_column("0"))
    return {owner: int(size) for owner, size in session.execute(sums.group_by(row.owner))}


@of_everyone
def usage(session: Session) -> dict[str, OwnerUsage]:
    """Usage by owner in detail. Rows of sessions are wide: an index counts all, and hidden ones are read."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    with visible.hidden_too(session):
        moment, count = now(session), sa.func.count()
        hidden_jobs = sa.select(JobRow.id).where(JobRow.removal_due_at.is_not(None))
        of_hidden_jobs = sa.and_(SessionRow.removal_due_at.is_(None), SessionRow.job_id.in_(hidden_jobs))
        for row, sized, name, further in (
            (SessionRow, JobRow, "session", [of_hidden_jobs]),
            (FileRow, FileRow, "file", []),
        ):
            for owner, size in _sizes(session, sized).items():
                found[owner][f"{name}_bytes"] += size
            for owner, number in session.execute(sa.select(row.owner, count).group_by(row.owner)):
                found[owner][f"{name}s"] += number
            # the others arrive: bytes of an upload count before it ends
            deleted = sa.not_(visible.may_be_published(row, moment))
            sums = sa.select(row.owner, deleted, count, sa.func.sum(row.bytes)).group_by(row.owner, deleted)
            for hidden in (row.removal_due_at.is_not(None), *further):
                for owner, gone, number, size in session.execute(sums.where(hidden)):
                    found[owner][f"{name}s"] -= number
                    if gone:
                        moved = {"deleting": number, "deleting_bytes": int(size), f"{name}_bytes": -int(size)}
                        found[owner].update(moved)
    return {owner: OwnerUsage(owner=owner or None, **numbers) for owner, numbers in found.items()}


def shown(session: Session, settings: Settings) -> StoreUsage:
    """Usage and quotas as the API shows them, the largest owner first.

    A restricted session sees its owner's part alone, in the available bytes too.
    """
    me = owner_of(session)
    found = usage(session)
    sizes = {owner: one.total_bytes for owner, one in found.items()}
    quotas = replace(_limits(session, settings), used=sizes)
    if me is not None:
        found = {me: found.get(me, OwnerUsage(owner=me))}
    owners = sorted(
        (one.model_copy(update={"available_bytes": quotas.left(owner)}) for owner, one in found.items()),
        key=lambda one: one.total_bytes,
        reverse=True,
    )
    return StoreUsage(
        **{name: sum(getattr(one, name) for one in owners) for name in _NUMBERS},
        bytes=sum(one.total_bytes for one in owners),
        quota_bytes=settings.store_quota_bytes or None,
        owner_quota_bytes=(quotas.limit_of(me) if me is not None else quotas.owner_limit) or None,
        available_bytes=quotas.left(me or ""),
        owners=owners,
    )
