"""A file fetched to disk: resumed where it broke off, and checked before it gets its name."""

import os
from pathlib import Path

from actograph.client.aio.runtime import aside, sleep
from actograph.client.aio.transport import Transport
from actograph.client.errors import DownloadDamaged, ServiceUnreachable
from actograph.client.session_files import sha256_of
from actograph.client.transport import backoff
from actograph.contract.resources import SessionFile

_PARTIAL, _RANGE_REFUSED = 206, 416


async def fetch(transport: Transport, path: str, file: SessionFile, target: Path) -> Path:
    """Download `file` from `path` to `target`, whose folder must exist.

    The bytes go to `<target>.part`, which a later call takes up again; it is renamed once size and
    sha256 are those on record. A `target` that has them already is left as it is.

    Raises:
        DownloadDamaged: a complete download has another checksum; nothing is left on disk.
        ServiceUnreachable: the connection failed and kept failing; the part stays for a later call.
        ApiError: the service refused.
    """
    if (
        target.is_file()
        and target.stat().st_size == file.bytes
        and await aside(sha256_of, target) == file.sha256
    ):
        return target
    part = target.with_name(target.name + ".part")
    resumed = part.exists() and part.stat().st_size > 0
    await _complete(transport, path, file, part)
    if resumed and await aside(sha256_of, part) != file.sha256:
        # what an earlier call left may be of another version; once more from the start
        part.unlink()
        await _complete(transport, path, file, part)
    found, size = await aside(sha256_of, part), part.stat().st_size
    if found != file.sha256 or size != file.bytes:
        part.unlink()
        raise DownloadDamaged(
            f"{file.name}: got {size} bytes with sha256 {found}, "
            f"on record are {file.bytes} bytes with {file.sha256}"
        )
    part.replace(target)
    return target


async def _complete(transport: Transport, path: str, file: SessionFile, part: Path) -> None:
    """Append to `part` until the service has no more, over broken connections."""
    failures = 0
    while True:
        have = part.stat().st_size if part.exists() else 0
        if have > file.bytes:
            part.unlink()
            have = 0
        if have == file.bytes and part.exists():
            return
        try:
            await _append(transport, path, part, have)
        except ServiceUnreachable:
            if part.exists() and part.stat().st_size > have:
                failures = 0
            if failures >= transport.retries:
                raise
            await sleep(backoff(failures))
            failures += 1
        else:
            return


async def _append(transport: Transport, path: str, part: Path, have: int) -> None:
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    async with transport.stream(path, headers=headers, accept=frozenset({_RANGE_REFUSED})) as response:
        if response.status_code == _RANGE_REFUSED:
            await response.aread()
            part.unlink()
            raise ServiceUnreachable(f"the service refused to go on at byte {have} of {part.stem}")
        continues = response.status_code == _PARTIAL and response.headers.get("content-range", "").startswith(
            f"bytes {have}-"
        )
        with part.open("ab" if have and continues else "wb") as out:
            # pieces as they come: a fixed size would lose the last one when the connection breaks
            async for chunk in response.aiter_bytes():
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
