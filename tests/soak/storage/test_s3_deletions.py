"""Deletions on S3: 1,000 keys a request, and a 503 in between costs a second attempt and nothing else."""

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders

from actograph.contract.resources import SessionFile
from storage.accounts import quotas
from storage.artifacts.s3 import S3Store
from storage.files import files
from storage.index.database import Database
from storage.queue.commit import Ended
from storage.sessions import changes
from storage.sessions.filter import SessionFilter
from storage.upkeep import reaper
from tests.support import leasing
from tests.support.samples import add_file, age_removals, result, session_of
from tests.support.submitting import insert_capture

pytestmark = pytest.mark.integration

NAMES = ["activations.safetensors", "manifest.json"]
COUNT = 700


@pytest.fixture
def store(s3_bucket: str) -> S3Store:
    return S3Store(s3_bucket, "lab", attempts=1)


@pytest.fixture
def database(sqlite: Database) -> Database:
    return sqlite


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


def add_sessions(database: Database, count: int) -> list[str]:
    """Published sessions of one job; their files are the test's to store. Returns their ids."""
    files_of_each = [SessionFile(name=name, bytes=50, sha256="") for name in NAMES]
    job_id = insert_capture(database, ["x"] * count)
    with database.write() as session:
        held = leasing.claim(session, job_id, worker_id="w", count=count)
        ended = []
        for one in held:
            stored = session_of(one, files=files_of_each)
            ended.append(Ended(lease=one, result=result(session_id=stored.id), session=stored))
        leasing.end(session, *ended)
    return [str(lease.session_id) for lease in held]


def test_keys_go_a_thousand_at_a_time_and_what_was_refused_goes_later(
    database: Database, store: S3Store
) -> None:
    ids = add_sessions(database, COUNT)
    for session_id in (min(ids), max(ids)):  # to delete a key that is not there is no error
        with store.stage(f"sessions/{session_id}") as stage:
            for name in NAMES:
                with stage.create(name) as file:
                    file.write(b"x" * 50)
            stage.commit()
    file_id, kept = (add_file(database, size=100, owner="alice") for _ in range(2))
    for one in (file_id, kept):
        store.put_stream(f"files/{one}", [b"x" * 100])
    changes.delete_matching(database, SessionFilter())
    with database.write() as session:
        files.delete(session, file_id)
    assert used(database) == (COUNT + 2) * 100
    seen = watch(store, refused={1})
    reaped = reaper.reap(database, store)
    # nothing is listed: the index knows the names. 500 sessions, and the file, which is refused; then 200
    assert seen == ["POST delete"] * 3
    assert reaped.count == COUNT
    assert used(database) == 200
    age_removals(database)
    assert reaper.reap(database, store).count == 1
    assert len(seen) == 4
    assert stored(store) == {kept}
    assert used(database) == 100
