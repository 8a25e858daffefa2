"""A tar.gz unpacked from the pieces in which it arrives, whoever waits for them.

`tarfile` reads where this is fed, so that it serves coroutines and plain calls alike. Of the format it
knows what an export has: plain files, with names of any length (POSIX.1-2001, pax interchange format).
"""

import re
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from actograph.client.errors import DownloadDamaged

_GZIP = 31
#: of text that is held at once; a piece of an archive may inflate a thousandfold
_MOST = 1 << 20
_MAX_NAMES = 1 << 16
_PATH = re.compile(rb"\A\d+ path=(.*)\n\Z", re.DOTALL)


class Unpacker:
    """Puts the files of an archive with the top folder `top` into `folder`, each whole or not at all.

    Raises (`feed`):
        DownloadDamaged: this is no such archive, or a name leads out of the folder.
    """

    def __init__(self, folder: Path, top: str, on_file: Callable[[str], None]) -> None:
        """`on_file`: called with the name of each file that is in its place."""
        self._folder = folder
        self._top = top
        self._on_file = on_file
        self._gzip = zlib.decompressobj(_GZIP)
        self._waiting = bytearray()
        self._left = 0
        self._padding = 0
        self._name = ""
        self._long_name: str | None = None
        self._out: BinaryIO | None = None
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._out is not None:
            self._out.close()

    @property
    def ended(self) -> bool:
        """Whether the archive is there to its end."""
        return self._ended

    def feed(self, data: bytes) -> None:
        """The next bytes of the archive."""
        while data:
            try:
                self._waiting += self._gzip.decompress(data, _MOST)
            except zlib.error as error:
                raise DownloadDamaged(f"the export is no tar.gz: {error}") from error
            data = self._gzip.unconsumed_tail
            while self._step():
                pass

    def _step(self) -> bool:
        """Use some of what waits; False where more is needed."""
        if self._ended:
            self._waiting.clear()
            return False
        if self._out is not None:
            return self._copy(self._out)
        if self._padding:
            dropped = min(self._padding, len(self._waiting))
            del self._waiting[:dropped]
            self._padding -= dropped
            return self._padding == 0
        return self._header()

    def _copy(self, out: BinaryIO) -> bool:
        piece = bytes(self._waiting[: self._left])
        out.write(piece)
        del self._waiting[: len(piece)]
        self._left -= len(piece)
        if self._left:
            return False
        out.close()
        self._out = None
        target = self._folder / self._name
        target.with_name(target.name + ".part").replace(target)
        self._on_file(self._name)
        return True

    def _header(self) -> bool:
        if len(self._waiting) < tarfile.BLOCKSIZE:
            return False
        block = bytes(self._waiting[: tarfile.BLOCKSIZE])
        if not any(block):
            self._ended = True
            return True
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError) as error:
            raise DownloadDamaged(f"the export is no tar.gz: {error}") from error
        if info.type == tarfile.XHDTYPE:
            return self._read_long_name(info)
        del self._waiting[: tarfile.BLOCKSIZE]
        if self._long_name is not None:
            info.name, self._long_name = self._long_name, None
        self._begin(info)
        return True

    def _read_long_name(self, info: tarfile.TarInfo) -> bool:
        if info.size > _MAX_NAMES:
            raise DownloadDamaged(f"the export has a name of {info.size} bytes")
        end = tarfile.BLOCKSIZE + info.size
        if len(self._waiting) < end:
            return False
        found = _PATH.match(self._waiting[tarfile.BLOCKSIZE : end])
        if found is None:
            raise DownloadDamaged("the export has a header that is not understood")
        self._long_name = found[1].decode("utf-8")
        del self._waiting[:end]
        self._padding = -info.size % tarfile.BLOCKSIZE
        return True

    def _begin(self, info: tarfile.TarInfo) -> None:
        top, _, name = info.name.partition("/")
        # a leading slash, which the filter would only strip, makes a path of its own
        if not info.isreg() or top != self._top or not name or name.startswith("/"):
            raise DownloadDamaged(f"{info.name!r} in the export is no file of {self._top}")
        info.name = name
        try:
            name = tarfile.data_filter(info, str(self._folder)).name
        except tarfile.FilterError as error:
            raise DownloadDamaged(f"{name!r} in the export leads out of the folder") from error
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        self._out = target.with_name(target.name + ".part").open("wb")
        self._name, self._left = name, info.size
        self._padding = -info.size % tarfile.BLOCKSIZE
