"""The S3 store against a real server: whole sessions or none, byte ranges, deletes, refusals."""

import io
import secrets
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from botocore.exceptions import ClientError

from actograph.contract.errors import NotFound, RangeNotSatisfiable, ServiceUnavailable
from storage.artifacts.factory import open_store
from storage.artifacts.s3 import PART_BYTES, S3Store
from storage.artifacts.store import InvalidKey
from storage.sessions.manifest import StoredTensor
from storage.sessions.writer import SessionReader, SessionWriter, TensorRows
from tests.support.samples import manifest_of
from tests.support.servers.faulty_proxy import FaultyProxy
from tests.support.servers.s3 import S3Server
from tests.support.servers.strict_s3 import StrictS3

pytestmark = pytest.mark.integration

SESSION = "sessions/ses_" + "0a" * 16
FILE = "files/file_" + "1b" * 16


@pytest.fixture
def store(s3_bucket: str, tmp_path: Path) -> S3Store:
    return S3Store(s3_bucket, "lab/actograph", spool=tmp_path)


def keys(store: S3Store) -> list[str]:
    reply = store._client.list_objects_v2(Bucket=store.bucket)
    return [item["Key"] for item in reply.get("Contents", [])]


def put(store: S3Store, prefix: str = SESSION, **files: bytes) -> None:
    with store.stage(prefix) as stage:
        for name, data in {"manifest.json": b"{}", **files}.items():
            with stage.create(name) as file:
                file.write(data)
        stage.commit()


@pytest.mark.parametrize("cuts", [(), (3, 7)])
def test_a_session_is_written_and_read_by_range(store: S3Store, cuts: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).standard_normal((12, 5)).astype("<f4")
    session_id = f"ses_{secrets.token_hex(16)}"
    ends = [0, *cuts, 12]
    with SessionWriter(store, session_id) as writer:
        for start, stop in pairwise(ends):
            part = np.ascontiguousarray(values[start:stop])
            writer.write_shard([TensorRows("resid_post.0", "F32", (stop - start, 5), start, part)])
        assert not any(key.endswith("manifest.json") for key in keys(store))
        tensors = {"resid_post.0": StoredTensor(shape=(12, 5), dtype="F32")}
        manifest = manifest_of(session_id, tensors, prompt_tokens=12, generated_tokens=1)
        writer.finish(manifest, list(range(13)))
    assert list(store.spool.iterdir()) == []
    reader = SessionReader(store, session_id)
    reader.verify()
    assert reader.rows("resid_post.0", 2, 9).data == values[2:9].tobytes()
    assert reader.token_ids() == list(range(13))
    (found,) = store.list_prefixes("sessions")
    assert found.prefix == f"sessions/{session_id}"
    assert found.bytes > values.nbytes
    assert store.delete_many({found.prefix: None}) == {}
    assert keys(store) == []
    with pytest.raises(NotFound):
        _ = SessionReader(store, session_id).manifest


