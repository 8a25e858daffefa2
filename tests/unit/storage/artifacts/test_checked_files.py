"""Stored files are verified as they are read: no flipped byte is ever returned."""

import hashlib
import secrets
from pathlib import Path

import pytest

from actograph.contract.errors import StoreDamaged
from storage.artifacts.checked_files import CheckedFile, ChunkDigests, FileHasher
from storage.artifacts.local import LocalStore

CHUNK = 1000
KEY = f"files/file_{secrets.token_hex(16)}"
DATA = secrets.token_bytes(10 * CHUNK + 17)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def stored(store: LocalStore, data: bytes, *, chunks: bool = True) -> CheckedFile:
    store.put_stream(KEY, [data])
    hasher = FileHasher(CHUNK)
    hasher.update(data)
    assert hasher.sha256 == hashlib.sha256(data).hexdigest()
    return CheckedFile(
        store, KEY, size=len(data), sha256=hasher.sha256, chunks=hasher.chunks if chunks else None
    )


def flip(store: LocalStore, at: int) -> None:
    path = store.root / KEY
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("pieces", [[DATA], [DATA[:1], DATA[1:999], DATA[999:5000], DATA[5000:]]])
def test_chunk_digests_do_not_depend_on_how_the_bytes_come(pieces: list[bytes]) -> None:
    hasher = FileHasher(CHUNK)
    for piece in pieces:
        hasher.update(piece)
    expected = [hashlib.sha256(DATA[at : at + CHUNK]).hexdigest() for at in range(0, len(DATA), CHUNK)]
    assert hasher.chunks == ChunkDigests(bytes=CHUNK, sha256=expected)
    assert hasher.size == len(DATA)


@pytest.mark.parametrize(("size", "count"), [(0, 0), (CHUNK, 0), (CHUNK + 1, 2), (2 * CHUNK, 2)])
def test_a_file_of_one_chunk_needs_no_list(size: int, count: int) -> None:
    hasher = FileHasher(CHUNK)
    hasher.update(DATA[:size])
    assert len(hasher.chunks.sha256 if hasher.chunks else ()) == count


def test_every_range_comes_back(store: LocalStore) -> None:
    file = stored(store, DATA)
    for start in (0, 1, 999, 1000, 1001, 5500, 10_000, 10_016):
        for stop in (start, start + 1, 6000, len(DATA)):
            if start <= stop:
                assert file.read(start, stop - start) == DATA[start:stop]
                assert b"".join(file.stream(start, stop)) == DATA[start:stop]
    assert b"".join(file.stream()) == DATA


@pytest.mark.parametrize("at", [0, 999, 1000, 5500, len(DATA) - 1])
def test_a_flipped_byte_is_met_by_every_read_of_its_chunk_and_by_no_other(store: LocalStore, at: int) -> None:
    file = stored(store, DATA)
    flip(store, at)
    low, high = at // CHUNK * CHUNK, min(len(DATA), at // CHUNK * CHUNK + CHUNK)
    for start, length in ((low, 1), (high - 1, 1), (0, len(DATA))):
        with pytest.raises(StoreDamaged, match=f"bytes {low} to {high} do not match") as caught:
            file.read(start, length)
        assert caught.value.artifact == KEY.partition("/")[2]
        with pytest.raises(StoreDamaged):
            list(file.stream(start, start + length))
    assert file.read(0, low) == DATA[:low]
    assert file.read(high, len(DATA) - high) == DATA[high:]


def test_a_stream_ends_before_the_damage(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.artifacts.checked_files.STREAM_CHUNK", 2 * CHUNK)
    file = stored(store, DATA)
    flip(store, 7 * CHUNK)
    came = b""
    with pytest.raises(StoreDamaged):
        for piece in file.stream():
            came += piece
    assert came == DATA[: 6 * CHUNK]


@pytest.mark.parametrize("at", [0, -1])
def test_a_large_file_without_chunk_digests_is_verified_before_its_last_piece(
    store: LocalStore, at: int
) -> None:
    data = secrets.token_bytes((2 << 20) + 5)
    file = stored(store, data, chunks=False)
    assert b"".join(file.stream()) == data
    assert file.read(10, 5) == data[10:15]
    flip(store, at)
    came = b""
    with pytest.raises(StoreDamaged, match="sha256"):
        for piece in file.stream():
            came += piece
    assert len(came) < len(data)


def test_a_small_file_without_chunk_digests_is_verified_by_its_own(store: LocalStore) -> None:
    data = DATA[:CHUNK]
    file = stored(store, data, chunks=False)
    assert file.read(3, 4) == data[3:7]
    flip(store, 900)
    with pytest.raises(StoreDamaged):
        file.read(3, 4)


def test_a_missing_short_or_long_file_is_damage(store: LocalStore) -> None:
    file = stored(store, DATA)
    path = store.root / KEY
    path.write_bytes(DATA + b"x")
    with pytest.raises(StoreDamaged, match=f"has {len(DATA) + 1} bytes"):
        file.check_size()
    path.write_bytes(DATA[:-1])
    with pytest.raises(StoreDamaged):
        file.read(len(DATA) - 2, 2)
    path.unlink()
    for act in (file.check_size, lambda: file.read(0, 1), lambda: list(file.stream())):
        with pytest.raises(StoreDamaged, match=r"missing|no stored file"):
            act()


def test_a_list_of_digests_of_another_length_is_refused(store: LocalStore) -> None:
    with pytest.raises(StoreDamaged, match="3 chunk digests"):
        CheckedFile(store, KEY, size=10, sha256="", chunks=ChunkDigests(bytes=10, sha256=["", "", ""]))
