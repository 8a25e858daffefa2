"""The interface of artifact stores, and the keys that they accept.

A prefix (`sessions/ses_<32 hex>`) is a folder of files that appears as a whole. A single file
(`files/file_<32 hex>`) is a prefix and a key. Both are built from ids of this service; any other key is
refused before it becomes part of a path.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, Protocol, Self

from actograph.contract.errors import ServiceUnavailable

MANIFEST = "manifest.json"
STREAM_CHUNK = 1 << 20
#: bytes written between two reports of progress
PIECE_BYTES = 32 << 20

_PREFIX = re.compile(r"(?:sessions/ses|files/file)_[0-9a-f]{32}")
_PARENT = re.compile(r"sessions|files")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_KEY = re.compile(rf"sessions/ses_[0-9a-f]{{32}}/{_NAME.pattern}|files/file_[0-9a-f]{{32}}")


class InvalidKey(ValueError):
    """A key that was not built from ids of this service: a bug in the caller, never a client's mistake."""


def _check(pattern: re.Pattern[str], text: str, what: str) -> str:
    if not pattern.fullmatch(text):
        raise InvalidKey(f"not {what}: {text!r}")
    return text


def check_key(key: str) -> str:
    return _check(_KEY, key, "an artifact key")


def check_prefix(prefix: str) -> str:
    return _check(_PREFIX, prefix, "an artifact prefix")


def check_parent(parent: str) -> str:
    return _check(_PARENT, parent, "a parent of artifacts (sessions or files)")


def check_name(name: str) -> str:
    return _check(_NAME, name, "a file name for an artifact")


def is_prefix(text: str) -> bool:
    return _PREFIX.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPrefix:
    """One entry of a listing."""

    prefix: str
    #: Unix seconds of the newest file in it
    modified_at: float
    bytes: int

    @property
    def id(self) -> str:
        """Id of the session or file."""
        return self.prefix.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicEndpoint:
    """Address of an S3 store for clients, if it differs from that of this process."""

    url: str
    #: `https://host/bucket/key` or `https://bucket.host/key`
    addressing: Literal["path", "virtual"] = "path"


class StagedPrefix(ABC):
    """Files that become visible together at `commit`, or never.

    Leaving the `with` block without a commit discards them. Errors of a full disk are OSErrors.
    """

    def __init__(self) -> None:
        #: called, from any thread, for every piece that is written, read or uploaded
        self.on_progress: Callable[[], None] = lambda: None
        #: takes the reason for which nothing can be stored now; True once another attempt makes sense
        self.waits: Callable[[ServiceUnavailable], bool] = lambda reason: False
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    @abstractmethod
    def create(self, name: str) -> BinaryIO:
        """A new file to write, read and seek in; close it before `rename` and `commit`."""

    def start_writeback(self, file: BinaryIO) -> None:  # noqa: B027 (most stores need none)
        """Start writing `file` to the disk, if `commit` waits for the disk; a hint that makes it faster."""

    def start_upload(self, name: str) -> None:  # noqa: B027 (a local store has none)
        """Start uploading a closed file, which is not changed any more; a hint that frees its memory."""

    @abstractmethod
    def rename(self, old: str, new: str) -> None:
        """Rename a closed file that was created here. Raises Conflict if `new` exists."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a closed file that was created here."""

    @abstractmethod
    def commit(self) -> None:
        """Make every file durable, then visible; the manifest never before the others.

        After ServiceUnavailable it may be called again.

        Raises:
            ValueError: the manifest was not created.
            Conflict: the prefix exists already. It is left as it was. An S3 store does not look: ids of
                sessions are drawn at random for each claim.
            ServiceUnavailable: the store cannot be written to.
        """

    @abstractmethod
    def discard(self) -> None:
        """Remove the staged files. Does nothing after a commit."""


class ArtifactStore(Protocol):
    """Safe for use from many threads at once."""

    def __hash__(self) -> int: ...

    def check(self) -> None:
        """Raise ServiceUnavailable, with advice, if nothing can be stored now."""
        ...

    def reach(self) -> None:
        """Raise ServiceUnavailable if the store cannot be reached. Writes nothing, unlike `check`."""
        ...

    def stage(self, prefix: str) -> StagedPrefix: ...

    def read(self, key: str, start: int, length: int) -> bytes:
        """Exactly `length` bytes from `start`.

        Raises:
            NotFound: no such key.
            RangeNotSatisfiable: the file ends before.
        """
        ...

    def stream(
        self, key: str, start: int = 0, stop: int | None = None, chunk: int = STREAM_CHUNK
    ) -> Iterator[bytes]:
        """Bytes [start, stop) in pieces of at most `chunk`; errors as `read`, at the first piece."""
        ...

    def size(self, key: str) -> int:
        """Size of a file. Raises NotFound."""
        ...

    def exists(self, prefix: str) -> bool:
        """Whether a prefix was committed."""
        ...

    def delete_many(self, prefixes: Mapping[str, Sequence[str] | None]) -> dict[str, str]:
        """Remove all files of many prefixes, durably. Missing files are no error.

        Args:
            prefixes: prefix -> names of its files if known, so that an S3 store need not list them.

        Returns:
            Prefix -> reason, for every prefix that could not be removed completely.
        """
        ...

    def list_prefixes(self, parent: str, after: str = "") -> Iterator[StoredPrefix]:
        """Prefixes under `sessions` or `files` that follow the id `after`, in the order of their ids.

        S3 also lists incomplete sessions without a manifest.
        """
        ...

    def put_stream(self, key: str, chunks: Iterable[bytes]) -> tuple[int, str]:
        """Store one file from a stream, completely or not at all. Returns size and sha256."""
        ...

    def presigned_url(self, key: str) -> str | None:
        """A URL for a direct download within 15 minutes; None if the store has none."""
        ...

    def local_path(self, key: str) -> Path | None:
        """The path of a file on this machine; None if the store has none."""
        ...

    def free_bytes(self) -> int | None:
        """Free bytes; None if unknown."""
        ...

    def staged_bytes(self) -> int:
        """Bytes of files that wait on this machine for their upload; 0 for a local store."""
        ...

    def is_crowded(self) -> bool:
        """Whether files come faster than they are uploaded, so that no more should be begun."""
        ...

    def sweep_staging(self, older_than_seconds: float, *, dry_run: bool = False) -> int:
        """Remove leftovers of killed writers. Returns their number, also with `dry_run`."""
        ...
