"""Files that wait for their upload: in memory, then on disk, never more than the bounds."""

import errno
import hashlib
import io
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from actograph.contract.errors import StorageFull
from storage.artifacts.upload_space import StagedFile, UploadSpace
from tests.support.waiting import wait_until


def file_in(space: UploadSpace, data: bytes = b"") -> StagedFile:
    made = StagedFile(space, lambda: None)
    made.write(data)
    return made


def content(file: StagedFile) -> bytes:
    file.seek(0)
    return file.read()


def test_a_file_moves_to_the_disk_when_memory_is_full_and_keeps_its_content(tmp_path: Path) -> None:
    space = UploadSpace(tmp_path / "spool", memory_bytes=100, disk_bytes=1000)
    first = file_in(space, b"a" * 60)
    assert (space.memory, space.disk, space.is_crowded) == (60, 0, True)
    assert not space.folder.exists(), "rows that fit in memory need no disk"
    second = StagedFile(space, lambda: None)
    second.seek(10)  # room for a header
    second.write(b"rows")
    second.write(b"b" * 90)
    second.seek(0)
    second.write(b"header")
    second.close()
    expected = b"header" + bytes(4) + b"rows" + b"b" * 90
    assert content(second) == expected
    second.seek(0)
    assert hashlib.file_digest(second, "sha256").digest() == hashlib.sha256(expected).digest()  # type: ignore[arg-type]
    assert (space.memory, space.disk) == (60, 104)
    assert list(space.folder.iterdir()) == [], "a killed process leaves no file"
    first.drop()
    second.drop()
    assert (space.memory, space.disk, space.is_crowded) == (0, 0, False)


def test_beyond_both_bounds_a_file_is_refused_unless_an_upload_gives_room_back(tmp_path: Path) -> None:
    space = UploadSpace(tmp_path, memory_bytes=10, disk_bytes=20)
    held = [file_in(space, bytes(10)), file_in(space, bytes(20))]
    with pytest.raises(StorageFull, match="ACTOGRAPH_UPLOAD_DISK_BYTES"):
        file_in(space, b"x" * 15)
    assert (space.memory, space.disk) == (10, 20)
    waiting = StagedFile(space, lambda: None)
    thread = threading.Thread(target=waiting.write, args=(b"x" * 15,), daemon=True)
    with space.uploading():
        thread.start()
        held.pop().drop()
        wait_until(lambda: space.disk == 15)
    thread.join(timeout=30)
    assert content(waiting) == b"x" * 15
    for file in (waiting, *held):
        file.drop()
    assert (space.memory, space.disk) == (0, 0)


def test_a_full_disk_is_tried_again_after_an_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    space = UploadSpace(tmp_path, memory_bytes=0, disk_bytes=100)
    refusals = [True]

    class Full(io.BytesIO):
        def write(self, data: Any, /) -> int:
            if refusals and refusals.pop():
                threading.Thread(target=space.give).start()
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(bytes(data)[:3])  # a raw file may take less than it is given

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    with space.uploading():
        made = file_in(space, b"0123456789")
    assert content(made) == b"0123456789"
    assert "No space left on device; a session waits for uploads" in caplog.text
    refusals.append(True)
    with pytest.raises(OSError, match="No space"):
        made.write(b"more")


def test_a_file_that_the_full_disk_refused_gives_its_memory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is dropped while the error is handled, whose frames hold what was to be written."""

    class Full(io.BytesIO):
        def write(self, data: Any, /) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    space = UploadSpace(tmp_path, memory_bytes=8, disk_bytes=100)
    made = file_in(space, b"01234567")
    assert space.memory == 8
    try:
        made.write(b"89")
    except OSError as error:
        assert error.errno == errno.ENOSPC
        assert (space.memory, space.disk, content(made)) == (8, 0, b"01234567")
        made.drop()
    assert (space.memory, space.disk) == (0, 0)
