"""Writer thread: shards go to the sink and generations to the caller, off the decode thread."""

import logging
import threading
from dataclasses import replace
from queue import SimpleQueue

import torch

from worker.engine.requests import Generation, GenerationRequest
from worker.engine.runs import RunResults, RunSink
from worker.engine.streaming.capture.record import Shard

log = logging.getLogger(__name__)

_Item = Shard | tuple[GenerationRequest, Generation] | str


class Delivery:
    """Hands out rows and results in the order in which they come.

    Attributes:
        rows: rows that were written, over all hooks.
    """

    def __init__(self, sink: RunSink | None, results: RunResults) -> None:
        self._sink, self._results = sink, results
        self._errors: dict[str, BaseException] = {}
        self._failure: BaseException | None = None
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self.rows = 0
        self._thread = threading.Thread(target=self._run, name="run-delivery", daemon=True)
        self._thread.start()

    def put(self, shard: Shard) -> None:
        """Write a shard; its place is free again afterwards."""
        self._queue.put(shard)

    def done(self, request: GenerationRequest, generation: Generation) -> None:
        """Pass on a generation after everything of it that was put before."""
        self._queue.put((request, generation))

    def reset(self, key: str) -> None:
        """Discard what was written of a request, which will run again."""
        self._queue.put(key)

    def check(self) -> None:
        """Raise what a result's receiver raised."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Wait until everything is handed out, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        with torch.inference_mode():
            while (item := self._queue.get()) is not None:
                try:
                    self._take(item)
                except BaseException as error:  # noqa: BLE001 (raised in the thread that runs the engine)
                    self._failure = self._failure or error
                del item

    def _take(self, item: _Item) -> None:
        if isinstance(item, Shard):
            try:
                self._write(item)
            finally:
                item.free()
        elif isinstance(item, str):
            self._errors.pop(item, None)
            if self._sink is not None:
                self._sink.reset(item)
        else:
            request, generation = item
            error = self._errors.pop(request.key, None)
            if error is not None:
                generation = replace(generation, error=generation.error or error)
            self._results.done(request, generation)

    def _write(self, shard: Shard) -> None:
        if shard.key in self._errors or self._failure is not None:
            return
        assert self._sink is not None
        try:
            chunks = shard.chunks()
            if chunks:
                self._sink.write(shard.key, chunks)
                self.rows += sum(chunk.tensor.shape[0] for chunk in chunks.values())
        except Exception as error:
            log.warning("request %s: its rows could not be stored", shard.key, exc_info=error)
            self._errors[shard.key] = error.with_traceback(None)  # its frames hold the rows
