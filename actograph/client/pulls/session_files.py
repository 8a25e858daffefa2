"""Names and checksums of session files."""

import hashlib
from pathlib import Path

from actograph.contract.errors import NotFound, StoreDamaged
from actograph.contract.resources import SessionFile


def plain_name(name: str) -> str:
    """Return `name` if it is a plain file name.

    Raises:
        StoreDamaged: it leads out of the folder.
    """
    if not name or name in (".", "..") or Path(name).name != name or "\0" in name or "\\" in name:
        raise StoreDamaged(f"the service lists a file with the unusable name {name!r}")
    return name


def find(files: list[SessionFile], name: str) -> SessionFile:
    """Return the file with that name. Raises NotFound."""
    for file in files:
        if file.name == name:
            return file
    raise NotFound(f"the session has no file {name}; it has {', '.join(f.name for f in files) or 'none'}")


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
