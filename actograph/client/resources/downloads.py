"""Download a file: resumed after a broken connection, and verified before it gets its name."""

import os
from pathlib import Path

from actograph.client.errors import DownloadDamaged, ServiceUnreachable
from actograph.client.pulls.session_files import sha256_of
from actograph.client.transport import Transport
from actograph.contract.resources import SessionFile

_PARTIAL, _RANGE_REFUSED = 206, 416


def fetch(transport: Transport, path: str, file: SessionFile, target: Path) -> Path:
    """Download `file` from `path` to `target`, whose folder must exist.

    The bytes go to `<target>.part`, which a later call resumes. It is renamed after size and sha256 are
    verified. A verified `target` is not downloaded again.

    Raises:
        DownloadDamaged: the complete download has another checksum; nothing is left on disk.
        ServiceUnreachable: the connection failed repeatedly; the part is kept for a later call.
        ApiError: the service refused.
    """
    if target.is_file() and target.stat().st_size == file.bytes and sha256_of(target) == file.sha256:
        return target
    part = target.with_name(target.name + ".part")
    resumed = _size(part) > 0
    _complete(transport, path, file, part)
    if resumed and sha256_of(part) != file.sha256:
        # the part of an earlier call may belong to another version; download again
        part.unlink()
        _complete(transport, path, file, part)
    found, size = sha256_of(part), part.stat().st_size
    if found != file.sha256 or size != file.bytes:
        part.unlink()
        raise DownloadDamaged(
            f"{file.name}: got {size} bytes with sha256 {found}, "
            f"expected {file.bytes} bytes with {file.sha256}"
        )
    part.replace(target)
    return target


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _complete(transport: Transport, path: str, file: SessionFile, part: Path) -> None:
    """Append to `part` until it is complete, over broken connections."""

    def append() -> None:
        if _size(part) > file.bytes:
            part.unlink()
        if not part.exists() or _size(part) < file.bytes:
            _append(transport, path, part, _size(part))

    transport.resume(append, lambda: _size(part))


def _append(transport: Transport, path: str, part: Path, have: int) -> None:
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with transport.stream(path, headers=headers, accept=frozenset({_RANGE_REFUSED})) as response:
        if response.status_code == _RANGE_REFUSED:
            response.read()
            part.unlink()
            raise ServiceUnreachable(f"the service refused to resume {part.stem} at byte {have}")
        continues = response.status_code == _PARTIAL and response.headers.get("content-range", "").startswith(
            f"bytes {have}-"
        )
        with part.open("ab" if have and continues else "wb") as out:
            # no fixed size: it would lose the last bytes of a broken connection
            for chunk in response.iter_bytes():
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
