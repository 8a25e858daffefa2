"""The local store: all or nothing, nothing outside its folder, leftovers found again."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from actograph.contract.errors import Conflict, NotFound, RangeNotSatisfiable, ServiceUnavailable
from storage.artifacts.factory import open_store
from storage.artifacts.local import LocalStore
from storage.artifacts.s3 import S3Store
from storage.artifacts.store import InvalidKey

SESSION = "sessions/ses_" + "0a" * 16
FILE = "files/file_" + "1b" * 16


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "artifacts")


def put(store: LocalStore, prefix: str = SESSION, **files: bytes) -> None:
    with store.stage(prefix) as stage:
        for name, data in {"manifest.json": b"{}", **files}.items():
            with stage.create(name) as file:
                file.write(data)
        stage.commit()


def test_only_our_own_keys_are_accepted(store: LocalStore, subtests: pytest.Subtests) -> None:
    for key in [
        "", "/", "sessions", "files", "sessions/", SESSION, f"{SESSION}/", f"{SESSION}/..", f"{SESSION}/../x",
        f"{SESSION}/a/b", f"{SESSION}/.hidden", f"{SESSION}/a\n", f"{SESSION}/a\0", f"{SESSION}//a",
        f"/{SESSION}/a", f"../{SESSION}/a", f"{SESSION.upper()}/a", "sessions/ses_0a/a", f"{SESSION}0a/a",
        f"{FILE}/a", f"{FILE}\n", "files/../x", f"{SESSION}/" + "a" * 200,
        f"{SESSION}/ä", SESSION.replace("/", "\\") + "/a",
    ]:  # fmt: skip
        with subtests.test(key=key):
            with pytest.raises(InvalidKey):
                store.read(key, 0, 1)
            with pytest.raises(InvalidKey):
                store.size(key)
            with pytest.raises(InvalidKey):
                list(store.stream(key))
            with pytest.raises(InvalidKey):
                store.put_stream(key, [b"x"])
            with pytest.raises(InvalidKey):
                store.presigned_url(key)
            if key != SESSION:
                for prefixed in (store.exists, lambda one: store.delete_many({one: None}), store.stage):
                    with pytest.raises(InvalidKey):
                        prefixed(key)


def test_only_plain_names_can_be_staged(store: LocalStore, subtests: pytest.Subtests) -> None:
    for name in ["", ".", "..", "../x", "a/b", "/etc/passwd", ".staging-x", "a\0b", "a" * 200]:
        with subtests.test(name=name), store.stage(SESSION) as stage, pytest.raises(InvalidKey):
            stage.create(name)


def test_parents_are_a_closed_list(store: LocalStore) -> None:
    with pytest.raises(InvalidKey):
        list(store.list_prefixes("../etc"))


def test_links_out_of_the_store_are_not_followed(store: LocalStore, tmp_path: Path) -> None:
    put(store)
    (tmp_path / "secret").write_text("s")
    (store.root / SESSION / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic link"):
        store.read(f"{SESSION}/link", 0, 1)


def test_files_appear_together_at_commit(store: LocalStore) -> None:
    with store.stage(SESSION) as stage:
        with stage.create("a") as file:
            file.write(b"abcdef")
        with stage.create("manifest.json") as file:
            file.write(b"{}")
        assert not store.exists(SESSION)
        with pytest.raises(NotFound):
            store.size(f"{SESSION}/a")
        stage.commit()
        assert store.exists(SESSION)
    assert store.read(f"{SESSION}/a", 2, 3) == b"cde"
    assert [p.name for p in (store.root / "sessions").iterdir()] == [SESSION.split("/")[1]]


def test_every_file_and_folder_is_made_durable_before_it_is_seen(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append((Path(f"/proc/self/fd/{fd}").readlink().name, store.exists(SESSION)))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    put(store, a=b"1", b=b"2")
    before = [name for name, visible in synced if not visible]
    assert {"a", "b", "manifest.json"} <= set(before[:-1])
    assert before[-1].startswith(".staging-ses_")
    assert [name for name, visible in synced if visible] == ["sessions"]


def test_without_a_commit_nothing_stays(store: LocalStore) -> None:
    with pytest.raises(RuntimeError), store.stage(SESSION) as stage:
        stage.create("a").close()
        raise RuntimeError
    assert list((store.root / "sessions").iterdir()) == []


def test_what_is_stored_is_not_replaced(store: LocalStore) -> None:
    put(store, a=b"first")
    with pytest.raises(Conflict):
        put(store, a=b"second")
    assert store.read(f"{SESSION}/a", 0, 5) == b"first"
    with store.stage("sessions/ses_" + "ff" * 16) as stage:
        stage.create("a").close()
        with pytest.raises(FileExistsError):
            stage.create("a")
        stage.create("b").close()
        with pytest.raises(Conflict):
            stage.rename("b", "a")


def test_a_commit_without_its_manifest_is_refused(store: LocalStore) -> None:
    with store.stage(SESSION) as stage:
        stage.create("a").close()
        with pytest.raises(ValueError, match=r"manifest\.json must be created"):
            stage.commit()
    assert not store.exists(SESSION)


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (0, -1), (0, 7), (6, 1), (9, 1)])
def test_reads_beyond_the_end_are_refused(store: LocalStore, start: int, length: int) -> None:
    put(store, a=b"abcdef")
    with pytest.raises(RangeNotSatisfiable):
        store.read(f"{SESSION}/a", start, length)
    with pytest.raises(RangeNotSatisfiable):
        next(store.stream(f"{SESSION}/a", start, start + length))  # before the first byte


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_streams_are_cut_into_chunks(store: LocalStore, chunk: int) -> None:
    put(store, a=b"abcdefghi")
    pieces = list(store.stream(f"{SESSION}/a", 1, 8, chunk))
    assert b"".join(pieces) == b"bcdefgh"
    assert max(map(len, pieces)) <= chunk
    assert b"".join(store.stream(f"{SESSION}/a")) == b"abcdefghi"
    assert list(store.stream(f"{SESSION}/a", 9, 9)) == []


def test_deleting_twice_is_no_error(store: LocalStore) -> None:
    put(store, a=b"abcdef")
    store.put_stream(FILE, [b"xyz"])
    for _ in range(2):
        assert store.delete_many({SESSION: None, FILE: None}) == {}
    assert not store.exists(SESSION)
    assert not store.exists(FILE)
    assert not list(store.root.glob("*/*"))


def test_listing_leaves_out_what_is_being_written(store: LocalStore) -> None:
    put(store, a=b"abcdef")
    other = store.stage("sessions/ses_" + "ee" * 16)
    (store.root / "sessions" / "notes.txt").write_text("not ours")
    (found,) = store.list_prefixes("sessions")
    assert (found.prefix, found.bytes) == (SESSION, 8)
    assert abs(found.modified_at - time.time()) < 60
    assert list(store.list_prefixes("files")) == []
    other.discard()


def test_uploads_are_hashed_and_whole(store: LocalStore) -> None:
    size, digest = store.put_stream(FILE, [b"ab", b"", b"c"])
    assert (size, digest) == (3, sha256(b"abc").hexdigest())
    path = store.root / FILE
    assert path.read_bytes() == b"abc"
    assert store.presigned_url(FILE) is None

    def broken() -> Iterator[bytes]:
        yield b"half"
        raise ConnectionError

    other = "files/file_" + "2c" * 16
    with pytest.raises(ConnectionError):
        store.put_stream(other, broken())
    assert not store.exists(other)
    assert len(list((store.root / "files").iterdir())) == 1


KILLED = """
import os, signal, sys
from pathlib import Path
from storage.artifacts.local import LocalStore
stage = LocalStore(Path(sys.argv[1])).stage("sessions/ses_" + "0a" * 16)
file = stage.create("shard-0")
file.write(b"x" * 100_000)
file.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_is_swept(store: LocalStore) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(store.root)], check=False)
    assert killed.returncode == -9
    (left,) = (store.root / "sessions").iterdir()
    assert left.name.startswith(".staging-ses_")
    assert not store.exists(SESSION)
    assert store.sweep_staging(3600) == 0  # its writer might still live
    assert left.exists()
    put(store)  # the same session may be written again meanwhile
    assert store.sweep_staging(0) == 1
    assert store.exists(SESSION)
    assert not left.exists()


