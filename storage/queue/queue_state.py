"""Whether the queue is paused, and why.

The pause is a fact about the disk. Whoever wants to know asks the store: nothing is written
down that could outlive its reason, so the queue resumes by itself.
"""

from actograph.contract.errors import StorageFull
from storage.artifacts.store import ArtifactStore


def disk_pause(store: ArtifactStore, floor_bytes: int) -> str | None:
    """Why nothing new may be begun, or None; a store that cannot tell what is free never pauses."""
    if floor_bytes <= 0:
        return None
    free = _free_bytes(store)
    if free is None or free >= floor_bytes:
        return None
    return (
        f"the artifact store has {free:,} bytes free, less than the floor of {floor_bytes:,} "
        "(ACTOGRAPH_DISK_FLOOR_BYTES); delete sessions or free the disk, and the queue goes on by itself"
    )


CURE = (
    "delete sessions, jobs or files, which works on a full disk too (`actograph sessions rm`, "
    "`actograph store gc`), or free the disk"
)


def require_room(store: ArtifactStore, floor_bytes: int, size: int = 0) -> None:
    """Raises StorageFull if `size` bytes more would take the disk below the floor."""
    free = _free_bytes(store)
    if floor_bytes <= 0 or free is None or free - size >= floor_bytes:
        return
    needs = f"{size:,} bytes more" if size else "more"
    raise StorageFull(
        f"the artifact store has {free:,} bytes free and {needs} would not fit above the floor of "
        f"{floor_bytes:,} (ACTOGRAPH_DISK_FLOOR_BYTES); {CURE}"
    )


def writable_bytes(store: ArtifactStore, floor_bytes: int) -> int | None:
    """Bytes that jobs may still store before the queue pauses; None where the store cannot tell."""
    free = _free_bytes(store)
    return None if free is None else max(0, free - floor_bytes)


def _free_bytes(store: ArtifactStore) -> int | None:
    """A folder that is gone is told by the store's own check, and is no reason to pause."""
    try:
        return store.free_bytes()
    except OSError:
        return None
