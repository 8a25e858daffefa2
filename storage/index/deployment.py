"""Check that API and workers on several machines store artifacts in the same folder.

The API leaves a mark of the index in its artifact folder. A worker that does not find the mark would write to
some other folder, so it refuses to start.
"""

import logging
import time
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urlsplit

import sqlalchemy as sa

from actograph.contract.errors import ServiceUnavailable
from storage.index.database import Database

#: a worker waits so long for an API that is starting
PATIENCE_SECONDS = 30.0
_POLL_SECONDS = 0.2
#: identity of the server and its database
_IDENTITY = sa.text(
    "SELECT (SELECT system_identifier FROM pg_control_system()), oid FROM pg_database "
    "WHERE datname = current_database()"
)

log = logging.getLogger(__name__)


def mark_store(database: Database, artifact_url: str) -> None:
    """Leave the mark of this index in the artifact folder; the API does so when it starts."""
    mark = _mark(database, artifact_url)
    if mark is not None:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def check_store(database: Database, artifact_url: str, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Raises ServiceUnavailable if the artifact folder of this worker is not that of the API."""
    mark, deadline = _mark(database, artifact_url), time.monotonic() + patience_seconds
    while mark is not None and not mark.exists():
        if time.monotonic() >= deadline:
            raise ServiceUnavailable(
                f"the API of this index does not use the folder {mark.parent}. If it runs on another "
                "machine, mount one folder on both or use s3:// (ACTOGRAPH_ARTIFACT_URL); if it was never "
                "started, start it first"
            )
        time.sleep(_POLL_SECONDS)


def _mark(database: Database, artifact_url: str) -> Path | None:
    """The mark's file; None if a local index or a remote store needs none."""
    url = urlsplit(artifact_url)
    if database.is_sqlite or url.scheme != "file":
        return None
    try:
        with database.read() as session:
            identity = session.execute(_IDENTITY).one()
    except sa.exc.ProgrammingError as error:  # no right to read it
        log.warning("cannot check that all processes use one artifact folder: %s", error.orig)
        return None
    digest = sha256(f"{identity[0]}/{identity[1]}".encode()).hexdigest()
    return Path(unquote(url.path)) / f".index-{digest[:16]}"
