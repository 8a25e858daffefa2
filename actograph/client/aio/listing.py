"""Lists of the service: read page by page, or for their first or only item."""

from collections.abc import AsyncIterator
from typing import TypeVar

from actograph.contract.errors import Conflict, NotFound

T = TypeVar("T")


class Listing(AsyncIterator[T]):
    """Items of a list. Pages are fetched as the iterator is read."""

    def __init__(self, items: AsyncIterator[T], name: str) -> None:
        """`name`: the kind of items, for errors."""
        self._items = items
        self._name = name

    def __aiter__(self) -> "Listing[T]":
        return self

    async def __anext__(self) -> T:
        return await self._items.__anext__()

    async def first(self) -> T:
        """Return the first item.

        Raises:
            NotFound: there is none.
        """
        async for item in self._items:
            return item
        raise NotFound(f"no {self._name} matches")

    async def one(self) -> T:
        """Return the only item.

        Raises:
            NotFound: there is none.
            Conflict: there are several.
        """
        found = await self.first()
        async for _ in self._items:
            raise Conflict(f"several {self._name}s match; add a filter, or take first()")
        return found
