"""Clearing and checking a store, on files and on S3, page by page as the API does it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import boto3
import pytest

from actograph.contract.operations import StoreGc, StoreVerification
from actograph.contract.specs import SessionUpdate
from storage.artifacts.local import LocalStore
from storage.artifacts.s3 import S3Store
from storage.index.database import Database
from storage.index.ids import new_file_id, new_session_id
from storage.queue import leases
from storage.queue.leases import LeasedSample
from storage.sessions import changes, sessions
from storage.sessions.writer import session_prefix
from storage.upkeep.store_gc import collect
from storage.upkeep.store_verify import in_sample, verify
from tests.support import leasing
from tests.support.samples import add_file, result, session_of, write_session
from tests.support.submitting import insert_capture

_DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.soak)]
pytestmark = [pytest.mark.integration, pytest.mark.parametrize("database", _DATABASES, indirect=True)]


@dataclass
class Place:
    """A database with a store, and what a worker does with both."""

    database: Database
    store: LocalStore | S3Store
    job_id: str

    def lease(self) -> LeasedSample:
        with self.database.write() as session:
            (lease,) = leasing.claim(session, self.job_id, worker_id="w", count=1)
        return lease

    def finish(self, lease: LeasedSample) -> str:
        session_id, written = write_session(self.store, lease)
        with self.database.write() as session:
            made = session_of(lease, files=written)
            leasing.complete(session, lease, result(session_id=session_id), made)
        return session_id

    def upload(self, data: bytes, *, known: bool = True) -> str:
        digest = sha256(data).hexdigest()
        file_id = add_file(self.database, size=len(data), sha256=digest) if known else new_file_id()
        self.store.put_stream(f"files/{file_id}", [data])
        return file_id

    def overwrite(self, key: str, data: bytes) -> None:
        if isinstance(self.store, LocalStore):
            (self.store.root / key).write_bytes(data)
        else:
            s3_client().put_object(Bucket=self.store.bucket, Key=f"{self.store.prefix}/{key}", Body=data)

    def remove(self, key: str) -> None:
        if isinstance(self.store, LocalStore):
            (self.store.root / key).unlink()
        else:
            s3_client().delete_object(Bucket=self.store.bucket, Key=f"{self.store.prefix}/{key}")

    def change(self, session_id: str, **change: Any) -> None:
        with self.database.write() as session:
            changes.update(session, [session_id], SessionUpdate(**change))

    def stored(self, parent: str = "sessions") -> set[str]:
        return {p.prefix.rpartition("/")[2] for p in self.store.list_prefixes(parent)}


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.upkeep.store_verify._CHUNK", 2)
    monkeypatch.setattr("storage.upkeep.store_verify._IDS", 2)


def s3_client() -> Any:
    from botocore.config import Config

    return boto3.session.Session().client("s3", config=Config(s3={"addressing_style": "path"}))


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Place:
    store: LocalStore | S3Store
    if request.param == "local":
        store = LocalStore(tmp_path / "artifacts")
    else:
        store = S3Store(request.getfixturevalue("s3_bucket"), "some/where", spool=tmp_path)
    return Place(database, store, insert_capture(database, map(str, range(9))))


def clear(place: Place, *, dry_run: bool) -> StoreGc:
    """Every page, put together."""
    found: dict[str, Any] = {}
    after = None
    for _ in range(20):
        page = collect(
            place.database, place.store, dry_run=dry_run, after=after, seconds=1e-9, older_than_seconds=-60
        )
        for name, value in page.model_dump().items():
            if name not in ("object", "dry_run", "next"):
                found[name] = found[name] + value if name in found else value
        after = page.next
        if after is None:
            return StoreGc(dry_run=dry_run, **found)
    raise AssertionError("it does not end")


def check(place: Place, sample: float = 1.0, seed: int = 0) -> StoreVerification:
    """Every page, put together."""
    problems, checked, size, after = [], 0, 0, None
    for _ in range(20):
        page = verify(
            place.database, place.store, after=after, sample=sample, seed=seed, seconds=1e-9,
            older_than_seconds=-60,
        )  # fmt: skip
        problems += page.problems
        checked, size, after = checked + page.checked, size + page.bytes, page.next
        if after is None:
            return StoreVerification(checked=checked, bytes=size, total=page.total, problems=problems)
    raise AssertionError("it does not end")


def test_clearing_takes_what_nothing_refers_to_and_what_has_expired(place: Place) -> None:
    kept, expired, pinned = (place.finish(place.lease()) for _ in range(3))
    running, returned = place.lease(), place.lease()
    written, abandoned = (write_session(place.store, one)[0] for one in (running, returned))
    with place.database.write() as session:
        leases.give_back(session, [returned])
    unknown, _ = write_session(place.store, running, new_session_id())
    place.change(expired, expires_at=int(time.time()) - 5)
    place.change(pinned, expires_at=int(time.time()) - 5, pinned=True)
    lost, wanted = place.upload(b"lost", known=False), place.upload(b"rows")
    left = place.store.stage(session_prefix(new_session_id()))  # its writer is killed
    sessions_before = {kept, expired, pinned, written, abandoned, unknown}
    dry = clear(place, dry_run=True)
    assert (place.stored(), place.stored("files")) == (sessions_before, {lost, wanted})
    # files that wait for an upload have no name
    assert (dry.expired_sessions, dry.leftovers) == (1, 1 if isinstance(place.store, LocalStore) else 0)
    assert {one.id for one in check(place).problems} == {unknown, lost}
    done = clear(place, dry_run=False)
    assert done.model_dump(exclude={"dry_run"}) == dry.model_dump(exclude={"dry_run"})
    assert (place.stored(), place.stored("files")) == ({kept, pinned, written, unknown}, {lost, wanted})
    again = clear(place, dry_run=False)
    assert (again.expired_sessions, again.leftovers) == (0, 0)
    left.discard()


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_an_upload_in_parts_that_broke_off_goes(place: Place) -> None:
    assert isinstance(place.store, S3Store)
    client, bucket = s3_client(), place.store.bucket
    key = f"some/where/{session_prefix(new_session_id())}/activations.safetensors"
    client.create_multipart_upload(Bucket=bucket, Key=key)
    torn = place.lease()
    place.overwrite(f"{session_prefix(str(torn.session_id))}/activations.safetensors", b"half")
    with place.database.write() as session:
        leases.give_back(session, [torn])
    assert clear(place, dry_run=True).leftovers == 1
    assert len(client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])) == 1
    assert clear(place, dry_run=False).leftovers == 1
    assert client.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []
    assert place.stored() == set()


def test_a_sound_store_has_no_problems(place: Place) -> None:
    made = [place.finish(place.lease()) for _ in range(3)]
    place.upload(b"rows")
    found = check(place)
    assert (found.problems, found.checked, found.total) == ([], 4, 4)
    with place.database.read() as session:
        size = sessions.totals(session, sessions.SessionFilter()).bytes
    assert found.bytes == size + 4
    assert len(made) == 3


@pytest.mark.covering(6)
@pytest.mark.parametrize(
    ("damage", "problem", "says"),
    [
        (lambda p, i: p.store.delete_many({session_prefix(i): None}), "missing", "no stored file"),
        (lambda p, i: p.remove(f"{session_prefix(i)}/activations.safetensors"), "damaged", "is missing"),
        (
            lambda p, i: p.overwrite(f"{session_prefix(i)}/activations.safetensors", b"short"),
            "damaged",
            "5 bytes",
        ),
        (lambda p, i: p.overwrite(f"{session_prefix(i)}/manifest.json", b"{}"), "damaged", "cannot be read"),
    ],
)
def test_what_is_wrong_is_named(
    place: Place, damage: Callable[[Place, str], object], problem: str, says: str
) -> None:
    place.finish(place.lease())
    hurt = place.finish(place.lease())
    damage(place, hurt)
    (found,) = check(place).problems
    assert (found.id, found.problem) == (hurt, problem)
    assert says in found.detail


def test_a_changed_byte_a_changed_manifest_and_strangers_are_found(place: Place) -> None:
    hurt, other = place.finish(place.lease()), place.finish(place.lease())
    key = f"{session_prefix(hurt)}/activations.safetensors"
    data = bytearray(place.store.read(key, 0, place.store.size(key)))
    data[-1] ^= 1
    place.overwrite(key, bytes(data))
    key = f"{session_prefix(other)}/manifest.json"
    place.overwrite(key, b"".join(place.store.stream(key)) + b"\n")
    stranger, _ = write_session(place.store, place.lease(), new_session_id())
    rows, lost = place.upload(b"rows"), place.upload(b"lost", known=False)
    gone = place.upload(b"gone")
    place.overwrite(f"files/{rows}", b"rowz")
    place.store.delete_many({f"files/{gone}": None})
    found = {one.id: (one.problem, one.detail) for one in check(place).problems}
    assert {i: problem for i, (problem, _) in found.items()} == {
        hurt: "damaged", other: "damaged", stranger: "orphaned", rows: "damaged", gone: "missing",
        lost: "orphaned",
    }  # fmt: skip
    assert "sha256" in found[hurt][1]
    assert "manifest.json" in found[other][1]


def test_a_sample_is_a_share_that_the_seed_draws(place: Place) -> None:
    made = {place.finish(place.lease()) for _ in range(6)}
    for seed in range(3):
        chosen = {i for i in made if in_sample(i, 0.5, seed)}
        assert check(place, 0.5, seed).checked == len(chosen)
    names = [f"ses_{n:032x}" for n in range(4000)]
    drawn = [{n for n in names if in_sample(n, 0.1, seed)} for seed in range(2)]
    assert all(300 < len(share) < 500 for share in drawn)
    assert drawn[0] != drawn[1]
