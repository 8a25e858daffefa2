"""Deletions on S3: 1,000 keys a request, and a 503 in between costs a second attempt and nothing else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders

from storage.accounts import quotas
from storage.artifacts.s3 import S3Store
from storage.index import deletions
from storage.index.database import Database
from storage.index.ids import new_file_id, new_session_id
from storage.tables.models import DeletionRow
from storage.upkeep.deletion_drain import drain_deletions
from tests.support.indexes import create_index

pytestmark = pytest.mark.integration

NAMES = ["activations.safetensors", "manifest.json"]
COUNT = 700


@pytest.fixture
def store(s3_bucket: str) -> S3Store:
    return S3Store(s3_bucket, "lab", attempts=1)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'index.db'}")
    create_index(database)
    yield database
    database.close()


class _Refused:
    """The body of a 503."""

    def stream(self, **_: object) -> Iterator[bytes]:
        yield b"<Error><Code>SlowDown</Code><Message>Slow down</Message></Error>"


def watch(store: S3Store, refused: set[int]) -> list[str]:
    """Every request to the store from now on; those of these numbers are answered 503."""
    seen: list[str] = []

    def send(request: Any, **_: Any) -> Any:
        seen.append(f"{request.method} {request.url.rpartition('?')[2] if '?' in request.url else ''}")
        return AWSResponse(request.url, 503, HTTPHeaders(), _Refused()) if len(seen) - 1 in refused else None

    store._client.meta.events.register("before-send.s3", send)
    return seen


def stored(store: S3Store) -> set[str]:
    return {
        one.prefix.partition("/")[2]
        for parent in ("sessions", "files")
        for one in store.list_prefixes(parent)
    }


def used(database: Database) -> int:
    with database.read() as session:
        return sum(one.total_bytes for one in quotas.usage(session).values())


def test_keys_go_a_thousand_at_a_time_and_what_was_refused_goes_later(
    database: Database, store: S3Store
) -> None:
    ids = [new_session_id() for _ in range(COUNT)]
    for session_id in (min(ids), max(ids)):  # to delete a key that is not there is no error
        with store.stage(f"sessions/{session_id}") as stage:
            for name in NAMES:
                with stage.create(name) as file:
                    file.write(b"x" * 50)
            stage.commit()
    file_id, kept = new_file_id(), new_file_id()
    for one in (file_id, kept):
        store.put_stream(f"files/{one}", [b"x" * 100])
    with database.write() as session:
        doomed = [{"id": one, "owner": "alice", "bytes": 100, "names": NAMES} for one in ids]
        deletions.add(session, [*doomed, {"id": file_id, "owner": "alice", "bytes": 100, "names": None}])
    assert used(database) == (COUNT + 1) * 100
    seen = watch(store, refused={1})
    drained = drain_deletions(database, store)
    # nothing is listed: the index knows the names
    assert seen == ["POST delete", "POST delete"]
    assert 490 < drained.count < COUNT
    assert used(database) == (COUNT + 1 - drained.count) * 100
    with database.write() as session:
        waiting = session.scalars(sa.select(DeletionRow)).all()
        assert {row.attempts for row in waiting} == {1}
        for row in waiting:
            row.next_attempt_at = row.created_at
    assert drain_deletions(database, store).count == COUNT + 1 - drained.count
    assert len(seen) == 3
    assert stored(store) == {kept}
    assert used(database) == 0
