"""Server-Sent Events, parsed line by line as the HTML standard says.

https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

LAST_EVENTS = frozenset({"job.completed", "job.failed", "job.cancelled"})


@dataclass(frozen=True, kw_only=True)
class Message:
    """One dispatched message. `id` is the last id seen so far, as the standard wants it."""

    id: str
    event: str
    data: str


@dataclass
class Parser:
    """Lines in, messages out; it waits for nothing, so that both clients can use it."""

    _event: str = ""
    _data: list[str] = field(default_factory=list)
    _last_id: str = ""

    def feed(self, line: str) -> Message | None:
        """The message that a line without its end completes; comments and empty messages give none."""
        if not line:
            event, data = self._event, self._data
            self._event, self._data = "", []
            return Message(id=self._last_id, event=event or "message", data="\n".join(data)) if data else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._last_id = value
        return None


def messages(lines: Iterable[str]) -> Iterator[Message]:
    """The messages of lines that are all there."""
    parser = Parser()
    for line in lines:
        message = parser.feed(line)
        if message is not None:
            yield message
