"""Valid API keys, cached in memory for a moment, so that most requests need no query."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from actograph.contract.errors import ServiceUnavailable
from actograph.contract.service.key_roles import Role
from storage.accounts import api_keys
from storage.index.database import Database
from storage.tables.models import ApiKeyRow

log = logging.getLogger(__name__)

#: age at which the cache is read again; another process's change of a key applies after this time
LIFETIME_SECONDS = 3.0
#: the same for a request with an unknown key, which may be new
UNKNOWN_SECONDS = 0.1
#: time between two writes of the last use of keys
TOUCH_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Caller of a request, with role and owner."""

    #: owner of the caller's jobs, sessions and files
    owner: str
    role: Role
    #: None for a key of the settings, or without a key
    key_id: str | None = None

    @property
    def sees_only(self) -> str | None:
        """Owner whose items are visible; None for all owners."""
        return None if self.role is Role.ADMIN else self.owner


class KeyRing:
    """Finds the access of a key. Safe for use from many threads.

    Keys are looked up by their sha256, so neither timing nor memory reveals a similar key. Call `refresh`
    before `find` and `is_needed`, unless `is_fresh`.
    """

    def __init__(self, admin_keys: Sequence[str], own_key: str = "") -> None:
        """Create a ring.

        Args:
            admin_keys: admin keys of the settings, valid without the index.
            own_key: another admin key, used by `actograph up`. It does not make the service require keys.
        """
        self._has_fixed = bool(admin_keys)
        digests = [api_keys.digest_of(key) for key in (*admin_keys, own_key) if key]
        self._fixed = {
            digest: Access(owner=api_keys.owner_of_digest(digest), role=Role.ADMIN) for digest in digests
        }
        self._lock = threading.Lock()
        #: all keys by digest, revoked ones included
        self._known: dict[str, ApiKeyRow] = {}
        self._read_at = float("-inf")
        self._changes = 0
        self._used: set[str] = set()
        self._touched_at = time.monotonic()

    @property
    def is_needed(self) -> bool:
        """True if requests need a key.

        This stays true after the last key was revoked. Otherwise the service would be open to all programs of
        this machine, and through a proxy to the world.
        """
        return self._has_fixed or bool(self._known)

    def is_fresh(self, key: str) -> bool:
        """True if memory can answer for a key; an empty key is a request without one."""
        digest = api_keys.digest_of(key)
        if self._has_fixed and (not key or digest in self._fixed):
            return True
        return time.monotonic() - self._read_at <= self._lifetime(key, digest)

    def find(self, key: str) -> Access | None:
        """Find the access of a key; None if the key is invalid, revoked or expired."""
        digest = api_keys.digest_of(key)
        if fixed := self._fixed.get(digest):
            return fixed
        found = self._known.get(digest)
        if found is None or found.revoked_at is not None:
            return None
        if found.expires_at is not None and found.expires_at <= time.time():
            return None
        self._used.add(found.id)
        return Access(
            owner=found.owner,
            role=Role(found.role),
            key_id=found.id,
        )

    def refresh(self, database: Database, key: str = "") -> None:
        """Read all keys, unless another thread has read them for a request with this key.

        Raises:
            ServiceUnavailable: the database does not answer.
        """
        requested_at = time.monotonic()
        lifetime = self._lifetime(key, api_keys.digest_of(key))
        with self._lock:
            if self._read_at >= requested_at - lifetime:
                return
            read_at, changes = time.monotonic(), self._changes
            try:
                with database.read() as session:
                    self._known = api_keys.by_digest(session)
            except SQLAlchemyError as error:
                log.warning("API keys cannot be read, the database failed: %s", type(error).__name__)
                raise ServiceUnavailable("the database does not answer; try again in a moment") from error
            # a change during the read may be missing
            self._read_at = read_at if changes == self._changes else float("-inf")

    def forget(self) -> None:
        """Read the keys again before the next answer. Call this after a change of a key."""
        self._changes += 1
        self._read_at = float("-inf")

    def touch(self, database: Database) -> None:
        """Store the last use of keys, at most once per `TOUCH_SECONDS`."""
        if not self._used or time.monotonic() - self._touched_at < TOUCH_SECONDS:
            return
        with self._lock:
            used, self._used, self._touched_at = self._used, set(), time.monotonic()
        with database.write() as session:
            api_keys.touch(session, used)

    def _lifetime(self, key: str, digest: str) -> float:
        """Age in seconds up to which memory answers for a key."""
        is_unknown = key and digest not in self._fixed and digest not in self._known
        return UNKNOWN_SECONDS if is_unknown and self.is_needed else LIFETIME_SECONDS
