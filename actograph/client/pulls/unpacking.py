"""A tar.gz unpacked by a thread while it is downloaded."""

import os
import shutil
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Self

from actograph.client.errors import DownloadDamaged

#: tarfile's errors for an incomplete archive. It is not damaged: the caller notices the missing last file
_CUT_OFF = ("unexpected end of data", "truncated header", "empty file")


class Unpacker:
    """Unpacks the files of an archive with the top folder `top` into `folder`, each completely or not at all.

    Raises on exit:
        DownloadDamaged: the data is not such an archive, or a name leads out of the folder.
    """

    def __init__(self, folder: Path, top: str, on_file: Callable[[str], None]) -> None:
        """`on_file`: called with the name of each unpacked file, by the thread."""
        self._folder = folder
        self._top = top
        self._on_file = on_file

    def __enter__(self) -> Self:
        source, sink = os.pipe()
        self._sink = os.fdopen(sink, "wb")
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="actograph-unpack")
        self._result = self._pool.submit(self._run, os.fdopen(source, "rb"))
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        with suppress(BrokenPipeError):  # the thread has failed
            self._sink.close()
        self._pool.shutdown()
        if kind is None:
            self._result.result()

    def feed(self, data: bytes) -> None:
        """Pass on the next bytes of the archive; waits while the thread is busy."""
        try:
            self._sink.write(data)
        except BrokenPipeError:
            self._result.result()

    def _run(self, source: BinaryIO) -> None:
        with source:
            self._unpack(source)
            while source.read(1 << 16):  # padding after the archive
                pass

    def _unpack(self, source: BinaryIO) -> None:
        try:
            with tarfile.open(fileobj=source, mode="r|gz") as archive:
                for member in archive:
                    self._extract(archive, member)
        except tarfile.TarError as error:
            if str(error) not in _CUT_OFF:
                raise DownloadDamaged(f"the export is not a tar.gz: {error}") from error

    def _extract(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        top, _, name = member.name.partition("/")
        # data_filter would strip a leading slash; here it is refused
        if not member.isreg() or top != self._top or not name or name.startswith("/"):
            raise DownloadDamaged(f"{member.name!r} in the export is not a file of {self._top}")
        try:
            name = tarfile.data_filter(member.replace(name=name, deep=False), str(self._folder)).name
        except tarfile.FilterError as error:
            raise DownloadDamaged(f"{name!r} in the export leads out of the folder") from error
        content = archive.extractfile(member)
        assert content is not None, "regular files have content"
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        with part.open("wb") as out:
            shutil.copyfileobj(content, out)
        part.replace(target)
        self._on_file(name)