def test_a_session_takes_two_requests_and_a_long_one_is_uploaded_while_it_is_written(
    s3_bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing asks whether the id exists, and no file is on disk."""
    rows = np.zeros((1, 4), "<f4")
    with FaultyProxy(s3_server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        store = S3Store(s3_bucket, spool=tmp_path / "spool")
        for shards in (1, 3):
            session_id = f"ses_{secrets.token_hex(16)}"
            tensors = {"resid_post.0": StoredTensor(shape=(shards, 4), dtype="F32")}
            manifest = manifest_of(session_id, tensors, prompt_tokens=shards, generated_tokens=1)
            with SessionWriter(store, session_id) as writer:
                for number in range(shards):
                    writer.write_shard([TensorRows("resid_post.0", "F32", (1, 4), number, rows)])
                if shards > 1:
                    for thread in writer._stage._early:  # type: ignore[attr-defined]
                        thread.join()
                    assert store.size(f"sessions/{session_id}/activations-00001.safetensors")
                    proxy.take_requests()
                writer.finish(manifest, list(range(shards + 1)))
            asked = [(one.method, one.target.rpartition("/")[2]) for one in proxy.take_requests()]
            if shards == 1:
                assert asked == [("PUT", "activations.safetensors"), ("PUT", "manifest.json")]
            else:
                assert ("PUT", "activations-00001.safetensors") not in asked
                assert asked[-1] == ("PUT", "manifest.json")
            SessionReader(store, session_id).verify()
            proxy.take_requests()
        assert store.staged_bytes() == 0
        assert not store.spool.exists()


def test_large_files_go_in_parts(s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.artifacts.s3.ONE_REQUEST_BYTES", PART_BYTES)
    store = S3Store(s3_bucket, "lab/actograph", spool=tmp_path)
    data = np.random.default_rng(0).bytes(2 * PART_BYTES + 12345)
    put(store, big=data)
    assert store.size(f"{SESSION}/big") == len(data)
    assert store._client.head_object(Bucket=store.bucket, Key=f"lab/actograph/{SESSION}/big")[
        "ETag"
    ].endswith('-3"')
    assert store.read(f"{SESSION}/big", PART_BYTES - 3, 6) == data[PART_BYTES - 3 : PART_BYTES + 3]
    assert b"".join(store.stream(f"{SESSION}/big")) == data
    pieces = list(store.stream(f"{SESSION}/big", 5, 100_005, 4096))
    assert b"".join(pieces) == data[5:100_005]
    assert max(map(len, pieces)) <= 4096


def test_reads_beyond_the_end_are_refused(store: S3Store, subtests: pytest.Subtests) -> None:
    put(store, a=b"abcdef")
    for start, length in [(-1, 2), (0, -1), (0, 7), (5, 2), (6, 1), (9, 1), (7, 0)]:
        with subtests.test(start=start, length=length), pytest.raises(RangeNotSatisfiable):
            store.read(f"{SESSION}/a", start, length)


def test_reads_of_nothing(store: S3Store) -> None:
    put(store, a=b"abcdef", empty=b"")
    assert store.read(f"{SESSION}/a", 6, 0) == b""
    assert list(store.stream(f"{SESSION}/empty")) == []
    for call in (store.size, lambda key: store.read(key, 0, 1), lambda key: list(store.stream(key))):
        with pytest.raises(NotFound, match="no stored file"):
            call(f"{SESSION}/other")


def test_the_manifest_is_uploaded_last(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    upload = store.upload

    def recorded(key: str, file: BinaryIO, on_progress: Callable[[], None]) -> None:
        assert not store.exists(SESSION)
        order.append(key.rpartition("/")[2])
        upload(key, file, on_progress)

    monkeypatch.setattr(store, "upload", recorded)
    put(store, z=b"1", a=b"2")
    assert order == ["a", "z", "manifest.json"]
    assert store.exists(SESSION)


def test_an_upload_that_fails_leaves_nothing(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = store.upload

    def failing(key: str, file: BinaryIO, on_progress: Callable[[], None]) -> None:
        if key.endswith("manifest.json"):
            raise ServiceUnavailable("the network is gone")
        upload(key, file, on_progress)

    monkeypatch.setattr(store, "upload", failing)
    with pytest.raises(ServiceUnavailable):
        put(store, a=b"abc")
    assert keys(store) == []
    assert list(store.spool.iterdir()) == []


def test_an_upload_that_broke_off_is_listed_but_not_there(store: S3Store) -> None:
    """What a kill between the files and the manifest leaves."""
    store.upload(f"{SESSION}/a", io.BytesIO(b"abc"))
    assert not store.exists(SESSION)
    assert [(p.prefix, p.bytes) for p in store.list_prefixes("sessions")] == [(SESSION, 3)]
    assert store.delete_many({SESSION: None}) == {}


@pytest.mark.parametrize("size", [0, 3, PART_BYTES, 2 * PART_BYTES + 1])
def test_uploads_are_hashed_and_whole(store: S3Store, size: int) -> None:
    data = np.random.default_rng(1).bytes(size)
    chunks = (data[i : i + 700_001] for i in range(0, size, 700_001))
    assert store.put_stream(FILE, chunks) == (size, sha256(data).hexdigest())
    assert b"".join(store.stream(FILE)) == data
    assert store.exists(FILE)
    assert store.delete_many({FILE: None}) == {}
    assert not store.exists(FILE)


@pytest.mark.parametrize("size", [10, 2 * PART_BYTES])
def test_an_upload_whose_client_goes_away_leaves_nothing(store: S3Store, size: int) -> None:
    def broken() -> Iterator[bytes]:
        yield bytes(size)
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        store.put_stream(FILE, broken())
    assert not store.exists(FILE)
    assert not store._client.list_multipart_uploads(Bucket=store.bucket).get("Uploads")


@pytest.mark.parametrize("key", ["../x", f"{SESSION}/../x", f"{SESSION}/a/b", "files/x", f"/{FILE}"])
def test_only_our_own_keys_are_accepted(store: S3Store, key: str) -> None:
    for call in (
        store.size,
        store.presigned_url,
        store.exists,
        lambda prefix: store.delete_many({prefix: None}),
        store.stage,
    ):
        with pytest.raises(InvalidKey):
            call(key)


def refusals(store: Any) -> list[str]:
    messages = []
    for call in (
        store.check,
        lambda: store.size(f"{SESSION}/a"),
        lambda: store.exists(SESSION),
        lambda: store.read(f"{SESSION}/a", 0, 1),
        lambda: store.put_stream(FILE, [b"x"]),
        lambda: put(store, a=b"x"),
        lambda: list(store.list_prefixes("sessions")),
    ):
        with pytest.raises(ServiceUnavailable) as refused:
            call()
        messages.append(str(refused.value))
    return messages


def test_missing_credentials_are_named_as_the_reason(s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert all("credentials" in m for m in refusals(open_store(f"s3://{s3_bucket}")))


def test_a_missing_bucket_is_named_as_the_reason(s3_environment: None) -> None:
    store = open_store("s3://there-is-no-such-bucket/p")
    with pytest.raises(ServiceUnavailable, match="create it"):
        store.check()
    with pytest.raises(ServiceUnavailable, match="create it"):
        store.put_stream(FILE, [b"x"])
    with pytest.raises(ServiceUnavailable, match="create it"):
        list(store.list_prefixes("sessions"))


def test_a_server_that_is_gone(s3_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    assert all("cannot be used" in m for m in refusals(S3Store("bucket", attempts=1)))


def test_an_upload_in_parts_reports_its_progress(store: S3Store) -> None:
    reported: list[None] = []
    with store.stage(SESSION) as stage:
        with stage.create("activations.safetensors") as file:
            file.write(bytes(2 * PART_BYTES + 1))
        with stage.create("manifest.json") as file:
            file.write(b"{}")
        stage.on_progress = lambda: reported.append(None)
        stage.commit()
    assert len(reported) >= 3
    assert store.size(f"{SESSION}/activations.safetensors") == 2 * PART_BYTES + 1


@pytest.mark.parametrize("code", ["NotImplemented", "InvalidArgument", "MissingContentMD5"])
def test_a_server_that_refuses_checksum_headers_gets_a_content_md5(
    s3_server: S3Server, s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    with StrictS3(s3_server.url, code).serving() as strict:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", strict.url)
        store = S3Store(s3_bucket, "lab", spool=tmp_path)
        store.check()
        large = bytes(PART_BYTES + 1)
        put(store, a=b"rows", b=large)
        assert store.put_stream(FILE, [b"x", b"yz"]) == (3, sha256(b"xyz").hexdigest())
        assert store.read(f"{SESSION}/a", 1, 2) == b"ow"
        assert b"".join(store.stream(f"{SESSION}/b")) == large
        assert store.delete_many({SESSION: None, FILE: None}) == {}
        assert keys(store) == []
        # one refusal is enough: from then on each upload and deletion is checked by its MD5
        assert strict.refused.total() == 1
        assert strict.with_md5["PUT"] >= 5
        assert strict.with_md5["POST"] >= 2


def test_a_check_stores_reads_and_deletes(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.check()
    assert keys(store) == []
    for name, fault in {
        "put_object": ClientError({"Error": {"Code": "AccessDenied"}}, "PutObject"),
        "get_object": ClientError({"Error": {"Code": "AccessDenied"}}, "GetObject"),
        "delete_objects": ClientError({"Error": {"Code": "AccessDenied"}}, "DeleteObjects"),
    }.items():
        fresh = S3Store(store.bucket, store.prefix, spool=store.spool)

        def refuse(fault: ClientError = fault, **_: Any) -> None:
            raise fault

        monkeypatch.setattr(fresh._client, name, refuse)
        for call in (fresh.check, fresh.reach):
            with pytest.raises(ServiceUnavailable, match="AccessDenied"):
                call()
