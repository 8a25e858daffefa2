"""Text on its way from a worker to a client, in Redis: what a sample has said so far, for a while.

The worker writes pieces at byte offsets and the API reads on from where it is. A sample that is run again
writes the same text at the same places (draws are reproducible), so that neither a second worker nor a
stale one does harm. Nothing here is the truth: where Redis loses something its writer says it again, and the
index has the whole text in the end.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import redis
import redis.asyncio

log = logging.getLogger(__name__)

KEEP_SECONDS = 900
#: once a sample is no longer run; whoever still reads has the end from the index
FADE_SECONDS = 60
#: after a failure nothing is tried for so long, so that a broker that is away holds nobody up
PAUSE_SECONDS = 2.0
TIMEOUT_SECONDS = 1.0


def _key(sample_id: str) -> str:
    return f"actograph-live:{sample_id}"


class LiveTextWriter:
    """The worker's end."""

    def __init__(self, url: str) -> None:
        self._redis: redis.Redis = redis.Redis.from_url(
            url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS, retry=None
        )
        self._away_until = 0.0

    def write(self, pieces: Sequence[tuple[str, int, bytes]]) -> set[str]:
        """Pieces of samples' texts: sample id, offset in bytes, UTF-8.

        Returns:
            The samples whose text stands there whole. Of others something is lost, this piece or, where
            the broker forgot it, what came before: their writer begins again at offset 0.
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
        """These samples are run no longer: under many chats texts would pile up until their time is over."""

        def shorten(pipe: "redis.client.Pipeline") -> None:
            for sample_id in sample_ids:
                pipe.expire(_key(sample_id), FADE_SECONDS)

        self._send(shorten)

    def _send(self, put: Callable[["redis.client.Pipeline"], None]) -> list[Any]:
        """The answers to what `put` asks for; none where the broker is away."""
        if time.monotonic() < self._away_until:
            return []
        try:
            with self._redis.pipeline(transaction=False) as pipe:
                put(pipe)
                return list(pipe.execute())
        except redis.RedisError as error:
            log.warning("text of chats is not sent while it is generated, the broker is away: %s", error)
            self._away_until = time.monotonic() + PAUSE_SECONDS
            return []

    def close(self) -> None:
        self._redis.close()


class LiveTextReader:
    """The API's end; one connection for all that is followed."""

    def __init__(self, url: str) -> None:
        self._redis = redis.asyncio.Redis.from_url(
            url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS, retry=None
        )
        self._away_until = 0.0

    async def read(self, offsets: Mapping[str, int]) -> dict[str, bytes]:
        """What each sample has said after its first so many bytes, where it has said more."""
        if not offsets or time.monotonic() < self._away_until:
            return {}
        try:
            pipe = self._redis.pipeline(transaction=False)
            for sample_id, offset in offsets.items():
                pipe.getrange(_key(sample_id), offset, -1)
            found = await pipe.execute()
        except redis.RedisError as error:
            log.warning("text of chats cannot be followed, the broker is away: %s", error)
            self._away_until = time.monotonic() + PAUSE_SECONDS
            return {}
        return {sample_id: piece for sample_id, piece in zip(offsets, found, strict=True) if piece}

    async def close(self) -> None:
        await self._redis.aclose()
