"""Live text: the text of samples and the values of their readouts, sent while they are generated.

A thread decodes and sends it, so the decode loop waits for neither tokenizer nor network.
"""

import logging
import math
import threading
from collections.abc import Collection, Mapping, Sequence

from actograph.contract.readouts import short_name
from storage.broker.live_readouts import header, readouts_id, record
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
        self._values: dict[str, _Values] = {}
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live-text", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()
        if left := [*self._rows, *map(readouts_id, self._values)]:
            self._writer.fade(left)

    def follow(
        self,
        sample_id: str,
        tokens: Sequence[int],
        stops: Sequence[str],
        stop_ids: Collection[int],
        readouts: Sequence[str] = (),
    ) -> None:
        """Send the text of a sample, to whose `tokens` the engine appends; without that of `stop_ids`.

        Args:
            readouts: names of those whose values `value` takes.
        """
        with self._lock:
            if readouts and sample_id not in self._values:
                self._values[sample_id] = _Values(readouts)
            self._rows[sample_id] = _Row(tokens, TextStream(self._decode, stops), stop_ids)

    def value(self, sample_id: str, token: int, values: Mapping[str, float]) -> None:
        """Send the values of a followed sample's readouts of one token."""
        with self._lock:
            told = self._values.get(sample_id)
            if told is not None:
                told.say(record(token, [values.get(name, math.nan) for name in told.names]))

    def send_values(self, sample_id: str) -> None:
        """Send the values of a sample's last tokens now."""
        with self._lock:
            values = self._values.get(sample_id)
        if values is None:
            return
        sent, unsent = values.rest()  # the thread may write the same bytes to the same place
        if unsent:
            self._writer.write([(readouts_id(sample_id), sent, unsent)])

    def end(self, sample_id: str) -> None:
        """Follow an ended sample no longer; its text is kept for the readers of the last piece."""
        with self._lock:
            followed, values = self._rows.pop(sample_id, None), self._values.pop(sample_id, None)
        ended = [sample_id] * (followed is not None) + [readouts_id(sample_id)] * (values is not None)
        if ended:
            self._writer.fade(ended)

    def _run(self) -> None:
        try:
            while not self._done.wait(PERIOD_SECONDS):
                self._send()
        except Exception:
            logger.exception("live text stopped; answers are sent when they are complete")

    def _send(self) -> None:
        with self._lock:
            rows = dict(self._rows)
            values = {readouts_id(sample_id): told for sample_id, told in self._values.items()}
        for row in rows.values():
            row.say(row.new_text().encode(errors="replace"))
        parts: dict[str, _Told] = {**rows, **values}
        rests = {name: part.rest() for name, part in parts.items()}
        pieces = [(name, sent, unsent) for name, (sent, unsent) in rests.items() if unsent]
        if not pieces:
            return
        whole = self._writer.write(pieces)
        for name, sent, unsent in pieces:  # what was lost on the way is sent again
            parts[name].sent = sent + len(unsent) if name in whole else 0


class _Told:
    """Bytes about a sample on their way to Redis."""

    def __init__(self) -> None:
        self._said = b""
        #: bytes that are in Redis
        self.sent = 0

    def rest(self) -> tuple[int, bytes]:
        """How many bytes were sent, and those behind them. Others may say more meanwhile."""
        sent, said = self.sent, self._said
        return sent, said[sent:]

    def say(self, text: bytes) -> None:
        self._said += text


class _Values(_Told):
    """Values of readouts, in records of one length."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names
        self.say(header([short_name(name) for name in names]))


class _Row(_Told):
    def __init__(self, tokens: Sequence[int], stream: TextStream, stop_ids: Collection[int]) -> None:
        super().__init__()
        self._tokens = tokens
        self._stop_ids = stop_ids
        self._stream = stream
        self._seen = 0

    def new_text(self) -> str:
        new = list(self._tokens[self._seen :])
        self._seen += len(new)
        said = [token for token in new if token not in self._stop_ids]
        return self._stream.feed(said) if said else ""
