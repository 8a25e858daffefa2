"""Writer thread: shards go to the sink and generations to the caller, off the decode thread."""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from queue import SimpleQueue

import torch

from worker.engine.requests import Generation, GenerationRequest, RowChunk
from worker.engine.runs import RunResults, RunSink
from worker.engine.streaming.capture.record import Shard

log = logging.getLogger(__name__)

_Item = Shard | tuple[GenerationRequest, Generation] | str


class Delivery:
    """Hands out rows and results in the order in which they come.

    Args:
        shard_bytes: a shared beginning of fewer bytes is written in one chunk with the rows after it.

    Attributes:
        rows: rows that were written, over all hooks.
    """

    def __init__(self, sink: RunSink | None, results: RunResults, shard_bytes: int = 0) -> None:
        self._sink, self._results, self._shard_bytes = sink, results, shard_bytes
        #: rows of shared beginnings, which are written with the rows after them
        self._begun: dict[str, list[dict[str, RowChunk]]] = {}
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
            self._begun.pop(item, None)
            if self._sink is not None:
                self._sink.reset(item)
        else:
            request, generation = item
            self._begun.pop(request.key, None)
            error = self._errors.pop(request.key, None)
            if error is not None:
                generation = replace(generation, error=generation.error or error)
            self._results.done(request, generation)

    def _fits(self, key: str, chunks: Mapping[str, RowChunk]) -> bool:
        """Whether these rows and those of the beginning before them are less than a shard."""
        parts = [*self._begun.get(key, ()), chunks]
        size: int = sum(chunk.tensor.nbytes for part in parts for chunk in part.values())
        return size < self._shard_bytes

    def _write(self, shard: Shard) -> None:
        if shard.key in self._errors or self._failure is not None:
            return
        assert self._sink is not None
        try:
            chunks = shard.chunks()
            if shard.is_shared and self._fits(shard.key, chunks):
                self._begun.setdefault(shard.key, []).append(chunks)
                return
            chunks = _joined([*self._begun.pop(shard.key, ()), chunks])
            if chunks:
                self._sink.write(shard.key, chunks)
                self.rows += sum(chunk.tensor.shape[0] for chunk in chunks.values())
        except Exception as error:
            log.warning("request %s: its rows could not be stored", shard.key, exc_info=error)
            self._errors[shard.key] = error.with_traceback(None)  # its frames hold the rows


def _joined(parts: Sequence[dict[str, RowChunk]]) -> dict[str, RowChunk]:
    """Chunks of consecutive rows as one chunk per hook."""
    if len(parts) == 1:
        return parts[0]
    joined = dict[str, RowChunk]()
    for hook in dict.fromkeys(hook for part in parts for hook in part):
        own = [part[hook] for part in parts if hook in part]
        joined[hook] = own[0]
        if len(own) > 1:
            joined[hook] = replace(
                own[0],
                tensor=torch.cat([chunk.tensor for chunk in own]),
                finite=True if all(chunk.finite for chunk in own) else None,
            )
    return joined
