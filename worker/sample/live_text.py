"""Live text: the text of samples, sent while they are generated.

A thread decodes and sends it, so the decode loop waits for neither tokenizer nor network.
"""

import logging
import threading
from collections.abc import Collection, Sequence

from storage.broker.live_text import LiveTextWriter
from worker.runners.text import SpokenText
from worker.text.text_stream import TextStream
from worker.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

PERIOD_SECONDS = 0.025


class LiveText:
    """Sends the text of a run's samples, from `start` to `stop`."""

    def __init__(self, writer: LiveTextWriter, tokenizer: Tokenizer) -> None:
        self._writer = writer
        self._decode = SpokenText(tokenizer).of
        self._rows: dict[str, _Row] = {}
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live-text", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()
        if self._rows:
            self._writer.fade(self._rows)

    def follow(
        self, sample_id: str, tokens: Sequence[int], stops: Sequence[str], stop_ids: Collection[int]
    ) -> None:
        """Send the text of a sample, to whose `tokens` the engine appends; without that of `stop_ids`."""
        with self._lock:
            self._rows[sample_id] = _Row(tokens, TextStream(self._decode, stops), stop_ids)

    def end(self, sample_id: str) -> None:
        """Follow an ended sample no longer; its text is kept for the readers of the last piece."""
        with self._lock:
            followed = self._rows.pop(sample_id, None)
        if followed is not None:
            self._writer.fade([sample_id])

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
        for sample_id, row in rows.items():
            row.say(row.new_text().encode(errors="replace"))
            if row.unsent:
                pieces.append((sample_id, row.sent, row.unsent))
        if not pieces:
            return
        whole = self._writer.write(pieces)
        for sample_id, row in rows.items():
            row.was_sent(whole=sample_id in whole)


class _Row:
    def __init__(self, tokens: Sequence[int], stream: TextStream, stop_ids: Collection[int]) -> None:
        self._tokens = tokens
        self._stop_ids = stop_ids
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
        said = [token for token in new if token not in self._stop_ids]
        return self._stream.feed(said) if said else ""
