"""Text of running samples in Redis, on its way from a worker to a client.

The worker writes pieces at byte offsets, and the API reads on from its own offset. A sample that is run again
writes the same text at the same offsets (draws are reproducible), so a second or a stale worker does no
harm. If Redis loses a piece, its writer sends it again; the index has the whole text in the end.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import redis
import redis.asyncio

log = logging.getLogger(__name__)

KEEP_SECONDS = 900
#: for readers that are still behind when a sample has ended
FADE_SECONDS = 60
PAUSE_SECONDS = 2.0
TIMEOUT_SECONDS = 1.0


def _key(sample_id: str) -> str:
    return f"actograph-live:{sample_id}"


class _Outage:
    """Calls to Redis are skipped for some seconds after each failure, so that nobody waits for it."""

    def __init__(self, consequence: str) -> None:
        """`consequence` says in the log what happens meanwhile."""
        self._consequence = consequence
        self._until = float("-inf")

    def holds(self) -> bool:
        """Whether to skip the call."""
        return time.monotonic() < self._until

    def note(self, error: Exception) -> None:
        """Begin a pause."""
        log.warning("Redis failed, %s: %s", self._consequence, type(error).__name__)
        self._until = time.monotonic() + PAUSE_SECONDS


class LiveTextWriter:
    """Writes the text of samples; used by workers."""

    def __init__(self, url: str) -> None:
        """`url`: "" writes nothing."""
        self._redis: redis.Redis | None = None
        if url:
            self._redis = redis.Redis.from_url(
                url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS, retry=None
            )
        self._outage = _Outage("text of chats is not sent while it is generated")

    def write(self, pieces: Sequence[tuple[str, int, bytes]]) -> set[str]:
        """Write pieces of samples' texts: sample id, offset in bytes, UTF-8.

        Returns:
            The samples whose text is whole in Redis. For the others the writer begins again at offset 0.
        """

        def put(pipe: "redis.client.Pipeline") -> None:
            for sample_id, offset, piece in pieces:
                pipe.strlen(_key(sample_id))
                pipe.setrange(_key(sample_id), offset, piece)
                pipe.expire(_key(sample_id), KEEP_SECONDS)

        lengths = self._send(put)[::3]
        return {
            sample_id
            for (sample_id, offset, _), length in zip(pieces, lengths, strict=False)
            if length >= offset
        }

    def fade(self, sample_ids: Iterable[str]) -> None:
        """Keep the texts of ended samples for `FADE_SECONDS` only."""

        def shorten(pipe: "redis.client.Pipeline") -> None:
            for sample_id in sample_ids:
                pipe.expire(_key(sample_id), FADE_SECONDS)

        self._send(shorten)

    def _send(self, put: Callable[["redis.client.Pipeline"], None]) -> list[Any]:
        """Redis's answers to the commands of `put`; empty if Redis does not answer."""
        if self._redis is None or self._outage.holds():
            return []
        try:
            with self._redis.pipeline(transaction=False) as pipe:
                put(pipe)
                return list(pipe.execute())
        except redis.RedisError as error:
            self._outage.note(error)
            return []

    def close(self) -> None:
        if self._redis is not None:
            self._redis.close()


class LiveTextReader:
    """Reads the text of samples; used by the API."""

    def __init__(self, url: str) -> None:
        self._redis = redis.asyncio.Redis.from_url(
            url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS, retry=None
        )
        self._outage = _Outage("text of chats cannot be followed")

    async def read(self, offsets: Mapping[str, int]) -> dict[str, bytes]:
        """The text of each sample after its offset in bytes; samples without new text are left out."""
        if not offsets or self._outage.holds():
            return {}
        try:
            pipe = self._redis.pipeline(transaction=False)
            for sample_id, offset in offsets.items():
                pipe.getrange(_key(sample_id), offset, -1)
            found = await pipe.execute()
        except redis.RedisError as error:
            self._outage.note(error)
            return {}
        return {sample_id: piece for sample_id, piece in zip(offsets, found, strict=True) if piece}

    async def close(self) -> None:
        await self._redis.aclose()
