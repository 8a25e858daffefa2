"""What samples say while they are generated, for all streams of this process with one look at a time."""

import asyncio
import codecs
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from storage.broker.live_text import LiveTextReader

PERIOD_SECONDS = 0.025


class _Followed:
    def __init__(self, place: int, feed: "asyncio.Queue[tuple[int, str]]") -> None:
        self.place = place
        self.feed = feed
        self.offset = 0
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")


class LiveTexts:
    """Reads for whoever follows; stops reading when nobody does."""

    def __init__(self, reader: LiveTextReader) -> None:
        self._reader = reader
        self._followed: dict[str, _Followed] = {}
        self._reading: asyncio.Task[None] | None = None

    @property
    def followed(self) -> int:
        """How many samples are followed just now."""
        return len(self._followed)

    @contextmanager
    def follow(self, sample_ids: Sequence[str]) -> Iterator["asyncio.Queue[tuple[int, str]]"]:
        """A queue of pieces: the sample's place in `sample_ids`, and its next text."""
        feed: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        for place, sample_id in enumerate(sample_ids):
            self._followed[sample_id] = _Followed(place, feed)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        try:
            yield feed
        finally:
            for sample_id in sample_ids:
                self._followed.pop(sample_id, None)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        await self._reader.close()

    async def _read(self) -> None:
        while self._followed:
            offsets = {sample_id: one.offset for sample_id, one in self._followed.items()}
            for sample_id, piece in (await self._reader.read(offsets)).items():
                one = self._followed.get(sample_id)
                # a NUL stands where Redis lost what came before
                if one is None or b"\0" in piece:
                    continue
                one.offset += len(piece)
                text = one.decoder.decode(piece)
                if text:
                    one.feed.put_nowait((one.place, text))
            await asyncio.sleep(PERIOD_SECONDS)