def test_a_stage_that_is_still_written_to_is_not_swept(store: LocalStore) -> None:
    with store.stage(SESSION) as stage:
        (folder,) = (store.root / "sessions").iterdir()
        with stage.create("a") as file:
            file.write(b"new")
        os.utime(folder, (0, 0))
        assert store.sweep_staging(60) == 0
        os.utime(folder / "a", (0, 0))
        assert store.sweep_staging(60) == 1


def test_space_and_readiness(store: LocalStore) -> None:
    assert (store.free_bytes() or 0) > 0
    store.check()
    (store.root / "sessions").rename(store.root / "gone")
    with pytest.raises(ServiceUnavailable, match="missing or cannot be written"):
        store.check()


def test_stores_are_opened_by_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = open_store((tmp_path / "a folder").as_uri())
    assert isinstance(local, LocalStore)
    assert local.root == tmp_path / "a folder"
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    remote = open_store("s3://bucket/some/prefix/")
    assert isinstance(remote, S3Store)
    assert (remote.bucket, remote.prefix) == ("bucket", "some/prefix")


def test_other_urls_are_refused(subtests: pytest.Subtests) -> None:
    for url in [
        "",
        "/tmp/x",
        "file://host/x",
        "file:x",
        "s3://",
        "http://x/y",
        "s3://b/p?x=1",
        "file:///x#y",
    ]:
        with subtests.test(url=url), pytest.raises(ValueError, match="artifact URL"):
            open_store(url)
