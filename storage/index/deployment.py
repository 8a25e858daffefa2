"""Refuses settings under which processes on several machines would not see the same index and files.

SQLite's locks do not hold on network file systems (https://www.sqlite.org/useovernet.html). And with an
index on a server, artifacts in a folder are shared only where every machine mounts that folder: the API
leaves a mark of the index there, and a worker that does not find it would write to some other folder.
"""

import logging
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urlsplit

import sqlalchemy as sa

from actograph.contract.errors import ServiceUnavailable
from storage.index.database import Database

MOUNTS = Path("/proc/self/mounts")
NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "fuse.sshfs", "fuse.glusterfs"}
)
#: the API may be starting
PATIENCE_SECONDS = 30.0
_POLL_SECONDS = 0.2
#: of the server and the database on it
_IDENTITY = sa.text(
    "SELECT (SELECT system_identifier FROM pg_control_system()), oid FROM pg_database "
    "WHERE datname = current_database()"
)

log = logging.getLogger(__name__)


def check_index(database: Database, mounts: Path = MOUNTS) -> None:
    """Raises ServiceUnavailable where the index is a SQLite file on a network file system."""
    if not database.is_sqlite or not database.url.database:
        return
    kind = filesystem_of(Path(database.url.database).absolute(), mounts)
    if kind in NETWORK_FILESYSTEMS:
        raise ServiceUnavailable(
            f"the index {database.url.database} is a SQLite file on a network file system ({kind}), where "
            "its locks do not hold; put it on a local disk, or use Postgres (ACTOGRAPH_DATABASE_URL)"
        )


def mark_store(database: Database, artifact_url: str) -> None:
    """Called by the API: say in the artifact folder which index it belongs to."""
    mark = _mark(database, artifact_url)
    if mark is not None:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def check_store(
    database: Database,
    artifact_url: str,
    *,
    patience_seconds: float = PATIENCE_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Called by a worker: raises ServiceUnavailable where its artifact folder is not the API's."""
    mark = _mark(database, artifact_url)
    if mark is None:
        return
    waited = 0.0
    while not mark.exists():
        if waited >= patience_seconds:
            raise ServiceUnavailable(
                f"the API that uses this index has not been in the folder {mark.parent}. Where it runs on "
                "another machine, mount one folder on both or use s3:// (ACTOGRAPH_ARTIFACT_URL); where it "
                "was never started, start it first"
            )
        sleep(_POLL_SECONDS)
        waited += _POLL_SECONDS


def filesystem_of(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The type of the file system that holds `path`; None where the machine cannot tell."""
    try:
        lines = mounts.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found: tuple[int, str] | None = None
    for line in lines:
        _device, where, kind, *_ = line.split(" ")
        mount = Path(where.replace("\\040", " "))
        if path.is_relative_to(mount) and (found is None or len(mount.parts) >= found[0]):
            found = (len(mount.parts), kind)
    return found[1] if found is not None else None


def _mark(database: Database, artifact_url: str) -> Path | None:
    """The mark's file; None where the index or the store is not of the kind that needs one."""
    url = urlsplit(artifact_url)
    if database.is_sqlite or url.scheme != "file":
        return None
    try:
        with database.read() as session:
            identity = session.execute(_IDENTITY).one()
    except sa.exc.ProgrammingError as error:  # a server that keeps its identity to itself
        log.warning("whether all processes use one artifact folder cannot be checked: %s", error.orig)
        return None
    digest = sha256(f"{identity[0]}/{identity[1]}".encode()).hexdigest()
    return Path(unquote(url.path)) / f".index-{digest[:16]}"
