"""Files of a backup folder.

```text
backup.json          names the current snapshot; replaced last, in one step
index-<time>/        the snapshot: stored.jsonl, and index.db (SQLite) or <table>.copy (Postgres)
artifacts/           sessions and uploaded files, shared by all snapshots
```
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from actograph.contract.errors import InvalidRequest
from storage.artifacts.local import LocalStore, fsync

FORMAT = 1
BACKUP, STORED, SQLITE_INDEX = "backup.json", "stored.jsonl", "index.db"


class BackupRecord(BaseModel):
    """`backup.json`: the current snapshot of a backup folder."""

    model_config = ConfigDict(extra="forbid")

    format: int = FORMAT
    version: str
    created_at: float
    snapshot: str = Field(pattern=r"^index-[0-9TZ]+$")
    index: Literal["sqlite", "postgres"]
    revision: str
    #: Postgres: table -> columns, in the order in which they are restored
    tables: dict[str, list[str]] = Field(default_factory=dict)
    sessions: int = 0
    files: int = 0
    bytes: int = 0
    #: prefixes whose stored files are missing or damaged, and are not in the backup
    damaged: list[str] = Field(default_factory=list)


class StoredFile(NamedTuple):
    """A file of a session, or an uploaded file."""

    name: str
    bytes: int
    sha256: str


class Stored(NamedTuple):
    """A prefix of the store and its files; an uploaded file has one, without a name."""

    prefix: str
    files: list[StoredFile]


def artifacts(folder: Path) -> LocalStore:
    """The stored files of a backup folder."""
    return LocalStore(folder / "artifacts")


def read_record(folder: Path) -> BackupRecord:
    """The record of a backup folder.

    Raises:
        InvalidRequest: the folder has no complete backup, or one of a newer format.
    """
    try:
        record = BackupRecord.model_validate_json((folder / BACKUP).read_bytes())
    except FileNotFoundError as error:
        raise InvalidRequest(f"{folder} has no complete backup: {BACKUP} is missing") from error
    except ValidationError as error:
        raise InvalidRequest(f"{folder / BACKUP} is damaged, or of a newer version") from error
    if record.format != FORMAT:
        raise InvalidRequest(f"{folder} has format {record.format}; this version reads format {FORMAT}")
    return record


def write_record(folder: Path, record: BackupRecord) -> None:
    """Make a snapshot the current one, durably and in one step."""
    aside = folder / f"{BACKUP}.new"
    aside.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    fsync(aside)
    aside.replace(folder / BACKUP)
    fsync(folder)


def write_stored(path: Path, stored: Iterable[Stored]) -> None:
    """Write the list of stored files, one prefix per line."""
    with path.open("w", encoding="utf-8") as file:
        for one in stored:
            file.write(json.dumps([one.prefix, one.files]) + "\n")
    fsync(path)


def read_stored(path: Path) -> Iterator[Stored]:
    """Read the list of stored files."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            prefix, files = json.loads(line)
            yield Stored(prefix, [StoredFile(*one) for one in files])
