"""Artifacts in an S3 bucket, or anything that speaks S3.

Credentials, region and endpoint come from the usual AWS environment (`AWS_ACCESS_KEY_ID`, `AWS_PROFILE`,
`AWS_REGION`, `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL` ...). Files of sessions wait in memory for their
upload, or in the machine's temporary folder (`TMPDIR`) if they do not fit there; both are bounded. A session
is uploaded with its manifest last: a session without a manifest does not exist for readers. botocore retries
each request with back-off and sends a CRC32 with every upload, which the server checks. A server that refuses
checksum headers gets a Content-MD5 instead, which all servers check. An interrupted download resumes where it
ended.
"""

import io
import logging
import os
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from hashlib import md5, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast
from uuid import uuid4

import boto3.session
from boto3.exceptions import Boto3Error, S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from actograph.contract.errors import (
    Conflict,
    NotFound,
    RangeNotSatisfiable,
    ServiceUnavailable,
)
from storage.artifacts.store import (
    MANIFEST,
    STREAM_CHUNK,
    PublicEndpoint,
    StagedPrefix,
    StoredPrefix,
    check_key,
    check_name,
    check_parent,
    check_prefix,
    is_prefix,
)
from storage.artifacts.upload_space import StagedFile, UploadSpace

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

PART_BYTES = 16 << 20  # S3 takes 10,000 parts, so files of up to 160 GB
#: a smaller file takes one request instead of three in a row
ONE_REQUEST_BYTES = 64 << 20
#: defaults of ACTOGRAPH_UPLOAD_MEMORY_BYTES and ACTOGRAPH_UPLOAD_DISK_BYTES
UPLOAD_MEMORY_BYTES, UPLOAD_DISK_BYTES = 1 << 30, 8 << 30
PRESIGNED_SECONDS = 900
MOST_CONNECTIONS = 80
_DELETE_BATCH = 1000  # keys that one DeleteObjects request may name
_BODY_ATTEMPTS = 6  # requests for one download, each resuming the one before
_ABSENT = ("404", "NoSuchKey", "NotFound")
#: refusals of a CRC32 in the headers or the trailer of a request, as various servers word them
_REFUSED_CHECKSUMS = frozenset(
    {
        "InvalidArgument",
        "InvalidRequest",
        "MalformedTrailerError",
        "MissingContentLength",
        "MissingContentMD5",
        "NotImplemented",
        "SignatureDoesNotMatch",
        "XAmzContentSHA256Mismatch",
    }
)
_CHECKSUM_HEADERS = ("x-amz-checksum-", "x-amz-sdk-checksum-")
#: seconds for which `reach` believes that the bucket takes objects
_CHECKED_SECONDS = 60.0
_PROBE = b"Actograph checks that this bucket stores, gives back and deletes objects."
_REFUSED = ("401", "403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken")

log = logging.getLogger(__name__)
_T = TypeVar("_T")


