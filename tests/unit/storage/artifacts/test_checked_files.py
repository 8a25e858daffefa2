"""Stored files are compared with what was recorded: whole files by sha256, ranges by the file's end."""

import hashlib
import secrets
from pathlib import Path

import pytest

from actograph.contract.errors import StoreDamaged
from storage.artifacts.checked_files import CheckedFile
from storage.artifacts.local import LocalStore

KEY = f"files/file_{secrets.token_hex(16)}"
#: several pieces of a stream
DATA = secrets.token_bytes((3 << 20) + 17)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def stored(store: LocalStore, data: bytes = DATA) -> CheckedFile:
    store.put_stream(KEY, [data])
    return CheckedFile(store, KEY, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def test_a_whole_file_and_ranges_of_it(store: LocalStore) -> None:
    file = stored(store)
    file.check_whole()
    assert b"".join(file.stream()) == DATA
    for start, stop in [(0, 0), (0, 1), (999, 2 << 20), (5, len(DATA)), (len(DATA), len(DATA))]:
        assert file.read(start, stop - start) == b"".join(file.pieces(start, stop)) == DATA[start:stop]
    with file.open() as opened:
        assert opened.read() == DATA
        opened.seek(-17, 2)
        assert opened.read(100) == DATA[-17:]


def test_an_empty_file(store: LocalStore) -> None:
    file = stored(store, b"")
    file.check_whole()
    assert list(file.stream()) == []


def test_a_flipped_byte_is_found_before_the_last_piece(store: LocalStore, subtests: pytest.Subtests) -> None:
    for at in [0, 1 << 20, len(DATA) - 1]:
        with subtests.test(at=at):
            file = stored(store)
            data = bytearray(DATA)
            data[at] ^= 1
            (store.root / KEY).write_bytes(data)
            received = b""
            with pytest.raises(StoreDamaged, match="its sha256 is not the recorded one") as caught:
                for piece in file.stream():
                    received += piece
            assert len(received) < len(DATA)
            assert caught.value.artifact == KEY.partition("/")[2]


def test_a_file_that_is_missing_or_has_another_size(store: LocalStore) -> None:
    file = stored(store)
    (store.root / KEY).write_bytes(DATA[:-1])
    for act in (file.check_size, file.check_whole, lambda: file.read(len(DATA) - 1, 1)):
        with pytest.raises(StoreDamaged):
            act()
    (store.root / KEY).unlink()
    for act in (file.check_size, lambda: file.read(0, 1), lambda: list(file.stream())):
        with pytest.raises(StoreDamaged, match=r"missing|no stored file"):
            act()
