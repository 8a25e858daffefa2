"""Open the artifact store that a URL names."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from actograph.settings import Settings
from storage.artifacts.local import LocalStore
from storage.artifacts.store import ArtifactStore, PublicEndpoint


def open_store(
    url: str, public: PublicEndpoint | None = None, settings: Settings | None = None
) -> ArtifactStore:
    """The store at `file:///folder` or `s3://bucket/prefix`.

    Args:
        public: address of an S3 store in presigned URLs.
        settings: bounds of the memory and the disk for uploads; by default those of `Settings`.

    Raises:
        ValueError: any other URL.
    """
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise ValueError(f"{url}: an artifact URL has no query or fragment")
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return LocalStore(Path(unquote(parts.path)))
    if parts.scheme == "s3" and parts.netloc:
        # boto3 is slow to import
        from storage.artifacts.s3 import S3Store

        bounds = settings or Settings.model_construct()
        return S3Store(
            parts.netloc,
            parts.path.strip("/"),
            public=public,
            upload_memory_bytes=bounds.upload_memory_bytes,
            upload_disk_bytes=bounds.upload_disk_bytes,
        )
    raise ValueError(f"{url}: an artifact URL is file:///folder or s3://bucket/prefix")
