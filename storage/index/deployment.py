"""Check that API and workers on several machines store artifacts in the same folder.

The API leaves a mark of the index in its artifact folder. A worker that does not find the mark would write to
some other folder, so it refuses to start.
"""

import secrets
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

from actograph.contract.errors import ServiceUnavailable
from storage.index.database import Database
from storage.index.upsert import Upsert
from storage.tables.models import StateRow

#: a worker waits so long for an API that is starting
PATIENCE_SECONDS = 30.0
_POLL_SECONDS = 0.2
_NAME = "mark"
#: keeps the value of a row that exists
_add = Upsert(StateRow, "name")


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
    with database.write() as session:
        _add(session, [{"name": _NAME, "value": {"id": secrets.token_hex(8)}, "at": 0.0}])
        value = session.get_one(StateRow, _NAME).value or {}
    return Path(unquote(url.path)) / f".index-{value['id']}"
