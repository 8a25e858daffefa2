"""A store that reports progress: hashing and uploading may outlast the stall limit."""

from collections.abc import Callable
from typing import Any, cast

from storage.artifacts.store import ArtifactStore, StagedPrefix


class _WatchedStore:
    def __init__(self, store: ArtifactStore, on_progress: Callable[[], None]) -> None:
        self._store = store
        self._on_progress = on_progress

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def stage(self, prefix: str) -> StagedPrefix:
        stage = self._store.stage(prefix)
        stage.on_progress = self._on_progress
        return stage


def watched(store: ArtifactStore, on_progress: Callable[[], None]) -> ArtifactStore:
    """The same store; it calls `on_progress` for every written piece of a file."""
    return cast(ArtifactStore, _WatchedStore(store, on_progress))