class S3Store:
    """Objects of `bucket` whose keys begin with `prefix`. See `store.ArtifactStore` for the methods.

    Every method also raises ServiceUnavailable if the bucket cannot be reached or refuses the request.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        spool: Path | None = None,
        attempts: int = 6,
        public: PublicEndpoint | None = None,
        upload_memory_bytes: int = UPLOAD_MEMORY_BYTES,
        upload_disk_bytes: int = UPLOAD_DISK_BYTES,
    ) -> None:
        """
        Args:
            spool: folder of temporary files.
            attempts: of each request.
            upload_memory_bytes: most memory for files of sessions that wait for their upload ...
            upload_disk_bytes: ... and most bytes of those that do not fit there, in `spool`.
        """
        self.bucket = bucket
        self.prefix = prefix.strip("/")
        self.spool = spool or Path(tempfile.gettempdir())
        self.space = UploadSpace(self.spool, memory_bytes=upload_memory_bytes, disk_bytes=upload_disk_bytes)
        # Self-hosted servers rarely answer under <bucket>.<host>.
        own = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        config = Config(
            retries={"mode": "standard", "total_max_attempts": attempts},
            connect_timeout=5,
            read_timeout=60,
            max_pool_connections=MOST_CONNECTIONS,
            signature_version="s3v4",
            s3={"addressing_style": "path" if own else "auto"},
        )
        self._transfer = TransferConfig(
            multipart_threshold=ONE_REQUEST_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=4
        )
        with self._failures(bucket):
            # A session of our own: boto3's default one must not be shared between threads.
            self._client: S3Client = boto3.session.Session().client("s3", config=config)
            # It signs URLs and sends nothing: the host is part of the signature.
            self._signer: S3Client = self._client
            if public is not None:
                style = Config(s3={"addressing_style": public.addressing})
                self._signer = boto3.session.Session().client(
                    "s3", endpoint_url=public.url, config=config.merge(style)
                )
        #: whether the server refuses checksum headers
        self._refuses_checksums = False
        self._checked_at = float("-inf")
        #: object of `check`; one for each store, so that a bucket without deletions does not fill
        self._probe = "/".join([*([self.prefix] if self.prefix else []), "readiness", uuid4().hex])
        self._checking = threading.Lock()
        self._client.meta.events.register_last("before-call.s3", _send_at_once)
        self._client.meta.events.register_last("before-call.s3", self._without_checksum_headers)

    def check(self) -> None:
        """Store, read and delete an object. Raise ServiceUnavailable, with advice, if that fails."""
        key, bucket = self._probe, self.bucket
        self._reach_bucket()
        with self._checking:
            self._send(key, lambda: self._client.put_object(Bucket=bucket, Key=key, Body=_PROBE))
            reply = self._send(key, lambda: self._client.get_object(Bucket=bucket, Key=key))
            with self._failures(key), closing(reply["Body"]) as body:
                found = body.read()
            kept = self._delete([key])
        if found != _PROBE:
            raise ServiceUnavailable(f"S3 bucket {bucket} returned other bytes than were stored in {key}")
        for reason in kept.values():
            raise ServiceUnavailable(f"S3 bucket {bucket} did not delete {key}: {reason}")
        self._checked_at = time.monotonic()

    def reach(self) -> None:
        if time.monotonic() - self._checked_at < _CHECKED_SECONDS:
            self._reach_bucket()
        else:
            self.check()

    def _reach_bucket(self) -> None:
        """Raise ServiceUnavailable, with advice, if the bucket does not answer."""
        with self._failures(self.bucket):
            try:
                self._client.head_bucket(Bucket=self.bucket)
            except ClientError as error:
                if _code(error) in _ABSENT:
                    raise ServiceUnavailable(f"there is no S3 bucket {self.bucket}: create it") from error
                raise

    def stage(self, prefix: str) -> "S3Stage":
        check_prefix(prefix)
        return S3Stage(self, prefix)

    def read(self, key: str, start: int, length: int) -> bytes:
        pieces = list(self.stream(key, start, start + length, chunk=max(1, length)))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def stream(
        self, key: str, start: int = 0, stop: int | None = None, chunk: int = STREAM_CHUNK
    ) -> Iterator[bytes]:
        if start < 0 or (stop is not None and stop < start):
            raise RangeNotSatisfiable(f"{key}: bytes {start} to {stop} are not a range")
        if stop is None or stop == start:
            size = self.size(key)
            stop = size if stop is None else stop
            if stop > size or start > size:
                raise RangeNotSatisfiable(f"{key}: bytes {start} to {stop} of {size}")
        failures = 0
        while start < stop:
            try:
                for piece in self._get(key, start, stop, chunk):
                    start += len(piece)
                    yield piece
            except BotoCoreError as error:
                failures += 1
                if failures == _BODY_ATTEMPTS or start == stop:
                    raise ServiceUnavailable(f"{key} could not be downloaded: {error}") from error
                time.sleep(0.1 * 2**failures)

    def _get(self, key: str, start: int, stop: int, chunk: int) -> Iterator[bytes]:
        """The bytes of one request. Raises BotoCoreError if the connection breaks midway."""
        full, span = self._key(key), f"bytes={start}-{stop - 1}"
        reply = self._send(key, lambda: self._client.get_object(Bucket=self.bucket, Key=full, Range=span))
        with closing(reply["Body"]) as body:
            # S3 shortens a range that reaches past the end.
            total = int(reply["ContentRange"].rpartition("/")[2])
            if stop > total:
                raise RangeNotSatisfiable(f"{key}: bytes {start} to {stop} of {total}")
            yield from body.iter_chunks(chunk)

    def size(self, key: str) -> int:
        with self._failures(key):
            return self._client.head_object(Bucket=self.bucket, Key=self._key(key))["ContentLength"]

    def exists(self, prefix: str) -> bool:
        key = prefix if prefix.startswith("files/") else f"{check_prefix(prefix)}/{MANIFEST}"
        try:
            self.size(key)
        except NotFound:
            return False
        return True

    def delete_many(self, prefixes: Mapping[str, Sequence[str] | None]) -> dict[str, str]:
        owners: dict[str, str] = {}
        try:
            for prefix, names in prefixes.items():
                owners |= dict.fromkeys(self._keys(prefix, names), prefix)
        except ServiceUnavailable as error:
            return dict.fromkeys(prefixes, str(error))
        return {owners[key]: reason for key, reason in self._delete(list(owners)).items()}

    def _keys(self, prefix: str, names: Sequence[str] | None) -> list[str]:
        """The keys of a prefix. Without the names of its files, the bucket is listed."""
        check_prefix(prefix)
        if prefix.startswith("files/"):
            return [self._key(prefix)]
        if names is None:
            return [item["Key"] for item in self._objects(prefix)]
        return [self._key(f"{prefix}/{name}") for name in names]

    def _delete(self, keys: list[str]) -> dict[str, str]:
        """Delete keys, 1,000 per request. Returns the keys that are still stored, with the reason."""
        kept: dict[str, str] = {}
        for start in range(0, len(keys), _DELETE_BATCH):
            batch = keys[start : start + _DELETE_BATCH]
            try:
                listed: Any = {"Objects": [{"Key": key} for key in batch], "Quiet": True}
                reply = self._send(batch[0], partial(self._delete_listed, listed))
            except ServiceUnavailable as error:  # further requests would fail too
                return kept | dict.fromkeys(keys[start:], str(error))
            kept |= {str(failed.get("Key")): str(failed.get("Message")) for failed in reply.get("Errors", [])}
        return kept

    def list_prefixes(self, parent: str, after: str = "") -> Iterator[StoredPrefix]:
        prefix, newest, size = "", 0.0, 0
        # "0" follows "/": it is behind every key of `after`, and before those of the next id
        behind = f"{check_parent(parent)}/{after}0" if after else ""
        for item in self._objects(f"{parent}/", behind):  # in the order of their keys
            key = item["Key"].removeprefix(f"{self.prefix}/" if self.prefix else "")
            found = "/".join(key.split("/")[:2])
            if not is_prefix(found):
                continue
            if found != prefix:
                if prefix:
                    yield StoredPrefix(prefix=prefix, modified_at=newest, bytes=size)
                prefix, newest, size = found, 0.0, 0
            newest, size = max(newest, item["LastModified"].timestamp()), size + item["Size"]
        if prefix:
            yield StoredPrefix(prefix=prefix, modified_at=newest, bytes=size)

    def put_stream(self, key: str, chunks: Iterable[bytes]) -> tuple[int, str]:
        digest, size = sha256(), 0
        self.spool.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.spool) as file:
            for chunk in chunks:
                digest.update(chunk)
                size += file.write(chunk)
            self.upload(key, cast(BinaryIO, file))
        return size, digest.hexdigest()

    def presigned_url(self, key: str) -> str | None:
        with self._failures(key):
            return self._signer.generate_presigned_url(
                "get_object",
                Params={"Bucket": self.bucket, "Key": self._key(key)},
                ExpiresIn=PRESIGNED_SECONDS,
            )

    def local_path(self, key: str) -> Path | None:
        return None

    def free_bytes(self) -> int | None:
        return None

    def staged_bytes(self) -> int:
        return self.space.memory + self.space.disk

    def is_crowded(self) -> bool:
        return self.space.is_crowded

    def sweep_staging(self, older_than_seconds: float, *, dry_run: bool = False) -> int:
        """Abort abandoned uploads. Nothing is left on this machine: its temporary files have no name."""
        oldest, removed = time.time() - older_than_seconds, 0
        with self._failures(self.bucket):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.bucket, Prefix=f"{self.prefix}/" if self.prefix else ""
            )
            for page in pages:
                for upload in page.get("Uploads", []):
                    if upload["Initiated"].timestamp() > oldest:
                        continue
                    removed += 1
                    if not dry_run:
                        self._client.abort_multipart_upload(
                            Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                        )
        return removed

    def upload(self, key: str, file: BinaryIO, on_progress: Callable[[], None] = lambda: None) -> None:
        """Store a file: in one request, or a large one in parallel parts. The file stays open."""
        full, size = self._key(key), file.seek(0, os.SEEK_END)

        def send() -> None:
            file.seek(0)
            body: Any = _Unclosed(file)
            if size <= ONE_REQUEST_BYTES:
                self._client.put_object(Bucket=self.bucket, Key=full, Body=body)
            else:
                self._client.upload_fileobj(
                    body, self.bucket, full, Config=self._transfer, Callback=lambda _sent: on_progress()
                )

        self._send(key, send)

    def _delete_listed(self, listed: Any) -> Any:
        return self._client.delete_objects(Bucket=self.bucket, Delete=listed)

    def _send(self, key: str, call: Callable[[], _T]) -> _T:
        """Send a request, once more without checksum headers if the server may have refused these."""
        with self._failures(key):
            try:
                return call()
            except (ClientError, S3UploadFailedError) as error:
                refused = error if isinstance(error, ClientError) else error.__context__
                if (
                    self._refuses_checksums
                    or not isinstance(refused, ClientError)
                    or _code(refused) not in _REFUSED_CHECKSUMS
                ):
                    raise
                self._refuses_checksums = True
                try:
                    made = call()
                except (BotoCoreError, Boto3Error, ClientError):
                    self._refuses_checksums = False
                    raise error from None
                log.warning(
                    "the S3 server of bucket %s refuses checksum headers (%s); requests have a Content-MD5",
                    self.bucket,
                    _code(refused),
                )
                return made

    def _without_checksum_headers(self, params: dict[str, Any], **_: object) -> None:
        """Send a Content-MD5 instead of checksum headers to a server that refuses these."""
        if not self._refuses_checksums:
            return
        for name in [name for name in params["headers"] if name.lower().startswith(_CHECKSUM_HEADERS)]:
            del params["headers"][name]
        params["context"]["checksum"] = {}
        if params.get("body"):
            params["headers"]["Content-MD5"] = _content_md5(params["body"])

    def _key(self, key: str) -> str:
        check_key(key)
        return f"{self.prefix}/{key}" if self.prefix else key

    def _objects(self, start: str, behind: str = "") -> Iterator[Any]:
        """Every object whose key begins with `start` and follows `behind`, page by page."""
        base = f"{self.prefix}/" if self.prefix else ""
        paginate = self._client.get_paginator("list_objects_v2").paginate
        if behind:
            pages = paginate(Bucket=self.bucket, Prefix=base + start, StartAfter=base + behind)
        else:
            pages = paginate(Bucket=self.bucket, Prefix=base + start)
        with self._failures(start):
            for page in pages:
                yield from page.get("Contents", [])

    @contextmanager
    def _failures(self, key: str) -> Iterator[None]:
        """Translate boto's errors."""
        try:
            yield
        except ClientError as error:
            code = _code(error)
            if code in _ABSENT:
                raise NotFound(f"there is no stored file {key}") from error
            if code in ("416", "InvalidRange"):
                raise RangeNotSatisfiable(f"{key}: the file ends before the range begins") from error
            if code == "NoSuchBucket":
                raise ServiceUnavailable(f"there is no S3 bucket {self.bucket}: create it") from error
            hint = "; check the AWS credentials and the bucket's policy" if code in _REFUSED else ""
            raise ServiceUnavailable(f"S3 refused {key} in bucket {self.bucket}: {error}{hint}") from error
        except (BotoCoreError, Boto3Error) as error:
            raise ServiceUnavailable(f"S3 bucket {self.bucket} cannot be used: {error}") from error


