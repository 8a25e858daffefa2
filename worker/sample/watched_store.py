"""A store whose sessions report progress, and wait while nothing can be stored."""

from collections.abc import Callable
from typing import Any, cast

from actograph.contract.errors import ServiceUnavailable
from storage.artifacts.store import ArtifactStore, StagedPrefix


class _WatchedStore:
    def __init__(
        self,
        store: ArtifactStore,
        on_progress: Callable[[], None],
        waits: Callable[[ServiceUnavailable], bool],
    ) -> None:
        self._store = store
        self._on_progress, self._waits = on_progress, waits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def stage(self, prefix: str) -> StagedPrefix:
        stage = self._store.stage(prefix)
        stage.on_progress, stage.waits = self._on_progress, self._waits
        return stage


def watched(
    store: ArtifactStore,
    on_progress: Callable[[], None],
    waits: Callable[[ServiceUnavailable], bool] = lambda reason: False,
) -> ArtifactStore:
    """The same store.

    Args:
        on_progress: called for every piece of a file that is written, read or uploaded: hashing and uploading
            may outlast the stall limit.
        waits: see `StagedPrefix.waits`.
    """
    return cast(ArtifactStore, _WatchedStore(store, on_progress, waits))
