"""Rows and results leave on a thread of their own, in order per request.

A sink must not run large torch operations here. On a CPU they give this thread an OpenMP team of its own, and
with more OpenMP threads than cores the forward's barriers slow down. numpy copies do not.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue

from actograph.contract.errors import ActographError
from worker.engine.capture.pool import Block
from worker.engine.capture.record import Shard
from worker.engine.messages import Generation, Results, Sink

log = logging.getLogger(__name__)


class Delivery:
    """Writes shards and reports results. All methods are for the engine's thread.

    Attributes:
        rows: rows written, over all hooks.
    """

    def __init__(self, sink: Sink | None, results: Results) -> None:
        self._sink, self._results = sink, results
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._moved = threading.Condition()
        self._back: list[Block] = []
        self._errors: dict[str, BaseException] = {}  # of requests that their sink failed, until their end
        self._failed: dict[str, BaseException] = {}
        self._waiting = 0  # shards in the queue
        self._error: BaseException | None = None
        self._closing = False
        self.rows = 0
        self._thread = threading.Thread(target=self._run, name="delivery", daemon=True)
        self._thread.start()

    def write(self, key: str, shard: Shard) -> None:
        """Write a shard, then give its blocks back."""

        def work() -> None:
            try:
                self._write(key, shard)
            finally:
                with self._moved:
                    self._back += shard.blocks
                    self._waiting -= 1
                    self._moved.notify_all()

        with self._moved:
            self._waiting += 1
        self._queue.put(work)

    def end(self, generation: Generation) -> None:
        """Report a result after the request's rows."""

        def work() -> None:
            error = self._errors.pop(generation.key, None)
            self._results.done(replace(generation, error=generation.error or error))

        self._queue.put(work)

    def take_back(self) -> list[Block]:
        """Blocks whose rows are written."""
        with self._moved:
            blocks, self._back = self._back, []
            return blocks

    def take_failed(self) -> dict[str, BaseException]:
        """Requests whose sink failed since the last call, and its errors."""
        with self._moved:
            failed, self._failed = self._failed, {}
            return failed

    @property
    def busy(self) -> bool:
        """Whether shards wait to be written."""
        with self._moved:
            return self._waiting > 0

    def wait(self, seconds: float) -> None:
        """Wait until blocks come back."""
        with self._moved:
            if not self._back and self._waiting:
                self._moved.wait(seconds)

    def check(self) -> None:
        """Raise what `Results` raised."""
        if self._error is not None:
            raise self._error

    def close(self, seconds: float) -> bool:
        """Deliver everything, then stop; False if that takes longer. Call it again until it is True."""
        if not self._closing:
            self._closing = True
            self._queue.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _write(self, key: str, shard: Shard) -> None:
        if key in self._errors:
            return
        try:
            chunks = shard.chunks()
            if not chunks:
                return
            if self._sink is None:
                raise ValueError("hooks need a sink")
            self._sink.write(key, chunks)
            self.rows += sum(chunk.count for chunk in chunks.values())
        except Exception as error:
            trace = None if isinstance(error, ActographError) else error
            log.warning("request %s: its rows could not be stored: %s", key, error, exc_info=trace)
            with self._moved:
                self._errors[key] = self._failed[key] = error.with_traceback(None)  # its frames hold the rows

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 (raised in the engine's thread)
                self._error = self._error or error
            del work
