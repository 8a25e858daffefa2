"""Artifacts in a local folder. Files are staged, made durable, then renamed into place.

The order is the usual one for a crash-safe file: write, fsync the file, rename, fsync the folder. Leftovers
of a killed writer have names that begin with `.staging-`.
"""

import errno
import io
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from typing_extensions import Buffer

from actograph.contract.errors import Conflict, NotFound, RangeNotSatisfiable, ServiceUnavailable
from storage.artifacts.store import (
    MANIFEST,
    PIECE_BYTES,
    STREAM_CHUNK,
    StagedPrefix,
    StoredPrefix,
    check_key,
    check_name,
    check_parent,
    check_prefix,
    is_prefix,
)

STAGING = ".staging-"
_PROBE_BYTES = 64 << 10


class LocalStore:
    """Files under `root`, which is created. See `store.ArtifactStore` for the methods."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        for parent in ("sessions", "files"):
            (self.root / parent).mkdir(parents=True, exist_ok=True)

    def reach(self) -> None:
        if not os.access(self.root / "sessions", os.W_OK | os.X_OK):
            raise ServiceUnavailable(f"the artifact folder {self.root} is missing or cannot be written to")

    def check(self) -> None:
        self.reach()
        probe = staging_path(self.root / "sessions" / "probe")
        try:
            probe.write_bytes(bytes(_PROBE_BYTES))
        except OSError as error:
            raise ServiceUnavailable(f"nothing can be stored in {self.root}: {error}") from error
        finally:
            probe.unlink(missing_ok=True)

    def stage(self, prefix: str) -> "LocalStage":
        target = self.root / check_prefix(prefix)
        return LocalStage(target, staging_path(target))

    def read(self, key: str, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise RangeNotSatisfiable(f"{key}: bytes {start} to {start + length} are not a range")
        with self._opened(key) as fd:
            data = os.pread(fd, length, start)
            while len(data) < length:
                more = os.pread(fd, length - len(data), start + len(data))
                if not more:
                    raise RangeNotSatisfiable(
                        f"{key}: bytes {start} to {start + length} of {os.fstat(fd).st_size}"
                    )
                data += more
            return data

    def stream(
        self, key: str, start: int = 0, stop: int | None = None, chunk: int = STREAM_CHUNK
    ) -> Iterator[bytes]:
        with self._opened(key) as fd:
            size = os.fstat(fd).st_size
            stop = size if stop is None else stop
            if not 0 <= start <= stop <= size:
                raise RangeNotSatisfiable(f"{key}: bytes {start} to {stop} of {size}")
            while start < stop:
                data = os.pread(fd, min(chunk, stop - start), start)
                if not data:
                    raise RangeNotSatisfiable(f"{key}: the file shrank while it was read")
                start += len(data)
                yield data

    def size(self, key: str) -> int:
        with self._opened(key) as fd:
            return os.fstat(fd).st_size

    def exists(self, prefix: str) -> bool:
        return (self.root / check_prefix(prefix)).exists()

    def delete_many(self, prefixes: Mapping[str, Sequence[str] | None]) -> dict[str, str]:
        failures = {}
        for prefix in prefixes:
            try:
                self._delete(prefix)
            except OSError as error:
                failures[prefix] = str(error)
        for parent in {(self.root / prefix).parent for prefix in prefixes}:
            fsync(parent)
        return failures

    def _delete(self, prefix: str) -> None:
        """Remove a prefix, at once and as a whole. The removal is durable after an fsync of its folder.

        The next call, or `sweep_staging`, finds the leftovers of a killed process.
        """
        path = self.root / check_prefix(prefix)
        aside = path.with_name(f"{STAGING}{path.name}-deleted")
        _remove(aside)  # leftovers of a killed call
        with suppress(FileNotFoundError):
            path.rename(aside)
            _remove(aside)

    def list_prefixes(self, parent: str, after: str = "") -> Iterator[StoredPrefix]:
        folder = self.root / check_parent(parent)
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.name > after)
        for name in names:
            if not is_prefix(f"{parent}/{name}"):
                continue
            try:
                newest, size = _newest_and_bytes(folder / name)
            except FileNotFoundError:  # deleted meanwhile
                continue
            yield StoredPrefix(prefix=f"{parent}/{name}", modified_at=newest, bytes=size)

    def put_stream(self, key: str, chunks: Iterable[bytes]) -> tuple[int, str]:
        target = self.root / check_key(key)
        aside = staging_path(target)
        digest, size = sha256(), 0
        try:
            with aside.open("xb") as file:
                for chunk in chunks:
                    file.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)
        fsync(target.parent)
        return size, digest.hexdigest()

    def presigned_url(self, key: str) -> str | None:
        check_key(key)
        return None

    def local_path(self, key: str) -> Path | None:
        return self.root / check_key(key)

    def free_bytes(self) -> int | None:
        return shutil.disk_usage(self.root).free

    def staged_bytes(self) -> int:
        return 0

    def is_crowded(self) -> bool:
        return False

    def sweep_staging(self, older_than_seconds: float, *, dry_run: bool = False) -> int:
        oldest = time.time() - older_than_seconds
        parents = ("sessions", "files")
        return sum(sweep_folder(self.root / parent, oldest, dry_run=dry_run) for parent in parents)

    @contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        try:
            fd = os.open(self.root / check_key(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFound(f"there is no stored file {key}") from None
        try:
            yield fd
        finally:
            os.close(fd)


class LocalStage(StagedPrefix):
    """Files in a folder beside their final place; `commit` renames the folder."""

    def __init__(self, target: Path, folder: Path) -> None:
        super().__init__()
        self._target = target
        self._folder = folder
        folder.mkdir()

    def create(self, name: str) -> BinaryIO:
        return _ReportingFile(self._folder / check_name(name), self.on_progress)

    def rename(self, old: str, new: str) -> None:
        target = self._folder / check_name(new)
        if target.exists():
            raise Conflict(f"{new} was created already")
        (self._folder / check_name(old)).rename(target)

    def remove(self, name: str) -> None:
        (self._folder / check_name(name)).unlink()

    def start_writeback(self, file: BinaryIO) -> None:
        file.flush()
        if hasattr(os, "posix_fadvise"):  # not on macOS
            # Linux begins to write dirty pages and does not wait; the fsync of `commit` reports any failure.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def commit(self) -> None:
        if not (self._folder / MANIFEST).exists():
            raise ValueError(f"{MANIFEST} must be created before the commit")
        for path in self._folder.iterdir():
            fsync(path)
        fsync(self._folder)
        try:
            # One rename shows all files. The system refuses if the target is a folder with files in it.
            self._folder.rename(self._target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise Conflict(f"{self._target.name} is stored already") from error
            raise
        self._ended = True
        fsync(self._target.parent)

    def discard(self) -> None:
        if not self._ended:
            self._ended = True
            shutil.rmtree(self._folder, ignore_errors=True)


class _ReportingFile(io.BufferedRandom):
    """A new file that reports every piece written or read."""

    def __init__(self, path: Path, report: Callable[[], None]) -> None:
        super().__init__(io.FileIO(path, "x+"))
        self._report = report

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
        for start in range(0, len(view), PIECE_BYTES):
            super().write(view[start : start + PIECE_BYTES])
            self._report()
        return len(view)

    def read(self, size: int | None = -1, /) -> bytes:
        self._report()
        return super().read(size)

    def readinto(self, buffer: Buffer, /) -> int:
        self._report()
        return super().readinto(buffer)


def staging_path(target: Path) -> Path:
    """A new name beside `target`, on the same file system."""
    return target.with_name(f"{STAGING}{target.name}-{secrets.token_hex(4)}")


def fsync(path: Path) -> None:
    """Make a file's bytes, or a folder's names, durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sweep_folder(folder: Path, oldest: float, *, dry_run: bool = False) -> int:
    """Remove leftovers in `folder` that were last written before `oldest` (Unix seconds)."""
    removed = 0
    for path in folder.glob(f"{STAGING}*"):
        try:
            newest, _ = _newest_and_bytes(path)
        except FileNotFoundError:  # its writer finished meanwhile
            continue
        if newest <= oldest:
            if not dry_run:
                with suppress(OSError):
                    _remove(path)
            removed += 1
    return removed


def _newest_and_bytes(path: Path) -> tuple[float, int]:
    status = path.stat(follow_symlinks=False)
    if not path.is_dir():
        return status.st_mtime, status.st_size
    newest, size = status.st_mtime, 0
    for child in path.iterdir():
        status = child.stat(follow_symlinks=False)
        newest, size = max(newest, status.st_mtime), size + status.st_size
    return newest, size


def _remove(path: Path) -> None:
    """Remove a file or folder, if it is there. Raises OSError."""
    with suppress(FileNotFoundError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
