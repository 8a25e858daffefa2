"""The keys that are good, kept in memory for a moment, so that a request costs no query."""

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

#: a change that another process made to a key holds here after so long at most
LIFETIME_SECONDS = 3.0
#: for a key that is not known the index is asked again, but no more often than this
UNKNOWN_SECONDS = 0.1
#: uses of keys are written down about so often
TOUCH_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Caller of a request, with role and owner."""

    #: whose the things are that they make
    owner: str
    role: Role
    #: None where no key of the index was used
    key_id: str | None = None
    requests_per_minute: int | None = None

    @property
    def sees_only(self) -> str | None:
        """Owner whose items are visible; None for all owners."""
        return None if self.role is Role.ADMIN else self.owner


class KeyRing:
    """Finds what a key allows. Safe for use from many threads.

    Keys are found by their sha256, so that neither the time nor anything that is kept tells of a key that
    was nearly right.
    """

    def __init__(self, admin_keys: Sequence[str], own_key: str = "") -> None:
        """`admin_keys` are those of the settings: an admin's, and good whatever the index says.

        `own_key` is such a one that `actograph up` asks with; that it is there does not make others need one.
        """
        self._has_fixed = bool(admin_keys)
        digests = [api_keys.digest_of(key) for key in (*admin_keys, own_key) if key]
        self._fixed = {
            digest: Access(owner=api_keys.owner_of_digest(digest), role=Role.ADMIN) for digest in digests
        }
        self._lock = threading.Lock()
        self._known: dict[str, ApiKeyRow] = {}
        self._read_at = float("-inf")
        self._changes = 0
        self._used: set[str] = set()
        self._touched_at = time.monotonic()

    def at_hand(self, key: str) -> tuple[bool, Access | None]:
        """Whether what is in memory answers for this key, and how; it never waits."""
        digest = api_keys.digest_of(key)
        if fixed := self._fixed.get(digest):
            return True, fixed
        age = time.monotonic() - self._read_at
        found = self._known.get(digest)
        if age > (UNKNOWN_SECONDS if found is None else LIFETIME_SECONDS):
            return False, None
        return True, self._access(found)

    def find(self, database: Database, key: str) -> Access | None:
        """Rights of a key; None if it is invalid.

        Raises:
            ServiceUnavailable: the database cannot be asked whether it still is.
        """
        self._refresh(database, UNKNOWN_SECONDS)
        return self.at_hand(key)[1] or self._access(self._known.get(api_keys.digest_of(key)))

    def is_needed(self) -> bool | None:
        """Whether a key must be sent, as far as memory tells; None: not known."""
        if self._has_fixed:
            return True
        return bool(self._known) if time.monotonic() - self._read_at <= LIFETIME_SECONDS else None

    def ask_whether_needed(self, database: Database) -> bool:
        """Whether a key must be sent: once the service has had one, for good.

        Were it not for good, the end of the last key would open the service to every program of the
        machine, a proxy to the world among them.

        Raises:
            ServiceUnavailable: the database cannot be asked.
        """
        self._refresh(database, LIFETIME_SECONDS)
        return self._has_fixed or bool(self._known)

    def forget(self) -> None:
        """A key was made or changed: look again before the next answer."""
        self._changes += 1
        self._read_at = float("-inf")

    def touch(self, database: Database) -> None:
        """Write down which keys were used of late, where it is time for that."""
        if not self._used or time.monotonic() - self._touched_at < TOUCH_SECONDS:
            return
        with self._lock:
            used, self._used, self._touched_at = self._used, set(), time.monotonic()
        with database.write() as session:
            api_keys.touch(session, used)

    def _access(self, found: ApiKeyRow | None) -> Access | None:
        if found is None or found.revoked_at is not None:
            return None
        if found.expires_at is not None and found.expires_at <= time.time():
            return None
        self._used.add(found.id)
        return Access(
            owner=found.owner,
            role=Role(found.role),
            key_id=found.id,
            requests_per_minute=found.requests_per_minute,
        )

    def _refresh(self, database: Database, oldest: float) -> None:
        """Have in memory what the index said at most `oldest` seconds ago."""
        asked_at = time.monotonic()
        with self._lock:
            # who waited for another's look may use it, if that began after this request came
            if self._read_at >= asked_at - oldest:
                return
            read_at, changes = time.monotonic(), self._changes
            try:
                with database.read() as session:
                    self._known = api_keys.by_digest(session)
            except SQLAlchemyError as error:
                log.warning("API keys cannot be looked up, the database failed: %s", type(error).__name__)
                raise ServiceUnavailable("the database does not answer; try again in a moment") from error
            # what changed while it was read may not be in it
            self._read_at = read_at if changes == self._changes else float("-inf")
