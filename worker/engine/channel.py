"""The channel between a host and an engine's process: frames over a socket, rows in shared memory.

A frame is two sizes (u32, little-endian), a JSON object, and raw bytes. Nothing is pickled. Rows do not pass
through the socket. They lie in regions: memory without a name (memfd), whose descriptors do. So nothing is
left when a process is killed. `multiprocessing.SharedMemory` has names, and its tracker unlinks them with the
first process that ends.
"""

import json
import mmap
import os
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

_HEAD = struct.Struct("<II")
_PIECE = 1 << 18
#: bytes that a side may send before the other one reads
_BUFFER = 1 << 20
#: descriptors of one frame
_MOST_DESCRIPTORS = 1


class ChannelClosed(Exception):
    """The process at the other end has ended, or closed the channel."""


class Channel:
    """Frames both ways. Any thread may send; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()
        self._received = bytearray()
        self._descriptors: list[int] = []

    @classmethod
    def pair(cls) -> tuple["Channel", socket.socket]:
        """A channel, and the socket of the other end, for a process that inherits it."""
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
        return cls(ours), theirs

    def send(self, message: Mapping[str, Any], raw: bytes = b"", *, descriptor: int | None = None) -> None:
        """Send a frame.

        Args:
            descriptor: of a file, of which the other end receives one of its own.

        Raises:
            ChannelClosed: nobody reads it any more.
        """
        text = json.dumps(message, separators=(",", ":")).encode()
        frame = b"".join((_HEAD.pack(len(text), len(raw)), text, raw))
        with self._sending:
            try:
                sent = 0
                if descriptor is not None:
                    sent = socket.send_fds(self._socket, [frame], [descriptor])
                self._socket.sendall(memoryview(frame)[sent:])
            except OSError as error:
                raise ChannelClosed from error

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """The next frame.

        Raises:
            ChannelClosed: there will be none.
        """
        text, raw = _HEAD.unpack(self._take(_HEAD.size))
        message: dict[str, Any] = json.loads(self._take(text))
        return message, self._take(raw)

    def take_descriptor(self) -> int:
        """The descriptor that came with the last frame."""
        return self._descriptors.pop(0)

    def close(self) -> None:
        """Close this end; the other one then receives ChannelClosed."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            try:
                more, descriptors, *_ = socket.recv_fds(self._socket, _PIECE, _MOST_DESCRIPTORS)
            except OSError as error:
                raise ChannelClosed from error
            self._descriptors += descriptors
            if not more:
                raise ChannelClosed
            self._received += more
        taken = bytes(memoryview(self._received)[:size])
        del self._received[:size]
        return taken


def new_region(size: int) -> int:
    """A descriptor of new shared memory, whose pages come as they are written.

    Raises:
        MemoryError: the system refuses it.
    """
    try:
        descriptor = os.memfd_create("actograph-rows", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, max(1, size))
    except OSError as error:
        raise MemoryError(f"{size:,} bytes of host memory for captured rows: {error.strerror}") from error
    return descriptor


def mapped(descriptor: int) -> mmap.mmap:
    """The memory of a descriptor, which may be closed then."""
    return mmap.mmap(descriptor, os.fstat(descriptor).st_size, flags=mmap.MAP_SHARED)


def array_of(region: mmap.mmap, offset: int, rows: int, row_bytes: int) -> NDArray[np.uint8]:
    """Rows of a region, [rows, bytes of a row], without a copy."""
    return np.frombuffer(region, np.uint8, rows * row_bytes, offset).reshape(rows, row_bytes)
