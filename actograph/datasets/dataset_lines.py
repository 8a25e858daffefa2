"""Lines of a byte stream, in bounded memory."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

MAX_LINE_BYTES = 4_000_000
#: values of one row, including unused columns
MAX_ROW_VALUES = 250_000
#: shorter JSON needs little memory, whatever it contains
_SHORT_BYTES = 1 << 14
#: memory of a JSON object in Python, and of any other value in a list
_OBJECT_BYTES, VALUE_BYTES = 240, 64
_BLANK = re.compile(rb"[ \t\r\n\v\f]*")
_LINE_ENDS = re.compile(rb"[\r\n]*")


class JsonCost(NamedTuple):
    """Upper bounds for the number and memory of the values in some JSON."""

    values: int
    bytes: int


def json_cost(text: bytes) -> JsonCost:
    """Count the values in JSON without parsing it."""
    if len(text) <= _SHORT_BYTES:
        return JsonCost(0, 0)
    commas, lists, objects = text.count(b","), text.count(b"["), text.count(b"{")
    size = 2 * len(text) + VALUE_BYTES * (commas + lists) + _OBJECT_BYTES * objects
    return JsonCost(commas + lists + objects, size)


class Lines:
    """Lines with their line ends, from chunks of any size.

    A line longer than `MAX_LINE_BYTES` is cut to one byte more, so that readers can refuse it.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._buffer = b""
        self._at = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        searched = self._at
        while True:
            end = self._buffer.find(b"\n", searched)
            held = (len(self._buffer) if end < 0 else end + 1) - self._at
            if end >= 0 or held > MAX_LINE_BYTES:
                break
            searched = held
            if not self._fill():
                break
        if not held:
            raise StopIteration
        line = self._buffer[self._at : self._at + min(held, MAX_LINE_BYTES + 1)]
        self._at += held
        if end < 0:
            self._skip_line()
        return line

    def skip_blank(self) -> None:
        """Skip white space at the start of a line, including blank lines."""
        self._skip(_BLANK)

    def skip_line_ends(self) -> int:
        """Skip empty lines and return their number."""
        return self._skip(_LINE_ENDS)

    def _skip(self, pattern: re.Pattern[bytes]) -> int:
        count = 0
        while True:
            found = pattern.match(self._buffer, self._at)
            end = found.end() if found else self._at
            count += self._buffer.count(b"\n", self._at, end)
            self._at = end
            if end < len(self._buffer) or not self._fill():
                return count

    def _skip_line(self) -> None:
        """Skip to the start of the next line."""
        while self._fill():
            end = self._buffer.find(b"\n", self._at)
            if end >= 0:
                self._at = end + 1
                return
            self._at = len(self._buffer)

    def _fill(self) -> bool:
        """Append the next chunk. Returns False at the end."""
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        self._buffer = self._buffer[self._at :] + chunk
        self._at = 0
        return True
