"""Read session files directly from the store: a folder of this machine, or an S3 bucket."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from actograph.client.manifests import MANIFEST_NAME, Manifest, read_manifest
from actograph.client.optional import package
from actograph.client.pulls.session_files import plain_name
from actograph.client.stored_files import LocalFile, SessionFiles
from actograph.contract.errors import InvalidRequest, NotFound, StoreDamaged
from actograph.contract.resources import Session, SessionFile

#: connections to S3, for matrices that read many sessions at once
CONNECTIONS = 64


class ArtifactFiles(Protocol):
    """Store of session files."""

    def tensors(self, session: Session) -> SessionFiles:
        """Return the session's tensors. Headers are read now, rows when they are indexed.

        Raises:
            NotFound: the files are missing.
            StoreDamaged: a file does not match the index.
        """
        ...

    def manifest(self, session_id: str) -> Manifest:
        """Read a session's manifest.

        Raises:
            NotFound: the store has no such session.
            StoreDamaged: the manifest cannot be read.
        """
        ...

    def session_ids(self) -> Iterator[str]:
        """Yield the ids of all stored sessions, in no order."""
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

    def tensors(self, session: Session) -> SessionFiles:
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
        return SessionFiles(files)

    def manifest(self, session_id: str) -> Manifest:
        path = self._root / "sessions" / plain_name(session_id) / MANIFEST_NAME
        try:
            return read_manifest(path.read_bytes())
        except FileNotFoundError:
            raise NotFound(f"no session {session_id} in {self._root}") from None

    def session_ids(self) -> Iterator[str]:
        for path in (self._root / "sessions").iterdir():
            if path.name.startswith("ses_") and (path / MANIFEST_NAME).is_file():
                yield path.name


class _Bucket:
    """A store on S3. Credentials, region and endpoint come from the AWS environment."""

    def __init__(self, bucket: str, prefix: str) -> None:
        session = package("boto3", f"reading from s3://{bucket} itself", module="boto3.session")
        config = package("boto3", f"reading from s3://{bucket} itself", module="botocore.config")
        self._bucket = bucket
        self._sessions = "/".join([*filter(None, [prefix]), "sessions", ""])
        self._client: Any = session.Session().client(
            "s3", config=config.Config(max_pool_connections=CONNECTIONS)
        )

    def tensors(self, session: Session) -> SessionFiles:
        folder = f"{self._sessions}{plain_name(session.id)}"
        return SessionFiles(
            {
                file.name: (partial(self._read, f"{folder}/{plain_name(file.name)}"), file.bytes)
                for file in _tensor_files(session)
            }
        )

    def manifest(self, session_id: str) -> Manifest:
        return read_manifest(self._get(f"{self._sessions}{plain_name(session_id)}/{MANIFEST_NAME}"))

    def session_ids(self) -> Iterator[str]:
        listing = self._client.get_paginator("list_objects_v2")
        for answer in listing.paginate(Bucket=self._bucket, Prefix=self._sessions, Delimiter="/"):
            for found in answer.get("CommonPrefixes", []):
                name = found["Prefix"].removeprefix(self._sessions).rstrip("/")
                if name.startswith("ses_"):
                    yield name

    def _read(self, key: str, offset: int, length: int) -> bytes:
        return self._get(key, Range=f"bytes={offset}-{offset + length - 1}")

    def _get(self, key: str, **options: str) -> bytes:
        errors: Any = self._client.exceptions
        try:
            reply = self._client.get_object(Bucket=self._bucket, Key=key, **options)
        except errors.NoSuchKey as error:
            raise NotFound(f"s3://{self._bucket}/{key} does not exist") from error
        with reply["Body"] as body:
            data: bytes = body.read()
        return data
