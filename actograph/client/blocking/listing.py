# Generated from aio/listing.py by `python actograph/client/unasync.py`: edit that file.
"""Lists of the service: read page by page, or for their first or only item."""

from collections.abc import Iterator
from typing import TypeVar

from actograph.contract.errors import Conflict, NotFound

T = TypeVar("T")


class Listing(Iterator[T]):
    """Items of a list. Pages are fetched as the iterator is read."""

    def __init__(self, items: Iterator[T], name: str) -> None:
        """`name`: the kind of items, for errors."""
        self._items = items
        self._name = name

    def __iter__(self) -> "Listing[T]":
        return self

    def __next__(self) -> T:
        return self._items.__next__()

    def first(self) -> T:
        """Return the first item.

        Raises:
            NotFound: there is none.
        """
        for item in self._items:
            return item
        raise NotFound(f"no {self._name} matches")

    def one(self) -> T:
        """Return the only item.

        Raises:
            NotFound: there is none.
            Conflict: there are several.
        """
        found = self.first()
        for _ in self._items:
            raise Conflict(f"several {self._name}s match; add a filter, or take first()")
        return found
