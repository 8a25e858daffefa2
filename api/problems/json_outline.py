"""Limit the values of a JSON body before it is parsed, and cut its long list into slices.

pydantic parses a body in one call that holds the interpreter's lock, and it collects every error before it
returns. A body of 60 MB can block all other requests for seconds and take gigabytes. So structural characters
outside strings are counted first, with numpy, which releases the lock.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from actograph.contract.errors import PayloadTooLarge

#: a smaller body can hold few values only
SMALL_BYTES = 16 << 10
#: bytes examined in one step
BLOCK = 1 << 20
#: most items and structural characters of a slice
SLICE_ITEMS = 1000
SLICE_TOKENS = 1 << 14
#: most structural characters of a body; each takes 9 bytes of memory
MOST_TOKENS = 4 << 20

_OPEN, _CLOSE, _COMMA, _COLON = 1, 2, 3, 4
_KINDS = np.zeros(256, np.uint8)
for _characters, _kind in (("{[", _OPEN), ("}]", _CLOSE), (",", _COMMA), (":", _COLON)):
    _KINDS[[ord(character) for character in _characters]] = _kind
_QUOTE = ord('"')
_BACKSLASHES = re.compile(rb"\\*")


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Limits of a body or a part of one."""

    #: objects, lists and fields, each of which may cause an error
    structures: int = 1 << 13
    #: numbers and texts
    values: int = 1 << 15


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A body with its long list cut into slices."""

    #: the body with the first slice as its list
    shell: bytes
    #: items of the whole list
    items: int = 0
    _body: bytes = b""
    #: (number of its first item, start, stop) of each slice in the body
    _slices: list[tuple[int, int, int]] = field(default_factory=list)

    def further_slices(self) -> Iterator[tuple[int, bytes]]:
        """Each slice after the first: the number of its first item, and a JSON list."""
        for first, start, stop in self._slices[1:]:
            yield first, b"[" + self._body[start:stop] + b"]"


class _Tokens:
    """The structural characters of a body outside strings."""

    def __init__(self, body: bytes) -> None:
        """Raises PayloadTooLarge as soon as there are too many."""
        self.body = body
        positions: list[NDArray[np.uint32]] = []
        kinds: list[NDArray[np.uint8]] = []
        count = start = 0
        is_inside = False
        while start < len(body):
            stop = _block_end(body, start + BLOCK)
            block = np.frombuffer(_without_escapes(body[start:stop]), np.uint8)
            inside = np.bitwise_xor.accumulate((block == _QUOTE).view(np.uint8))
            found = _KINDS[block]
            found[inside == (0 if is_inside else 1)] = 0
            at = np.flatnonzero(found)
            count += len(at)
            if count > MOST_TOKENS:
                raise _too_many("values", MOST_TOKENS)
            positions.append((at + start).astype(np.uint32))
            kinds.append(found[at])
            is_inside ^= bool(inside[-1])
            start = stop
        self.at = np.concatenate(positions) if positions else np.zeros(0, np.uint32)
        self.kinds = np.concatenate(kinds) if kinds else np.zeros(0, np.uint8)
        steps = (self.kinds == _OPEN).astype(np.int8) - (self.kinds == _CLOSE).astype(np.int8)
        #: after the character
        self.depths = np.cumsum(steps, dtype=np.int32)

    def list_of(self, name: str, most: int) -> tuple[int, int] | None:
        """Find the tokens that open and close the list of a top-level member, if there is exactly one.

        Raises:
            PayloadTooLarge: there are more than `most` top-level members.
        """
        colons = np.flatnonzero((self.kinds == _COLON) & (self.depths == 1))
        if len(colons) > most:
            raise _too_many("fields", most)
        quoted = b'"' + name.encode() + b'"'
        found = [int(colon) for colon in colons if self._is(int(colon) - 1, int(colon), quoted)]
        if len(found) != 1 or found[0] + 1 >= len(self.at) or not self._is(found[0], found[0] + 1, b""):
            return None
        first = found[0] + 1
        if self.kinds[first] != _OPEN or self.body[self.at[first]] != ord("["):
            return None
        closing = np.flatnonzero((self.kinds[first:] == _CLOSE) & (self.depths[first:] == 1))
        return (first, first + int(closing[0])) if len(closing) else None

    def _is(self, left: int, right: int, text: bytes) -> bool:
        """True if only this text and whitespace stand between two tokens."""
        start, stop = int(self.at[left]) + 1, int(self.at[right])
        # longer text cannot match, and megabytes of whitespace are not worth a copy
        return stop - start < len(text) + 4096 and self.body[start:stop].strip() == text

    def require(self, bounds: Bounds, *parts: slice) -> None:
        """Check the tokens of some parts together. Raises PayloadTooLarge."""
        kinds = np.concatenate([self.kinds[part] for part in parts])
        if np.count_nonzero((kinds == _OPEN) | (kinds == _COLON)) > bounds.structures:
            raise _too_many("objects, lists and fields", bounds.structures)
        if np.count_nonzero(kinds == _COMMA) > bounds.values:
            raise _too_many("values", bounds.values)

    def cut(self, name: str, first: int, last: int) -> tuple[int, list[tuple[int, int, int]]]:
        """Count the items of a list, and cut it into slices as in `Outline`.

        Raises:
            PayloadTooLarge: one item has more values than a slice may have.
        """
        is_comma = (self.kinds[first:last] == _COMMA) & (self.depths[first:last] == 2)
        ends = [*(first + np.flatnonzero(is_comma)).tolist(), last]
        slices: list[tuple[int, int, int]] = []
        item, token = 0, first
        while item < len(ends):
            fitting = bisect_right(ends, token + SLICE_TOKENS)
            after = min(fitting, item + SLICE_ITEMS)
            if after == item:
                raise _too_many("values", SLICE_TOKENS, f"{name}.{item}")
            slices.append((item, int(self.at[token]) + 1, int(self.at[ends[after - 1]])))
            item, token = after, ends[after - 1]
        return len(ends), slices


def require_bounded(
    body: bytes, bounds: Bounds, long_list: str | None = None, listed: Bounds | None = None
) -> None:
    """Check the size of a body; its top-level list `long_list` has limits of its own.

    Raises:
        PayloadTooLarge: the body has too many values.
    """
    if len(body) <= SMALL_BYTES:
        return
    tokens = _Tokens(body)
    found = tokens.list_of(long_list, bounds.structures) if long_list is not None else None
    if found is None or listed is None:
        tokens.require(bounds, slice(None))
        return
    first, last = found
    tokens.require(bounds, slice(first + 1), slice(last, None))
    tokens.require(listed, slice(first + 1, last))


def outline(body: bytes, bounds: Bounds, long_list: str) -> Outline:
    """Cut the top-level list `long_list` of a body into slices, and check the size of the rest.

    Invalid JSON passes here; the parser reports it.

    Raises:
        PayloadTooLarge: the body has too many values.
    """
    if len(body) <= SMALL_BYTES:
        return Outline(shell=body)
    tokens = _Tokens(body)
    found = tokens.list_of(long_list, bounds.structures)
    if found is None:
        tokens.require(bounds, slice(None))
        return Outline(shell=body)
    first, last = found
    tokens.require(bounds, slice(first + 1), slice(last, None))
    items, slices = tokens.cut(long_list, first, last)
    opening, closing = int(tokens.at[first]) + 1, int(tokens.at[last])
    shell = body[:opening] + body[slices[0][1] : slices[0][2]] + body[closing:]
    return Outline(shell=shell, items=items, _body=body, _slices=slices)


def _block_end(body: bytes, end: int) -> int:
    """An end of a block that splits no escape sequence."""
    if end < len(body) and body[end - 1] == ord("\\"):
        run = _BACKSLASHES.match(body, end)
        assert run is not None
        # one more byte: the last backslash may escape it
        return min(run.end() + 1, len(body))
    return min(end, len(body))


def _without_escapes(block: bytes) -> bytes:
    """Replace escaped backslashes and quotes; the length stays."""
    if b"\\" not in block:
        return block
    return block.replace(b"\\\\", b"__").replace(b'\\"', b"__")


def _too_many(noun: str, most: int, param: str | None = None) -> PayloadTooLarge:
    where = param or "the request body"
    return PayloadTooLarge(f"{where} has more than {most} {noun}; send it in parts", param=param)