class S3Stage(StagedPrefix):
    """Files of a session in memory or on this machine's disk, until they are uploaded."""

    def __init__(self, store: S3Store, prefix: str) -> None:
        super().__init__()
        self._store = store
        self._prefix = prefix
        self._files: dict[str, StagedFile] = {}
        self._early: list[threading.Thread] = []
        #: files that the bucket has, or may have
        self._sent: set[str] = set()

    def create(self, name: str) -> BinaryIO:
        self._refuse_twice(check_name(name))
        made = self._files[name] = StagedFile(self._store.space, self._report)
        return cast(BinaryIO, made)

    def _report(self) -> None:
        self.on_progress()

    def rename(self, old: str, new: str) -> None:
        self._refuse_twice(check_name(new))
        self._files[new] = self._files.pop(old)

    def _refuse_twice(self, name: str) -> None:
        if name in self._files or name in self._sent:
            raise Conflict(f"{name} was created already")

    def remove(self, name: str) -> None:
        self._files.pop(name).drop()

    def start_upload(self, name: str) -> None:
        def upload() -> None:
            with suppress(ServiceUnavailable):  # `commit` tries again
                self._upload(name)

        thread = threading.Thread(target=upload, name="early-upload", daemon=True)
        self._early.append(thread)
        thread.start()

    def commit(self) -> None:
        if MANIFEST not in self._files:
            raise ValueError(f"{MANIFEST} must be created before the commit")
        for thread in self._early:
            thread.join()
        for name in sorted(self._files, key=lambda name: (name == MANIFEST, name)):
            self._upload(name)
        self._ended = True

    def _upload(self, name: str) -> None:
        """Upload a file and free its memory."""
        self._sent.add(name)
        with self._store.space.uploading():
            file = self._files[name]
            self._store.upload(f"{self._prefix}/{name}", cast(BinaryIO, file), self.on_progress)
            del self._files[name]
            file.drop()

    def discard(self) -> None:
        if self._ended:
            return
        self._ended = True
        for thread in self._early:
            thread.join()
        while self._files:
            self._files.popitem()[1].drop()
        if self._sent:
            # the reaper removes what cannot be removed now
            self._store.delete_many({self._prefix: sorted(self._sent)})


class _Unclosed(io.RawIOBase):
    """A file that stays open when its reader closes it, as s3transfer does."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def readinto(self, buffer: Any, /) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def _send_at_once(params: dict[str, Any], **_: object) -> None:
    """Send a body without `Expect: 100-continue`. The header is not signed.

    The header costs a round trip for each object. botocore also hangs if the answer ends in the middle of
    `100 Continue` (`AWSConnection._consume_headers`).
    """
    params["headers"].pop("Expect", None)


def _content_md5(body: Any) -> str:
    """Value of the Content-MD5 header (RFC 1864) of bytes, or of the rest of a file."""
    if isinstance(body, bytes | bytearray | str):
        data = body.encode() if isinstance(body, str) else body
        digest = md5(data, usedforsecurity=False)
    else:
        digest, start = md5(usedforsecurity=False), body.tell()
        for chunk in iter(lambda: body.read(1 << 20), b""):
            digest.update(chunk)
        body.seek(start)
    return b64encode(digest.digest()).decode("ascii")


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
