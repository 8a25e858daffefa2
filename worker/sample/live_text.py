"""Live text: the text of samples, sent while they are generated.

A thread decodes and sends it, so the decode loop waits for neither tokenizer nor network.
"""

import logging
import threading
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from storage.broker.live_text import LiveTextWriter
from storage.queue.leases import LeasedSample
from worker.runners.text import SpokenText
from worker.text.text_stream import TextStream

logger = logging.getLogger(__name__)

PERIOD_SECONDS = 0.025


class LiveText:
    """Sends the text of one batch. Use it as a context manager around the engine's call."""

    def __init__(
        self,
        writer: LiveTextWriter,
        leases: Sequence[LeasedSample],
        tokenizer: PreTrainedTokenizerBase,
        stops: Sequence[str],
    ) -> None:
        """`leases` are those of the engine's requests; only samples with `live` in their input are sent."""
        self._writer = writer
        self._ids = {i: lease.id for i, lease in enumerate(leases) if lease.input.get("live")}
        self._decode = SpokenText(tokenizer).of
        self._stops = stops
        self._rows: dict[int, _Row] = {}
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live-text", daemon=True)

    def __enter__(self) -> "LiveText":
        if self._ids:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._ids:
            self._thread.join()
            self._writer.fade(self._ids.values())

    def on_batch(self, batch: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Follow requests that begin or begin again; the engine appends to their `tokens`."""
        with self._lock:
            for index, growing in zip(batch, tokens, strict=True):
                if index in self._ids:
                    self._rows[index] = _Row(growing, TextStream(self._decode, self._stops))

    def _run(self) -> None:
        try:
            while not self._done.wait(PERIOD_SECONDS):
                self._send()
        except Exception:
            logger.exception("live text stopped; answers are sent when they are complete")

    def _send(self) -> None:
        with self._lock:
            rows = dict(self._rows)
        pieces = []
        for index, row in rows.items():
            row.say(row.new_text().encode(errors="replace"))
            if row.unsent:
                pieces.append((self._ids[index], row.sent, row.unsent))
        if not pieces:
            return
        whole = self._writer.write(pieces)
        for index, row in rows.items():
            row.was_sent(whole=self._ids[index] in whole)


class _Row:
    def __init__(self, tokens: Sequence[int], stream: TextStream) -> None:
        self._tokens = tokens
        self._stream = stream
        self._seen = 0
        self._said = b""
        #: bytes of the text that are in Redis
        self.sent = 0

    @property
    def unsent(self) -> bytes:
        return self._said[self.sent :]

    def say(self, text: bytes) -> None:
        self._said += text

    def was_sent(self, *, whole: bool) -> None:
        """Note that `unsent` was sent; if text was lost on the way, all of it is sent again."""
        if self.unsent:
            self.sent = len(self._said) if whole else 0

    def new_text(self) -> str:
        new = list(self._tokens[self._seen :])
        self._seen += len(new)
        return self._stream.feed(new) if new else ""
