"""Copies stored sessions and files from one store to another, verified by checksum."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import islice

from actograph.contract.errors import Conflict, NotFound, RangeNotSatisfiable, StoreDamaged
from storage.artifacts.store import ArtifactStore
from storage.backup.layout import Stored

THREADS = 4
_CHUNK = 64


def copy_all(source: ArtifactStore, target: ArtifactStore, stored: Iterable[Stored]) -> list[str]:
    """Copy what the target lacks. Returns the prefixes that are missing or damaged in the source."""
    damaged = []
    rest = iter(stored)
    with ThreadPoolExecutor(THREADS) as pool:
        while chunk := list(islice(rest, _CHUNK)):
            copied = pool.map(lambda one: _copied(source, target, one), chunk)
            damaged += [one.prefix for one, done in zip(chunk, copied, strict=True) if not done]
    return damaged


def _copied(source: ArtifactStore, target: ArtifactStore, one: Stored) -> bool:
    if _is_there(target, one):
        return True
    try:
        if one.prefix.startswith("files/"):
            _copy_file(source, target, one)
        else:
            _copy_session(source, target, one)
    except (NotFound, RangeNotSatisfiable, StoreDamaged):
        return False
    except Conflict:  # another copy of an interrupted run was quicker
        return _is_there(target, one)
    return True


def _keys(one: Stored) -> list[str]:
    return [f"{one.prefix}/{file.name}" if file.name else one.prefix for file in one.files]


def _is_there(target: ArtifactStore, one: Stored) -> bool:
    """Whether the target has all files with their sizes. A partial session is removed, to be copied again."""
    if not target.exists(one.prefix):
        return False
    try:
        same = all(target.size(key) == file.bytes for key, file in zip(_keys(one), one.files, strict=True))
    except NotFound:
        same = False
    if not same:
        target.delete_prefix(one.prefix)
    return same


def _copy_session(source: ArtifactStore, target: ArtifactStore, one: Stored) -> None:
    with target.stage(one.prefix) as stage:
        for key, file in zip(_keys(one), one.files, strict=True):
            with stage.create(file.name) as out:
                for chunk in _checked(source, key, file.sha256):
                    out.write(chunk)
        stage.commit()


def _copy_file(source: ArtifactStore, target: ArtifactStore, one: Stored) -> None:
    target.put_stream(one.prefix, _checked(source, one.prefix, one.files[0].sha256))


def _checked(source: ArtifactStore, key: str, digest: str) -> Iterator[bytes]:
    """Yield a file's bytes. Raises StoreDamaged at the end if they have another checksum."""
    found = sha256()
    for chunk in source.stream(key):
        found.update(chunk)
        yield chunk
    if found.hexdigest() != digest:
        raise StoreDamaged(f"{key} does not have the checksum on record")
