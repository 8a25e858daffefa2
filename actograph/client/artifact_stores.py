"""Read session files directly from the store: a folder of this machine, or an S3 bucket."""

import os
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from actograph.client.downloads import plain_name
from actograph.client.errors import package
from actograph.client.tensors import LocalFile, SessionTensors
from actograph.contract.errors import InvalidRequest, NotFound, StoreDamaged
from actograph.contract.resources import Session, SessionFile

#: connections to S3, for matrices that read many sessions at once
CONNECTIONS = 64


class ArtifactFiles(Protocol):
    """Store of session files."""

    def tensors(self, session: Session) -> SessionTensors:
        """Return the session's tensors. Headers are read now, rows when they are indexed.

        Raises:
            NotFound: the files are missing.
            StoreDamaged: a file does not match the index.
        """
        ...


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
        return _Bucket(parts.netloc, parts.path.strip("/"))
    if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
        raise InvalidRequest(f"{text!r} is on another machine; use the folder where it is mounted")
    root = Path(unquote(parts.path)) if parts.scheme == "file" else Path(text)
    if not (root / "sessions").is_dir():
        raise InvalidRequest(
            f"{root} has no folder `sessions`; set store to the service's ACTOGRAPH_ARTIFACT_URL, by default "
            "the folder `artifacts` of its home"
        )
    return _Folder(root)


def _tensor_files(session: Session) -> list[SessionFile]:
    found = [file for file in session.files if file.name.endswith(".safetensors")]
    if not found:
        raise NotFound(f"session {session.id} has no tensors")
    return found


class _Folder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def tensors(self, session: Session) -> SessionTensors:
        folder = self._root / "sessions" / plain_name(session.id)
        files = {}
        for file in _tensor_files(session):
            path = folder / plain_name(file.name)
            try:
                local = LocalFile(path)
            except FileNotFoundError as error:
                raise NotFound(f"{path} does not exist; is this the store of this service?") from error
            if local.size != file.bytes:
                raise StoreDamaged(f"{path} has {local.size} bytes; the index says {file.bytes}")
            files[file.name] = (local, local.size)
        return SessionTensors(files)


class _Bucket:
    """A store on S3. Credentials, region and endpoint come from the AWS environment."""

    def __init__(self, bucket: str, prefix: str) -> None:
        boto3 = package("boto3", f"reading from s3://{bucket} itself")
        config = package("boto3", f"reading from s3://{bucket} itself", module="botocore.config")
        self._bucket, self._prefix = bucket, prefix
        self._client: Any = boto3.client("s3", config=config.Config(max_pool_connections=CONNECTIONS))

    def tensors(self, session: Session) -> SessionTensors:
        folder = "/".join([*filter(None, [self._prefix]), "sessions", plain_name(session.id)])
        return SessionTensors(
            {
                file.name: (partial(self._read, f"{folder}/{plain_name(file.name)}"), file.bytes)
                for file in _tensor_files(session)
            }
        )

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
