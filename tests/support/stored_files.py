"""Files of a local store, for tests that damage them."""

from pathlib import Path

from storage.artifacts.local import LocalStore
from storage.artifacts.store import ArtifactStore


def stored_path(store: ArtifactStore, key: str) -> Path:
    """The file of a key."""
    assert isinstance(store, LocalStore)
    return store.root / key
