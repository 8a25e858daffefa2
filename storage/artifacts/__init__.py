"""Where files live: a local folder or an S3 bucket behind one interface."""

from storage.artifacts.store import ArtifactStore, InvalidKey, StagedPrefix, StoredPrefix, open_store

__all__ = ["ArtifactStore", "InvalidKey", "StagedPrefix", "StoredPrefix", "open_store"]
