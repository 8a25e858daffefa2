"""Download a session's file: resumed after a broken connection, and verified before it gets its name."""

import hashlib
from pathlib import Path

from actograph.client.errors import DownloadDamaged
from actograph.client.transport import Transport
from actograph.contract.errors import StoreDamaged
from actograph.contract.resources import SessionFile

_PARTIAL = 206


def plain_name(name: str) -> str:
    """Return `name` if it is a plain file name.

    Raises:
        StoreDamaged: it leads out of the folder.
    """
    if not name or name in (".", "..") or Path(name).name != name or "\0" in name or "\\" in name:
        raise StoreDamaged(f"the service lists a file with the unusable name {name!r}")
    return name


def fetch(transport: Transport, path: str, file: SessionFile, target: Path) -> Path:
    """Download `file` from `path` to `target`, whose folder must exist.

    The bytes go to `<target>.part`, which a later call resumes. It is renamed after its sha256 is verified.
    A verified `target` is not downloaded again.

    Raises:
        DownloadDamaged: the complete download has another checksum; nothing is left on disk.
        ServiceUnreachable: the connection failed repeatedly; the part is kept for a later call.
        ApiError: the service refused.
    """
    if target.is_file() and _sha256_of(target) == file.sha256:
        return target
    part = target.with_name(target.name + ".part")
    part.touch()
    if part.stat().st_size > file.bytes:
        part.unlink()
        part.touch()
    resumed = part.stat().st_size > 0
    transport.resume(lambda: _append(transport, path, file, part), lambda: part.stat().st_size)
    found = _sha256_of(part)
    if found == file.sha256:
        return part.replace(target)
    size = part.stat().st_size
    part.unlink()
    if resumed:  # the part of an earlier call may belong to another version
        return fetch(transport, path, file, target)
    raise DownloadDamaged(
        f"{file.name}: got {size} bytes with sha256 {found}, expected {file.bytes} bytes with {file.sha256}"
    )


def _append(transport: Transport, path: str, file: SessionFile, part: Path) -> None:
    size = part.stat().st_size
    if size >= file.bytes:
        return
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={size}-"} if size else {})
    with (
        transport.stream("GET", path, headers=headers) as response,
        part.open("ab" if response.status_code == _PARTIAL else "wb") as out,
    ):
        # no fixed size: it would lose the last bytes of a broken connection
        for chunk in response.iter_bytes():
            out.write(chunk)


def _sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
