"""Submitting a chat, and waiting for it: for the end of its job, its live text, or its client to disconnect.

One task of a process reads the index and the live text for all of its chats.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType

import anyio
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from actograph.contract.errors import ActographError, Conflict, NotFound, ServiceUnavailable
from actograph.contract.openai import CompletionBase
from actograph.contract.readouts import TokenReadouts
from api.dependencies import Services
from api.kinds.chat import request_field
from api.submit import submit
from storage import samples
from storage.broker.live_readouts import LiveReadouts, readouts_id
from storage.broker.live_text import LiveTextReader
from storage.jobs import jobs
from storage.tables.models import JobRow, SampleRow

log = logging.getLogger(__name__)

#: pause between two reads of live text
PERIOD_SECONDS = 0.025
#: reads of live text for one read of the index
READS_PER_LOOK = 2
#: seconds without text after which a stream is kept alive
PING_SECONDS = 15.0
#: pause between two looks whether a client is still there
CLIENT_SECONDS = 0.25

#: a piece of text of the sample at this place, or values of its readouts; None if the job has ended
Piece = tuple[int, str | list[TokenReadouts]] | None


@dataclass(eq=False)
class _StreamedText:
    """Live text of a sample, read up to `offset` bytes."""

    place: int
    feed: asyncio.Queue[Piece]
    offset: int = 0
    readouts: LiveReadouts | None = None  # if it is no text, but values

    def take(self, piece: bytes) -> None:
        """Put a piece, which has whole characters, into the feed."""
        self.offset += len(piece)
        text = piece.decode(errors="replace")
        if self.readouts is None:
            self.feed.put_nowait((self.place, text))
        elif values := self.readouts.read(text):
            self.feed.put_nowait((self.place, values))


class ChatWatch:
    """Follows the jobs of all waiting chats, and the live text of their samples."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reader = LiveTextReader(services.settings.broker_url)
        self._jobs: dict[str, asyncio.Queue[Piece]] = {}
        self._texts: dict[str, _StreamedText] = {}
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def follow(
        self, job_id: str, sample_ids: Sequence[str] = (), *, readouts: bool = False
    ) -> Iterator[asyncio.Queue[Piece]]:
        """A queue of pieces of the samples' texts, and None at the end of the job or of this process.

        Args:
            readouts: the queue has values of readouts too.
        """
        feed = self._jobs[job_id] = asyncio.Queue()
        texts = {sample_id: _StreamedText(place, feed) for place, sample_id in enumerate(sample_ids)}
        for place, sample_id in enumerate(sample_ids if readouts else ()):
            texts[readouts_id(sample_id)] = _StreamedText(place, feed, readouts=LiveReadouts())
        self._texts |= texts
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            yield feed
        finally:
            self._jobs.pop(job_id, None)
            for name in texts:
                self._texts.pop(name, None)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        await self._reader.close()

    async def _run(self) -> None:
        count = 0
        while self._jobs:
            if count % READS_PER_LOOK == 0:
                ended = await run_in_threadpool(self._ended, list(self._jobs))
                if ended:  # what was written before the end comes before the end
                    await self._read_texts()
                for job_id in ended:
                    if feed := self._jobs.pop(job_id, None):
                        feed.put_nowait(None)
            await self._read_texts()
            await asyncio.sleep(PERIOD_SECONDS)
            count += 1

    def _ended(self, job_ids: list[str]) -> list[str]:
        """The jobs that have ended; a deleted job has too."""
        if self._services.stopping.is_set():
            return job_ids
        try:
            with self._services.database.read() as session:
                active = jobs.active(session, job_ids)
        except SQLAlchemyError as error:
            log.warning("the database does not answer; chats wait on: %s", error)
            return []
        return [job_id for job_id in job_ids if job_id not in active]

    async def _read_texts(self) -> None:
        offsets = {sample_id: text.offset for sample_id, text in self._texts.items()}
        for sample_id, piece in (await self._reader.read(offsets)).items():
            text = self._texts.get(sample_id)
            # Redis puts NUL in place of lost text
            if text is not None and b"\0" not in piece:
                text.take(piece)


@dataclass(frozen=True, kw_only=True)
class Running:
    """A submitted chat, and the request that waits for it."""

    services: Services
    http: Request
    job: JobRow
    samples: Sequence[SampleRow]

    @classmethod
    async def of(
        cls,
        http: Request,
        services: Services,
        owner: str,
        request: CompletionBase,
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> "Running":
        """Submit a request that is answered at once.

        Args:
            names: fields of the chat that have other names in the body, for errors.

        Raises:
            ServiceUnavailable, InvalidRequest: as `submit`; `param` is a field of the body.
        """

        def submitted() -> "Running":
            try:
                row = submit(services, request, owner, starts_now=True)
            except ActographError as error:
                field, dot, rest = (request_field(error.param) or "").partition(".")
                error.param = f"{names.get(field, field)}{dot}{rest}" or None
                raise
            with services.database.read() as session:
                found, _ = samples.find(session, row.id, limit=row.total or 1)
            return cls(services=services, http=http, job=row, samples=found)

        return await run_in_threadpool(submitted)

    async def pieces(self, *, texts: bool, readouts: bool = False) -> AsyncGenerator[Piece, None]:
        """Yield pieces of the samples' texts, and values of their readouts, until the job has ended.

        None comes after a while without text.

        The job is cancelled if the reader stops earlier or the client disconnects.

        Args:
            texts: False waits for the end alone.
            readouts: values too, if the request captures readouts.

        Raises:
            ServiceUnavailable: this process is stopping.
        """
        watch: ChatWatch = self.http.app.state.chats
        has_ended, last = False, time.monotonic()
        try:
            ids = [row.id for row in self.samples] if texts else ()
            has_readouts = readouts and bool((self.job.spec.get("capture") or {}).get("readouts"))
            with watch.follow(self.job.id, ids, readouts=has_readouts) as feed:
                while not await self.http.is_disconnected():
                    found: Piece = None
                    with suppress(TimeoutError):
                        found = await asyncio.wait_for(feed.get(), CLIENT_SECONDS)
                        has_ended = found is None
                    if has_ended:
                        break
                    if found is not None or time.monotonic() > last + PING_SECONDS:
                        last = time.monotonic()
                        yield found
            if self.services.stopping.is_set():
                has_ended = False
                raise ServiceUnavailable("the service is stopping; send the request again")
        finally:
            if not has_ended:
                with anyio.CancelScope(shield=True):
                    await run_in_threadpool(self._cancel)

    def _cancel(self) -> None:
        with suppress(NotFound, Conflict), self.services.database.write() as session:
            jobs.cancel(session, self.job.id)
