"""Read session files directly from the store: a folder of this machine, or an S3 bucket."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from actograph.client.downloads import plain_name
from actograph.client.errors import package
from actograph.client.tensors import LocalFile, SessionTensors
from actograph.contract.errors import InvalidRequest, NotFound, StoreDamaged
from actograph.contract.resources import Session, SessionFile
from actograph.tensor_files import ReadAt

#: connections to S3, for matrices that read many sessions at once
CONNECTIONS = 64


class ArtifactFiles:
    """Session files of one store."""

    def __init__(self, open_file: Callable[[str, SessionFile], ReadAt]) -> None:
        """`open_file`: opens a file by its path within the store."""
        self._open_file = open_file

    def tensors(self, session: Session) -> SessionTensors:
        """Return the session's tensors. Headers are read now, rows when they are indexed.

        Raises:
            NotFound: the files are missing.
            StoreDamaged: a file does not match the index.
        """
        files = {}
        for file in session.files:
            if file.name.endswith(".safetensors"):
                path = f"sessions/{plain_name(session.id)}/{plain_name(file.name)}"
                files[file.name] = (self._open_file(path, file), file.bytes)
        if not files:
            raise NotFound(f"session {session.id} has no tensors")
        return SessionTensors(files)


def open_store(where: str | os.PathLike[str]) -> ArtifactFiles:
    """Open the store at a folder, a `file://` URL or `s3://bucket/prefix` (`ACTOGRAPH_ARTIFACT_URL`).

    Raises:
        InvalidRequest: an invalid address, or no such folder.
        PackageMissing: boto3 is needed for S3 and not installed.
    """
    text = os.fspath(where)
    parts = urlsplit(text)
    if parts.scheme == "s3":
        if not parts.netloc:
            raise InvalidRequest(f"{text!r} has no bucket; use s3://bucket/prefix")
        return ArtifactFiles(_Bucket(parts.netloc, parts.path.strip("/")).open)
    if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
        raise InvalidRequest(f"{text!r} is on another machine; use the folder where it is mounted")
    root = Path(unquote(parts.path)) if parts.scheme == "file" else Path(text)
    if not (root / "sessions").is_dir():
        raise InvalidRequest(
            f"{root} has no folder `sessions`; set store to the service's ACTOGRAPH_ARTIFACT_URL, by default "
            "the folder `artifacts` of its home"
        )
    return ArtifactFiles(partial(_open_local, root))


def _open_local(root: Path, path: str, file: SessionFile) -> ReadAt:
    try:
        local = LocalFile(root / path)
    except FileNotFoundError as error:
        raise NotFound(f"{root / path} does not exist; is this the store of this service?") from error
    if local.size != file.bytes:
        raise StoreDamaged(f"{root / path} has {local.size} bytes; the index says {file.bytes}")
    return local


class _Bucket:
    """A store on S3. Credentials, region and endpoint come from the AWS environment."""

    def __init__(self, bucket: str, prefix: str) -> None:
        boto3 = package("boto3", f"reading from s3://{bucket} itself")
        config = package("boto3", f"reading from s3://{bucket} itself", module="botocore.config")
        self._bucket, self._prefix = bucket, prefix
        self._client: Any = boto3.client("s3", config=config.Config(max_pool_connections=CONNECTIONS))

    def open(self, path: str, _file: SessionFile) -> ReadAt:
        return partial(self._read, f"{self._prefix}/{path}" if self._prefix else path)

    def _read(self, key: str, offset: int, length: int) -> bytes:
        errors: Any = self._client.exceptions
        try:
            reply = self._client.get_object(
                Bucket=self._bucket, Key=key, Range=f"bytes={offset}-{offset + length - 1}"
            )
        except errors.NoSuchKey as error:
            raise NotFound(f"s3://{self._bucket}/{key} does not exist") from error
        with reply["Body"] as body:
            data: bytes = body.read()
        return data
