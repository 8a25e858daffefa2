"""Logs that programs keep open while what they wrote is put aside."""

import shutil
from pathlib import Path

import pytest

from actograph.stack.log_file import LogFile


@pytest.fixture
def log(tmp_path: Path) -> LogFile:
    return LogFile(tmp_path / "logs" / "toy.log", max_bytes=100)


def test_a_large_log_becomes_the_older_one_and_its_writer_goes_on(log: LogFile) -> None:
    with log.open() as writer:
        for part in (b"a" * 101, b"b" * 102, b"c" * 100):
            writer.write(part)
            writer.flush()
            log.rotate()
            log.rotate()  # what is small stays
    assert log.older.read_bytes() == b"b" * 102
    assert log.path.read_bytes() == b"c" * 100


def test_the_tail_is_of_what_was_written_since_the_start(log: LogFile) -> None:
    assert log.tail(2) == ""
    with log.open() as writer:
        writer.write(b"earlier run\n")
    with log.open() as writer:
        writer.write(b"one\ntwo\nthree\n")
        writer.flush()
        assert log.tail(5) == "one\ntwo\nthree"
        assert log.tail(2) == "two\nthree"
        writer.write(b"x" * 100 + b"\n")
        writer.flush()
        log.rotate()
        writer.write(b"four\n")
        writer.flush()
        assert log.tail(5) == "four"


def test_a_disk_without_room_loses_nothing_of_the_log_and_is_tried_again(
    log: LogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def full(source: object, target: object, length: int) -> None:
        tries.append(length)
        raise OSError(28, "No space left on device")

    with log.open() as writer:
        writer.write(b"a" * 101)
        writer.flush()
        with monkeypatch.context() as patched:
            patched.setattr(shutil, "copyfileobj", full)
            with pytest.raises(OSError, match="No space"):
                log.rotate()
            log.rotate()  # not at every look
    assert len(tries) == 1
    assert not log.older.exists()
    assert log.path.read_bytes() == b"a" * 101
    monkeypatch.setattr(log, "_retry_at", 0.0)
    log.rotate()
    assert log.older.read_bytes() == b"a" * 101
    assert log.path.read_bytes() == b""


def test_a_log_that_somebody_removed_is_no_fault(log: LogFile) -> None:
    log.rotate()
    assert not log.path.exists()
