"""The files that a session lists: their names, and whether bytes are those on record."""

import hashlib
from pathlib import Path

from actograph.contract.errors import NotFound, StoreDamaged
from actograph.contract.resources import SessionFile


def plain_name(name: str) -> str:
    """`name`, if it can be a file's name in a folder of ours.

    Raises:
        StoreDamaged: it would lead elsewhere.
    """
    if not name or name in (".", "..") or Path(name).name != name or "\0" in name or "\\" in name:
        raise StoreDamaged(f"the service lists a file with the unusable name {name!r}")
    return name


def find(files: list[SessionFile], name: str) -> SessionFile:
    """Raises NotFound."""
    for file in files:
        if file.name == name:
            return file
    raise NotFound(f"the session has no file {name}; it has {', '.join(f.name for f in files) or 'none'}")


def sha256_of(path: Path) -> str:
    """sha256 of a file's bytes, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
